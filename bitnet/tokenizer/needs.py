"""Which models below a folder lack a tokenizer, and what kind they need."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.errors import BitnetError, InvalidFormat, NotFound, from_os_error
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.from_gguf import spec_from_gguf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Need", "find_models", "need_of"]

logger = logging.getLogger(__name__)

# Embedding matrices are padded to round sizes; more spare rows than this are another vocabulary.
MAX_PADDING = 1024
_LATER_PART = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf", re.DOTALL)
_NAMES = ("tokenizer.json", "tokenizer.model")


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
            raise NotFound(f"no folder {folder}", hint="inv download-model --id smollm2-135m")
        files = [path for path in folder.rglob("*.gguf") if path.is_file()]
        weights = {path.parent for path in folder.rglob("*.safetensors")}
    except OSError as error:
        raise from_os_error(error, folder) from error
    found = [path for path in files if not _LATER_PART.fullmatch(path.name)]
    found += [path for path in weights if (path / "config.json").is_file()]
    if not found:
        raise NotFound(
            f"no model in {folder}: neither *.gguf nor *.safetensors with config.json",
            hint="inv download-model --id smollm2-135m",
        )
    return sorted(found)


def need_of(model: Path) -> Need:
    """What *model* needs: nothing if a complete tokenizer is embedded or lies beside it.

    Raises:
        InvalidFormat: the model is damaged.
        NotFound: it is not there.
    """
    architecture, size, present, reason = _folder(model) if model.is_dir() else _gguf(model)
    logger.info("Discovering tokenizer strategy for %s model (vocab_size: %d)", architecture, size)
    if present:
        return Need(model, architecture, size, present)
    for path in _beside(model):
        if not path.is_file():
            continue
        try:
            count = len(spec_from_file(path).tokens)
        except BitnetError as error:
            reason = reason or f"{path}: {error.message}"
            continue
        if 0 <= size - count < MAX_PADDING:
            return Need(model, architecture, size, f"{path}, {count:,} tokens")
        reason = reason or f"{path} does not fit: Model: {size}, Tokenizer: {count}"
    return Need(model, architecture, size, "", reason)


def _gguf(path: Path) -> tuple[str, int, str, str]:
    """Architecture, vocabulary size, embedded tokenizer in words, why there is none."""
    with GGUF.open(path) as gguf:
        tokens = gguf.metadata.get("tokenizer.ggml.tokens", ())
        declared = gguf.metadata.get(f"{gguf.architecture}.vocab_size")
        embedding = gguf.tensors.get("token_embd.weight")
        rows = embedding.shape[0] if embedding is not None and embedding.shape else 0
        size = len(tokens) or (declared if isinstance(declared, int) else 0) or rows
        try:
            count = len(spec_from_gguf(gguf).tokens)
        except BitnetError as error:
            return gguf.architecture, size, "", error.message if tokens else ""
        return gguf.architecture, count, f"embedded, {count:,} tokens", ""


def _folder(folder: Path) -> tuple[str, int, str, str]:
    path = folder / "config.json"
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise from_os_error(error, path) from error
    except (ValueError, RecursionError) as error:
        raise InvalidFormat(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InvalidFormat(f"{path} is not a JSON object")
    text = config.get("text_config")
    config = {**(text if isinstance(text, dict) else {}), **config}
    size = config.get("vocab_size")
    return str(config.get("model_type", "")), size if isinstance(size, int) else 0, "", ""


def _beside(model: Path) -> Iterator[Path]:
    folder = model if model.is_dir() else model.parent
    if model.is_file():
        yield folder / f"{model.stem}.tokenizer.json"
    for place in (folder, folder.parent):
        for name in _NAMES:
            yield place / name
