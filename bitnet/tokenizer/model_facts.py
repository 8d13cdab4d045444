"""A model's requirements on its tokenizer: family, vocabulary size, embedding rows.

``model_facts`` takes a path or an open checkpoint. The file stays open in the result, so that its
tokenizer can be read without opening it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat
from bitnet.base.invocation import word
from bitnet.formats import not_a_model
from bitnet.formats.checkpoint import Checkpoint
from bitnet.formats.gguf import GGUF
from bitnet.formats.inventory import Inventory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Embedding matrices are padded to round sizes; more spare rows than this: another vocabulary.
MAX_PADDING = 1024


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model that concern its tokenizer."""

    path: Path  # the GGUF file or the folder
    architecture: str  # ``general.architecture``, or ``model_type`` of ``config.json``
    declared: int | None  # vocabulary size in the metadata, ``None`` if absent (normal for GGUF)
    token_count: int  # tokens in the embedded list, 0 if there is none
    embedding_rows: int | None  # rows of the token embedding, ``None`` in files without weights
    filler_tokens: int = 0  # tokens at its end that only pad it to the embedding (``[PAD151665]``)
    repository: str = ""  # repository named by the model, empty if unknown
    gguf: GGUF | None = None  # the open file; ``None`` for a folder
    files: Inventory | None = None  # of an open folder; ``None`` for others

    @property
    def vocab_size(self) -> int:
        """Number of ids: the embedded list, else the metadata, else the embedding rows."""
        size = self.token_count or self.declared or self.embedding_rows
        if not size:
            raise InvalidFormat(
                f"{self.path}: no vocabulary size: neither tokenizer.ggml.tokens nor "
                f"{self.architecture}.vocab_size nor token_embd.weight is there",
                hint=f"bitnet inspect-gguf {word(self.path)}",
            )
        return size

    @property
    def folder(self) -> Path:
        """The folder with its files."""
        return self.path if self.gguf is None else self.path.parent

    @property
    def family(self) -> str:
        """Name of the model in messages: its architecture without version suffixes."""
        return "bitnet" if self.architecture.startswith("bitnet") else self.architecture

    def padding(self, vocab_size: int) -> int | None:
        """Spare embedding rows with a vocabulary of that size; ``None`` if it does not fit."""
        if self.token_count not in (0, vocab_size, vocab_size + self.filler_tokens):
            return None
        rows = self.embedding_rows or self.declared or self.token_count
        spare = (rows or vocab_size) - vocab_size
        return spare if 0 <= spare < MAX_PADDING else None


def model_facts(model: str | Path | Checkpoint) -> ModelFacts:
    """Facts of a GGUF file or of a folder with ``config.json``, or of either when it is open."""
    if isinstance(model, Checkpoint):
        if model.gguf is not None:
            return _gguf_facts(model.gguf)
        return _config_facts(model.path, model.config or {}, model.inventory)
    path = Path(model)
    if not path.exists():
        raise not_a_model.missing(path)
    if not path.is_dir():
        return _gguf_facts(GGUF.open(path))
    files = Inventory(path)
    if "config.json" not in files:
        raise not_a_model.folder_without_model(path)
    return _config_facts(path, files.json("config.json", dict), files)


def _gguf_facts(gguf: GGUF) -> ModelFacts:
    """Facts of an open GGUF file."""
    metadata = gguf.metadata
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    embedding = gguf.tensors.get("token_embd.weight")
    return ModelFacts(
        path=gguf.path,
        architecture=gguf.architecture,
        declared=_whole(metadata, f"{gguf.architecture}.vocab_size"),
        token_count=len(tokens),
        embedding_rows=int(embedding.shape[0]) if embedding and embedding.shape else None,
        filler_tokens=_fillers(tokens),
        repository=_repository(metadata),
        gguf=gguf,
    )


def _fillers(tokens: Sequence[str]) -> int:
    """Number of tokens at the end of the list that converters added to match the embedding."""
    count = len(tokens)
    last = count
    while last and tokens[last - 1] == f"[PAD{last - 1}]":
        last -= 1
    return count - last


def _config_facts(folder: Path, config: Mapping[str, Any], files: Inventory) -> ModelFacts:
    inner = config.get("text_config")
    text = {**(inner if isinstance(inner, dict) else {}), **config}
    return ModelFacts(
        path=folder,
        architecture=str(text.get("model_type", "unknown")),
        declared=_whole(text, "vocab_size"),
        token_count=0,
        embedding_rows=_whole(text, "vocab_size"),
        repository=str(text.get("_name_or_path", "")),
        files=files,
    )


def _whole(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and value > 0 else None


def _repository(metadata: Mapping[str, Any]) -> str:
    """``org/name`` from the keys about a model's origin; empty if there is none."""
    for key in ("general.source.huggingface.repository", "general.source.url", "general.repo_url"):
        value = metadata.get(key)
        parts = value.rstrip("/").split("/") if isinstance(value, str) else ()
        if len(parts) >= 2:
            return "/".join(parts[-2:])
    return ""
