"""The float64 pass: our graph in NumPy and double precision, the yardstick for both sides.

It rounds only where the model's format itself does (ternary weights with int8 activations).
Answers are cached in ``<cache>/reports``: they depend only on the file, the ids and this package's
code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bitnet
from bitnet.crossval.trace import PromptTrace, Trace, prompt_trace, trace_from
from bitnet.errors import InvalidFormat
from bitnet.files import write_text
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import registry
from bitnet.quants.weight import Weight
from bitnet.runtime.kv_cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Array
    from bitnet.models.transformer import Model

__all__ = ["exact_trace"]

logger = logging.getLogger(__name__)

# More tokens than other traces, so that it contains theirs.
KEPT = 256
_MOST_BYTES = 4 << 30  # weights in float64 at a time
_ROWS = 1 << 14  # rows of a matrix converted to float64 at a time
_CODE = (
    "crossval",
    "families",
    "formats",
    "kernels",
    "models",
    "quants",
)  # packages that affect an answer


def exact_trace(
    checkpoint: Checkpoint,
    prompts: Sequence[tuple[str, Sequence[int]]],
    *,
    greedy: int = 0,
    cache: Path | None = None,
    model_sha256: str = "",
    notify: Callable[[str], None] = logger.debug,
) -> Trace:
    """The float64 pass over *prompts*.

    Args:
        checkpoint: the model.
        prompts: texts with their ids.
        greedy: steps of each greedy continuation.
        cache: folder for answers; not cached without it, or without *model_sha256*.
        model_sha256: of the model's file.
        notify: called with the progress.
    """
    encodings = sorted({weight.quant.name for weight in checkpoint.weights.values()})
    read = [checkpoint.inventory.digest, *encodings, *sorted(checkpoint.ignored)]
    kept = _Kept(cache if model_sha256 else None, read, greedy)
    requested = list(dict.fromkeys(tuple(ids) for _, ids in prompts if ids))
    answers = {(): PromptTrace("", ())} | {
        ids: one for ids in requested if (one := kept.get(ids)) is not None
    }
    missing = [ids for ids in requested if ids not in answers]
    if missing:
        logger.info("float64 pass over %s, %d prompts", checkpoint.path.name, len(missing))
        model = load_model(checkpoint, ops=_ops_for(checkpoint))
        for done, one in enumerate(_run(model, missing, greedy), 1):
            notify(f"float64 pass: {done} of {len(missing)} prompts")
            kept.put(one)
            answers[one.ids] = one
    return Trace(
        engine="float64",
        version=f"NumPy {np.__version__}",
        arithmetic="float",
        prompts=tuple(replace(answers[tuple(ids)], prompt=text) for text, ids in prompts),
        model_sha256=model_sha256,
    )


class _Unpacking(ReferenceOps):
    """Float64 with matrices unpacked on every use: slow, for models that do not fit."""

    def __init__(self) -> None:
        super().__init__(dtype=np.float64)

    def prepare(self, weight: Weight, *, looked_up: bool = False) -> Any:
        ternary = registry.rounds_activations(weight)
        if ternary or len(weight.shape) != 2:
            return super().prepare(weight, looked_up=looked_up)
        return weight

    def embed(self, table: Any, tokens: Sequence[int]) -> Array:
        if not isinstance(table, Weight):
            return super().embed(table, tokens)
        rows: Array = registry.dequantize(table)[np.asarray(tokens)].astype(self.dtype)
        return rows

    def linear(self, x: Array, weight: Any, bias: Any | None = None) -> Array:
        if not isinstance(weight, Weight):
            return super().linear(x, weight, bias)
        rows = registry.dequantize(weight)
        parts = [
            x @ rows[at : at + _ROWS].T.astype(self.dtype) for at in range(0, len(rows), _ROWS)
        ]
        y: Array = np.concatenate(parts, axis=1)
        return y if bias is None else y + bias


def _ops_for(checkpoint: Checkpoint) -> ReferenceOps:
    """Weights as float64, all at once if they fit, else one matrix at a time."""
    size = sum(8 * math.prod(weight.shape) for weight in checkpoint.weights.values())
    return ReferenceOps(dtype=np.float64) if size <= _MOST_BYTES else _Unpacking()


def _run(model: Model, prompts: Sequence[tuple[int, ...]], steps: int) -> Iterator[PromptTrace]:
    for ids in prompts:
        cache = KVCache(model.config, len(ids) + steps + 1, dtype=np.float64)
        cache.reach = len(ids)
        forward = partial(model.forward, cache=cache, all_positions=True)
        yield prompt_trace(forward, ids, steps, kept=KEPT)


@cache
def _code_digest() -> str:
    """SHA-256 over the sources that determine the float64 pass."""
    root = Path(bitnet.__file__).parent
    sources = [path for folder in _CODE for path in sorted((root / folder).glob("*.py"))]
    digest = hashlib.sha256(np.__version__.encode())
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Kept:
    """Answers on disk, one file per prompt."""

    def __init__(self, folder: Path | None, model: Sequence[str], greedy: int) -> None:
        self._folder = folder
        self._model = model  # the file, and how it is read
        self._greedy = greedy

    def _path(self, ids: Sequence[int]) -> Path | None:
        if self._folder is None:
            return None
        key = json.dumps([_code_digest(), self._model, self._greedy, list(ids)])
        return self._folder / f"float64-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"

    def get(self, ids: Sequence[int]) -> PromptTrace | None:
        path = self._path(ids)
        try:
            if path is None or not path.exists():
                return None
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            (one,) = trace_from(values, name=path.name).prompts
        except (OSError, ValueError, InvalidFormat):
            return None  # computed again
        return one if one.ids == tuple(ids) else None

    def put(self, one: PromptTrace) -> None:
        path = self._path(one.ids)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(Trace("float64", prompts=(one,)).as_json()))
