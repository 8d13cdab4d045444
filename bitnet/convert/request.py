"""Options of a conversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.base.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.formats.containers import I2SLayout

__all__ = ["ENCODINGS", "ROUNDED", "TERNARY", "ConversionRequest"]

TERNARY = ("I2_S", "TQ1_0", "TQ2_0", "IQ2_BN", "Q1_0", "Q2_0", "PQ2_0", "PTQ1_0")
ROUNDED = ("F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
ENCODINGS = ("F32", *ROUNDED, *TERNARY)


@dataclass(frozen=True)
class ConversionRequest:
    """Options of the new file.

    Attributes:
        type: type of the matrices, one of :data:`ENCODINGS`; a ternary one applies to those of the
            blocks, while an embedding and a head that are not ternary are unchanged, or become F16.
        tokenizer: file or folder with the tokenizer; by default the one of the source.
        no_tokenizer: leave the tokenizer out.
        pre: name of the pre-tokenizer, if it cannot be determined.
        allow_lossy: allow a loss beyond the rounding of floats.
        i2_s_layout: processor that wrote the I2_S weights of the source.
        ignore_keys: metadata keys of the source to ignore; the new file lacks them.
    """

    type: str
    tokenizer: Path | None = None
    no_tokenizer: bool = False
    pre: str | None = None
    allow_lossy: bool = False
    i2_s_layout: I2SLayout = "x86"
    ignore_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.type not in ENCODINGS:
            raise UsageError(f"--type is {self.type!r}, expected one of {', '.join(ENCODINGS)}")
        if self.no_tokenizer and (self.tokenizer or self.pre):
            raise UsageError("--no-tokenizer goes with neither --tokenizer nor --pre")
