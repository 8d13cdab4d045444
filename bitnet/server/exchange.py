"""The order of one HTTP request: its body, its answers, and the reply, whole or as a stream.

Generation ends when the client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi.responses import JSONResponse, StreamingResponse

from bitnet.base.errors import InferenceError, InvalidFormat, UsageError
from bitnet.runtime.request import EVERYTHING
from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.refusals import GONE, Refused, from_error
from bitnet.server.worker import Order, Worker, stopping
from bitnet.wire import ollama, responses
from bitnet.wire.openai_reply import reply_head
from bitnet.wire.routes import ROUTES, dialect_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from fastapi import Request

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.models import Models, Slot
    from bitnet.wire.fields import Form
    from bitnet.wire.routes import Address, Reply

__all__ = [
    "DEFAULT_TOKENS",
    "FORMS",
    "answer",
    "body_of",
    "collect",
    "compute",
    "last_event",
    "open_order",
    "prepare",
    "respond",
    "slot_of",
    "taking",
]

T = TypeVar("T")

DEFAULT_TOKENS = 128
#: Forms of the bodies that a route takes, by name.
FORMS: dict[str, Form] = {route.form.name: route.form for route in ROUTES.values()}


def taking(form: Form) -> dict[str, Any]:
    """Description of a route whose body is *form*, for its decorator."""
    FORMS[form.name] = form
    schema = {"$ref": f"#/components/schemas/{form.name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def body_of(request: Request, form: Form) -> dict[str, Any]:
    """The fields of the body of *request*, read in a thread so that no stream waits for it."""
    return await asyncio.to_thread(form.parse, await request.body())


def slot_of(request: Request, name: str | None) -> Slot:
    """Slot of the model that a request for *name* means."""
    models: Models = request.app.state.models
    return models.find(name)


async def worker_of(request: Request, name: str | None) -> Worker:
    """Worker for a request to the model *name*, which stays loaded until the request has ended."""
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
    """Prompt ids, and *request* prepared for the model."""
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


# --- the reply -----------------------------------------------------------------------------------


def event_text(path: str, facts: Any) -> str:
    """*facts* as an event of the stream of the address *path*."""
    line, form = (
        json.dumps(facts, ensure_ascii=False, separators=(",", ":")),
        dialect_of(path).STREAM,
    )
    if form == "lines":
        return f"{line}\n"
    return (f"event: {facts['type']}\n" if form == "named" else "") + f"data: {line}\n\n"


def last_event(path: str, refusal: Refused, sent: int) -> str:
    """The event that ends a stream of *path* which failed after *sent* events."""
    facts = refusal.body(path)
    if path == responses.PATH:
        code = refusal.code or refusal.kind
        facts = responses.error_event(sent, refusal.message, code, refusal.param)
    return event_text(path, facts)


async def open_order(request: Request, form: Form, body: dict[str, Any] | None = None) -> Order:
    """The order of *request*, with a *body* of *form*; read here if not given."""
    body = body or await body_of(request, form)
    return Order(request, form, body, await worker_of(request, body["model"]))


async def compute(order: Order, make: Callable[[], T]) -> T:
    """Result of *make*, called in a thread, for which a place in the queue is taken."""
    with order.worker.place(), _rename_fields(order):
        return await order.worker.run_in_thread(make)


async def collect(order: Order, make: Callable[[], list[ModelRequest]]) -> list[Answer]:
    """The whole answers to the requests that *make* returns in a thread."""

    async def take_all() -> None:
        await _submit(order, make)
        async for index, piece in order:
            _check(order.answers[index], piece)
        _narrate_end(order)

    try:
        await unless_gone(order.request, take_all())
    except BaseException as error:
        _narrate_failure(order, error)
        raise
    finally:
        order.worker.cancel(order)
    return order.answers


async def answer(request: Request, route: Address) -> JSONResponse | StreamingResponse:
    """The response to *request* as *route* makes it."""
    order = await open_order(request, route.form)
    worker = order.worker
    is_open, limit = route.tokens == EVERYTHING, worker.limits.max_output_tokens
    default = ModelRequest(max_tokens=EVERYTHING if is_open else min(route.tokens, limit))
    reply = route.reply(order.body, reply_head(route.prefix, order.name))
    return await respond(order, partial(route.requests, order.body, default), reply)


async def respond(
    order: Order, make: Callable[[], list[ModelRequest]], reply: Reply
) -> JSONResponse | StreamingResponse:
    """The response: *reply* whole, or as events if the body wants a stream.

    A failure before anything has been sent is raised.
    """
    is_lines, streams = dialect_of(order.path) is ollama, order.body["stream"]
    if streams is False or (streams is None and not is_lines):  # Ollama's default
        return JSONResponse(reply.whole(await collect(order, make)))
    try:
        # Wait for the first piece: an immediate failure gets an HTTP status, not an event.
        pieces, first = await unless_gone(order.request, _first(order, make))
    except BaseException as error:
        _narrate_failure(order, error)
        order.worker.cancel(order)
        raise
    state = order.request.scope["state"]
    if order.request.scope["http_version"] == "1.1":  # events come as chunks
        state["sends_events"] = True
    # Also after a stream of which nothing was sent.
    state["ends"].append(partial(_disconnect, order))
    return StreamingResponse(
        _events(order, reply, first, pieces),
        media_type="application/x-ndjson" if is_lines else "text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(
    order: Order, reply: Reply, first: tuple[int, Piece], pieces: AsyncIterator[tuple[int, Piece]]
) -> AsyncIterator[str]:
    sent = 0
    try:
        async for index, piece in _with_first(first, pieces):
            _check(order.answers[index], piece)
            for facts in reply.of(index, piece, order.answers[index]):
                yield event_text(order.path, facts)
                sent += 1
        for facts in reply.end(order.answers):
            yield event_text(order.path, facts)
        _narrate_end(order)
        if dialect_of(order.path).STREAM == "openai":
            yield "data: [DONE]\n\n"
    except Exception as error:  # noqa: BLE001 - the status is sent already
        _narrate_failure(order, error)
        yield last_event(order.path, from_error(error), sent)


async def _first(
    order: Order, make: Callable[[], list[ModelRequest]]
) -> tuple[AsyncIterator[tuple[int, Piece]], tuple[int, Piece]]:
    await _submit(order, make)
    pieces = order.__aiter__()
    index, piece = await anext(pieces)
    _check(order.answers[index], piece)
    return pieces, (index, piece)


async def _submit(order: Order, make: Callable[[], list[ModelRequest]]) -> None:
    order.began_at = time.perf_counter()
    worker, choices = order.worker, order.choices
    with _rename_fields(order):
        requests = [replace(its, lora=order.lora) for its in await worker.run_in_thread(make)]
        await worker.submit(
            order,
            lambda: [
                sequence
                for each in requests
                for sequence in prepare_sequences(each, worker, choices)
            ],
            len(requests) * choices,
            compiles=any(each.needs_grammar for each in requests),
        )
    count = len(order.answers)
    order.writes = True
    worker.narrate(
        "inference_start",
        f"Writing {count} answer{'s'[: count > 1]}",
        "Here we go! Thinking of something nice to say! 💭",
        request_id=order.request.state.request_id,
        prompt_tokens=sum(answer.stats.prompt_tokens for answer in order.answers),
    )


@contextmanager
def _rename_fields(order: Order) -> Iterator[None]:
    """Errors about a field name it as the client did."""
    try:
        yield
    except UsageError as error:
        raise order.form.rename(error) from error


def _disconnect(order: Order) -> None:
    """End unfinished answers: the client has disconnected."""
    _narrate_failure(order, asyncio.CancelledError())
    order.worker.cancel(order)


def _narrate_end(order: Order) -> None:
    tokens = sum(answer.stats.tokens for answer in order.answers)
    order.writes = False
    _trace(order)
    order.worker.narrate(
        "inference_complete",
        f"Wrote {tokens} tokens",
        "All done! Hope you like it! 🎀",
        request_id=order.request.state.request_id,
        tokens=tokens,
        finish=",".join(sorted({str(answer.finish_reason) for answer in order.answers})),
    )


def _narrate_failure(order: Order, error: BaseException) -> None:
    """Narrate the end of answers; refusals before they begin are narrated elsewhere."""
    if not order.writes:
        return
    order.writes = False
    order.request.scope["state"]["told"] = True
    narrate = partial(order.worker.narrate, request_id=order.request.state.request_id)
    if not isinstance(error, Exception) or getattr(error, "status", 0) == GONE:
        _trace(order, "cancelled")
        message = "The client has gone; its answer is given up"
        narrate("inference_cancelled", message, "Bye bye! 👋")
        return
    problem = from_error(error)
    _trace(order, str(problem.status))
    message = f"Inference failed: {problem.message}"
    cute = "Oh no, that did not work! 😿"
    narrate("inference_failed", message, cute, level="ERROR", code=problem.code)


def _trace(order: Order, error: str = "") -> None:
    """Tell the request's span, if it has one, what was asked and answered."""
    if span := order.request.scope["state"].get("span"):
        span.record(order, error)


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
    """Result of *work*, which is cancelled when the client closes the connection."""

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
