"""Scores of documents: the routes of Jina, Cohere, llama.cpp's server and vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.vectors import relevance, to_rank
from bitnet.wire.embeddings import MAX_TEXTS, check_count, usage_of
from bitnet.wire.forms import Form
from bitnet.wire.schemas import FLAG, TEXT, TEXTS, any_of, mark_ignored, mark_refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.request import Request
    from bitnet.wire.forms import Body

#: A document, as Jina and Cohere have it: a text, or an object with one.
_DOCUMENT = any_of(TEXT, {"type": "object", "properties": {"text": TEXT}, "required": ["text"]})


_RANK_FIELDS = {
    "query": TEXT | {"description": "text that the documents are to answer"},
    "documents": {
        "type": "array", "items": _DOCUMENT, "description": "texts, or objects with a text",
    },
    "texts": TEXTS
    | {"description": "documents in the form of text-embeddings-inference, whose reply is a list"},
    "model": TEXT,
    "top_n": {"type": "integer", "minimum": 1, "description": "number of results; default: all"},
    "return_documents": FLAG | {"description": "results have the documents"},
    "return_text": FLAG | {"description": "the same for texts"},
    **mark_ignored(user=TEXT),
    **mark_refused("raw_scores"),
    **mark_refused("truncate", hint="shorten the texts"),
    # It says how `truncate` cuts, which is refused.
    **mark_refused("truncation_direction", neutral=("right", "Right")),
}  # fmt: skip


def rank_requests(body: Body, *_: object) -> list[Request]:
    """The requests of *body*, as :data:`RERANK` reads it: one for each document."""
    texts = _documents(body)
    return [to_rank(body["query"], text) for text in texts]


def _documents(body: Body) -> list[str]:
    """Texts of the documents in *body*, from ``documents`` or ``texts``, but not both."""
    names = [name for name in ("documents", "texts") if body[name] is not None]
    if len(names) != 1:
        raise UsageError("documents: expected either documents or texts", field="documents")
    documents = body[names[0]]
    check_count(documents, names[0], at_most=MAX_TEXTS)
    return [entry if isinstance(entry, str) else entry["text"] for entry in documents]


def rank_reply(body: Body, head: Body, answers: Sequence[Answer]) -> Any:
    """The reply of ``/v1/rerank``; with ``texts`` a list, as text-embeddings-inference has it."""
    scores = [_score_of(answer) for answer in answers]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    top_n = body["top_n"]
    order = order[: len(order) if top_n is None else top_n]
    documents = _documents(body)
    if body["texts"] is not None:
        has_texts = bool(body["return_text"])
        return [
            {"index": index, "score": scores[index]}
            | ({"text": documents[index]} if has_texts else {})
            for index in order
        ]
    has_documents = bool(body["return_documents"])
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": documents[index]}} if has_documents else {})
        for index in order
    ]
    usage = usage_of(answers)
    return {"model": head["model"], "object": "list", "usage": usage, "results": results}


def score_requests(body: Body, *_: object) -> list[Request]:
    """The requests of *body*, as :data:`SCORE` reads it: one for each pair."""
    firsts, seconds = (
        [body[name]] if isinstance(body[name], str) else list(body[name])
        for name in ("text_1", "text_2")
    )
    check_count(firsts, "text_1", at_most=MAX_TEXTS)
    check_count(seconds, "text_2", at_most=MAX_TEXTS)
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        raise UsageError(
            f"text_1: {len(firsts):,} texts, expected one or as many as text_2 has, "
            f"{len(seconds):,}",
            field="text_1",
        )
    return [to_rank(first, second) for first, second in zip(firsts, seconds, strict=True)]


def score_reply(_body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/v1/score``."""
    scores = [_score_of(answer) for answer in answers]
    entries = [
        {"index": index, "object": "score", "score": score} for index, score in enumerate(scores)
    ]
    usage = usage_of(answers)
    return {**head, "object": "list", "data": entries, "usage": usage}


def _score_of(answer: Answer) -> float:
    """Relevance of the document of *answer*."""
    return relevance(answer.sequence)


RERANK = Form(
    "RerankRequest", _RANK_FIELDS, required=("query",),
    setters={"prompt": ("query",), "document": ("documents", "texts")},
    tag="Jina and Cohere", summary="Documents by how well they answer a query",
    requests=rank_requests, reply=rank_reply,
    aliases=("/rerank", "/reranking", "/v1/reranking", "/v2/rerank"),
)  # fmt: skip
SCORE = Form(
    "ScoreRequest",
    {"text_1": any_of(TEXT, TEXTS), "text_2": any_of(TEXT, TEXTS), "model": TEXT},
    required=("text_1", "text_2"), id_prefix="score-",
    setters={"prompt": ("text_1",), "document": ("text_2",)},
    tag="vLLM", summary="Score of each pair of texts",
    requests=score_requests, reply=score_reply, aliases=("/score",),
)  # fmt: skip
