"""Options of a conversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bitnet.base.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.formats.containers import I2SLayout

__all__ = [
    "BLOCKS",
    "ENCODINGS",
    "FLOATS",
    "MIXTURES",
    "ROUNDED",
    "TERNARY",
    "ConversionRequest",
    "Mixture",
]


class Mixture(NamedTuple):
    """A kind of quantized file: the type of most matrices, and its ``general.file_type``."""

    type: str
    file_type: int


#: Kinds of quantized files, by llama-quantize's names.
MIXTURES = {
    "Q8_0": Mixture("Q8_0", 7),
    "Q6_K": Mixture("Q6_K", 18),
    "Q5_K_M": Mixture("Q5_K", 17),
    "Q5_K_S": Mixture("Q5_K", 16),
    "Q5_1": Mixture("Q5_1", 9),
    "Q5_0": Mixture("Q5_0", 8),
    "Q4_K_M": Mixture("Q4_K", 15),
    "Q4_K_S": Mixture("Q4_K", 14),
    "IQ4_NL": Mixture("IQ4_NL", 25),
    "IQ4_XS": Mixture("IQ4_XS", 30),
    "Q4_1": Mixture("Q4_1", 3),
    "Q4_0": Mixture("Q4_0", 2),
    "MXFP4_MOE": Mixture("MXFP4", 38),
    "Q3_K_L": Mixture("Q3_K", 13),
    "Q3_K_M": Mixture("Q3_K", 12),
    "Q3_K_S": Mixture("Q3_K", 11),
    "Q2_K": Mixture("Q2_K", 10),
    "Q2_K_S": Mixture("Q2_K", 21),
}

TERNARY = ("I2_S", "TQ1_0", "TQ2_0", "IQ2_BN", "Q1_0", "Q2_0", "PQ2_0", "PTQ1_0")
FLOATS = ("F32", "F16", "BF16")
BLOCKS = (  # types of rounded numbers, as a tensor may have them
    *("Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0"),
    *("MXFP4", "Q3_K", "Q2_K"),
)
ROUNDED = ("F16", "BF16", *BLOCKS)
ENCODINGS = (*FLOATS, *MIXTURES, *TERNARY)


@dataclass(frozen=True)
class ConversionRequest:
    """Options of the new file.

    Attributes:
        type: type of the matrices, one of :data:`ENCODINGS`. A mixture gives some matrices larger
            types. A ternary one applies to those of the blocks, while an embedding and a head that
            are not ternary are unchanged, or become F16.
        tokenizer: file or folder with the tokenizer; by default the one of the source.
        no_tokenizer: leave the tokenizer out.
        pre: name of the pre-tokenizer, if it cannot be determined.
        allow_lossy: allow a loss beyond the rounding of floats.
        i2_s_layout: processor that wrote the I2_S weights of the source.
        ignore_keys: metadata keys of the source to ignore; the new file lacks them.
        pure: give every matrix of a mixture the same type.
        output_tensor_type: type of the output head in a mixture.
        token_embedding_type: type of the embedding in a mixture.
        imatrix: file with an importance matrix, for a mixture.
    """

    type: str
    tokenizer: Path | None = None
    no_tokenizer: bool = False
    pre: str | None = None
    allow_lossy: bool = False
    i2_s_layout: I2SLayout = "x86"
    ignore_keys: tuple[str, ...] = ()
    pure: bool = False
    output_tensor_type: str | None = None
    token_embedding_type: str | None = None
    imatrix: Path | None = None

    def __post_init__(self) -> None:
        if self.type not in ENCODINGS:
            raise UsageError(f"--type is {self.type!r}, expected one of {', '.join(ENCODINGS)}")
        if self.no_tokenizer and (self.tokenizer or self.pre):
            raise UsageError("--no-tokenizer goes with neither --tokenizer nor --pre")
        self._check_mixture()

    def _check_mixture(self) -> None:
        own = {
            "--pure": self.pure,
            "--imatrix": self.imatrix,
            "--output-tensor-type": self.output_tensor_type,
            "--token-embedding-type": self.token_embedding_type,
        }
        if self.type == "Q2_K_S" and self.imatrix is None:
            raise UsageError(
                "Q2_K_S needs an importance matrix", hint="name one: --imatrix FILE; or choose Q2_K"
            )
        for option, value in own.items():
            if value and self.type not in MIXTURES:
                raise UsageError(
                    f"{option} goes with quantized types such as Q4_K_M, not with {self.type}"
                )
            if option.endswith("-type") and value and value not in (*FLOATS, *BLOCKS):
                raise UsageError(
                    f"{option} is {value!r}, expected one of {', '.join((*FLOATS, *BLOCKS))}"
                )
