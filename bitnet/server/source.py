"""A model that can be served: its name, where it is, and what its header says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.errors import BitnetError
from bitnet.models.load import config_from
from bitnet.runtime.kv_cache import KVCache
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.tokenizer import resolve_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.worker import WorkerLimits

__all__ = ["Facts", "ModelSource", "facts_of", "facts_of_loaded", "memory_of"]


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
    """

    architecture: str
    context: int
    dim: int
    writes: bool
    template: str


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
    context = source.context or config.context_length
    return Facts(checkpoint.architecture, context, config.dim, config.writes, template)


def facts_of_loaded(model: LanguageModel) -> Facts:
    """The same of *model*."""
    config = model.config
    template = model.tokenizer.chat_template or ""
    return Facts(config.architecture, model.context, config.dim, config.writes, template)


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
