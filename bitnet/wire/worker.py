"""The worker's own routes: ``/v1/inference``, and text to ids and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.runtime.request import DEFAULT_TOKENS
from bitnet.wire.forms import Form, no_requests
from bitnet.wire.openai import ANSWER, SETTERS, UNSERVED, finish_of, request_without_prompt
from bitnet.wire.schemas import FLAG, TEXT, TOKEN_ID, mark_refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.request import Request
    from bitnet.wire.forms import Body, Events, Pieces


DETOKENIZE = Form(
    "DetokenizeRequest",
    {"tokens": {"type": "array", "items": TOKEN_ID}, "model": TEXT},
    required=("tokens",), tag="worker", summary="The text of ids",
    requests=no_requests,
    compute=lambda body, _, model: {"content": model.tokenizer.decode(body["tokens"])},
)  # fmt: skip


def tokenize(body: Body, _: Sequence[Request], model: LanguageModel) -> dict[str, Any]:
    """Ids of ``content``, alone or with their pieces, as llama.cpp's server has them."""
    ids = model.tokenizer.encode(
        body["content"],
        add_special=bool(body["add_special"]),
        parse_special=body["parse_special"] is not False,
    )
    if not body["with_pieces"]:
        return {"tokens": list(ids)}
    pieces = [{"id": id, "piece": _piece(model.tokenizer.token_bytes(id))} for id in ids]
    return {"tokens": pieces}


def _piece(raw: bytes) -> str | list[int]:
    """The text *raw*, or its bytes if they are only part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def inference_reply(_body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/v1/inference``."""
    (answer,) = answers
    return {
        **head,
        "text": answer.text,
        "tokens": answer.ids,
        "tokens_generated": answer.tokens,
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.sequence.reused_tokens,
        "finish_reason": finish_of(answer.finish_reason),
    }


async def inference_events(body: Body, head: Body, pieces: Pieces) -> Events:
    """The reply of ``/v1/inference`` as events."""
    async for _, piece, answer in pieces:  # noqa: B007 - read after the loop
        if piece.text:
            yield {"text": piece.text}
    yield inference_reply(body, head, [answer]) | {"done": True}


INFERENCE = Form(
    "InferenceRequest",
    {**ANSWER, "prompt": TEXT, "stream": FLAG, **UNSERVED, **mark_refused("reasoning_effort")},
    required=("prompt",), setters=SETTERS,
    head=("request_id", "worker_id"), tokens=DEFAULT_TOKENS,
    tag="worker", summary="The continuation of a text, greedy unless sampling is set",
    requests=lambda body, default, _: [
        replace(request_without_prompt(body, default), prompt=body["prompt"])
    ],
    reply=inference_reply, events=inference_events,
)  # fmt: skip
TOKENIZE = Form(
    "TokenizeRequest",
    {
        "content": TEXT,
        "model": TEXT,
        "add_special": FLAG | {"description": "false by default: no BOS or EOS"},
        "parse_special": FLAG | {"description": "true by default: control tokens are read"},
        "with_pieces": FLAG | {"description": "each id with its text"},
    },
    required=("content",), requests=no_requests, compute=tokenize, tag="worker",
    summary="The ids of a text",
)  # fmt: skip
