"""Which models below a folder lack a tokenizer, and what kind they need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.errors import NotFound, from_os_error
from bitnet.formats import not_a_model
from bitnet.invocation import word
from bitnet.tokenizer.discover import Search
from bitnet.tokenizer.model_facts import model_facts

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Need", "find_models", "need_of"]

_LATER_PART = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf", re.DOTALL)


@dataclass(frozen=True)
class Need:
    """One model and its tokenizer.

    Attributes:
        model: the GGUF file, or the folder with safetensors.
        architecture: ``general.architecture`` or ``model_type``.
        vocab_size: ids it needs, 0 if it does not say.
        present: where a complete tokenizer was found, in words; empty if there is none.
        reason: why what was found cannot be used; empty if nothing was found.
    """

    model: Path
    architecture: str
    vocab_size: int
    present: str
    reason: str = ""


def find_models(folder: Path) -> list[Path]:
    """GGUF files and folders with safetensors and ``config.json`` below *folder*, sorted.

    Raises:
        NotFound: *folder* does not exist, or holds no model.
        PermissionDenied: it cannot be read.
    """
    try:
        if not folder.is_dir():
            if folder.exists():
                raise NotFound(
                    f"{folder} is a file, expected a folder",
                    hint=f"name its folder: {word(folder.parent)}",
                )
            raise not_a_model.missing(folder)
        files = [path for path in folder.rglob("*.gguf") if path.is_file()]
        weights = {path.parent for path in folder.rglob("*.safetensors")}
    except OSError as error:
        raise from_os_error(error, folder) from error
    found = [path for path in files if not _LATER_PART.fullmatch(path.name)]
    found += [path for path in weights if (path / "config.json").is_file()]
    if not found:
        raise not_a_model.folder_without_model(folder)
    return sorted(found)


def need_of(model: Path) -> Need:
    """What *model* needs: nothing if a complete tokenizer is embedded or lies beside it.

    Raises:
        InvalidFormat: the model is damaged, or does not say how many tokens it has.
        NotFound: it is not there.
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
