"""A tokenizer other than the model's, used only on request and with a measure of its error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bitnet.tokenizer.comparison import Agreement, measure_agreement
from bitnet.tokenizer.load import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.tokenizer.tokenizer import Tokenizer

__all__ = ["Approximation", "approximate"]


@dataclass(frozen=True)
class Approximation:
    """A stand-in for a model's tokenizer.

    Attributes:
        name: as requested, such as ``cl100k_base``.
        tokenizer: the stand-in; its ids have other meanings for the model.
        agreement: with the model's own tokenizer, ``None`` if unknown.
    """

    name: str
    tokenizer: Tokenizer
    agreement: Agreement | None

    def __str__(self) -> str:
        if self.agreement is None:
            return f"approximate: {self.name}; how far it agrees is not known without the exact one"
        return f"approximate: {self.name}: {self.agreement}"

    def facts(self) -> dict[str, object]:
        """Notice for every report made with it."""
        share = None if self.agreement is None else round(self.agreement.ratio, 4)
        return {"approximate": True, "tokenizer": self.name, "agreement": share}


def approximate(name: str, path: Path, *, exact: Tokenizer | None = None) -> Approximation:
    """The tokenizer at *path* as a stand-in named *name*, measured against *exact*.

    Raises:
        BitnetError: as for :func:`bitnet.tokenizer.load.load_tokenizer`.
    """
    stand_in = load_tokenizer(path)
    stand_in.source = f"approximate: {name}"
    if exact is None:
        return Approximation(name, stand_in, None)
    ours, theirs = (partial(entry.encode, add_special=False) for entry in (stand_in, exact))
    return Approximation(name, stand_in, measure_agreement(ours, theirs))
