"""The addresses whose reply is one or more answers, as a table, and the dialect of any address.

The server and a batch read the same rows: how a body becomes requests, and answers a reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bitnet.runtime.request import EVERYTHING
from bitnet.wire import anthropic, llama_server, ollama, openai, openai_reply, responses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.request import Request
    from bitnet.wire.fields import Form

__all__ = ["ROUTES", "Address", "Reply", "dialect_of"]


class Reply(Protocol):
    """The reply to a body in its dialect, whole or as events."""

    def whole(self, answers: Sequence[Answer]) -> Any:
        """The whole reply, when all answers have ended."""

    def of(self, index: int, piece: Piece, answer: Answer) -> Iterator[Any]:
        """Events of one piece of one answer."""

    def end(self, answers: Sequence[Answer]) -> Iterator[Any]:
        """Events after the last answer."""


@dataclass(frozen=True)
class Address:
    """An address that takes a POST and answers it.

    Attributes:
        tag: its API.
        summary: what comes back, for the OpenAPI page.
        about: the same at length.
        form: of its bodies.
        prefix: that the id of a reply begins with.
        requests: the requests of a body, one for each prompt, and of the values of fields that it
            leaves out.
        reply: the reply to a body, whose id, time and model it is given.
        tokens: most tokens of an answer whose body does not say it.
        aliases: other addresses for it.
    """

    tag: str
    summary: str
    about: str
    form: Form
    prefix: str
    requests: Callable[[Mapping[str, Any], Request], list[Request]]
    reply: Callable[[Mapping[str, Any], Mapping[str, Any]], Reply]
    tokens: int = EVERYTHING
    aliases: tuple[str, ...] = ()


ROUTES = {
    "/v1/chat/completions": Address(
        "OpenAI", "The next message of a conversation",
        "Answer in the model's own chat template; ``stream`` sends server-sent events.",
        openai.CHAT, "chatcmpl-", openai.chat_requests, openai_reply.ChatReply,
        aliases=("/chat/completions",),  # as llama.cpp's server has it
    ),
    "/v1/completions": Address(
        "OpenAI", "The continuation of texts",
        "Continue ``prompt``; ``stream`` sends server-sent events.",
        openai.COMPLETION, "cmpl-", openai.completion_requests, openai_reply.CompletionReply,
        tokens=openai.DEFAULT_COMPLETION_TOKENS, aliases=("/completions",),
    ),
    "/v1/responses": Address(
        "OpenAI", "The next items of a conversation",
        "Answer in the model's own chat template; ``stream`` sends OpenAI's events of responses.",
        responses.RESPONSE, "resp_", responses.response_requests, responses.ResponseItems,
    ),
    "/v1/messages": Address(
        "Anthropic", "The next message of a conversation, as Anthropic has it",
        "Answer in the model's own chat template; ``stream`` sends Anthropic's events.",
        anthropic.MESSAGE, "msg_", anthropic.message_requests, anthropic.MessageReply,
    ),
    "/completion": Address(
        "llama-server", "The continuation of a text, as llama.cpp's server has it",
        "Continue ``prompt``; ``stream`` sends events without a last word.",
        llama_server.COMPLETION, "", llama_server.completion_requests, llama_server.CompletionLines,
    ),
}  # fmt: skip


def dialect_of(path: str) -> Any:
    """The module with the error form and the form of streams of the address *path*."""
    if path.startswith(ollama.PREFIX):
        return ollama
    if path.startswith(anthropic.PREFIX):
        return anthropic
    if path == responses.PATH:
        return responses
    return llama_server if path in llama_server.PATHS else openai_reply
