"""The addresses that take a form, as two tables, and the dialect of any address.

The server and batches use the same forms, which turn a body into requests and answers into a reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.wire import (
    anthropic,
    embeddings,
    llama_server,
    ollama,
    openai,
    ranking,
    responses,
    worker,
)

if TYPE_CHECKING:
    from bitnet.wire.forms import Form

#: The form of each address whose reply is made of answers of a model.
ROUTES: dict[str, Form] = {
    "/v1/chat/completions": openai.CHAT,
    "/v1/completions": openai.COMPLETION,
    "/v1/responses": responses.RESPONSE,
    "/v1/embeddings": embeddings.EMBEDDING,
    "/v1/rerank": ranking.RERANK,
    "/v1/score": ranking.SCORE,
    "/v1/inference": worker.INFERENCE,
    "/v1/messages": anthropic.MESSAGE,
    "/completion": llama_server.COMPLETION,
    "/infill": llama_server.INFILL,
    "/embedding": llama_server.EMBED,
    "/api/chat": ollama.CHAT,
    "/api/generate": ollama.GENERATE,
    "/api/embed": ollama.EMBED,
    "/api/embeddings": ollama.EMBED_ONE,
}
#: The form of each address that computes its reply without an answer of a model.
COMPUTED: dict[str, Form] = {
    "/tokenize": worker.TOKENIZE,
    "/detokenize": worker.DETOKENIZE,
    "/v1/messages/count_tokens": anthropic.COUNT,
    "/apply-template": llama_server.TEMPLATE,
}


def dialect_of(path: str) -> Any:
    """The module with the error form and the form of streams of the address *path*."""
    if path.startswith(ollama.PREFIX):
        return ollama
    if path.startswith(anthropic.PREFIX):
        return anthropic
    if path == responses.PATH:
        return responses
    return llama_server if path in llama_server.PATHS else openai
