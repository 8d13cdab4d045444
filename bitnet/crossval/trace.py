"""Traces: an engine's answers to some prompts, in a compact form; and the engines that are asked.

For every position the best tokens with their logits are stored, and the log-sum-exp over the whole
vocabulary, so ``logit - lse`` is an exact log-probability. In JSON a record has the names of its
fields; the goldens of other programs have ``prompts[]`` with ``prompt``, ``ids``, ``positions[]``
(``ids``, ``logits``, ``lse``), ``greedy`` and ``top2_gaps``. A position whose logits were not
finite has no tokens, and a prompt that could not be run has an ``error``: missing answers are
recorded as missing.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np

from bitnet.base.errors import InvalidFormat, VerificationFailed
from bitnet.base.files import read_json
from bitnet.base.outputs import OutputKind, json_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint

KEPT = 64  # best tokens stored per position
_DIGITS = 10  # significant ones of a logit: float32 has no more
_CERTAIN = 1.001  # tolerance for the sum of rounded probabilities
_MOST = 1e300  # JSON has no infinity: an unlimited difference becomes this number
_RECORD = "record one: bitnet crossval MODEL --record FILE --force"

Record = TypeVar("Record")

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
        return bool(self.ids)

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
        return cast("dict[str, Any]", to_json(self, _DIGITS))


def _is_trace(path: Path) -> bool:
    values = json_in(path)
    return isinstance(values, dict) and {"engine", "prompts", "model_sha256"} <= set(values)


TRACE = OutputKind("a recorded trace", _is_trace)


def positions_from(logits: NDArray[np.floating[Any]], *, count: int = KEPT) -> list[Position]:
    """Rows of *logits*, ``(T, vocabulary)``, as positions; they may contain NaN or infinities."""
    positions: list[Position] = []
    for row in np.asarray(logits, dtype=np.float64):
        if not np.isfinite(row).all():
            positions.append(Position((), (), 0.0))
            continue
        highest = row.max()
        lse = highest + np.log(np.exp(row - highest).sum())
        some = np.argpartition(-row, min(count, len(row)) - 1)[:count]
        # Equal logits: the lower id first, as in argmax.
        best = some[np.lexsort((some, -row[some]))]
        positions.append(Position(tuple(map(int, best)), tuple(map(float, row[best])), float(lse)))
    return positions


def prompt_trace(
    forward: Callable[..., NDArray[np.floating[Any]]], prompt: Prompt, *, count: int = KEPT
) -> PromptTrace:
    """Positions of *prompt*, and its greedy continuation.

    *forward* gives logits of more ids of one sequence, ``(T, vocabulary)``; with
    ``all_positions=False`` only those of the last are needed. A continuation ends early where a
    logit is not finite.
    """
    if not prompt.ids:
        return PromptTrace(prompt.text, ())
    if prompt.first:
        forward(prompt.ids[: prompt.first], all_positions=False)
    logits = forward(prompt.ids[prompt.first :], all_positions=True)
    positions = positions_from(logits, count=count)
    greedy, gaps = [], []
    last = positions[-1]
    for _ in range(prompt.steps):
        if not last.is_finite:
            break
        greedy.append(last.ids[0])
        gaps.append(last.gap)
        (last,) = positions_from(forward([last.ids[0]], all_positions=True), count=2)
    text, first = prompt.text, prompt.first
    return PromptTrace(text, prompt.ids, tuple(positions), tuple(greedy), tuple(gaps), first=first)


def trace_from(values: Mapping[str, Any], *, name: str) -> Trace:
    """The trace in JSON *values*; *name* is their source, for messages."""
    try:
        engine, prompts = values["engine"], values["prompts"]
        engine = engine if isinstance(engine, dict) else {"name": engine}
        whole = {**values, "engine": engine, "prompts": prompts}
        trace = from_json(Trace, whole, name, partial=True)
        for answer in (*trace.prompts, *(trace.exact.prompts if trace.exact else ())):
            _check_answer(answer)
    except (KeyError, TypeError, ValueError, InvalidFormat) as error:
        text = f"{name} is not a recorded trace: {type(error).__name__}: {error}"
        raise InvalidFormat(text, hint=_RECORD) from error
    return trace


def _check_answer(answer: PromptTrace) -> None:
    count, gaps = len(answer.positions), len(answer.top2_gaps)
    if count > len(answer.ids) or gaps != len(answer.greedy):
        raise ValueError(f"{len(answer.ids)} ids, {count} positions, {gaps} gaps")
    for at in answer.positions:
        if len(at.ids) != len(at.logits) or len(set(at.ids)) != len(at.ids):
            raise ValueError(f"{len(set(at.ids))} ids with {len(at.logits)} logits")
        if list(at.logits) != sorted(at.logits, reverse=True):
            raise ValueError("the logits of a position are not in order, best first")
        if math.fsum(math.exp(min(logit - at.lse, 1.0)) for logit in at.logits) > _CERTAIN:
            raise ValueError("the probabilities of a position add up to more than 1")


def to_json(value: Any, digits: int = 6) -> Any:
    """*value* as JSON values, with so many significant digits."""
    if is_dataclass(value):
        return {it.name: to_json(getattr(value, it.name), digits) for it in fields(value)}
    if isinstance(value, dict):
        return {key: to_json(it, digits) for key, it in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(it, digits) for it in value]
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{min(max(value, -_MOST), _MOST):.{digits}g}")
    return value


def from_json(
    kind: type[Record], values: Any, where: str = "the report", *, partial: bool = False
) -> Record:
    """A *kind* from JSON *values*, which messages call *where*.

    In *partial* values, what is missing has its default, and what is unknown is ignored.
    """
    hint = "write the report again"

    def expect(right: bool, value: Any, where: str, expected: object) -> Any:
        if not right:
            text = f"{where} is {str(value)[:60]!r}, expected {expected}"
            raise InvalidFormat(text, hint=hint)
        return value

    def read(kind: Any, values: Any, where: str) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if is_dataclass(kind):
            names = get_type_hints(kind)
            expect(type(values) is dict, values, where, "an object")
            wrong = sorted(names.keys() ^ values.keys())
            if wrong and not partial:
                what = "has an unknown field" if wrong[0] in values else "lacks the field"
                raise InvalidFormat(f"{where} {what} {wrong[0]!r}", hint=hint)
            some, make = names.keys() & values.keys(), cast("Any", kind)
            return make(**{it: read(names[it], values[it], f"{where}.{it}") for it in some})
        if origin is UnionType:
            (inner,) = [it for it in arguments if it is not NoneType]
            return None if values is None else read(inner, values, where)
        if origin is Literal:
            return expect(values in arguments and type(values) is str, values, where, arguments)
        if origin is tuple:
            expect(type(values) is list, values, where, "a list")
            return tuple(read(arguments[0], it, f"{where}[{at}]") for at, it in enumerate(values))
        if origin is dict:
            expect(type(values) is dict, values, where, "an object")
            return {key: read(arguments[1], it, f"{where}.{key}") for key, it in values.items()}
        if kind is float:
            is_number = type(values) in (int, float) and math.isfinite(values)
            return float(expect(is_number, values, where, "a finite number"))
        return expect(type(values) is kind, values, where, kind.__name__)

    result: Record = read(kind, values, where)
    return result


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
    limit_s: float = 300.0  # in which the engine must give each of its answers
    notify: Callable[[str], None] = logger.debug  # called with the progress


class EngineFailed(VerificationFailed):
    """The installed engine did not answer: it crashed, refused the model, or took too long."""


class Reference(ABC):
    """A reference engine."""

    name: str  # on the command line
    independent = True  # it is not this project's code, so the float64 pass can judge it
    recording: Trace | None = None  # where its answers were recorded; else it runs the file now

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


class Recorded(Reference):
    """A recorded trace, which brings its own prompts."""

    name = "recorded"
    recording: Trace

    def __init__(self, path: Path) -> None:
        self.recording = trace_from(read_json(path, hint=_RECORD), name=path.name)

    def trace(self, question: Question) -> Trace:
        """The recorded answers, to the prompts that it brings if any are asked."""
        tokenized, prompts = self.recording.tokenized, self.recording.prompts
        if tokenized is None:
            tokenized = tuple(one.ids for one in prompts)
        asked = prompts if question.prompts else ()
        return replace(self.recording, prompts=asked, tokenized=tokenized)
