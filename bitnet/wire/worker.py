"""The worker's own routes: ``/v1/inference``, and text to ids and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.wire.fields import FLAG, TEXT, TOKEN_ID, Form
from bitnet.wire.openai import ANSWER, UNSERVED, continuation, finish_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.wire.fields import Body, Events, Pieces

DEFAULT_TOKENS = 128


def tokenize(body: Body, model: LanguageModel) -> dict[str, Any]:
    """Ids of ``content``."""
    add_special = body["add_special"] is not False
    ids = model.tokenizer.encode(body["content"], add_special=add_special, parse_special=True)
    return {"tokens": list(ids)}


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
    async for _, piece, answer in pieces:  # noqa: B007 - used behind it
        if piece.text:
            yield {"text": piece.text}
    yield inference_reply(body, head, [answer]) | {"done": True}


INFERENCE = Form(
    "InferenceRequest", {**ANSWER, "prompt": TEXT, "stream": FLAG}, required=("prompt",),
    unserved=UNSERVED, head=("request_id", "worker_id"), tokens=DEFAULT_TOKENS,
    tag="worker", summary="The continuation of a text, greedily by default",
    requests=lambda body, default, _: [replace(continuation(body, default), prompt=body["prompt"])],
    reply=inference_reply, events=inference_events,
)  # fmt: skip
TOKENIZE = Form(
    "TokenizeRequest", {"content": TEXT, "model": TEXT, "add_special": FLAG},
    required=("content",), compute=tokenize, tag="worker", summary="The ids of a text",
)  # fmt: skip
DETOKENIZE = Form(
    "DetokenizeRequest",
    {"tokens": {"type": "array", "items": TOKEN_ID}, "model": TEXT},
    required=("tokens",), tag="worker", summary="The text of ids",
    compute=lambda body, model: {"content": model.tokenizer.decode(body["tokens"])},
)  # fmt: skip
