"""Options of a conversion, and the names of what a file can be converted to; cheap to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bitnet.base.errors import UsageError
from bitnet.base.options import option

if TYPE_CHECKING:
    from bitnet.formats.containers import I2SLayout


TERNARY = ("I2_S", "TQ1_0", "TQ2_0", "IQ2_BN", "Q1_0", "Q2_0", "PQ2_0", "PTQ1_0")
FLOATS = ("F32", "F16", "BF16")
BLOCKS = (  # types of rounded numbers, as a tensor may have them
    *("Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0"),
    *("MXFP4", "Q3_K", "Q2_K"),
)
ROUNDED = ("F16", "BF16", *BLOCKS)


class Mix(NamedTuple):
    """A kind of quantized file: the type of most matrices, and its ``general.file_type``."""

    type: str
    file_type: int


#: Kinds of quantized files, by llama-quantize's names.
MIXES = {
    "Q8_0": Mix("Q8_0", 7),
    "Q6_K": Mix("Q6_K", 18),
    "Q5_K_M": Mix("Q5_K", 17),
    "Q5_K_S": Mix("Q5_K", 16),
    "Q5_1": Mix("Q5_1", 9),
    "Q5_0": Mix("Q5_0", 8),
    "Q4_K_M": Mix("Q4_K", 15),
    "Q4_K_S": Mix("Q4_K", 14),
    "IQ4_NL": Mix("IQ4_NL", 25),
    "IQ4_XS": Mix("IQ4_XS", 30),
    "Q4_1": Mix("Q4_1", 3),
    "Q4_0": Mix("Q4_0", 2),
    "MXFP4_MOE": Mix("MXFP4", 38),
    "Q3_K_L": Mix("Q3_K", 13),
    "Q3_K_M": Mix("Q3_K", 12),
    "Q3_K_S": Mix("Q3_K", 11),
    "Q2_K": Mix("Q2_K", 10),
    "Q2_K_S": Mix("Q2_K", 21),
}

ENCODINGS = (*FLOATS, *MIXES, *TERNARY)


@dataclass(frozen=True)
class ConvertOptions:
    """The new file."""

    # A mix gives some matrices larger types. A ternary type applies to the matrices of the
    # blocks, while an embedding and a head that are not ternary are unchanged, or become F16.
    type: str = option(
        "F16",
        "encoding of the matrices; I2_S and those after it are for one-bit and ternary models",
        choices=ENCODINGS,
    )
    imatrix: str = option(
        "", "importance matrix to round by: the GGUF file that llama-imatrix wrote", metavar="FILE"
    )
    tokenizer: str = option(
        "", "tokenizer to embed, instead of the one of the model", metavar="PATH"
    )
    no_tokenizer: bool = option(False, "embed no tokenizer")
    pre: str = option("", "pre-tokenizer name to write if it cannot be detected", metavar="NAME")
    allow_lossy: bool = option(False, "convert even if weights or scales change")
    i2_s_layout: I2SLayout = option(
        "x86", "processor that wrote the I2_S weights of the model", choices=("x86", "arm")
    )
    ignore_key: list[str] = option(
        [], "key of the model to treat as absent, and leave out; may be repeated", metavar="KEY"
    )

    def __post_init__(self) -> None:
        """Check the type, and that the other options go with it."""
        if self.type not in ENCODINGS:
            raise UsageError(f"--type is {self.type!r}, expected one of {', '.join(ENCODINGS)}")
        if self.no_tokenizer and (self.tokenizer or self.pre):
            raise UsageError("--no-tokenizer goes with neither --tokenizer nor --pre")
        if self.type == "Q2_K_S" and not self.imatrix:
            raise UsageError(
                "Q2_K_S needs an importance matrix", hint="name one: --imatrix FILE; or choose Q2_K"
            )
        if self.imatrix and self.type not in MIXES:
            raise UsageError(f"--imatrix goes with types such as Q4_K_M, not with {self.type}")
