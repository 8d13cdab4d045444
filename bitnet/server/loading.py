"""Load a model step by step, with narration; read the facts about one that is not loaded."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bitnet.base.errors import BitnetError, UsageError
from bitnet.base.options import CacheOptions
from bitnet.formats.generation import read_generation_settings
from bitnet.kernels.kv_cache import KVCache
from bitnet.models.load import config_from
from bitnet.runtime.conversation import reasoning_rules
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.store import Store
from bitnet.tokenizer import resolve_tokenizer
from bitnet.tokenizer.load import array_in
from bitnet.wire.gaps import can_fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.gguf import GGUF
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.narration import Narrate
    from bitnet.tokenizer import Tokenizer


T = TypeVar("T")


async def run_detached(work: Callable[[], T]) -> T:
    """Result of *work*, called in a thread that does not keep the process from ending.

    The end of the event loop, and of Python, waits for the threads of asyncio's own pool. Loading a
    model or hashing its files may take minutes, and cannot be cancelled.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():  # its task was cancelled
            return
        if error is None:
            result.set_result(cast("T", value))
        else:
            result.set_exception(error)

    def run() -> None:
        value = failure = None
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, name="bitnet-load", daemon=True).start()
    return await result


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
    """Narrate the content of a GGUF header; anything but texts as tokens is an error."""
    metadata = gguf.metadata
    narrate(
        "gguf_metadata_loaded",
        keys=len(metadata),
        tensors=len(gguf.tensors),
        architecture=metadata.get("general.architecture"),
    )
    narrate("plain", text="Detected GGUF file, extracting embedded tokenizer")
    narrate("gguf_tokenizer_extract_start")
    tokens = array_in(gguf, "tokenizer.ggml.tokens", "strings")
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
    only), ``template`` (empty: none), ``reasons`` (its answers may begin with reasoning), ``fills``
    (it fills gaps), number of ``parameters``, the ``encoding`` of most bytes, the ``generation``
    settings of the model's files, and these ``files``, sorted.
    *context* is the most positions of a sequence; None: as many as the model was trained for.
    """
    config = config_from(checkpoint)
    tokenizer: Tokenizer | None = None
    with suppress(BitnetError):  # loading the model names or fetches one, or reports the error
        tokenizer = resolve_tokenizer(checkpoint)
    template = tokenizer.chat_template if tokenizer is not None else None
    bytes_by_encoding: Counter[str] = Counter()
    for weight in checkpoint.weights.values():
        bytes_by_encoding[weight.quant.name] += weight.size_bytes
    return {
        "architecture": checkpoint.architecture,
        "context": context or config.context_length,
        "dim": config.dim,
        "writes": config.writes,
        "template": template or "",
        "reasons": tokenizer is not None and reasoning_rules(tokenizer, "") is not None,
        "fills": tokenizer is not None and can_fill(tokenizer),
        "parameters": sum(prod(weight.shape) for weight in checkpoint.weights.values()),
        "encoding": bytes_by_encoding.most_common(1)[0][0],
        "generation": read_generation_settings(checkpoint),
        "files": _files_of(checkpoint),
    }


def _files_of(checkpoint: Checkpoint) -> list[Path]:
    """The files of *checkpoint*, sorted: all parts of a GGUF file, or those below its folder."""
    if checkpoint.gguf is not None:
        return sorted(checkpoint.gguf.paths)
    return sorted(file for file in checkpoint.path.rglob("*") if file.is_file())


def digest_of(files: Sequence[Path], folder: Path) -> str:
    """SHA-256, in hexadecimal, of a single file; of several *files*, of a list of their digests.

    The list has a line for each file: its digest, and its path in *folder*.
    """
    store = Store(CacheOptions().root)
    if len(files) == 1:
        return store.digest_of(files[0])
    lines = [f"{store.digest_of(file)} {file.relative_to(folder)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def memory_of(
    checkpoint: Checkpoint, context: int | None, max_batch: int, kv_budget_bytes: int | None
) -> int:
    """Bytes that the model takes at most once it is loaded: weights, and keys and values.

    A model of which no answer fits *kv_budget_bytes* is refused.
    """
    config = config_from(checkpoint)
    positions = context or config.context_length
    cache = KVCache(config, positions)
    kv_bytes = max_batch * cache.cost(positions, PREFILL_CHUNK)
    if kv_budget_bytes is not None:
        check_kv_budget(cache.cost(1, PREFILL_CHUNK), kv_budget_bytes, max_batch)
        kv_bytes = min(kv_bytes, kv_budget_bytes)
    return sum(weight.size_bytes for weight in checkpoint.weights.values()) + kv_bytes


def check_kv_budget(shortest: int, kv_budget_bytes: int, max_batch: int) -> None:
    """Refuse *kv_budget_bytes* unless the shortest answer fits, which takes *shortest* bytes."""
    if shortest > kv_budget_bytes:
        raise UsageError(
            f"keys and values of the shortest answer take {shortest:,} bytes, the budget "
            f"is {kv_budget_bytes:,}",
            # Enough for *max_batch* of them at a time.
            hint=f"--kv-memory {-(-shortest // 10**6) * max_batch}",
        )
