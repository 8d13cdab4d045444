"""Requests to a reference engine, and recordings of one."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import VerificationFailed
from bitnet.crossval.trace import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.crossval.trace import Arithmetic, Prompt, PromptTrace, Trace
    from bitnet.formats.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """Request to a reference.

    Attributes:
        checkpoint: the model.
        prompts: to run; without any, the weights are not needed.
        texts: to tokenize, each with true if BOS and EOS are added.
        threads: compute threads.
        notify: called with the progress.
    """

    checkpoint: Checkpoint
    prompts: tuple[Prompt, ...] = ()
    texts: tuple[tuple[str, bool], ...] = ()
    threads: int = 1
    notify: Callable[[str], None] = logger.debug


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
