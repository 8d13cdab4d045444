"""Requests to a reference engine, and the two references that need no other program."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from bitnet.base.errors import VerificationFailed
from bitnet.crossval.exact import Float64Pass
from bitnet.crossval.trace import Trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from bitnet.crossval.operations import Intermediates
    from bitnet.crossval.trace import PromptTrace
    from bitnet.formats.checkpoint import Checkpoint

__all__ = ["EngineFailed", "Float64", "Question", "Recorded", "Reference"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """Request to a reference.

    Attributes:
        checkpoint: the model.
        prompts: texts with their ids; without any, the weights are not needed.
        firsts: index of the first id of each prompt whose position is compared; 0 if not given.
        texts: to tokenize, each with true if BOS and EOS are added.
        greedy: steps of the greedy continuation of each prompt.
        continued: indices of the prompts that are continued; all when not given.
        threads: compute threads.
        model_sha256: of the model's file.
        notify: called with the progress.
        positions_there: tokens that all texts have, cut or not.
        unreadable: reason why a text could not be tokenized, by index in *prompts*.
    """

    checkpoint: Checkpoint
    prompts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    firsts: tuple[int, ...] = ()
    texts: tuple[tuple[str, bool], ...] = ()
    greedy: int = 0
    continued: tuple[bool, ...] = ()
    threads: int = 1
    model_sha256: str = ""
    notify: Callable[[str], None] = logger.debug
    positions_there: int = 0
    unreadable: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def exact(self) -> Float64Pass:
        """The float64 pass; its weights are unpacked when it is first asked."""
        return Float64Pass(self.checkpoint, notify=self.notify)

    @property
    def starts(self) -> tuple[int, ...]:
        """First compared position of each prompt."""
        return self.firsts or (0,) * len(self.prompts)

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps of each prompt's continuation."""
        flags = self.continued or (True,) * len(self.prompts)
        return tuple(self.greedy if one else 0 for one in flags)


class EngineFailed(VerificationFailed):
    """The installed engine did not answer: it crashed, refused the model, or took too long."""


class Reference(ABC):
    """A reference engine.

    Attributes:
        name: on the command line.
        independent: it is not this project's code, so the float64 pass can judge it.
        live: it runs the same file here and now.
        recording: its answers, where they were recorded.
    """

    name: str
    independent = True
    live = True
    recording: Trace | None = None

    def reads(self, checkpoint: Checkpoint) -> bool:
        """True if it supports such a model."""
        return checkpoint.path.is_file()

    def is_installed(self) -> bool:
        """True if it is installed."""
        return True

    @abstractmethod
    def trace(self, question: Question) -> Trace:
        """Its answers.

        Raises:
            ReferenceUnavailable: it is not installed.
            EngineFailed: it is installed, but crashed, refused the model or took too long.
        """

    def intermediates(self, _question: Question) -> Intermediates | None:
        """Intermediates of a pass over the first prompt, ``None`` if it has none."""
        return None


class Recorded(Reference):
    """A recorded trace, which brings its own prompts."""

    name = "recorded"
    live = False
    recording: Trace

    def __init__(self, path: Path) -> None:
        self.recording = read_trace(path)

    def trace(self, question: Question) -> Trace:
        """The recorded answers to *question*, limited to its prompts and steps."""
        tokenized = self.recording.tokenized
        if tokenized is None:
            tokenized = tuple(one.ids for one in self.recording.prompts)
        exact = self.recording.exact
        return replace(
            self.recording,
            prompts=_select(self.recording, question),
            tokenized=tokenized,
            exact=exact and replace(exact, prompts=_select(exact, replace(question, greedy=0))),
        )


def _select(recording: Trace, question: Question) -> tuple[PromptTrace, ...]:
    """The answers of *recording* to the prompts of *question*."""
    left = list(recording.prompts)
    answers = []
    asked = zip(question.prompts, question.starts, question.steps, strict=True)
    for (text, ids), first, steps in asked:
        while left and (left[0].prompt != text or left[0].ids[: len(ids)] != ids):
            del left[0]
        if left:
            answers.append(_cut(left.pop(0), len(ids), first, steps))
    return tuple(answers)


class Float64(Reference):
    """Our graph in double precision: reveals rounding, but not mistakes of the graph."""

    name = "float64"
    independent = False

    def reads(self, _checkpoint: Checkpoint) -> bool:
        return True

    def trace(self, question: Question) -> Trace:
        trace = question.exact.trace(question.prompts, question.starts, question.steps)
        return replace(trace, model_sha256=question.model_sha256)


def _cut(one: PromptTrace, ids: int, first: int, steps: int) -> PromptTrace:
    """A recorded answer for the first *ids*, its positions from *first* on, and *steps*."""
    skipped = max(first - one.first, 0)
    return replace(
        one,
        ids=one.ids[:ids],
        positions=one.positions[skipped : ids - one.first],
        greedy=one.greedy[:steps],
        top2_gaps=one.top2_gaps[:steps],
        asked=ids,
        first=max(first, one.first),
    )
