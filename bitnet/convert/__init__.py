"""One model file into another: safetensors into GGUF, and one encoding of weights into another.

Every tensor is read back from the finished file and compared with its source before the file gets
its name. What is promised to be exact is: the same codes and scales, or the same numbers. Rounding
float weights to F16, BF16 or Q8_0 is what these encodings are for; anything else that would lose
something is refused unless it is allowed.

Memory stays bounded: some million weights at a time, or one ternary matrix.
"""

from __future__ import annotations

from bitnet.convert.request import ENCODINGS, Request
from bitnet.convert.run import Conversion, convert
from bitnet.convert.tensors import Converted

__all__ = ["ENCODINGS", "Conversion", "Converted", "Request", "convert"]
