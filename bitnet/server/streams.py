"""Whole answers and server-sent events, with detection of disconnected clients."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fastapi.responses import JSONResponse, StreamingResponse

from bitnet.base.errors import UsageError
from bitnet.server.prompts import prepare_sequences
from bitnet.server.refusals import GONE, Refused, from_error
from bitnet.server.worker import stopping
from bitnet.wire import anthropic, llama_server, ollama, responses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from fastapi import Request
    from starlette.types import Receive, Scope, Send

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.request import Request as ModelRequest
    from bitnet.server.worker import Order, Worker
    from bitnet.wire.fields import Form

__all__ = ["DONE", "LINES", "NAMED", "OPENAI", "UNNAMED", "Exchange", "Wire", "event", "wire_of"]

T = TypeVar("T")

DONE = "data: [DONE]\n\n"


@dataclass(frozen=True)
class Wire:
    """Format in which a dialect streams an answer.

    Attributes:
        media_type: of the stream.
        line: text of one event.
        done: sent after the last event.
    """

    media_type: str
    line: Callable[[Any], str]
    done: str = ""


def event(facts: Any) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(facts, ensure_ascii=False, separators=(',', ':'))}\n\n"


def event_with_name(facts: Any) -> str:
    """One server-sent event with its ``type`` as its name."""
    return f"event: {facts['type']}\n{event(facts)}"


def line(facts: Any) -> str:
    """One JSON object on its own line."""
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")) + "\n"


OPENAI = Wire("text/event-stream", event, DONE)
NAMED = Wire("text/event-stream", event_with_name)
UNNAMED = Wire("text/event-stream", event)
LINES = Wire("application/x-ndjson", line)


def wire_of(path: str) -> Wire:
    """Format in which the address *path* streams."""
    if path.startswith(ollama.PREFIX):
        return LINES
    if path.startswith(anthropic.PREFIX) or path == responses.PATH:
        return NAMED
    return UNNAMED if path in llama_server.PATHS else OPENAI


class Reply(Protocol):
    """The reply to a body in its dialect, whole or as events."""

    def whole(self, answers: list[Answer]) -> Any:
        """The whole reply, when all answers have ended."""

    def of(self, index: int, piece: Piece, answer: Answer) -> Iterator[Any]:
        """Events of one piece of one answer."""

    def end(self, answers: list[Answer]) -> Iterator[Any]:
        """Events after the last answer."""


class Exchange:
    """One request with its answers, whose beginning and end are narrated."""

    def __init__(
        self,
        worker: Worker,
        request: Request,
        make: Callable[[], list[ModelRequest]],
        body: Mapping[str, Any],
        *,
        form: Form,
    ) -> None:
        """An exchange that :meth:`collect` or :meth:`stream` carries out.

        Args:
            worker: of the model that answers.
            request: the HTTP request.
            make: makes the requests of *body*, in a thread.
            body: what was asked for; ``n`` answers of each request.
            form: of *body*, whose names errors have.
        """
        self._request = request
        self._make = make
        self._body = body
        self._form = form
        self._choices: int = body.get("n") or 1
        self._begun = False
        self._worker = worker
        self._order: Order | None = None
        self._began_at = 0.0

    async def collect(self) -> list[Answer]:
        """The whole answers; generation stops when the client disconnects.

        Raises:
            Refused: something in the request cannot be, an answer failed, or the queue is full.
        """
        try:
            return await unless_gone(self._request, self._all())
        except BaseException as error:
            self._narrate_failure(error)
            raise
        finally:
            self._cancel()

    async def reply(
        self, reply: Reply, *, wire: Wire = OPENAI, fault: Callable[[Refused], Any] | None = None
    ) -> JSONResponse | StreamingResponse:
        """The response: *reply* whole, or as events if the body wants a stream.

        Raises:
            Refused: as :meth:`collect`, before anything has been sent.
        """
        streams = self._body["stream"]
        if streams is False or (streams is None and wire is not LINES):  # Ollama's default
            return JSONResponse(reply.whole(await self.collect()))
        return await self.stream(reply, wire=wire, fault=fault)

    async def stream(
        self, reply: Reply, *, wire: Wire, fault: Callable[[Refused], Any] | None
    ) -> StreamingResponse:
        """The answers as events, sent while they are generated.

        Args:
            reply: makes the events.
            wire: format of the events.
            fault: the event of an error; by default its dialect's reply.

        Raises:
            Refused: as :meth:`collect`, before anything has been sent.
        """
        try:
            # Wait for the first piece: an immediate failure gets an HTTP status, not an event.
            order, pieces, first = await unless_gone(self._request, self._first())
        except BaseException as error:
            self._narrate_failure(error)
            self._cancel()
            raise

        async def events() -> AsyncIterator[str]:
            try:
                async for index, piece in _with_first(first, pieces):
                    _check(order.answers[index], piece)
                    for chunk in reply.of(index, piece, order.answers[index]):
                        yield wire.line(chunk)
                for chunk in reply.end(order.answers):
                    yield wire.line(chunk)
                self._narrate_end(order.answers)
                yield wire.done
            except Exception as error:  # noqa: BLE001 - the status is sent already
                self._narrate_failure(error)
                known = from_error(error)
                yield wire.line(fault(known) if fault else known.body(self._request.url.path))

        if self._request.scope["http_version"] == "1.1":  # events come as chunks
            self._request.scope["state"]["sends_events"] = True
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = _Events(events(), media_type=wire.media_type, headers=headers)
        response.ended = self._disconnect
        return response

    async def _all(self) -> list[Answer]:
        order = await self._submit()
        async for index, piece in order:
            _check(order.answers[index], piece)
        self._narrate_end(order.answers)
        return order.answers

    async def _first(self) -> tuple[Order, AsyncIterator[tuple[int, Piece]], tuple[int, Piece]]:
        order = await self._submit()
        pieces = order.__aiter__()
        index, piece = await anext(pieces)
        _check(order.answers[index], piece)
        return order, pieces, (index, piece)

    async def _submit(self) -> Order:
        self._began_at = time.perf_counter()
        self._order = order = await self._enqueue()
        count = len(order.answers)
        self._begun = True
        self._worker.narrate(
            "inference_start",
            f"Writing {count} answer{'s'[: count > 1]}",
            "Here we go! Thinking of something nice to say! 💭",
            request_id=self._request.state.request_id,
            prompt_tokens=sum(answer.stats.prompt_tokens for answer in order.answers),
        )
        return order

    async def _enqueue(self) -> Order:
        worker = self._worker
        try:
            requests = await worker.run_in_thread(self._make)
            return await worker.submit(
                lambda: [
                    sequence
                    for each in requests
                    for sequence in prepare_sequences(each, worker, choices=self._choices)
                ],
                len(requests) * self._choices,
                compiles=any(each.needs_grammar for each in requests),
                deadline=self._request.state.deadline,
            )
        except UsageError as error:
            raise self._form.rename(error) from error

    def _cancel(self) -> None:
        if self._order is not None:
            self._worker.cancel(self._order)

    def _disconnect(self) -> None:
        """End unfinished answers: the client has disconnected."""
        self._narrate_failure(asyncio.CancelledError())
        self._cancel()

    def _narrate_end(self, answers: list[Answer]) -> None:
        tokens = sum(answer.stats.tokens for answer in answers)
        self._begun = False
        self._trace()
        self._worker.narrate(
            "inference_complete",
            f"Wrote {tokens} tokens",
            "All done! Hope you like it! 🎀",
            request_id=self._request.state.request_id,
            tokens=tokens,
            finish=",".join(sorted({str(answer.finish_reason) for answer in answers})),
        )

    def _narrate_failure(self, error: BaseException) -> None:
        """Narrate the end of the exchange; refusals before it are narrated elsewhere."""
        if not self._begun:
            return
        self._begun = False
        self._request.scope["state"]["told"] = True
        request_id = self._request.state.request_id
        narrate = self._worker.narrate
        if not isinstance(error, Exception) or getattr(error, "status", 0) == GONE:
            self._trace("cancelled")
            message = "The client has gone; its answer is given up"
            narrate("inference_cancelled", message, "Bye bye! 👋", request_id=request_id)
            return
        problem = from_error(error)
        self._trace(str(problem.status))
        narrate(
            "inference_failed",
            f"Inference failed: {problem.message}",
            "Oh no, that did not work! 😿",
            level="ERROR",
            request_id=request_id,
            code=problem.code,
        )

    def _trace(self, error: str = "") -> None:
        """Tell the request's span, if it has one, what was asked and answered."""
        span = self._request.scope["state"].get("span")
        if span is not None and self._order is not None:
            span.record_answers(
                self._body.get("model") or self._worker.name,
                self._worker.name,
                self._order.answers,
                choices=self._choices,
                begun_s=self._began_at,
                error=error,
            )


class _Events(StreamingResponse):
    """A stream with a callback at its end, even if nothing was sent."""

    ended: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.ended()


def _check(answer: Answer, piece: Piece) -> None:
    """Raise the error that ended *answer* with *piece*."""
    if piece.finish_reason in ("error", "deadline"):
        raise from_error(answer.error or RuntimeError("no reason given"))
    if piece.finish_reason == "cancelled" and not answer.stats.tokens:
        raise stopping()  # an answer that has not begun is not an empty one


async def _with_first(first: T, others: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for other in others:
        yield other


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Result of *work*, which is cancelled when the client closes the connection.

    Raises:
        Refused: the client has closed it; the reply is not read.
    """

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Refused(GONE, "the client closed the connection")
    finally:
        working.cancel()
        watching.cancel()
