"""Convert OpenAI's requests to sequences, and answers to OpenAI's form, without waiting or I/O."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.errors import UsageError
from bitnet.runtime.openai_request import (
    GRAMMARS,
    chat_request,
    grammar_of,
    request_of,
    texts_of,
)
from bitnet.runtime.request import Request
from bitnet.runtime.text_form import completion_choice
from bitnet.server.prompts import DEFAULT_TOKENS, check_size, prepared, sequences_of
from bitnet.server.refusals import Refused, from_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bitnet.runtime.sequence import Sequence as Running
    from bitnet.runtime.tool_calls import CallDelta
    from bitnet.server.service import Service
    from bitnet.server.shapes import (
        ChatRequest,
        CompletionRequest,
        EmbeddingRequest,
        InferenceRequest,
    )

__all__ = ["chat", "completions", "embeddings", "inference", "prompts_of", "reply_head"]

MAX_PROMPTS = 64
UNSAID = -1
_FREE = (None, "auto", "none")  # choices of tools that need no grammar
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions


def reply_head(prefix: str, model: str) -> dict[str, Any]:
    """Fields with which every part of one reply begins, with a unique id."""
    created = int(time.time())
    return {"id": f"{prefix}{secrets.token_hex(12)}", "created": created, "model": model}


def prompts_of(given: Any, field: str = "prompt") -> list[str | list[int]]:
    """The texts of a request in any of the four forms OpenAI takes them in.

    Raises:
        UsageError: there are none, or too many.
    """
    return texts_of(given, field, at_most=MAX_PROMPTS)


def inference(body: InferenceRequest, service: Service) -> list[Running]:
    """Sequences for ``/v1/inference``.

    Raises:
        Refused: something in it cannot be.
    """
    return _continuations(body, [body.prompt], service, tokens=DEFAULT_TOKENS, temperature=0.0)


def completions(body: CompletionRequest, service: Service) -> list[Running]:
    """Sequences for ``/v1/completions``: *n* for each prompt, adjacent for the same prompt.

    Raises:
        Refused: something in it cannot be.
    """
    prompts = prompts_of(body.prompt)
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
    translated = _translated(request_of, body.model_dump(), temperature=temperature, tokens=tokens)
    translated = replace(translated, logprobs=logprobs)
    found = []
    for prompt in prompts:
        ids, ready = prepared(replace(translated, prompt=prompt), service)
        found += service.sequences(ids, ready, tokens=translated.max_tokens, choices=choices)
    return found


def chat(body: ChatRequest, service: Service) -> list[Running]:
    """Sequences for ``/v1/chat/completions``, one for each choice.

    Raises:
        Refused: something in it cannot be.
        BitnetError: the model's chat template does not accept the conversation.
    """
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    facts = body.model_dump(exclude={"messages"}) | {"messages": messages}
    if body.tool_choice != "none":
        check_size("tools", body.tools)
    translated = _translated(chat_request, facts, temperature=1.0, tokens=1)
    given = [body.max_completion_tokens, body.max_tokens]
    tokens = next((one for one in given if one not in (None, UNSAID)), None)
    return sequences_of(translated, service, tokens=tokens, choices=body.n or 1)


def embeddings(body: EmbeddingRequest, service: Service) -> list[Running]:
    """Sequences for ``/v1/embeddings``.

    Raises:
        Refused: an input is empty, too long or has unknown ids.
    """
    found = []
    for text in prompts_of(body.input, "input"):
        ids = service.model.embedding_ids(text, body.prompt_name)
        context = service.model.context
        if not 0 < len(ids) <= context or max(ids) >= service.model.config.vocab_size:
            raise Refused(400, f"each input needs 1 to {context:,} known tokens", param="input")
        found += service.sequences(ids, Request(embed=True), tokens=1)
    return found


def compiles(body: Any) -> bool:
    """True if the answer to *body* needs a grammar."""
    form = getattr(body, "response_format", None)
    if form is not None and form.type != "text":
        return True
    plain = {name: getattr(body, name) for name in GRAMMARS}
    return bool(grammar_of(plain)[1]) or getattr(body, "tool_choice", None) not in _FREE


def _translated(
    read: Callable[[Mapping[str, Any], Request], Request],
    facts: Mapping[str, Any],
    *,
    temperature: float,
    tokens: int,
) -> Request:
    """The request that *facts* are, by *read*; -1 and nothing stand for the default.

    Raises:
        Refused: a value is out of its range, or two contradict each other.
    """
    default = Request(max_tokens=tokens)
    default = replace(default, sampling=replace(default.sampling, temperature=temperature))
    try:
        field, grammar = grammar_of(facts)
        for value in grammar.values():
            check_size(field, value)
        return read(facts, default)
    except UsageError as error:
        raise from_error(error) from error


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


def completion_chunk(
    head: Mapping[str, Any], index: int, text: str, finish: str | None, logprobs: Any = None
) -> dict[str, Any]:
    """One event of a streamed completion."""
    return _reply(head, "text_completion") | {
        "choices": [completion_choice(index, text, finish, logprobs)]
    }


def usage_chunk(head: Mapping[str, Any], kind: str, counts: dict[str, Any]) -> dict[str, Any]:
    """Event with the token counts at the end of a stream, sent on request."""
    return _reply(head, kind, usage=counts) | {"choices": []}


def _reply(
    head: Mapping[str, Any], kind: str, *, usage: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {**head, "object": kind, **({"usage": usage} if usage is not None else {})}
