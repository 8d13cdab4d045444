"""Run rows through the scheduler, several at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, UsageError
from bitnet.runtime.answer import Answer
from bitnet.runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bitnet.batch.rows import BatchRow
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.sequence import Sequence


def answers(
    rows: Iterable[BatchRow], model: LanguageModel, *, max_tokens: int = 128, max_batch: int = 8
) -> Iterator[tuple[BatchRow, dict[str, Any]]]:
    """Yield *rows* with their answers, as they are finished.

    An error in a row becomes its answer, as ``error``; other rows are not affected. A row may say
    otherwise about *max_tokens*; *max_batch* answers are generated at the same time.
    """
    scheduler = model.scheduler(max_batch=max_batch)
    waiting, default = iter(rows), Request(max_tokens=max_tokens)
    running: dict[Sequence, tuple[BatchRow, Answer, list[Answer]]] = {}
    while True:
        while len(running) < max_batch and (row := next(waiting, None)) is not None:
            try:
                if row.problem:
                    raise UsageError(row.problem)
                requests = row.requests(default, model)
                sequences = [scheduler.prepare(*model.prepare(request)) for request in requests]
            except BitnetError as error:
                yield row, {"error": error.message}
                continue
            choices = [Answer(model.tokenizer, sequence) for sequence in sequences]
            for answer in choices:
                scheduler.queue(answer.sequence)
                running[answer.sequence] = row, answer, choices
        if not running:
            return
        for sequence, piece in scheduler.step():
            if sequence not in running:
                continue
            row, answer, choices = running[sequence]
            if not answer.take(piece).finish_reason:
                continue
            # A stop text may have ended it, and one that fails ends the whole row.
            for choice in choices if answer.error else [answer]:
                running.pop(choice.sequence, None)
                scheduler.cancel(choice.sequence)
            if answer.error or all(choice.finish_reason for choice in choices):
                if problem := answer.error:
                    yield row, {"error": getattr(problem, "message", str(problem))}
                else:
                    yield row, row.reply(choices, model)


def in_order(
    rows: Iterable[BatchRow], answered: Iterable[tuple[BatchRow, dict[str, Any]]]
) -> Iterator[tuple[BatchRow, dict[str, Any]]]:
    """Results of *answered* in the order of *rows*; an answer waits for earlier ones."""
    early: dict[str, tuple[BatchRow, dict[str, Any]]] = {}
    finished = iter(answered)
    for row in rows:
        while row.id not in early:
            one = next(finished)
            early[one[0].id] = one
        yield early.pop(row.id)
