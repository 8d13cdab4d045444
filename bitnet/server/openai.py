"""OpenAI's requests as sequences, and answers in OpenAI's shapes. Nothing here waits or sends."""

from __future__ import annotations

import base64
import re
import secrets
import time
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from bitnet.errors import UsageError
from bitnet.runtime.chat_form import chat_finish, chat_logprobs, finish_of, message_of
from bitnet.runtime.request import Request
from bitnet.server.faults import Refused, from_error
from bitnet.server.prompts import DEFAULT_TOKENS, check_size, prepared, sequences_of
from bitnet.server.shapes import SAMPLING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import TokenLogprob
    from bitnet.runtime.sequence import Sequence as Running
    from bitnet.runtime.tool_calls import CallDelta
    from bitnet.server.service import Service
    from bitnet.server.shapes import (
        ChatRequest,
        CompletionRequest,
        EmbeddingRequest,
        InferenceRequest,
    )

__all__ = ["chat", "completions", "embeddings", "inference", "reply_head", "texts_of"]

MAX_PROMPTS = 64
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions


def reply_head(prefix: str, model: str) -> dict[str, Any]:
    """What every part of one reply begins with; its id is no other reply's."""
    created = int(time.time())
    return {"id": f"{prefix}-{secrets.token_hex(12)}", "created": created, "model": model}


def usage(answers: Sequence[Answer], *, choices: int) -> dict[str, Any]:
    """Tokens that *answers* took; a prompt counts once for its choices.

    Args:
        answers: all of them, those of a prompt together.
        choices: how many each prompt has.
    """
    firsts = answers[::choices]
    prompt = sum(answer.stats.prompt_tokens for answer in firsts)
    written = sum(answer.stats.tokens for answer in answers)
    cached = sum(answer.stats.reused_tokens for answer in firsts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def inference(body: InferenceRequest, service: Service) -> list[Running]:
    """The answer that ``/v1/inference`` wants.

    Raises:
        Refused: something in it cannot be.
    """
    return _continuations(body, [body.prompt], service, tokens=DEFAULT_TOKENS, temperature=0.0)


def completions(body: CompletionRequest, service: Service) -> list[Running]:
    """The answers that ``/v1/completions`` wants: *n* for each prompt, those of a prompt together.

    Raises:
        Refused: something in it cannot be.
    """
    prompts = texts_of(body.prompt)
    return _continuations(
        body, prompts, service,
        tokens=DEFAULT_COMPLETION_TOKENS, choices=body.n or 1, logprobs=body.logprobs,
    )  # fmt: skip


def _continuations(
    body: Any,
    prompts: Sequence[str | list[int]],
    service: Service,
    *,
    tokens: int,
    temperature: float = 1.0,
    choices: int = 1,
    logprobs: int | None = None,
) -> list[Running]:
    tokens = min(tokens, service.max_output_tokens)
    wanted = _request(body, temperature=temperature, tokens=tokens, logprobs=logprobs)
    found = []
    for prompt in prompts:
        ids, ready = prepared(
            replace(wanted, prompt=prompt), service, ignore_eos=bool(body.ignore_eos)
        )
        found += service.sequences(ids, ready, tokens=wanted.max_tokens, choices=choices)
    return found


def chat(body: ChatRequest, service: Service) -> list[Running]:
    """The answers that ``/v1/chat/completions`` wants, one for each choice.

    Raises:
        Refused: something in it cannot be.
        BitnetError: the model's chat template does not take the conversation.
    """
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    unsaid = -1
    wanted = replace(
        _request(body, temperature=1.0, tokens=1, logprobs=logprobs),
        messages=[message.model_dump(exclude_none=True) for message in body.messages],
        tools=_tools(body),
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        template_variables=_template_variables(body.chat_template_kwargs),
    )
    given = [body.max_completion_tokens, body.max_tokens]
    tokens = next((one for one in given if one not in (None, unsaid)), None)
    return sequences_of(
        wanted, service, tokens=tokens, choices=body.n or 1, ignore_eos=bool(body.ignore_eos)
    )


def embeddings(body: EmbeddingRequest, service: Service) -> list[Running]:
    """The vectors that ``/v1/embeddings`` wants.

    Raises:
        Refused: an input is empty, too long or not known.
    """
    found = []
    for text in texts_of(body.input, "input"):
        try:
            ids = service.model.embedding_ids(text, body.prompt_name)
        except UsageError as error:
            raise from_error(error) from error
        context = service.model.context
        if not 0 < len(ids) <= context or max(ids) >= service.model.config.vocab_size:
            raise Refused(400, f"each input needs 1 to {context:,} known tokens", param="input")
        found += service.sequences(ids, Request(embed=True), tokens=1)
    return found


def compiles(body: Any) -> bool:
    """Whether a grammar has to be made for the answer to *body*."""
    form = getattr(body, "response_format", None)
    if form is not None and form.type != "text":
        return True
    return bool(_grammar(body)) or getattr(body, "tool_choice", None) not in (None, "auto", "none")


def _request(body: Any, *, temperature: float, tokens: int, logprobs: int | None) -> Request:
    """What *body* says about an answer, checked; -1 and nothing stand for the default.

    Raises:
        Refused: a value is out of its range, or two contradict each other.
    """
    given = {name: getattr(body, name) for name in SAMPLING} | _grammar(body)
    if body.repeat_penalty is not None:
        given["repetition_penalty"] = body.repeat_penalty
    for name in ("max_tokens", "min_tokens", "stop"):
        given[name] = getattr(body, name)
    if (longer := getattr(body, "max_completion_tokens", None)) is not None:
        given["max_tokens"] = longer
    try:
        default = Request(max_tokens=tokens, logprobs=logprobs)
        default = replace(default, sampling=replace(default.sampling, temperature=temperature))
        return Request.from_mapping(given, default)
    except UsageError as error:
        raise from_error(error) from error


def _grammar(body: Any) -> dict[str, Any]:
    """``json_schema`` or ``regex`` of a request, in any of the forms that servers take them in.

    Raises:
        Refused: there are two of them, or it is too large.
    """
    found: dict[str, tuple[str, Any]] = {}
    for name in ("json_schema", "guided_json", "guided_regex", "guided_choice"):
        if (value := getattr(body, name)) is not None:
            kind = {"guided_regex": "regex", "guided_choice": "choice"}.get(name, "json_schema")
            found[name] = kind, value
    for name, value in (body.structured_outputs or {}).items():
        kinds = {"json": "json_schema", "json_object": "any", "regex": "regex", "choice": "choice"}
        if name not in kinds:
            name = f"structured_outputs.{name}"[:100]
            raise Refused(400, f"{name} is not served", param=name)
        found[f"structured_outputs.{name}"] = kinds[name], value
    form = getattr(body, "response_format", None)
    if form is not None and form.type == "json_object":
        found["response_format"] = "any", True
    elif form is not None and form.type == "json_schema":
        schema = (form.json_schema or {}).get("schema")
        if not isinstance(schema, dict):
            name = "response_format.json_schema.schema"
            raise Refused(400, "json_schema needs a schema", param=name)
        found["response_format"] = "json_schema", schema
    if len(found) > 1:
        raise Refused(400, f"{' and '.join(found)} are both given", param=next(iter(found)))
    for name, (kind, value) in found.items():
        return _checked_grammar(name, kind, value)
    return {}


def _checked_grammar(name: str, kind: str, value: Any) -> dict[str, Any]:
    wrong = ""
    if kind == "any":
        return {"json_schema": {"type": "object"}} if value else {}
    if kind == "choice":
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            wrong = "is not a list of texts"
        elif not value:
            wrong = "is empty"
        else:
            kind, value = "regex", "|".join(_SPECIAL.sub(r"\\\g<0>", one) for one in value)
    if wrong:
        raise Refused(400, f"{name} {wrong}", param=name)
    check_size(name, value)
    return {kind: value}


def _tools(body: ChatRequest) -> list[dict[str, Any]] | None:
    """The functions that the model is told of."""
    if body.tool_choice == "none":
        return None
    check_size("tools", body.tools)
    return body.tools


_SPECIAL = re.compile(r"[][\\.+*?()|{}^$#&~-]")  # of a regular expression


def texts_of(given: Any, field: str = "prompt") -> list[str | list[int]]:
    """The prompts in any of the four forms OpenAI takes them in.

    Args:
        given: what *field* of the request holds.
        field: for the message.

    Raises:
        Refused: there are none, or too many.
    """
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [list(given)]
    if not 0 < len(given) <= MAX_PROMPTS:
        raise Refused(400, f"{len(given)} texts, expected 1 to {MAX_PROMPTS}", param=field)
    return list(given)


def chat_reply(
    head: Mapping[str, Any], answers: Sequence[Answer], *, logprobs: bool
) -> dict[str, Any]:
    """The whole reply of ``/v1/chat/completions``."""
    counts = usage(answers, choices=len(answers))
    return _reply(head, "chat.completion", usage=counts) | {
        "choices": [
            {
                "index": index,
                "message": message_of(answer),
                "logprobs": chat_logprobs(answer.logprobs) if logprobs else None,
                "finish_reason": chat_finish(answer),
            }
            for index, answer in enumerate(answers)
        ]
    }


def call_delta(delta: CallDelta) -> dict[str, Any]:
    """A part of a call in a streamed chat."""
    function = {"name": delta.name} if delta.name else {}
    begun = {"id": delta.id, "type": "function"} if delta.id else {}
    return {
        "index": delta.index, **begun, "function": {**function, "arguments": delta.arguments}
    }  # fmt: skip


def chat_chunk(
    head: Mapping[str, Any],
    index: int,
    delta: dict[str, Any],
    *,
    finish: str | None = None,
    logprobs: Any = None,
) -> dict[str, Any]:
    """One event of a streamed chat."""
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return _reply(head, "chat.completion.chunk") | {"choices": [choice]}


def completion_reply(
    head: Mapping[str, Any],
    answers: Sequence[Answer],
    *,
    logprobs: bool,
    choices: int,
    echoed: Sequence[str],
) -> dict[str, Any]:
    """The whole reply of ``/v1/completions``."""
    return _reply(head, "text_completion", usage=usage(answers, choices=choices)) | {
        "choices": [
            completion_choice(
                index, echoed[index] + answer.text, finish_of(answer.finish_reason),
                _text_logprobs(answer.logprobs) if logprobs else None,
            )
            for index, answer in enumerate(answers)
        ]
    }  # fmt: skip


def completion_choice(
    index: int, text: str, finish: str | None, logprobs: Any = None
) -> dict[str, Any]:
    """One choice of ``/v1/completions``."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def completion_chunk(
    head: Mapping[str, Any], index: int, text: str, finish: str | None, logprobs: Any = None
) -> dict[str, Any]:
    """One event of a streamed completion."""
    return _reply(head, "text_completion") | {
        "choices": [completion_choice(index, text, finish, logprobs)]
    }


def usage_chunk(head: Mapping[str, Any], kind: str, counts: dict[str, Any]) -> dict[str, Any]:
    """The event with the token counts that a stream ends with when it is asked to."""
    return _reply(head, kind, usage=counts) | {"choices": []}


def embeddings_reply(
    request: EmbeddingRequest, rows: Sequence[NDArray[Any]], model: str, tokens: int
) -> dict[str, Any]:
    """The reply of ``/v1/embeddings``."""
    encoded: list[Any] = [
        base64.b64encode(row.astype(row.dtype.newbyteorder("<")).tobytes()).decode()
        if request.encoding_format == "base64"
        else row.tolist()
        for row in rows
    ]
    data = [
        {"object": "embedding", "index": index, "embedding": row}
        for index, row in enumerate(encoded)
    ]
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": counts}


def text_logprobs(token: TokenLogprob) -> dict[str, Any]:
    """Log-probabilities of one streamed token, in the form of ``/v1/completions``."""
    return _text_logprobs([token])


def _reply(
    head: Mapping[str, Any], kind: str, *, usage: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {**head, "object": kind, **({"usage": usage} if usage is not None else {})}


def _template_variables(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """Variables for the chat template, without those that are not a client's to set."""
    own = {
        "self", "messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt",
    }  # fmt: skip
    wrong = own.intersection(given or ())
    if wrong:
        raise Refused(
            400, f"{', '.join(sorted(wrong))} cannot be set", param="chat_template_kwargs"
        )
    return given


def _text_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    lengths = [len(token.text) for token in tokens]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{one.text: one.logprob for one in token.top} for token in tokens],
        "text_offset": list(accumulate(lengths, initial=0))[:-1],
    }
