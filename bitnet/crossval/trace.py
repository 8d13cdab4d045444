"""What an engine says about some prompts, small enough to keep.

Of every position the best tokens with their logits are stored, and the log-sum-exp over the whole
vocabulary, so ``logit - lse`` is an exact log-probability. The JSON form is that of the recorded
goldens: ``prompts[]`` with ``prompt``, ``ids``, ``positions[]`` (``ids``, ``logits``, ``lse``),
``greedy`` and ``top2_gaps``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.errors import InvalidFormat, from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["KEPT", "Arithmetic", "Position", "PromptTrace", "Trace", "positions_from", "read_trace"]

KEPT = 64  # best tokens stored per position
FORMAT = 1
_DIGITS = 8  # behind the point: float32 has no more

# Of products with weights: activations rounded to 8 bit, or floats all the way.
Arithmetic = Literal["int8", "float"]


@dataclass(frozen=True)
class Position:
    """The distribution of the next token.

    Attributes:
        ids: the likeliest tokens, best first.
        logits: theirs.
        lse: log-sum-exp over the whole vocabulary.
    """

    ids: tuple[int, ...]
    logits: tuple[float, ...]
    lse: float

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
    """

    prompt: str
    ids: tuple[int, ...]
    positions: tuple[Position, ...]
    greedy: tuple[int, ...] = ()
    top2_gaps: tuple[float, ...] = ()


@dataclass(frozen=True)
class Trace:
    """What an engine says about some prompts.

    Attributes:
        engine: its name, for people.
        version: of the engine.
        arithmetic: how it multiplies.
        prompts: in the order they were asked.
        tokenized: ids of the texts it was asked to tokenize; ``None`` where it has no tokenizer.
        model_sha256: of the file it ran, where that is known.
        features: the processor features it says it uses.
    """

    engine: str
    version: str = ""
    arithmetic: Arithmetic = "int8"
    prompts: tuple[PromptTrace, ...] = ()
    tokenized: tuple[tuple[int, ...], ...] | None = None
    model_sha256: str = ""
    features: str = field(default="", compare=False)

    def as_json(self) -> dict[str, Any]:
        """The trace as JSON values."""
        return {
            "format": FORMAT,
            "engine": self.engine,
            "version": self.version,
            "arithmetic": self.arithmetic,
            "model_sha256": self.model_sha256,
            "features": self.features,
            "prompts": [
                {
                    "prompt": one.prompt,
                    "ids": list(one.ids),
                    "positions": [
                        {
                            "lse": round(at.lse, _DIGITS),
                            "ids": list(at.ids),
                            "logits": [round(logit, _DIGITS) for logit in at.logits],
                        }
                        for at in one.positions
                    ],
                    "greedy": list(one.greedy),
                    "top2_gaps": [round(gap, _DIGITS) for gap in one.top2_gaps],
                }
                for one in self.prompts
            ],
            **({} if self.tokenized is None else {"tokenized": list(map(list, self.tokenized))}),
        }


def positions_from(logits: NDArray[np.floating[Any]], *, kept: int = KEPT) -> list[Position]:
    """The rows of *logits*, ``(T, vocabulary)``, as positions."""
    rows = np.asarray(logits, dtype=np.float64)
    highest = rows.max(axis=1)
    lse = highest + np.log(np.exp(rows - highest[:, None]).sum(axis=1))
    found = []
    for row, total in zip(rows, lse, strict=True):
        some = np.argpartition(-row, min(kept, len(row)) - 1)[:kept]
        # Equal logits: the lower id first, as argmax has it.
        best = some[np.lexsort((some, -row[some]))]
        values = tuple(float(value) for value in row[best])
        found.append(Position(tuple(map(int, best)), values, float(total)))
    return found


def trace_from(values: Mapping[str, Any], *, name: str) -> Trace:
    """The trace that JSON *values* hold; *name* says where they come from.

    Raises:
        InvalidFormat: they are no trace.
    """
    try:
        tokenized = values.get("tokenized")
        return Trace(
            engine=str(values["engine"]),
            version=str(values.get("version", "")),
            arithmetic="float" if values.get("arithmetic") == "float" else "int8",
            prompts=tuple(_prompt(one) for one in values["prompts"]),
            tokenized=None
            if tokenized is None
            else tuple(tuple(map(int, ids)) for ids in tokenized),
            model_sha256=str(values.get("model_sha256", "")),
            features=str(values.get("features", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFormat(
            f"{name} is no recorded trace: {type(error).__name__}: {error}",
            hint="record one: bitnet crossval --record FILE",
        ) from error


def _prompt(values: Mapping[str, Any]) -> PromptTrace:
    ids = tuple(map(int, values["ids"]))
    positions = tuple(_position(at) for at in values["positions"])
    greedy = tuple(map(int, values.get("greedy", ())))
    gaps = _finite(values.get("top2_gaps", ()))
    if len(positions) > len(ids) or len(gaps) != len(greedy):
        raise ValueError(f"{len(ids)} ids, {len(positions)} positions, {len(gaps)} gaps")
    return PromptTrace(str(values["prompt"]), ids, positions, greedy, gaps)


def _position(values: Mapping[str, Any]) -> Position:
    ids, logits = tuple(map(int, values["ids"])), _finite(values["logits"])
    if not ids or len(ids) != len(logits) or list(logits) != sorted(logits, reverse=True):
        raise ValueError(f"{len(ids)} ids with {len(logits)} logits, expected as many, best first")
    return Position(ids, logits, *_finite([values["lse"]]))


def _finite(values: Iterable[Any]) -> tuple[float, ...]:
    numbers = tuple(map(float, values))
    if not all(np.isfinite(numbers)):
        raise ValueError("a logit is no finite number")
    return numbers


def read_trace(path: Path) -> Trace:
    """The recorded trace in *path*.

    Raises:
        NotFound: there is no such file.
        InvalidFormat: it holds no trace.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise from_os_error(error, path) from error
    except ValueError as error:
        raise InvalidFormat(
            f"{path.name} is no JSON: {error}", hint="record one: bitnet crossval --record FILE"
        ) from error
    if not isinstance(values, dict):
        raise InvalidFormat(f"{path.name} holds no JSON object", hint="choose a recorded trace")
    return trace_from(values, name=path.name)


def first_positions(
    prompts: Sequence[tuple[str, Sequence[int]]], limit: int
) -> list[tuple[str, list[int]]]:
    """*prompts* cut so that there are at most *limit* tokens in all."""
    kept = []
    for text, ids in prompts:
        part = list(ids)[: max(limit, 0)]
        limit -= len(part)
        if part:
            kept.append((text, part))
    return kept
