"""One request for answers: its body, its sequences, and the reply, whole or as a stream.

Generation ends when the client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fastapi.responses import JSONResponse, StreamingResponse

from bitnet.base.errors import InferenceError, InvalidFormat, UsageError
from bitnet.runtime.request import EVERYTHING
from bitnet.server.refusals import GONE, Refused, from_error
from bitnet.server.worker import stopping
from bitnet.wire import anthropic, llama_server, ollama, responses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from fastapi import Request

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.request import Request as ModelRequest
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.models import Models, Slot
    from bitnet.server.worker import Order, Worker
    from bitnet.wire.fields import Form

__all__ = [
    "DEFAULT_TOKENS",
    "FORMS",
    "Exchange",
    "body_of",
    "prepare",
    "slot_of",
    "taking",
    "wire_of",
]

T = TypeVar("T")

DEFAULT_TOKENS = 128
#: Forms of the bodies that a route takes, by name.
FORMS: dict[str, Form] = {}


def taking(form: Form) -> dict[str, Any]:
    """Description of a route whose body is *form*, for its decorator."""
    FORMS[form.name] = form
    schema = {"$ref": f"#/components/schemas/{form.name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def body_of(request: Request, form: Form) -> dict[str, Any]:
    """The fields of the body of *request*, read in a thread so that no stream waits for it.

    Raises:
        UsageError: as :meth:`Form.parse`.
    """
    return await asyncio.to_thread(form.parse, await request.body())


def slot_of(request: Request, name: str | None) -> Slot:
    """Slot of the model that a request for *name* means.

    Raises:
        Refused: there is no such model here.
    """
    models: Models = request.app.state.models
    return models.find(name)


async def worker_of(request: Request, name: str | None) -> Worker:
    """Worker for a request to the model *name*, which stays loaded until the request has ended.

    Raises:
        Refused: as :meth:`Models.find` and :meth:`Models.worker`, or the client has gone.
    """
    models: Models = request.app.state.models
    slot = models.find(name)
    state = request.scope["state"]
    state["deadline"] = time.monotonic() + models.limits.deadline_s
    models.hold(slot)
    state["ends"].append(partial(models.release, slot))
    worker = models.worker(slot, state["deadline"])
    return await (worker if slot.worker else unless_gone(request, worker))


# --- sequences -----------------------------------------------------------------------------------


def prepare(request: ModelRequest, worker: Worker) -> tuple[list[int], ModelRequest]:
    """Prompt ids, and *request* prepared for the model.

    Raises:
        UsageError: the prompt is empty, or an id is not in the vocabulary.
        Refused: the chat template does not accept the conversation.
        BitnetError: as :meth:`bitnet.runtime.language_model.LanguageModel.prepare`.
    """
    size, context = worker.model.config.vocab_size, worker.model.context
    ids = None if isinstance(request.prompt, str) or request.embed else request.prompt
    if ids is not None and (not ids or max(ids) >= size):
        raise UsageError(f"token ids must be below {size:,}, one at least", field="prompt")
    outside = [token for token in request.sampling.logit_bias if token >= size]
    if outside:
        raise UsageError(f"'{outside[0]}' is not a token id below {size:,}", field="logit_bias")
    try:
        prompt, ready = worker.model.prepare(request)
    except InvalidFormat as error:  # caused by the client's input: the template itself was parsed
        raise Refused(400, error.message, param="messages") from error
    if request.embed and (not 0 < len(prompt) <= context or max(prompt) >= size):
        raise UsageError(f"each input needs 1 to {context:,} known tokens", field="input")
    return prompt, ready


def prepare_sequences(request: ModelRequest, worker: Worker, choices: int) -> list[Sequence]:
    """Sequences for the prompt or the messages of *request*, one for each choice.

    Each choice has its own seed. An answer without a length limit reserves at most its share of
    the memory, so that others fit as well.

    Raises:
        Refused: too many tokens are requested, or the cache cannot hold them.
        BitnetError: as :func:`prepare`.
    """
    ids, ready = prepare(request, worker)
    limit, context = worker.limits.max_output_tokens, worker.model.context
    tokens = request.max_tokens
    if tokens == EVERYTHING:
        share = max(DEFAULT_TOKENS, worker.fair_positions - len(ids))
        tokens = min(max(1, context - len(ids)), limit, share)
    if tokens > limit:
        raise Refused(
            400, f"{tokens:,} tokens asked for, this worker writes at most {limit:,}",
            param="max_tokens",
        )  # fmt: skip
    if len(ids) > context:
        raise Refused(
            400, f"the prompt has {len(ids):,} tokens, the context holds {context:,}",
            code="context_length_exceeded",
        )  # fmt: skip
    ready = replace(ready, max_tokens=tokens)
    try:
        return [worker.prepare(ids, ready.choice(number)) for number in range(choices)]
    except InferenceError as error:  # it would never fit the memory
        raise Refused(400, error.message, code="context_length_exceeded") from error


# --- the stream of a dialect ---------------------------------------------------------------------


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


def line(facts: Any) -> str:
    """One JSON object on its own line."""
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")) + "\n"


def event(facts: Any) -> str:
    """One server-sent event."""
    return f"data: {line(facts)}\n"


def event_with_name(facts: Any) -> str:
    """One server-sent event with its ``type`` as its name."""
    return f"event: {facts['type']}\n{event(facts)}"


OPENAI = Wire("text/event-stream", event, "data: [DONE]\n\n")
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
    """One request with its answers, whose beginning and end are narrated.

    Attributes:
        body: fields of the request.
        worker: of the model that answers.
    """

    def __init__(self, request: Request, form: Form, body: dict[str, Any], worker: Worker) -> None:
        """An exchange about *body*, which *form* has read."""
        self.body, self.worker = body, worker
        self._request, self._form = request, form
        self._path: str = request.url.path
        self._id: str = request.state.request_id
        self._choices: int = body.get("n") or 1
        self._begun = False
        self._order: Order | None = None
        self._began_at = 0.0

    @classmethod
    async def open(
        cls, request: Request, form: Form, body: dict[str, Any] | None = None
    ) -> Exchange:
        """The exchange that *request* asks for, with a *body* of *form*; read here if not given.

        Raises:
            UsageError: as :meth:`Form.parse`.
            Refused: as :func:`worker_of`.
        """
        body = body or await body_of(request, form)
        return cls(request, form, body, await worker_of(request, body["model"]))

    async def run(self, make: Callable[[], T]) -> T:
        """Result of *make*, called in a thread, for which a place in the queue is taken.

        Raises:
            UsageError: as *make*, with the field's name in the form.
            Refused: as :meth:`Worker.place`.
        """
        with self.worker.place():
            try:
                return await self.worker.run_in_thread(make)
            except UsageError as error:
                raise self._form.rename(error) from error

    async def collect(self, make: Callable[[], list[ModelRequest]]) -> list[Answer]:
        """The whole answers to the requests that *make* returns in a thread.

        Raises:
            Refused: something in the request cannot be, an answer failed, or the queue is full.
        """
        try:
            return await unless_gone(self._request, self._all(make))
        except BaseException as error:
            self._narrate_failure(error)
            raise
        finally:
            self._cancel()

    async def reply(
        self, make: Callable[[], list[ModelRequest]], reply: Reply
    ) -> JSONResponse | StreamingResponse:
        """The response: *reply* whole, or as events if the body wants a stream.

        Raises:
            Refused: as :meth:`collect`, before anything has been sent.
        """
        wire, streams = wire_of(self._path), self.body["stream"]
        if streams is False or (streams is None and wire is not LINES):  # Ollama's default
            return JSONResponse(reply.whole(await self.collect(make)))
        try:
            # Wait for the first piece: an immediate failure gets an HTTP status, not an event.
            order, pieces, first = await unless_gone(self._request, self._first(make))
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
                refusal = from_error(error)
                if isinstance(reply, responses.ResponseItems):
                    yield wire.line(
                        reply.fault(refusal.message, refusal.code or refusal.kind, refusal.param)
                    )
                else:
                    yield wire.line(refusal.body(self._path))

        if self._request.scope["http_version"] == "1.1":  # events come as chunks
            self._request.scope["state"]["sends_events"] = True
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        # Also after a stream of which nothing was sent.
        self._request.scope["state"]["ends"].append(self._disconnect)
        return StreamingResponse(events(), media_type=wire.media_type, headers=headers)

    async def _all(self, make: Callable[[], list[ModelRequest]]) -> list[Answer]:
        order = await self._submit(make)
        async for index, piece in order:
            _check(order.answers[index], piece)
        self._narrate_end(order.answers)
        return order.answers

    async def _first(
        self, make: Callable[[], list[ModelRequest]]
    ) -> tuple[Order, AsyncIterator[tuple[int, Piece]], tuple[int, Piece]]:
        order = await self._submit(make)
        pieces = order.__aiter__()
        index, piece = await anext(pieces)
        _check(order.answers[index], piece)
        return order, pieces, (index, piece)

    async def _submit(self, make: Callable[[], list[ModelRequest]]) -> Order:
        self._began_at = time.perf_counter()
        worker, choices = self.worker, self._choices
        try:
            requests = await worker.run_in_thread(make)
            self._order = order = await worker.submit(
                lambda: [
                    sequence
                    for each in requests
                    for sequence in prepare_sequences(each, worker, choices)
                ],
                len(requests) * choices,
                compiles=any(each.needs_grammar for each in requests),
                deadline=self._request.state.deadline,
            )
        except UsageError as error:
            raise self._form.rename(error) from error
        count = len(order.answers)
        self._begun = True
        worker.narrate(
            "inference_start",
            f"Writing {count} answer{'s'[: count > 1]}",
            "Here we go! Thinking of something nice to say! 💭",
            request_id=self._id,
            prompt_tokens=sum(answer.stats.prompt_tokens for answer in order.answers),
        )
        return order

    def _cancel(self) -> None:
        if self._order is not None:
            self.worker.cancel(self._order)

    def _disconnect(self) -> None:
        """End unfinished answers: the client has disconnected."""
        self._narrate_failure(asyncio.CancelledError())
        self._cancel()

    def _narrate_end(self, answers: list[Answer]) -> None:
        tokens = sum(answer.stats.tokens for answer in answers)
        self._begun = False
        self._trace()
        self.worker.narrate(
            "inference_complete",
            f"Wrote {tokens} tokens",
            "All done! Hope you like it! 🎀",
            request_id=self._id,
            tokens=tokens,
            finish=",".join(sorted({str(answer.finish_reason) for answer in answers})),
        )

    def _narrate_failure(self, error: BaseException) -> None:
        """Narrate the end of the exchange; refusals before it are narrated elsewhere."""
        if not self._begun:
            return
        self._begun = False
        self._request.scope["state"]["told"] = True
        narrate = self.worker.narrate
        if not isinstance(error, Exception) or getattr(error, "status", 0) == GONE:
            self._trace("cancelled")
            message = "The client has gone; its answer is given up"
            narrate("inference_cancelled", message, "Bye bye! 👋", request_id=self._id)
            return
        problem = from_error(error)
        self._trace(str(problem.status))
        narrate(
            "inference_failed",
            f"Inference failed: {problem.message}",
            "Oh no, that did not work! 😿",
            level="ERROR",
            request_id=self._id,
            code=problem.code,
        )

    def _trace(self, error: str = "") -> None:
        """Tell the request's span, if it has one, what was asked and answered."""
        span = self._request.scope["state"].get("span")
        if span is not None and self._order is not None:
            span.record_answers(
                self.body.get("model") or self.worker.name,
                self.worker.name,
                self._order.answers,
                choices=self._choices,
                begun_s=self._began_at,
                error=error,
            )


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
