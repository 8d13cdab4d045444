"""Answers in the forms of OpenAI's chats, completions and embeddings, whole and as events."""

from __future__ import annotations

import base64
import secrets
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from bitnet.base.errors import UsageError
from bitnet.runtime.vectors import check_vectors, round_vectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.options import Precision
    from bitnet.runtime.piece import CallDelta, FinishReason, TokenLogprob
    from bitnet.wire.fields import Body, Events, Pieces

#: Form of streams: events with a last word.
STREAM = "openai"


def reply_head(prefix: str, model: str) -> dict[str, Any]:
    """Fields with which every part of one reply begins, with a unique id."""
    created = int(time.time())
    return {"id": f"{prefix}{secrets.token_hex(12)}", "created": created, "model": model}


def chat_reply(body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/v1/chat/completions``; *answers* has one for each choice."""
    choices = [
        {
            "index": index,
            "message": message_of(answer),
            "logprobs": chat_logprobs(answer.logprobs) if body["logprobs"] else None,
            "finish_reason": chat_finish(answer),
        }
        for index, answer in enumerate(answers)
    ]
    counts = usage(answers, choices=len(answers))
    return {**head, "object": "chat.completion", "choices": choices, "usage": counts}


async def chat_events(body: Body, head: Body, pieces: Pieces) -> Events:
    """The reply of ``/v1/chat/completions`` as events."""
    answers: dict[int, Answer] = {}

    def chunk(choices: list[Any], **more: Any) -> dict[str, Any]:
        return {**head, "object": "chat.completion.chunk", **more, "choices": choices}

    def event(
        index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None
    ) -> dict[str, Any]:
        whole = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return chunk([whole])

    async for index, piece, answer in pieces:
        if index not in answers:
            answers[index] = answer
            yield event(index, {"role": "assistant", "content": ""})
        logprobs = chat_logprobs([piece.described]) if piece.described else None
        if piece.reasoning:
            yield event(index, {"reasoning_content": piece.reasoning})
        if piece.text or logprobs:
            yield event(index, {"content": piece.text}, logprobs)
        for call in piece.calls:
            yield event(index, {"tool_calls": [_call_delta(call)]})
        if piece.finish_reason:
            yield event(index, {}, finish=chat_finish(answer))
    if counts_tokens(body):
        in_order = [answers[index] for index in sorted(answers)]
        yield chunk([], usage=usage(in_order, choices=len(answers)))


def completion_reply(body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/v1/completions``; *answers* has those of a prompt together."""
    choices = [
        completion_choice(
            index,
            (answer.prompt_text if body["echo"] else "") + answer.text,
            finish_of(answer.finish_reason),
            text_logprobs(answer.logprobs) if body["logprobs"] is not None else None,
        )
        for index, answer in enumerate(answers)
    ]
    counts = usage(answers, choices=body["n"] or 1)
    return {**head, "object": "text_completion", "choices": choices, "usage": counts}


async def completion_events(body: Body, head: Body, pieces: Pieces) -> Events:
    """The reply of ``/v1/completions`` as events."""
    head, answers = {**head, "object": "text_completion"}, {}
    async for index, piece, answer in pieces:
        logprobs = text_logprobs([piece.described]) if piece.described else None
        echoes = body["echo"] and index not in answers
        text = (answer.prompt_text if echoes else "") + piece.text
        answers[index] = answer
        if text or logprobs or piece.finish_reason:
            finish = finish_of(piece.finish_reason)
            yield {**head, "choices": [completion_choice(index, text, finish, logprobs)]}
    if counts_tokens(body):
        in_order = [answers[index] for index in sorted(answers)]
        yield {**head, "usage": usage(in_order, choices=body["n"] or 1), "choices": []}


def counts_tokens(body: Body) -> bool:
    """True if the last event of the reply to *body* has its usage."""
    return bool((body["stream_options"] or {}).get("include_usage"))


def _call_delta(delta: CallDelta) -> dict[str, Any]:
    """A part of a call in a streamed chat."""
    function = {"name": delta.name} if delta.name else {}
    begun = {"id": delta.id, "type": "function"} if delta.id else {}
    return {
        "index": delta.index, **begun, "function": {**function, "arguments": delta.arguments}
    }  # fmt: skip


def usage(answers: Sequence[Answer], *, choices: int) -> dict[str, Any]:
    """Tokens that *answers* took; a prompt counts once for its *choices*, which come together."""
    firsts = answers[::choices]
    prompt = sum(answer.prompt_tokens for answer in firsts)
    written = sum(answer.tokens for answer in answers)
    cached = sum(answer.sequence.reused_tokens for answer in firsts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def finish_of(reason: FinishReason | None) -> str | None:
    """OpenAI's name of a finish reason; ours where OpenAI has none."""
    return "length" if reason == "context" else reason


def chat_finish(answer: Answer) -> str | None:
    """As :func:`finish_of`, for an answer that may call functions."""
    called = answer.calls and answer.finish_reason == "stop"
    return "tool_calls" if called else finish_of(answer.finish_reason)


def message_of(answer: Answer) -> dict[str, Any]:
    """*answer* as a message of the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities of *tokens*, each with its alternatives."""
    return {"content": [with_top(token) for token in tokens], "refusal": None}


def token_facts(token: TokenLogprob) -> dict[str, Any]:
    """A token without its alternatives."""
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}


def with_top(
    token: TokenLogprob, facts: Callable[[TokenLogprob], dict[str, Any]] = token_facts
) -> dict[str, Any]:
    """A token and its alternatives, each as *facts* has it."""
    return facts(token) | {"top_logprobs": [facts(other) for other in token.top]}


def completion_choice(
    index: int, text: str, finish: str | None, logprobs: Any = None
) -> dict[str, Any]:
    """One choice of ``/v1/completions``."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def text_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities of *tokens*, each with its alternatives."""
    lengths = [len(token.text) for token in tokens]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{one.text: one.logprob for one in token.top} for token in tokens],
        "text_offset": list(accumulate(lengths, initial=0))[:-1],
    }


def vector_precision(body: Mapping[str, Any], dim: int) -> Precision:
    """The precision of the vectors that *body* asks a model of *dim* dimensions for."""
    dtype = body["output_dtype"] or "float"
    precision = cast("Precision", "float32" if dtype == "float" else dtype)
    try:
        check_vectors(dim, body["dimensions"], precision)
    except UsageError as error:
        field = "output_dtype" if error.field == "precision" else error.field
        raise UsageError(error.message, hint=error.hint, field=field) from error
    return precision


def vectors_of(
    body: Mapping[str, Any], answers: Sequence[Answer], precision: Precision
) -> list[NDArray[Any]]:
    """The vectors that *answers* are, as *body* wants them."""
    normalize, dimensions = body["normalize"] is not False, body["dimensions"]
    return [
        round_vectors(answer.sequence.vector(normalize=normalize, dimensions=dimensions), precision)
        for answer in answers
    ]


def embeddings_reply(
    body: Mapping[str, Any], rows: Sequence[NDArray[Any]], model: str, tokens: int
) -> dict[str, Any]:
    """The reply of ``/v1/embeddings``: *rows* of texts that have so many *tokens* together."""
    is_base64 = body["encoding_format"] == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(row) if is_base64 else row.tolist(),
        }
        for index, row in enumerate(rows)
    ]
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": counts}


def _base64(row: NDArray[Any]) -> str:
    return base64.b64encode(row.astype(row.dtype.newbyteorder("<")).tobytes()).decode()


def error_reply(
    message: str, _status: int, kind: str, code: str | None = None, field: str | None = None
) -> dict[str, Any]:
    """The body of a reply with an error status."""
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}
