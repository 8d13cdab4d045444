"""The worker's own routes: ``/v1/inference``, and text to ids and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.wire.fields import FLAG, TEXT, TOKEN_ID, Form
from bitnet.wire.openai import ANSWER, UNSERVED, continuation
from bitnet.wire.openai_reply import finish_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.request import Request

__all__ = ["DETOKENIZE", "INFERENCE", "TOKENIZE", "InferenceReply", "inference_requests"]

INFERENCE = Form(
    "InferenceRequest",
    {**ANSWER, "prompt": TEXT, "stream": FLAG},
    required=("prompt",),
    unserved=UNSERVED,
)
TOKENIZE = Form(
    "TokenizeRequest",
    {"content": TEXT, "model": TEXT, "add_special": FLAG, "with_pieces": FLAG},
    required=("content",),
)
DETOKENIZE = Form(
    "DetokenizeRequest",
    {"tokens": {"type": "array", "items": TOKEN_ID}, "model": TEXT},
    required=("tokens",),
)


def inference_requests(body: Mapping[str, Any], default: Request) -> list[Request]:
    """The request of *body*, as :data:`INFERENCE` reads it; *default* for what it leaves out.

    Raises:
        UsageError: as :func:`bitnet.wire.openai.continuation`.
    """
    return [replace(continuation(body, default), prompt=body["prompt"])]


class InferenceReply:
    """The reply of ``/v1/inference``, whole and as events."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        """A reply that begins with *head*."""
        self._head = head

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The reply of a finished answer."""
        (answer,) = answers
        return {
            **self._head,
            "text": answer.text,
            "tokens": answer.ids,
            "tokens_generated": answer.stats.tokens,
            "prompt_tokens": answer.stats.prompt_tokens,
            "cached_tokens": answer.stats.reused_tokens,
            "finish_reason": finish_of(answer.finish_reason),
        }

    def of(self, _index: int, piece: Piece, _answer: Answer) -> Iterator[dict[str, Any]]:
        """Events of one piece."""
        if piece.text:
            yield {"text": piece.text}

    def end(self, answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
        """Events after the last piece."""
        yield self.whole(answers) | {"done": True}
