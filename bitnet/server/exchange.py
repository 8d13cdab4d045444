"""One HTTP request: its body, its model, and the reply, whole or as a stream."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request  # noqa: TC002 - FastAPI reads the annotations of a route
from fastapi.responses import JSONResponse, Response, StreamingResponse

from bitnet.base.errors import InferenceError, InvalidFormat, UsageError
from bitnet.base.tables import quantity
from bitnet.runtime.answer import Answer
from bitnet.runtime.request import DEFAULT_TOKENS, EVERYTHING
from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.metrics import describe_span
from bitnet.server.refusals import GONE, Refused, from_error, stopping, too_late
from bitnet.wire import responses
from bitnet.wire.forms import MESSAGE, with_name
from bitnet.wire.routes import dialect_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator

    from bitnet.runtime.piece import Piece
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.models import Models, Pieces
    from bitnet.server.slot import Slot
    from bitnet.wire.forms import Form

    Body = dict[str, Any]
    #: Pieces of answers, each with the number of its answer, and that answer.
    Answering = AsyncGenerator[tuple[int, Piece, Answer]]

T = TypeVar("T")

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")  # limits of an answer
MOST_HEADER = 2000  # characters of the header bitnet-ignored
TOO_LONG = "context_length_exceeded"
# Fields with the prompt.
_PROMPTS = ("messages", "prompt", "input", "content", "input_prefix", "documents", "text_2")


def describe_body(form: Form) -> dict[str, Any]:
    """OpenAPI description of the body of a route that takes *form*."""
    content = {"application/json": {"schema": form.openapi()}}
    return {"requestBody": {"required": True, "content": content}}


async def body_of(request: Request, form: Form) -> Body:
    """The fields of the body of *request*, read in a thread so that no stream waits for it."""
    return await asyncio.to_thread(form.parse, await request.body())


async def open_slot(request: Request, name: str | None) -> Slot:
    """Slot of the model *name*, loaded if necessary; it stays loaded until *request* has ended."""
    models: Models = request.app.state.models
    state = request.scope["state"]
    state["deadline"] = time.monotonic() + models.deadline_s
    use = models.get(name, state["deadline"], partial(unless_gone, request))
    slot: Slot = await state["ends"].enter_async_context(use)
    return slot


# --- the reply -----------------------------------------------------------------------------------


def respond_with(
    reply: Callable[[Request, Form], Awaitable[Response]], form: Form
) -> Callable[[Request], Awaitable[Response]]:
    """A function for FastAPI's route that calls *reply* with the request and *form*."""

    async def respond(request: Request) -> Response:
        return await reply(request, form)

    return respond


async def compute(request: Request, form: Form) -> JSONResponse:
    """The response to *request*, whose body is of *form*, without an answer of the model."""
    body = await body_of(request, form)
    slot = await open_slot(request, body["model"])
    models = request.app.state.models
    with slot.place():
        prompts = await unless_gone(request, _prompts_of(request, slot, form, body))
        with name_as_sent(form, body, prompts):
            make = partial(form.compute, body, prompts.requests, slot.model)
            work = models.run_in_thread(make, request.state.deadline)
            facts = await unless_gone(request, work)
    return JSONResponse(facts, headers=name_ignored(request, slot, form, body))


async def answer(request: Request, form: Form) -> JSONResponse | StreamingResponse:
    """The response to *request*, whose body is of *form*: whole, or as events if the body asks.

    A failure before anything has been sent is raised.
    """
    body = await body_of(request, form)
    # A body of Ollama may only load or unload the model.
    action, idle_s = form.model_use(body)
    if action == "unload":
        _unload(request.app.state.models, body["model"])
        return JSONResponse(form.empty_reply(body, action))

    slot = await open_slot(request, body["model"])
    request.app.state.models.keep(slot, idle_s)
    if action == "load":
        headers = name_ignored(request, slot, form, body)
        return JSONResponse(form.empty_reply(body, action), headers=headers)

    # Requests are made of the body first: after that, every part of it is known to have its right
    # type, and can be searched for fields without effect.
    prompts = await unless_gone(request, _prompts_of(request, slot, form, body))
    headers = name_ignored(request, slot, form, body)
    head = _head_of(request, slot, form, body)
    pieces = generate(request, slot, form, body, prompts)
    if _wants_events(form, body):
        return await _stream(request, form, body, head, headers, pieces)
    answers = await _collect(request, pieces)
    return JSONResponse(form.reply(body, head, answers), headers=headers)


def _head_of(request: Request, slot: Slot, form: Form, body: Body) -> Body:
    """The fields with which a reply to *body*, or each of its events, begins."""
    facts = {
        "id": f"{form.id_prefix}{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": slot.adapter(body["model"]) or slot.name,
        "request_id": request.scope["state"]["request_id"],
        "worker_id": request.app.state.worker_id,
    }
    return {name: facts[name] for name in form.head}


def _wants_events(form: Form, body: Body) -> bool:
    """True if *body* is to be answered as a stream."""
    if form.events is None:
        return False
    streams = body.get("stream")
    if streams is None:
        return form.dialect == "ollama"
    return bool(streams)


async def _stream(
    request: Request, form: Form, body: Body, head: Body, headers: dict[str, str], pieces: Answering
) -> StreamingResponse:
    """The answers to *body*, which come as *pieces*, as events."""
    assert form.events is not None
    state = request.scope["state"]
    state["ends"].push_async_callback(pieces.aclose)  # also if nothing of it is sent
    # Wait for the first piece: an immediate failure gets an HTTP status, not an event.
    first = await unless_gone(request, anext(pieces))
    if request.scope["http_version"] == "1.1":  # events come as chunks
        # What clients skip: space before an object, or a comment. After a client's end of input,
        # connection.py sends it to learn whether the client still reads.
        state["probe"] = b" " if form.stream == "lines" else b":\n\n"
    events = form.events(body, head, _with_first(first, pieces))
    return StreamingResponse(
        _event_texts(request.url.path, form.stream, events),
        media_type="application/x-ndjson" if form.stream == "lines" else "text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers},
    )


def _unload(models: Models, name: str) -> None:
    """Have the model *name* unloaded once no request uses it."""
    slot = models.find(name)
    if slot.pinned:
        raise Refused(
            400,
            f"keep_alive: {slot.name!r} was loaded when the worker started, and stays loaded; "
            "models of --models can be unloaded",
            param="keep_alive",
        )
    models.keep(slot, 0)


def name_ignored(request: Request, slot: Slot, form: Form, body: Body) -> dict[str, str]:
    """Headers that name the fields in *body* without effect on the answer of *slot*.

    The worker also narrates each of them once.
    """
    models: Models = request.app.state.models
    names = form.list_ignored(body, slot.model)
    if body["model"] is not None and not models.has(body["model"]):
        names.append("model")
    if slot.pinned and body.get("keep_alive") is not None:
        names.append("keep_alive")
    most = min(models.max_output_tokens, slot.model.context)
    if form.clamps:
        # The limit is lowered, and the finish reason of the answer shows it.
        names += [name for name in _LENGTHS if (body.get(name) or 0) > most]
    for name in names:
        if (form.name, name) not in models.ignored:
            models.ignored.add((form.name, name))
            slot.narrate("field_ignored", path=request.url.path, name=name)
    return {"bitnet-ignored": ", ".join(names)[:MOST_HEADER]} if names else {}


async def _collect(request: Request, pieces: Answering) -> list[Answer]:
    """The whole answers that come as *pieces*."""

    async def take_all() -> list[Answer]:
        answers = {index: each async for index, _, each in pieces}
        return [answers[index] for index in sorted(answers)]

    return await unless_gone(request, take_all())


def event_text(stream: str, facts: Any) -> str:
    """*facts* as an event of a stream in the format *stream*: see ``Form.stream``."""
    line = json.dumps(facts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if stream == "lines":
        return f"{line}\n"
    if stream == "named":
        return f"event: {facts['type']}\ndata: {line}\n\n"
    return f"data: {line}\n\n"


def last_event(path: str, refusal: Refused, sent: int) -> str:
    """The event that ends a stream of *path* which failed after *sent* events."""
    facts = refusal.body(path)
    if path == responses.PATH:
        code = refusal.code or refusal.kind
        facts = responses.error_event(sent, refusal.message, code, refusal.param)
    return event_text(dialect_of(path).STREAM, facts)


async def _event_texts(path: str, stream: str, events: AsyncIterator[Any]) -> AsyncIterator[str]:
    """*events* of the address *path* in the format *stream*; an error becomes the last one."""
    sent = 0
    try:
        async for facts in events:
            yield event_text(stream, facts)
            sent += 1
        if stream == "openai":
            yield "data: [DONE]\n\n"
    except Exception as error:  # noqa: BLE001 - the status is sent already
        yield last_event(path, from_error(error), sent)


async def _with_first(first: T, following: AsyncIterator[T]) -> AsyncIterator[T]:
    """*first*, then the items of *following*."""
    yield first
    async for item in following:
        yield item


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Result of *work*, which is cancelled if the client disconnects or the worker stops."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect())
    stopped = asyncio.ensure_future(request.app.state.models.given_up.wait())
    all_work = {working, watching, stopped}
    try:
        await asyncio.wait(all_work, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if stopped.done():
            raise stopping()
        raise Refused(GONE, "the client closed the connection")
    finally:
        for each in all_work:
            each.cancel()
        await asyncio.wait(all_work)


# --- the answers ---------------------------------------------------------------------------------


@dataclass
class BodyRequests:
    """The requests that a body makes to the model, one for each prompt."""

    requests: list[ModelRequest]
    preset: str = ""  # name of the preset that begins the conversation
    #: For each message of the conversation, its number in the client's; ``None``: the preset's.
    numbers: list[int | None] = field(default_factory=list)

    def number_as_sent(self, error: UsageError) -> UsageError:
        """*error*, with the number that the client's conversation has for its message."""
        match = MESSAGE.match(error.field)
        if match is None or not self.numbers:
            return error
        number = self.numbers[int(match[1])]
        if number is None:
            return UsageError(f"preset {self.preset!r}: {error.message}", hint=error.hint)
        return with_name(error, MESSAGE.sub(f"messages.{number}", error.field))


async def generate(
    request: Request, slot: Slot, form: Form, body: Body, prompts: BodyRequests
) -> Answering:
    """Pieces of the answers to *body*, which has *prompts*, as they are generated.

    Each comes with the number of its answer and the answer itself, which may be ahead of the piece.
    """
    models: Models = request.app.state.models
    pieces: Pieces = asyncio.Queue()
    all_requests = prompts.requests
    # Texts to embed are submitted a batch at a time, so that other requests get places as well.
    at_once = models.max_batch if all_requests[0].embed else len(all_requests)
    parts = [
        all_requests[begin : begin + at_once] for begin in range(0, len(all_requests), at_once)
    ]
    submit = partial(_submit, request, slot, form, body, pieces, prompts)
    answers = await submit(parts[0], 0)
    count = len(all_requests) * (body.get("n") or 1)
    limit_ms = body.get("t_max_predict_ms") or 0  # llama.cpp: only one above 0 is a limit
    models.queues.add(pieces)
    try:
        with _narrate_answers(request, slot, answers, count):
            for number, part in enumerate(parts):
                first_index = len(answers) if number else 0  # the first part is submitted already
                if number:
                    answers += await submit(part, first_index)
                unfinished = len(answers) - first_index
                while unfinished:
                    numbered_piece = await pieces.get()
                    if numbered_piece is None:
                        raise stopping()
                    index, piece = numbered_piece
                    _raise_failure(answers[index], piece, request)
                    unfinished -= piece.finish_reason is not None
                    # A time limit waits for the end of a line, as editors expect.
                    if 0 < limit_ms < answers[index].decode_s * 1000 and "\n" in piece.text:
                        slot.cancel([answers[index]])
                    yield index, piece, answers[index]
    finally:
        models.queues.discard(pieces)
        slot.cancel(answers)
        describe_span(answers, slot.adapter(body["model"]) or slot.name)


@contextmanager
def _narrate_answers(
    request: Request, slot: Slot, answers: list[Answer], count: int
) -> Iterator[None]:
    """Narrate the beginning and the end of *count* answers.

    *answers* has those that are submitted; the caller adds the others while the context lasts.
    """
    state = request.scope["state"]
    narrate = partial(slot.narrate, request_id=state["request_id"])
    is_whole = len(answers) == count  # otherwise, the prompts of later parts are not tokenized yet
    prompt_tokens = sum(answer.prompt_tokens for answer in answers) if is_whole else None
    narrate("inference_start", answers=quantity(count, "answer"), prompt_tokens=prompt_tokens)
    try:
        yield
    except Exception as error:
        state["is_narrated"] = True
        refusal = from_error(error)
        narrate("inference_failed", message=refusal.message, code=refusal.code)
        raise
    except BaseException:
        state["is_narrated"] = True
        narrate("inference_cancelled")
        raise
    tokens = sum(answer.tokens for answer in answers)
    finish = ",".join(sorted({str(answer.finish_reason) for answer in answers}))
    narrate("inference_complete", tokens=tokens, finish=finish)


async def _prompts_of(request: Request, slot: Slot, form: Form, body: Body) -> BodyRequests:
    """The prompts of *body*, as the model gets them."""
    models: Models = request.app.state.models
    is_unlimited = form.tokens == EVERYTHING
    longest = EVERYTHING if is_unlimited else min(form.tokens, models.max_output_tokens)
    default = replace(models.defaults, fallback={"max_tokens": longest})
    preset = slot.preset
    make = partial(form.requests, body, slot.fill_in(default), slot.model)
    lora = slot.adapter(body["model"])
    prompts = BodyRequests([])
    with name_as_sent(form, body, prompts):
        for each in await models.run_in_thread(make, request.state.deadline):
            model_request = replace(each, lora=lora)
            if preset is not None and each.messages:
                prompts.preset = preset.name
                prompts.numbers = preset.list_numbers(each.messages)
                model_request = replace(model_request, messages=preset.begin(each.messages))
            prompts.requests.append(model_request)
    return prompts


async def _submit(
    request: Request,
    slot: Slot,
    form: Form,
    body: Body,
    pieces: Pieces,
    prompts: BodyRequests,
    model_requests: list[ModelRequest],
    first: int,
) -> list[Answer]:
    """Submit the answers to *model_requests*, all or none; return them.

    Their pieces are put into *pieces*, with the numbers of the answers from *first* on. The first
    part of a request is refused if the queue is full; later parts are not.
    """
    models: Models = request.app.state.models
    choices = body.get("n") or 1
    loop = asyncio.get_running_loop()

    def put(index: int, piece: Piece) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(pieces.put_nowait, (index, piece))

    def prepare_answers() -> list[Answer]:
        sequences: list[Sequence] = []
        for each in model_requests:
            limit = models.max_output_tokens
            sequences += prepare_sequences(each, slot, choices, limit, clamps=form.clamps)
        for sequence in sequences:
            sequence.deadline = request.state.deadline
        return [Answer(slot.model.tokenizer, sequence) for sequence in sequences]

    compiles = any(each.needs_grammar for each in model_requests)
    count = len(model_requests) * choices
    naming = name_as_sent(form, body, prompts)
    with naming, slot.place(count, admitted=first > 0) as reservation:
        making = models.run_in_thread(prepare_answers, request.state.deadline, compiles=compiles)
        answers = await making
        slot.submit(answers, [partial(put, first + index) for index in range(count)])
        reservation.clear()  # each answer frees its place when it ends
    return answers


@contextmanager
def name_as_sent(form: Form, body: Body, prompts: BodyRequests) -> Iterator[None]:
    """Rename the field of an error raised here to the name that it has in *body*, of *form*."""
    try:
        yield
    except UsageError as error:
        raise form.rename(prompts.number_as_sent(error), body) from error
    except Refused as refusal:
        if refusal.code == TOO_LONG:
            refusal.param = next((name for name in _PROMPTS if body.get(name) is not None), None)
        raise
    except InvalidFormat as error:  # the template was parsed before, so the messages are wrong
        raise Refused(400, error.message, param="messages") from error


def prepare_sequences(
    request: ModelRequest, slot: Slot, choices: int, limit: int, *, clamps: bool = False
) -> list[Sequence]:
    """Sequences for the prompt or the messages of *request*, one for each choice.

    Each choice has its own seed, and *limit* tokens at most. An answer without a length limit
    reserves at most its share of the memory, so that others fit as well. With *clamps*, a length
    beyond *limit*, or beyond what is left of the context, is lowered instead of refused.
    """
    with _refusing_what_is_too_long():  # pairs of texts to rank; other prompts are measured below
        ids, model_request = slot.model.prepare(request)
    tokens = model_request.length_limit
    if request.max_tokens is None or tokens == EVERYTHING:
        share = max(DEFAULT_TOKENS, slot.fair_positions - len(ids))
        tokens = min(tokens, max(1, slot.model.context - len(ids)), limit, share)
    room = slot.model.context - len(ids)
    if clamps:  # a prompt that leaves no room is refused for its own length
        tokens = min(tokens, limit, max(1, room))
    if tokens > limit:
        message = f"{tokens:,} tokens asked for, this worker writes at most {limit:,}"
        raise Refused(400, message, param="max_tokens")
    if model_request.min_tokens > tokens:
        message = f"min_tokens is {model_request.min_tokens:,}, there is room for {tokens:,}"
        raise Refused(400, message, param="min_tokens")
    model_request = replace(model_request, max_tokens=tokens)
    with _refusing_what_is_too_long():  # it would never fit the context or the memory
        return [slot.prepare(ids, model_request.choice(number)) for number in range(choices)]


@contextmanager
def _refusing_what_is_too_long() -> Iterator[None]:
    """A block in which an :class:`InferenceError` means that a prompt is too long."""
    try:
        yield
    except InferenceError as error:
        raise Refused(400, error.message, code=TOO_LONG, param="prompt") from error


def _raise_failure(answer: Answer, piece: Piece, request: Request) -> None:
    """Raise the error of *answer* if it ended with *piece*, and failed."""
    if piece.finish_reason == "deadline":
        raise too_late(request.app.state.models.deadline_s)
    if piece.finish_reason == "error":
        raise from_error(answer.error or RuntimeError("no reason given"))
    if piece.finish_reason == "cancelled" and not answer.tokens:
        raise stopping()  # an answer that has not begun is not an empty one
