"""A model that can be served: its name, where it is, and what its header says."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from bitnet.errors import BitnetError
from bitnet.models.load import config_from
from bitnet.options import CacheOptions
from bitnet.runtime.kv_cache import KVCache
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.store import Store
from bitnet.tokenizer import resolve_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.worker import WorkerLimits

__all__ = ["Facts", "ModelSource", "digest_of", "facts_of", "memory_of"]


@dataclass(frozen=True)
class ModelSource:
    """A model that can be served.

    Attributes:
        name: the model's, for clients.
        path: the file or folder.
        open: opens it, as :func:`bitnet.formats.containers.open_checkpoint`.
        load: loads what *open* gave, tokenizer included.
        aliases: other names that clients may use.
        context: positions a sequence may reach; ``None``: as many as the model was made for.
    """

    name: str
    path: Path
    open: Callable[[], Checkpoint]
    load: Callable[[Checkpoint], LanguageModel]
    aliases: tuple[str, ...] = ()
    context: int | None = None


@dataclass(frozen=True)
class Facts:
    """The header of a model.

    Attributes:
        architecture: GGUF's ``general.architecture``.
        context: positions a sequence may reach.
        dim: length of a hidden state.
        writes: whether it writes text; one that does not makes vectors only.
        template: the chat template; empty where there is none.
        parameters: numbers in its weights.
        encoding: of most of its weights.
    """

    architecture: str
    context: int
    dim: int
    writes: bool
    template: str
    parameters: int
    encoding: str


def facts_of(source: ModelSource) -> Facts:
    """The header of the model at *source*, of which no weight is read.

    Raises:
        BitnetError: it is not a model that can be run.
    """
    checkpoint = source.open()
    config = config_from(checkpoint)
    try:
        template = resolve_tokenizer(checkpoint).chat_template or ""
    except BitnetError:  # to be named, or fetched, when the model is loaded
        template = ""
    bytes_of: Counter[str] = Counter()
    for weight in checkpoint.weights.values():
        bytes_of[weight.quant.name] += weight.data.nbytes
    return Facts(
        architecture=checkpoint.architecture,
        context=source.context or config.context_length,
        dim=config.dim,
        writes=config.writes,
        template=template,
        parameters=sum(prod(weight.shape) for weight in checkpoint.weights.values()),
        encoding=bytes_of.most_common(1)[0][0],
    )


def digest_of(path: Path) -> str:
    """SHA-256 of a file, computed once; of the names and digests of its files for a folder."""
    store = Store(CacheOptions().root)
    if path.is_file():
        return store.digest_of(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{store.digest_of(file)} {file.relative_to(path)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def memory_of(checkpoint: Checkpoint, context: int | None, limits: WorkerLimits) -> int:
    """Bytes that the model takes at most once it is loaded: weights, and keys and values.

    Args:
        checkpoint: the open model.
        context: positions a sequence may reach; ``None``: as many as it was made for.
        limits: of the worker.

    Raises:
        BitnetError: it is not a model that can be run.
    """
    config = config_from(checkpoint)
    positions = context or config.context_length
    kv_bytes = limits.max_batch * KVCache(config, positions).cost(positions, PREFILL_CHUNK)
    if limits.kv_budget_bytes is not None:
        kv_bytes = min(kv_bytes, limits.kv_budget_bytes)
    return sum(weight.data.nbytes for weight in checkpoint.weights.values()) + kv_bytes
