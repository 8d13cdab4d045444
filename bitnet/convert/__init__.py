"""One model file into another: safetensors into GGUF, and one encoding of weights into another.

A plan says what will be written, how large it gets, and which engines will compute it differently.
What has to be refused is refused before anything is written. Every tensor is read back from the
finished file and compared with its source before the file gets its name. What is promised to be
exact is: the same codes and scales, or the same numbers. Rounding float weights to F16, BF16, Q8_0
and below is what these encodings are for; anything else that would lose something is refused unless
it is allowed. What it cost is measured on a text.

Memory stays bounded: some million weights at a time, or one ternary matrix.
"""

from __future__ import annotations

from bitnet.convert.cost import Cost, measure
from bitnet.convert.request import ENCODINGS, Request
from bitnet.convert.run import Conversion, Plan, convert, plan_conversion
from bitnet.convert.tensors import Converted

__all__ = [
    "ENCODINGS",
    "Conversion",
    "Converted",
    "Cost",
    "Plan",
    "Request",
    "convert",
    "measure",
    "plan_conversion",
]
