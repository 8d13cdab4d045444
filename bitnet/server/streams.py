"""Server-sent events, and noticing that a client has gone."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi.responses import StreamingResponse

from bitnet.server.faults import Refused, from_error
from bitnet.server.openai import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from fastapi import Request

    from bitnet.server.app import Service
    from bitnet.server.worker import Delta, Job, Order

__all__ = ["DONE", "collect", "event", "stream", "unless_gone"]

T = TypeVar("T")

DONE = "data: [DONE]\n\n"


def event(facts: Any) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(facts, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def collect(request: Request, service: Service, jobs: list[Job]) -> list[Answer]:
    """The whole answers to *jobs*; they end early when the client goes away.

    Raises:
        Refused: a job failed, or the queue is full.
    """
    order = _submitted(request, service, jobs)
    answers = [Answer(len(job.ids)) for job in jobs]

    async def all_of_it() -> list[Answer]:
        async for index, delta in order:
            answers[index].add(delta)
        return answers

    try:
        done = await unless_gone(request, all_of_it())
        _completed(request, service, done)
        return done
    except Exception as error:
        _told(request, service, error)
        raise
    finally:
        service.worker.cancel(order)


async def stream(
    request: Request,
    service: Service,
    jobs: list[Job],
    chunks: Callable[[int, Delta, Answer], Iterator[Any]],
    last: Callable[[list[Answer]], Iterator[Any]],
) -> StreamingResponse:
    """The answers to *jobs* as events, sent while they are written.

    Args:
        request: whose connection it is.
        service: what runs the jobs.
        jobs: what to write.
        chunks: the events of one delta of one answer; the answer has it already.
        last: the events after the last answer, before ``[DONE]``.

    Raises:
        Refused: the queue is full, or the first thing that came back is an error.
    """
    order = _submitted(request, service, jobs)
    deltas = order.__aiter__()
    try:
        # Wait for the first delta: what fails at once gets an HTTP status instead of an event.
        first = await unless_gone(request, anext(deltas))
        if first[1].error is not None:
            raise first[1].error
    except BaseException as error:
        service.worker.cancel(order)
        if isinstance(error, Exception):
            _told(request, service, error)
        raise

    async def events() -> AsyncIterator[str]:
        answers = [Answer(len(job.ids)) for job in jobs]
        try:
            async for index, delta in _with_first(first, deltas):
                answers[index].add(delta)
                for chunk in chunks(index, delta, answers[index]):
                    yield event(chunk)
            for chunk in last(answers):
                yield event(chunk)
            yield DONE
            _completed(request, service, answers)
        except Exception as error:  # noqa: BLE001 - the status is sent already
            _told(request, service, error)
            yield event(from_error(error).body())
        finally:
            service.worker.cancel(order)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


async def _with_first(first: T, others: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for other in others:
        yield other


def _submitted(request: Request, service: Service, jobs: list[Job]) -> Order:
    order = service.worker.submit(jobs)
    service.narrate(
        "inference_start",
        f"Writing {len(jobs)} answer{'s'[: len(jobs) > 1]}",
        "Here we go! Thinking of something nice to say! 💭",
        request_id=request.state.request_id,
        prompt_tokens=sum(len(job.ids) for job in jobs),
    )
    return order


def _completed(request: Request, service: Service, answers: list[Answer]) -> None:
    service.narrate(
        "inference_complete",
        f"Wrote {sum(answer.tokens for answer in answers)} tokens",
        "All done! Hope you like it! 🎀",
        request_id=request.state.request_id,
        tokens=sum(answer.tokens for answer in answers),
    )


def _told(request: Request, service: Service, error: Exception) -> None:
    service.narrate(
        "inference_failed",
        f"Inference failed: {from_error(error).message}",
        "Oh no, that did not work! 😿",
        level="ERROR",
        request_id=request.state.request_id,
    )


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of *work*, which is given up when the client closes the connection.

    Raises:
        Refused: it did; nobody reads this.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Refused(499, "the client closed the connection")
    finally:
        working.cancel()
        watching.cancel()
