"""The addresses whose reply is one or more answers, as a table, and the dialect of any address.

The server and a batch read the same rows: how a body becomes requests, and answers a reply.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.wire import anthropic, llama_server, ollama, openai, openai_reply, responses

if TYPE_CHECKING:
    from bitnet.wire.fields import Form

#: The form of each address.
ROUTES: dict[str, Form] = {
    "/v1/chat/completions": replace(
        openai.CHAT,
        tag="OpenAI", summary="The next message of a conversation",
        about="Answer in the model's own chat template; ``stream`` sends server-sent events.",
        id_prefix="chatcmpl-", requests=openai.chat_requests,
        reply=openai_reply.chat_reply, events=openai_reply.chat_events,
        aliases=("/chat/completions",),  # as llama.cpp's server has it
    ),
    "/v1/completions": replace(
        openai.COMPLETION,
        tag="OpenAI", summary="The continuation of texts",
        about="Continue ``prompt``; ``stream`` sends server-sent events.",
        id_prefix="cmpl-", requests=openai.completion_requests,
        reply=openai_reply.completion_reply, events=openai_reply.completion_events,
        tokens=openai.DEFAULT_COMPLETION_TOKENS, aliases=("/completions",),
    ),
    "/v1/responses": replace(
        responses.RESPONSE,
        tag="OpenAI", summary="The next items of a conversation",
        about="Answer in the model's own chat template; ``stream`` sends OpenAI's events of "
        "responses.",
        id_prefix="resp_", requests=responses.response_requests,
        reply=responses.response_reply, events=responses.response_events,
    ),
    "/v1/messages": replace(
        anthropic.MESSAGE,
        tag="Anthropic", summary="The next message of a conversation, as Anthropic has it",
        about="Answer in the model's own chat template; ``stream`` sends Anthropic's events.",
        id_prefix="msg_", requests=anthropic.message_requests,
        reply=anthropic.message_reply, events=anthropic.message_events,
    ),
    "/completion": replace(
        llama_server.COMPLETION,
        tag="llama-server", summary="The continuation of a text, as llama.cpp's server has it",
        about="Continue ``prompt``; ``stream`` sends events without a last word.",
        requests=llama_server.completion_requests,
        reply=llama_server.completion_reply, events=llama_server.completion_events,
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
