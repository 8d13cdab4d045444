"""Load a model step by step, with narration; read the facts about one that is not loaded."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError
from bitnet.base.options import CacheOptions
from bitnet.formats.generation import read_generation_settings
from bitnet.kernels.kv_cache import KVCache
from bitnet.models.load import config_from
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.store import Store
from bitnet.tokenizer import resolve_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.gguf import GGUF
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.narration import Narrate


def open_narrated(open_file: Callable[[], Checkpoint], narrate: Narrate) -> Checkpoint:
    """The checkpoint that *open_file* opens, without reading weights; its header is narrated."""
    with narrate_failure(narrate):
        checkpoint = open_file()
        if checkpoint.gguf is not None:
            _describe(checkpoint.gguf, narrate)
        return checkpoint


def load_narrated(
    checkpoint: Checkpoint, load: Callable[[Checkpoint], LanguageModel], narrate: Narrate
) -> LanguageModel:
    """The model that *load* makes of the open *checkpoint*; its steps are narrated."""
    with narrate_failure(narrate):
        model = load(checkpoint)
    count = model.tokenizer.vocab_size
    if checkpoint.gguf is not None:
        if model.tokenizer.source.startswith("embedded"):
            narrate("gguf_tokenizer_extracted", vocab_size=count)
        architecture = model.config.architecture
        narrate(
            "gguf_load_complete", architecture=architecture, vocab_size=count, load_s=model.load_s
        )
        narrate("plain", text="GGUF model loaded successfully")
    narrate("device_init", backend=model.backend)
    narrate("model_load_success", file=model.path.name, context=model.context)
    return model


@contextmanager
def narrate_failure(narrate: Narrate) -> Iterator[None]:
    """Narrate an error raised here as the reason why a model does not load."""
    try:
        yield
    except BitnetError as error:
        narrate("model_load_failed", message=error.message)
        raise


def _describe(gguf: GGUF, narrate: Narrate) -> None:
    """Narrate the content of a GGUF header."""
    metadata = gguf.metadata
    narrate(
        "gguf_metadata_loaded",
        keys=len(metadata),
        tensors=len(gguf.tensors),
        architecture=metadata.get("general.architecture"),
    )
    narrate("plain", text="Detected GGUF file, extracting embedded tokenizer")
    narrate("gguf_tokenizer_extract_start")
    tokens = metadata.get("tokenizer.ggml.tokens")
    kind = metadata.get("tokenizer.ggml.model")
    if tokens is None:
        narrate("plain", text="Missing tokenizer.ggml.tokens")
        return
    narrate("gguf_vocab_size_derived", vocab_size=len(tokens))
    pre = metadata.get("tokenizer.ggml.pre")
    narrate("gguf_tokenizer_metadata_extracted", model=kind, pre=pre)


def read_header(checkpoint: Checkpoint, context: int | None) -> dict[str, Any]:
    """Facts about the open *checkpoint*.

    ``architecture`` (GGUF's), ``context`` in positions, ``dim``, ``writes`` (False: vectors
    only), ``template`` (empty: none), number of ``parameters``, the ``encoding`` of most bytes,
    and the ``generation`` settings of the model's files.
    *context* bounds the positions of a sequence; ``None``: as many as it was made for.
    """
    config = config_from(checkpoint)
    try:
        template = resolve_tokenizer(checkpoint).chat_template or ""
    except BitnetError:  # loading the model names or fetches a tokenizer, or reports the error
        template = ""
    bytes_of: Counter[str] = Counter()
    for weight in checkpoint.weights.values():
        bytes_of[weight.quant.name] += weight.size_bytes
    return {
        "architecture": checkpoint.architecture,
        "context": context or config.context_length,
        "dim": config.dim,
        "writes": config.writes,
        "template": template,
        "parameters": sum(prod(weight.shape) for weight in checkpoint.weights.values()),
        "encoding": bytes_of.most_common(1)[0][0],
        "generation": read_generation_settings(checkpoint),
    }


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or of the names and digests of a folder's files."""
    store = Store(CacheOptions().root)
    if path.is_file():
        return store.digest_of(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{store.digest_of(file)} {file.relative_to(path)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def memory_of(
    checkpoint: Checkpoint, context: int | None, max_batch: int, kv_budget_bytes: int | None
) -> int:
    """Bytes that the model takes at most once it is loaded: weights, and keys and values."""
    config = config_from(checkpoint)
    positions = context or config.context_length
    kv_bytes = max_batch * KVCache(config, positions).cost(positions, PREFILL_CHUNK)
    if kv_budget_bytes is not None:
        kv_bytes = min(kv_bytes, kv_budget_bytes)
    return sum(weight.size_bytes for weight in checkpoint.weights.values()) + kv_bytes
