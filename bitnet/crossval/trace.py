"""What an engine says about some prompts, small enough to keep.

Of every position the best tokens with their logits are stored, and the log-sum-exp over the whole
vocabulary, so ``logit - lse`` is an exact log-probability. The JSON form is that of the recorded
goldens: ``prompts[]`` with ``prompt``, ``ids``, ``positions[]`` (``ids``, ``logits``, ``lse``),
``greedy`` and ``top2_gaps``. A position whose logits were not numbers is ``null``, and what could
not be run at all says so in ``error``: an answer that is missing is written down as missing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.errors import InvalidFormat, from_os_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "KEPT",
    "Arithmetic",
    "Position",
    "PromptTrace",
    "Trace",
    "positions_from",
    "read_trace",
    "spread",
    "trace_from",
]

KEPT = 64  # best tokens stored per position
FORMAT = 1
_DIGITS = 8  # behind the point: float32 has no more
_CERTAIN = 1.001  # the sum of probabilities that were rounded when they were written down

# Of products with weights: activations rounded to 8 bit, or floats all the way.
Arithmetic = Literal["int8", "float"]


@dataclass(frozen=True)
class Position:
    """The distribution of the next token.

    Attributes:
        ids: the likeliest tokens, best first; none of them where the logits were not numbers.
        logits: theirs.
        lse: log-sum-exp over the whole vocabulary.
    """

    ids: tuple[int, ...]
    logits: tuple[float, ...]
    lse: float

    @property
    def is_finite(self) -> bool:
        """The logits were numbers."""
        return bool(self.ids) and math.isfinite(self.lse)

    @property
    def gap(self) -> float:
        """How far the second token is behind the best, as a difference of logits."""
        return self.logits[0] - self.logits[1] if len(self.logits) > 1 else float("inf")

    def log_probabilities(self) -> dict[int, float]:
        """By token id."""
        return {token: logit - self.lse for token, logit in zip(self.ids, self.logits, strict=True)}


@dataclass(frozen=True)
class PromptTrace:
    """What an engine says about one prompt.

    Attributes:
        prompt: the text.
        ids: its tokens, as they were run.
        positions: the distribution after each of *ids*, or after the first of them.
        greedy: the likeliest continuation, token by token.
        top2_gaps: by how much each of *greedy* was likelier than the second.
        asked: positions that were asked for; ``None``: one for each of *ids*.
        error: why there is no answer, or only a part of one.
    """

    prompt: str
    ids: tuple[int, ...]
    positions: tuple[Position, ...] = ()
    greedy: tuple[int, ...] = ()
    top2_gaps: tuple[float, ...] = ()
    asked: int | None = None
    error: str = ""

    @property
    def wanted(self) -> int:
        """Positions that a whole answer has."""
        return len(self.ids) if self.asked is None else self.asked


@dataclass(frozen=True)
class Trace:
    """What an engine says about some prompts.

    Attributes:
        engine: its name, for people.
        version: of the engine.
        arithmetic: how it multiplies.
        prompts: in the order they were asked.
        tokenized: ids of the texts it was asked to tokenize; ``None`` where it has no tokenizer.
        decoded: the text it makes of each of these lists of ids, special tokens by their names;
            in a recording of the ids of each prompt; ``None`` where it was not asked.
        model_sha256: of the file it ran, where that is known.
        features: the processor features it says it uses.
        library: file of the engine that computed, without its folder.
        library_sha256: of that file.
    """

    engine: str
    version: str = ""
    arithmetic: Arithmetic = "int8"
    prompts: tuple[PromptTrace, ...] = ()
    tokenized: tuple[tuple[int, ...], ...] | None = None
    decoded: tuple[str, ...] | None = None
    model_sha256: str = ""
    features: str = field(default="", compare=False)
    library: str = ""
    library_sha256: str = ""

    def as_json(self) -> dict[str, Any]:
        """The trace as JSON values."""
        return {
            "format": FORMAT,
            "engine": self.engine,
            "version": self.version,
            "arithmetic": self.arithmetic,
            "model_sha256": self.model_sha256,
            "features": self.features,
            "library": self.library,
            "library_sha256": self.library_sha256,
            "prompts": [_prompt_as_json(one) for one in self.prompts],
            **({} if self.tokenized is None else {"tokenized": list(map(list, self.tokenized))}),
            **({} if self.decoded is None else {"decoded": list(self.decoded)}),
        }


def _prompt_as_json(one: PromptTrace) -> dict[str, Any]:
    return {
        "prompt": one.prompt,
        "ids": list(one.ids),
        "asked": one.wanted,
        "error": one.error,
        "positions": [
            {
                "lse": round(at.lse, _DIGITS),
                "ids": list(at.ids),
                "logits": [round(logit, _DIGITS) for logit in at.logits],
            }
            if at.is_finite
            else None
            for at in one.positions
        ],
        "greedy": list(one.greedy),
        "top2_gaps": [round(gap, _DIGITS) for gap in one.top2_gaps],
    }


_NO_NUMBERS = Position((), (), math.nan)


def positions_from(logits: NDArray[np.floating[Any]], *, kept: int = KEPT) -> list[Position]:
    """The rows of *logits*, ``(T, vocabulary)``, as positions; a row may hold NaN or infinities."""
    rows = np.asarray(logits, dtype=np.float64)
    return [_position_from(row, kept) if np.isfinite(row).all() else _NO_NUMBERS for row in rows]


def _position_from(row: NDArray[np.float64], kept: int) -> Position:
    highest = row.max()
    lse = highest + np.log(np.exp(row - highest).sum())
    some = np.argpartition(-row, min(kept, len(row)) - 1)[:kept]
    # Equal logits: the lower id first, as argmax has it.
    best = some[np.lexsort((some, -row[some]))]
    return Position(tuple(map(int, best)), tuple(map(float, row[best])), float(lse))


def trace_from(values: Mapping[str, Any], *, name: str) -> Trace:
    """The trace that JSON *values* hold; *name* says where they come from.

    Raises:
        InvalidFormat: they are not a trace.
    """
    try:
        tokenized, decoded = values.get("tokenized"), values.get("decoded")
        return Trace(
            engine=str(values["engine"]),
            version=str(values.get("version", "")),
            arithmetic="float" if values.get("arithmetic") == "float" else "int8",
            prompts=tuple(_prompt(one) for one in values["prompts"]),
            tokenized=None
            if tokenized is None
            else tuple(tuple(map(int, ids)) for ids in tokenized),
            decoded=None if decoded is None else tuple(map(str, decoded)),
            model_sha256=str(values.get("model_sha256", "")),
            features=str(values.get("features", "")),
            library=str(values.get("library", "")),
            library_sha256=str(values.get("library_sha256", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFormat(
            f"{name} is not a recorded trace: {type(error).__name__}: {error}",
            hint="record one: bitnet crossval MODEL --record FILE",
        ) from error


def _prompt(values: Mapping[str, Any]) -> PromptTrace:
    ids = tuple(map(int, values["ids"]))
    positions = tuple(map(_position, values["positions"]))
    greedy = tuple(map(int, values.get("greedy", ())))
    gaps = tuple(map(float, values.get("top2_gaps", ())))
    asked = int(values.get("asked", len(ids)))
    if len(positions) > len(ids) or asked > len(ids) or len(gaps) != len(greedy):
        raise ValueError(f"{len(ids)} ids, {len(positions)} positions, {len(gaps)} gaps")
    error = str(values.get("error", ""))
    return PromptTrace(str(values["prompt"]), ids, positions, greedy, gaps, asked, error)


def _position(values: Mapping[str, Any] | None) -> Position:
    if values is None:
        return _NO_NUMBERS
    ids, logits = tuple(map(int, values["ids"])), tuple(map(float, values["logits"]))
    lse = float(values["lse"])
    if not ids or len(ids) != len(logits) or len(set(ids)) != len(ids):
        raise ValueError(f"{len(set(ids))} ids with {len(logits)} logits, expected as many")
    if not all(map(math.isfinite, (*logits, lse))):
        return _NO_NUMBERS
    if list(logits) != sorted(logits, reverse=True):
        raise ValueError("the logits of a position are not in order, best first")
    if math.fsum(math.exp(min(logit - lse, 1.0)) for logit in logits) > _CERTAIN:
        raise ValueError("the probabilities of a position add up to more than 1")
    return Position(ids, logits, lse)


def read_trace(path: Path) -> Trace:
    """The recorded trace in *path*.

    Raises:
        NotFound: there is no such file.
        InvalidFormat: it does not hold a trace.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise from_os_error(error, path) from error
    except ValueError as error:
        raise InvalidFormat(
            f"{path.name} is not JSON: {error}",
            hint="record one: bitnet crossval MODEL --record FILE",
        ) from error
    if not isinstance(values, dict):
        raise InvalidFormat(
            f"{path.name} does not hold a JSON object", hint="choose a recorded trace"
        )
    return trace_from(values, name=path.name)


def spread(lengths: Sequence[int], limit: int) -> list[int]:
    """Positions of each prompt that are compared, at most *limit* in all, as evenly as they go.

    Of every prompt the first positions, as many of each as there is room for; where there are
    more prompts than *limit*, one position of as many of them, evenly chosen.

    Args:
        lengths: tokens of each prompt.
        limit: positions in all.
    """
    filled = [at for at, length in enumerate(lengths) if length]
    if len(filled) > limit:
        filled = [filled[at * len(filled) // limit] for at in range(limit)]
    share = dict.fromkeys(filled, 0)
    left = limit
    for done, at in enumerate(sorted(filled, key=lambda one: lengths[one])):
        share[at] = min(lengths[at], left // (len(filled) - done))
        left -= share[at]
    return [share.get(at, 0) for at in range(len(lengths))]
