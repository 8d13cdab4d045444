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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from bitnet.base.errors import InvalidFormat, VerificationFailed
from bitnet.crossval.records import from_json, to_json
from bitnet.formats.generation import GenerationSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.models.transformer import Model

logger = logging.getLogger(__name__)

KEPT = 64  # best tokens stored per position
_DIGITS = 10  # significant ones of a logit: float32 has no more
_LARGEST_SUM = 1.001  # of the probabilities of a position, whose logits are rounded
_NOTHING_SUPPRESSED = GenerationSettings()
RECORD_HINT = "record one: bitnet crossval MODEL --record FILE --force"

# What is rounded. int8: activations, to 8 bits; float: keys and values, to 16 bits; float32:
# nothing.
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

    name: str  # for messages and reports
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
    # distribution at each of *ids* from *first* on; an incomplete answer has fewer, the first ones
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
    # text that the engine gives for each list of *tokenized*, with special tokens by name; ``None``
    # if it was not requested
    decoded: tuple[str, ...] | None = None
    model_sha256: str = ""  # in a recording, of the file it ran
    exact: Trace | None = None  # in a recording, the float64 pass over the same prompts

    def as_json(self) -> dict[str, Any]:
        """The trace as JSON values."""
        return cast("dict[str, Any]", to_json(self, _DIGITS))


def positions_from(logits: NDArray[np.floating[Any]], *, count: int = KEPT) -> list[Position]:
    """Rows of *logits*, ``(T, vocabulary)``, as positions; they may contain NaN or infinities."""
    positions: list[Position] = []
    for row in np.asarray(logits, dtype=np.float64):
        if not np.isfinite(row).all():
            positions.append(Position((), (), 0.0))
            continue
        highest = row.max()
        lse = highest + np.log(np.exp(row - highest).sum())
        stored_count = min(count, len(row))
        least = np.partition(row, len(row) - stored_count)[len(row) - stored_count]
        # Equal logits: the lower id first, as in argmax; those of higher ids are left out.
        above = np.flatnonzero(row > least)
        largest = np.concatenate([above, np.flatnonzero(row == least)[: stored_count - len(above)]])
        best = largest[np.lexsort((largest, -row[largest]))]
        positions.append(Position(tuple(map(int, best)), tuple(map(float, row[best])), float(lse)))
    return positions


def prompt_trace(
    forward: Callable[..., NDArray[np.floating[Any]]],
    prompt: Prompt,
    *,
    generation: GenerationSettings = _NOTHING_SUPPRESSED,
    count: int = KEPT,
    causal: bool = True,
) -> PromptTrace:
    """Positions of *prompt*, and its greedy continuation.

    *forward* appends ids to the sequence and returns their logits, ``(T, vocabulary)``; with
    ``all_positions=False`` only those of the last id are needed. A model that is not *causal* is
    given all ids at once. As in text generation, a continuation has no ids that *generation*
    suppresses. It ends early where a logit is not finite, or every id is suppressed.
    """
    if not prompt.ids:
        return PromptTrace(prompt.text, ())
    if causal:
        if prompt.first:
            forward(prompt.ids[: prompt.first], all_positions=False)
        logits = forward(prompt.ids[prompt.first :], all_positions=True)
    else:
        logits = forward(prompt.ids, all_positions=True)[prompt.first :]
    positions = positions_from(logits, count=count)
    greedy: list[int] = []
    gaps: list[float] = []
    while len(greedy) < prompt.steps:
        best = _best_two(logits[-1], generation.list_suppressed(len(greedy)))
        if best is None:
            break
        token, gap = best
        greedy.append(token)
        gaps.append(gap)
        if len(greedy) < prompt.steps:
            logits = forward([token], all_positions=True)
    return PromptTrace(
        prompt.text,
        prompt.ids,
        tuple(positions),
        tuple(greedy),
        tuple(gaps),
        first=prompt.first,
    )


def _best_two(row: NDArray[np.floating[Any]], left_out: frozenset[int]) -> tuple[int, float] | None:
    """The likeliest id of *row* that is not *left_out*, and the gap of its logit to the second.

    None if a logit is not finite, or no id is left.
    """
    (position,) = positions_from(row[None], count=2 + len(left_out))
    allowed = [
        (id, logit)
        for id, logit in zip(position.ids, position.logits, strict=True)
        if id not in left_out
    ]
    if not allowed:
        return None
    token, highest = allowed[0]
    gap = highest - allowed[1][1] if len(allowed) > 1 else float("inf")
    return token, gap


def trace_from(values: Mapping[str, Any], *, name: str) -> Trace:
    """The trace in JSON *values*; *name* is their source, for messages."""
    try:
        engine = values["engine"]
        if not isinstance(engine, dict):
            engine = {"name": engine}  # in the goldens of other programs
        exact = values.get("exact")
        if isinstance(exact, dict) and exact.get("exact") is not None:
            raise ValueError("its float64 pass has another float64 pass")
        required = {"engine": engine, "prompts": values["prompts"]}
        trace = from_json(Trace, {**values, **required}, name, partial=True)
        for answer in trace.prompts:
            _check_answer(answer)
        if trace.exact is not None:
            for answer in trace.exact.prompts:
                _check_answer(answer)
    except (KeyError, TypeError, ValueError, InvalidFormat) as error:
        text = f"{name} is not a recorded trace: {type(error).__name__}: {error}"
        raise InvalidFormat(text, hint=RECORD_HINT) from error
    return trace


def _check_answer(answer: PromptTrace) -> None:
    """Raise a ``ValueError`` if the parts of *answer* contradict each other."""
    count = len(answer.positions)
    gaps = len(answer.top2_gaps)
    if not 0 <= answer.first < max(len(answer.ids), 1):
        raise ValueError(f"positions from {answer.first} on, of {len(answer.ids)} ids")
    if count > len(answer.ids) - answer.first or gaps != len(answer.greedy):
        raise ValueError(f"{len(answer.ids)} ids, {count} positions, {gaps} gaps")
    stored = (id for position in answer.positions for id in position.ids)
    lowest = min((*answer.ids, *answer.greedy, *stored), default=0)
    if lowest < 0:
        raise ValueError(f"the token id {lowest}")
    for position in answer.positions:
        ids = position.ids
        logits = position.logits
        if len(ids) != len(logits) or len(set(ids)) != len(ids):
            raise ValueError(f"{len(set(ids))} ids with {len(logits)} logits")
        if list(logits) != sorted(logits, reverse=True):
            raise ValueError("the logits of a position are not in order, best first")
        if math.fsum(math.exp(min(logit - position.lse, 1.0)) for logit in logits) > _LARGEST_SUM:
            raise ValueError("the probabilities of a position add up to more than 1")


@dataclass(frozen=True)
class Question:
    """Request to a reference."""

    checkpoint: Checkpoint  # the model
    prompts: tuple[Prompt, ...] = ()  # to run; without any, the weights are not needed
    texts: tuple[tuple[str, bool], ...] = ()  # to tokenize; True: with BOS and EOS
    threads: int = 1  # compute threads
    limit_s: float = 300.0  # in which the engine must give each of its answers
    notify: Callable[[str], None] = logger.debug  # called with the progress
    generation: GenerationSettings = _NOTHING_SUPPRESSED  # ids that no continuation has


class EngineFailed(VerificationFailed):
    """The installed engine did not answer: it crashed, refused the model, or took too long."""


class Reference(ABC):
    """A reference engine."""

    name: str  # on the command line
    independent = True  # it is not this project's code, so the float64 pass can judge it
    recording: Trace | None = None  # its recorded answers; None if it runs the file now

    def reads(self, checkpoint: Checkpoint) -> bool:
        """True if the engine supports the file of *checkpoint*, or the tokenizer in it."""
        return checkpoint.path.is_file()

    def computes(self, _checkpoint: Checkpoint) -> bool:
        """True if the engine computes the model as the model's authors do."""
        return True

    def is_installed(self) -> bool:
        """True if the engine is installed."""
        return True

    @abstractmethod
    def trace(self, question: Question) -> Trace:
        """The engine's answers to *question*."""

    def arithmetic(self, _checkpoint: Checkpoint) -> Arithmetic:
        """Arithmetic of the engine's products with the weights of the model."""
        return "float"

    def intermediates(
        self, _question: Question, _exact: Model
    ) -> Mapping[str, NDArray[Any]] | None:
        """Intermediates of a pass over the only prompt, by our names; None if it has none.

        *_exact* is the float64 model; the ``Mark`` instructions of its program name the values.
        Those that caches are made of, such as the keys ``Kcur-3``, have a row for each id, all
        others for the last :data:`bitnet.crossval.bounds.ROWS`, or for each id if positions attend
        to later ones.
        """
        return None
