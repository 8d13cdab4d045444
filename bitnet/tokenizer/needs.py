"""Find the models below a folder that lack a tokenizer, and the kind they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.errors import NotFound, from_os_error
from bitnet.formats import not_a_model
from bitnet.formats.model_files import models_below
from bitnet.invocation import word
from bitnet.tokenizer.discover import Search
from bitnet.tokenizer.model_facts import model_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["Need", "find_models", "need_of"]


@dataclass(frozen=True)
class Need:
    """One model and its tokenizer.

    Attributes:
        model: the GGUF file, or the folder with safetensors.
        architecture: ``general.architecture`` or ``model_type``.
        vocab_size: number of ids, 0 if unknown.
        present: place of a complete tokenizer, in words; empty if there is none.
        reason: reason why the tokenizer found is unusable; empty if none was found.
    """

    model: Path
    architecture: str
    vocab_size: int
    present: str
    reason: str = ""


def find_models(
    folder: Path, *, among: Callable[[Path], Iterable[Path]] = models_below
) -> list[Path]:
    """The models below *folder*, sorted.

    Args:
        folder: to look through.
        among: what counts as one.

    Raises:
        NotFound: *folder* does not exist, or contains no model.
        PermissionDenied: it or a folder in it is not readable.
    """
    try:
        if not folder.is_dir():
            if folder.exists():
                raise NotFound(
                    f"{folder} is a file, expected a folder",
                    hint=f"name its folder: {word(folder.parent)}",
                )
            raise not_a_model.missing(folder)
    except OSError as error:
        raise from_os_error(error, folder) from error
    found = sorted(among(folder))
    if not found:
        raise not_a_model.folder_without_model(folder)
    return found


def need_of(model: Path) -> Need:
    """Requirement of *model*: none if a complete tokenizer is embedded or next to it.

    Raises:
        InvalidFormat: the model is damaged, or does not tell its number of tokens.
        NotFound: it does not exist.
    """
    facts = model_facts(model)
    search = Search(facts, places=("embedded", "sibling", "parent")).run()
    rejected = (entry for entry in search.candidates if entry.verdict == "rejected")
    first = next(rejected, None)
    reason = f"{first.path}: {first.reason}" if first is not None else ""
    if search.tokenizer is None:
        return Need(model, facts.architecture, facts.vocab_size, "", reason)
    where = "embedded" if search.place == "embedded" else str(search.candidates[-1].path)
    present = f"{where}, {search.tokenizer.vocab_size:,} tokens"
    return Need(model, facts.architecture, facts.vocab_size, present)
