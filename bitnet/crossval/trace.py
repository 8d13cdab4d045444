"""Traces: an engine's answers to some prompts, in a compact form.

For every position the best tokens with their logits are stored, and the log-sum-exp over the whole
vocabulary, so ``logit - lse`` is an exact log-probability. The JSON schema is that of the recorded
goldens: ``prompts[]`` with ``prompt``, ``ids``, ``positions[]`` (``ids``, ``logits``, ``lse``),
``greedy`` and ``top2_gaps``. A position whose logits were not finite is ``null``, and a prompt that
could not be run has an ``error``: missing answers are recorded as missing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.base.errors import InvalidFormat, from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "KEPT",
    "Arithmetic",
    "Position",
    "PromptTrace",
    "Trace",
    "positions_from",
    "prompt_trace",
    "read_trace",
    "spread",
    "trace_from",
]

KEPT = 64  # best tokens stored per position
FORMAT = 1
_DIGITS = 8  # behind the point: float32 has no more
_CERTAIN = 1.001  # tolerance for the sum of rounded probabilities

# int8: activations are rounded to 8 bit. float: keys and values to 16. float32: nothing is.
Arithmetic = Literal["int8", "float", "float32"]


@dataclass(frozen=True)
class Position:
    """Distribution of the next token.

    Attributes:
        ids: the likeliest tokens, best first; empty if the logits were not finite.
        logits: their logits.
        lse: log-sum-exp over the whole vocabulary.
    """

    ids: tuple[int, ...]
    logits: tuple[float, ...]
    lse: float

    @property
    def is_finite(self) -> bool:
        """True if the logits were finite."""
        return bool(self.ids) and math.isfinite(self.lse)

    @property
    def gap(self) -> float:
        """Difference of the logits of the best and the second token."""
        return self.logits[0] - self.logits[1] if len(self.logits) > 1 else float("inf")

    def log_probabilities(self) -> dict[int, float]:
        """Log-probabilities by token id."""
        return {token: logit - self.lse for token, logit in zip(self.ids, self.logits, strict=True)}


@dataclass(frozen=True)
class PromptTrace:
    """An engine's answer to one prompt.

    Attributes:
        prompt: the text.
        ids: its tokens, as they were run.
        positions: distribution at each of *ids* from *first* on, or at some of these.
        greedy: the likeliest continuation, token by token.
        top2_gaps: logit gap of each of *greedy* to the second token.
        asked: number of *ids* that were run; ``None``: all.
        error: reason for a missing or incomplete answer.
        first: index of the id that *positions* begin at.
    """

    prompt: str
    ids: tuple[int, ...]
    positions: tuple[Position, ...] = ()
    greedy: tuple[int, ...] = ()
    top2_gaps: tuple[float, ...] = ()
    asked: int | None = None
    error: str = ""
    first: int = 0

    @property
    def n_requested(self) -> int:
        """Number of ids of a complete answer."""
        return len(self.ids) if self.asked is None else self.asked


@dataclass(frozen=True)
class Trace:
    """An engine's answers to some prompts.

    Attributes:
        engine: its name, for people.
        version: of the engine.
        arithmetic: of its products.
        prompts: in the order of the request.
        tokenized: ids of the texts to tokenize; ``None`` if it has no tokenizer.
        decoded: its text of each of these lists of ids, with special tokens by name; in a
            recording, of the ids of each prompt; ``None`` if not requested.
        model_sha256: of the file it ran, if known.
        features: processor features that it reports.
        library: file of the engine that computed, without its folder.
        library_sha256: of that file.
        exact: the float64 pass over the same prompts, in a recording.
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
    exact: Trace | None = None

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
            **({} if self.exact is None else {"exact": self.exact.as_json()}),
        }


def _prompt_as_json(one: PromptTrace) -> dict[str, Any]:
    return {
        "prompt": one.prompt,
        "ids": list(one.ids),
        "asked": one.n_requested,
        "first": one.first,
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
    """Rows of *logits*, ``(T, vocabulary)``, as positions; they may contain NaN or infinities."""
    rows = np.asarray(logits, dtype=np.float64)
    return [_position_from(row, kept) if np.isfinite(row).all() else _NO_NUMBERS for row in rows]


def prompt_trace(
    forward: Callable[..., NDArray[np.floating[Any]]],
    ids: Sequence[int],
    steps: int,
    *,
    first: int = 0,
    kept: int = KEPT,
) -> PromptTrace:
    """Positions of the prompt *ids*, and its greedy continuation.

    Args:
        forward: logits of more ids of one sequence, ``(T, vocabulary)``; with
            ``all_positions=False`` only those of the last are needed.
        ids: the prompt, at least one id.
        first: index of the first id whose position is returned.
        steps: tokens of the continuation, which ends early where a logit is not finite.
        kept: best tokens stored per position of the prompt.
    """
    if first:
        forward(ids[:first], all_positions=False)
    positions = positions_from(forward(ids[first:], all_positions=True), kept=kept)
    greedy, gaps = [], []
    last = positions[-1]
    for _ in range(steps):
        if not last.is_finite:
            break
        greedy.append(last.ids[0])
        gaps.append(last.gap)
        (last,) = positions_from(forward([last.ids[0]], all_positions=True), kept=2)
    return PromptTrace("", tuple(ids), tuple(positions), tuple(greedy), tuple(gaps), first=first)


def _position_from(row: NDArray[np.float64], kept: int) -> Position:
    highest = row.max()
    lse = highest + np.log(np.exp(row - highest).sum())
    some = np.argpartition(-row, min(kept, len(row)) - 1)[:kept]
    # Equal logits: the lower id first, as in argmax.
    best = some[np.lexsort((some, -row[some]))]
    return Position(tuple(map(int, best)), tuple(map(float, row[best])), float(lse))


def trace_from(values: Mapping[str, Any], *, name: str) -> Trace:
    """The trace in JSON *values*; *name* is their source, for messages.

    Raises:
        InvalidFormat: they are not a trace.
    """
    try:
        tokenized, decoded = values.get("tokenized"), values.get("decoded")
        return Trace(
            engine=str(values["engine"]),
            version=str(values.get("version", "")),
            arithmetic=_arithmetic(values.get("arithmetic")),
            prompts=tuple(_prompt(one) for one in values["prompts"]),
            tokenized=None
            if tokenized is None
            else tuple(tuple(map(int, ids)) for ids in tokenized),
            decoded=None if decoded is None else tuple(map(str, decoded)),
            model_sha256=str(values.get("model_sha256", "")),
            features=str(values.get("features", "")),
            library=str(values.get("library", "")),
            library_sha256=str(values.get("library_sha256", "")),
            exact=None if values.get("exact") is None else trace_from(values["exact"], name=name),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFormat(
            f"{name} is not a recorded trace: {type(error).__name__}: {error}",
            hint="record one: bitnet crossval MODEL --record FILE",
        ) from error


def _arithmetic(name: object) -> Arithmetic:
    """The arithmetic *name*; that of recordings without one is int8."""
    return "float" if name == "float" else "float32" if name == "float32" else "int8"


def _prompt(values: Mapping[str, Any]) -> PromptTrace:
    ids = tuple(map(int, values["ids"]))
    positions = tuple(map(_position, values["positions"]))
    greedy = tuple(map(int, values.get("greedy", ())))
    gaps = tuple(map(float, values.get("top2_gaps", ())))
    asked = int(values.get("asked", len(ids)))
    if len(positions) > len(ids) or asked > len(ids) or len(gaps) != len(greedy):
        raise ValueError(f"{len(ids)} ids, {len(positions)} positions, {len(gaps)} gaps")
    error, first = str(values.get("error", "")), int(values.get("first", 0))
    return PromptTrace(str(values["prompt"]), ids, positions, greedy, gaps, asked, error, first)


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
    """Read the recorded trace in *path*.

    Raises:
        NotFound: the file does not exist.
        InvalidFormat: it does not contain a trace.
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
    """Number of positions of each prompt to compare, at most *limit* in all, evenly distributed.

    The first positions of every prompt, as many of each as fit; if there are more prompts than
    *limit*, one position each of evenly chosen prompts.

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
