"""Traces: an engine's answers to some prompts, in a compact form; and the engines that are asked.

For every position the best tokens with their logits are stored, and the log-sum-exp over the whole
vocabulary, so ``logit - lse`` is an exact log-probability. The JSON schema is that of the recorded
goldens: ``prompts[]`` with ``prompt``, ``ids``, ``positions[]`` (``ids``, ``logits``, ``lse``),
``greedy`` and ``top2_gaps``. A position whose logits were not finite is ``null``, and a prompt that
could not be run has an ``error``: missing answers are recorded as missing.
"""

from __future__ import annotations

import json
import logging
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.base.errors import InvalidFormat, VerificationFailed, from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint

KEPT = 64  # best tokens stored per position
FORMAT = 1
_DIGITS = 8  # behind the point: float32 has no more
_CERTAIN = 1.001  # tolerance for the sum of rounded probabilities

# int8: activations are rounded to 8 bit. float: keys and values to 16. float32: nothing is.
Arithmetic = Literal["int8", "float", "float32"]


@dataclass(frozen=True)
class Position:
    """Distribution of the next token."""

    ids: tuple[int, ...]  # the likeliest tokens, best first; empty if the logits were not finite
    logits: tuple[float, ...]  # their logits
    lse: float  # log-sum-exp over the whole vocabulary

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
class EngineFacts:
    """Engine of one side."""

    name: str  # for people
    version: str = ""  # of the engine
    arithmetic: Arithmetic = "int8"  # of its products; int8, the coarsest, where unknown
    library: str = ""  # file that computed, without its folder
    library_sha256: str = ""  # of that file


@dataclass(frozen=True)
class Prompt:
    """A text to run on both sides."""

    text: str  # the text
    ids: tuple[int, ...]  # its tokens, as far as they are run
    first: int = 0  # index of the first id whose position is compared
    steps: int = 0  # tokens of its greedy continuation
    error: str = ""  # reason why it cannot be run
    tokens: tuple[str, ...] = ()  # text of each of *ids*


@dataclass(frozen=True)
class PromptTrace:
    """An engine's answer to one prompt, with what it ran, which may be something else."""

    prompt: str  # the text
    ids: tuple[int, ...]  # its tokens, as they were run
    # distribution at each of *ids* from *first* on, or at some of these
    positions: tuple[Position, ...] = ()
    greedy: tuple[int, ...] = ()  # the likeliest continuation, token by token
    top2_gaps: tuple[float, ...] = ()  # logit gap of each of *greedy* to the second token
    error: str = ""  # reason for a missing or incomplete answer
    first: int = 0  # index of the id that *positions* begin at


@dataclass(frozen=True)
class Trace:
    """An engine's answers to some prompts."""

    engine: EngineFacts  # what computed them
    prompts: tuple[PromptTrace, ...] = ()  # in the order of the request
    # ids of the texts to tokenize; ``None`` if it has no tokenizer. In a recording, of the whole
    # text of each prompt.
    tokenized: tuple[tuple[int, ...], ...] | None = None
    # its text of each of these lists of ids, with special tokens by name; ``None`` if not requested
    decoded: tuple[str, ...] | None = None
    model_sha256: str = ""  # in a recording, of the file it ran
    exact: Trace | None = None  # in a recording, the float64 pass over the same prompts

    def as_json(self) -> dict[str, Any]:
        """The trace as JSON values."""
        return {
            "format": FORMAT,
            "engine": self.engine.name,
            "version": self.engine.version,
            "arithmetic": self.engine.arithmetic,
            "model_sha256": self.model_sha256,
            "library": self.engine.library,
            "library_sha256": self.engine.library_sha256,
            "prompts": [_prompt_as_json(one) for one in self.prompts],
            **({} if self.tokenized is None else {"tokenized": list(map(list, self.tokenized))}),
            **({} if self.decoded is None else {"decoded": list(self.decoded)}),
            **({} if self.exact is None else {"exact": self.exact.as_json()}),
        }


def _prompt_as_json(answer: PromptTrace) -> dict[str, Any]:
    return {
        "prompt": answer.prompt,
        "ids": list(answer.ids),
        "first": answer.first,
        "error": answer.error,
        "positions": [
            {
                "lse": round(at.lse, _DIGITS),
                "ids": list(at.ids),
                "logits": [round(logit, _DIGITS) for logit in at.logits],
            }
            if at.is_finite
            else None
            for at in answer.positions
        ],
        "greedy": list(answer.greedy),
        "top2_gaps": [round(gap, _DIGITS) for gap in answer.top2_gaps],
    }


_NO_NUMBERS = Position((), (), math.nan)


def positions_from(logits: NDArray[np.floating[Any]], *, kept: int = KEPT) -> list[Position]:
    """Rows of *logits*, ``(T, vocabulary)``, as positions; they may contain NaN or infinities."""
    rows = np.asarray(logits, dtype=np.float64)
    return [_position_from(row, kept) if np.isfinite(row).all() else _NO_NUMBERS for row in rows]


def prompt_trace(
    forward: Callable[..., NDArray[np.floating[Any]]], prompt: Prompt, *, count: int = KEPT
) -> PromptTrace:
    """Positions of *prompt*, and its greedy continuation.

    *forward* gives logits of more ids of one sequence, ``(T, vocabulary)``; with
    ``all_positions=False`` only those of the last are needed. A continuation ends early where a
    logit is not finite.
    """
    if prompt.first:
        forward(prompt.ids[: prompt.first], all_positions=False)
    logits = forward(prompt.ids[prompt.first :], all_positions=True)
    positions = positions_from(logits, kept=count)
    greedy, gaps = [], []
    last = positions[-1]
    for _ in range(prompt.steps):
        if not last.is_finite:
            break
        greedy.append(last.ids[0])
        gaps.append(last.gap)
        (last,) = positions_from(forward([last.ids[0]], all_positions=True), kept=2)
    text, first = prompt.text, prompt.first
    return PromptTrace(text, prompt.ids, tuple(positions), tuple(greedy), tuple(gaps), first=first)


def _position_from(row: NDArray[np.float64], kept: int) -> Position:
    highest = row.max()
    lse = highest + np.log(np.exp(row - highest).sum())
    some = np.argpartition(-row, min(kept, len(row)) - 1)[:kept]
    # Equal logits: the lower id first, as in argmax.
    best = some[np.lexsort((some, -row[some]))]
    return Position(tuple(map(int, best)), tuple(map(float, row[best])), float(lse))


def trace_from(values: Mapping[str, Any], *, name: str) -> Trace:
    """The trace in JSON *values*; *name* is their source, for messages."""
    try:
        tokenized, decoded = values.get("tokenized"), values.get("decoded")
        engine = EngineFacts(
            str(values["engine"]),
            str(values.get("version", "")),
            _arithmetic(values.get("arithmetic")),
            str(values.get("library", "")),
            str(values.get("library_sha256", "")),
        )
        return Trace(
            engine,
            tuple(_prompt(one) for one in values["prompts"]),
            None if tokenized is None else tuple(tuple(map(int, ids)) for ids in tokenized),
            None if decoded is None else tuple(map(str, decoded)),
            str(values.get("model_sha256", "")),
            None if values.get("exact") is None else trace_from(values["exact"], name=name),
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
    if len(positions) > len(ids) or len(gaps) != len(greedy):
        raise ValueError(f"{len(ids)} ids, {len(positions)} positions, {len(gaps)} gaps")
    error, first = str(values.get("error", "")), int(values.get("first", 0))
    return PromptTrace(str(values["prompt"]), ids, positions, greedy, gaps, error, first)


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
    """Read the recorded trace in *path*."""
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


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """Request to a reference."""

    checkpoint: Checkpoint  # the model
    prompts: tuple[Prompt, ...] = ()  # to run; without any, the weights are not needed
    texts: tuple[tuple[str, bool], ...] = ()  # to tokenize, each with true if BOS and EOS are added
    threads: int = 1  # compute threads
    notify: Callable[[str], None] = logger.debug  # called with the progress


class EngineFailed(VerificationFailed):
    """The installed engine did not answer: it crashed, refused the model, or took too long."""


class Reference(ABC):
    """A reference engine.

    Attributes:
        name: on the command line.
        independent: it is not this project's code, so the float64 pass can judge it.
        recording: its answers, where they were recorded; otherwise it runs the file here and now.
    """

    name: str
    independent = True
    recording: Trace | None = None

    def reads(self, checkpoint: Checkpoint) -> bool:
        """True if it supports such a model."""
        return checkpoint.path.is_file()

    def is_installed(self) -> bool:
        """True if it is installed."""
        return True

    @abstractmethod
    def trace(self, question: Question) -> Trace:
        """Its answers."""

    def arithmetic(self, _checkpoint: Checkpoint) -> Arithmetic:
        """Arithmetic of its products with the weights of a model."""
        return "float"

    def intermediates(self, _question: Question) -> Mapping[str, NDArray[Any]] | None:
        """Intermediates of a pass over the only prompt, by llama.cpp's names; None if it has none.

        Keys and values (``Kcur-3``, ``Vcur-3``) have a row for each id, all others for the last
        :data:`bitnet.crossval.operations.ROWS`.
        """
        return None

    def routers(self, _question: Question) -> Sequence[Mapping[str, NDArray[Any]]] | None:
        """Logits of the routers of each prompt, by layer, ``(T, experts)``; None if it has none."""
        return None


class Recorded(Reference):
    """A recorded trace, which brings its own prompts."""

    name = "recorded"
    recording: Trace

    def __init__(self, path: Path) -> None:
        self.recording = read_trace(path)

    def trace(self, question: Question) -> Trace:
        """The recorded answers to *question*, limited to its prompts and steps."""
        recording, exact = self.recording, self.recording.exact
        tokenized = recording.tokenized
        if tokenized is None:
            tokenized = tuple(one.ids for one in recording.prompts)
        alone = tuple(replace(prompt, steps=0) for prompt in question.prompts)
        return replace(
            recording,
            prompts=_select(recording, question.prompts),
            tokenized=tokenized,
            exact=exact and replace(exact, prompts=_select(exact, alone)),
        )


def _select(recording: Trace, prompts: tuple[Prompt, ...]) -> tuple[PromptTrace, ...]:
    """The answers of *recording* to *prompts*."""
    left = list(recording.prompts)
    answers = []
    for prompt in prompts:
        count = len(prompt.ids)
        while left and (left[0].prompt != prompt.text or left[0].ids[:count] != prompt.ids):
            del left[0]
        if left:
            answers.append(_cut(left.pop(0), prompt))
    return tuple(answers)


def _cut(answer: PromptTrace, prompt: Prompt) -> PromptTrace:
    """*answer* for the ids of *prompt* alone, its positions from its first on, and its steps."""
    skipped, count = max(prompt.first - answer.first, 0), len(prompt.ids)
    return replace(
        answer,
        ids=answer.ids[:count],
        positions=answer.positions[skipped : count - answer.first],
        greedy=answer.greedy[: prompt.steps],
        top2_gaps=answer.top2_gaps[: prompt.steps],
        first=max(prompt.first, answer.first),
    )
