"""Rows through the scheduler, several at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.errors import BitnetError, UsageError
from bitnet.runtime.generation import GenerationParams
from bitnet.runtime.scheduler import Scheduler
from bitnet.runtime.text import AnswerText, check_prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bitnet.batch.rows import Row
    from bitnet.runtime.generation import Piece
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.scheduler import Sequence

__all__ = ["answers"]


def answers(
    rows: Iterable[Row], model: LanguageModel, *, max_tokens: int = 128, max_batch: int = 8
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Each of *rows* with its answer, as they are finished.

    What is wrong with a row stays in its answer, as ``error``; the others are not touched by it.

    Args:
        rows: what to answer.
        model: what writes.
        max_tokens: tokens to write at most, where a row does not say.
        max_batch: answers written at the same time.
    """
    engine = model.engine
    scheduler = Scheduler(engine.model, context=engine.context, max_batch=max_batch)
    waiting = iter(rows)
    running: dict[Sequence, _Answer] = {}
    while True:
        while len(running) < max_batch and (row := next(waiting, None)) is not None:
            try:
                answer = _Answer(row, model, max_tokens)
                running[scheduler.submit(answer.ids, answer.params)] = answer
            except BitnetError as error:  # noqa: PERF203 - each row has its own
                yield row, {"error": error.message}
        if not running:
            return
        for sequence, piece in scheduler.step():
            found = running.get(sequence)
            if found is None or not found.takes(piece):
                continue
            del running[sequence]
            scheduler.cancel(sequence)  # it may have been ended by a stop string
            yield found.row, found.facts(sequence)


class _Answer:
    """A row while it is written."""

    def __init__(self, row: Row, model: LanguageModel, max_tokens: int) -> None:
        if row.problem:
            raise UsageError(row.problem)
        self.row = row
        self.ids = _ids(row, model)
        self.params = GenerationParams(
            max_tokens=row.facts.get("max_tokens", max_tokens),
            stop_ids=model.tokenizer.stop_ids,
            sampling=row.sampling,
        )
        self._text = AnswerText(model.tokenizer, self.ids, row.stops)
        self._parts: list[str] = []
        self._finish: str | None = None
        self._tokens = 0

    def takes(self, piece: Piece) -> bool:
        """Add *piece*; whether the answer is complete."""
        self._tokens += piece.token is not None
        if piece.token is not None and piece.finish_reason != "stop":
            self._parts.append(self._text.push(piece.token))
        self._finish = "stop" if self._text.stopped else piece.finish_reason
        return self._finish is not None

    def facts(self, sequence: Sequence) -> dict[str, Any]:
        """The complete answer."""
        if sequence.error is not None:
            return {"error": sequence.error.message}
        return {
            "text": "".join(self._parts) + self._text.finish(),
            "finish_reason": self._finish,
            "prompt_tokens": len(self.ids),
            "tokens": self._tokens,
        }


def _ids(row: Row, model: LanguageModel) -> list[int]:
    if "messages" in row.facts:
        return model.encode_chat(row.facts["messages"])
    check_prompt(row.facts["prompt"])
    return model.tokenizer.encode(row.facts["prompt"])
