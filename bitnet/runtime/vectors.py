"""Vectors, scores and classes of texts, which a model computes without writing anything."""

from __future__ import annotations

from collections import abc
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bitnet.base.errors import Unsupported, UsageError
from bitnet.base.invocation import shell_quote
from bitnet.base.options import check_type
from bitnet.families.heads import YES_NO
from bitnet.runtime.request import Request
from bitnet.runtime.sequence import as_list, check_vectors
from bitnet.runtime.text_ids import TokenIds, pair_ids, prompt_text, text_ids
from bitnet.tokenizer.chat import chat_template

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Prompts
    from bitnet.runtime.scheduler import Scheduler
    from bitnet.runtime.sequence import Sequence
    from bitnet.tokenizer import Tokenizer

AT_ONCE = 16  # texts per forward pass; they are packed without padding


class Runnable(Protocol):
    """A language model, as far as vectors and scores need it."""

    path: Path
    tokenizer: Tokenizer
    context: int
    config: ModelConfig
    prompts: Prompts
    text_limit: int | None

    @property
    def rank_template(self) -> str | None:
        """Text around a query and a document for a model that ranks; None without one."""

    def scheduler(self, *, max_batch: int) -> Scheduler:
        """A scheduler of several sequences."""


def embed(
    model: Runnable,
    texts: str | abc.Sequence[str | abc.Sequence[int]],
    *,
    prompt_name: str | None,
    normalize: bool,
    dimensions: int | None,
    truncate: bool,
) -> NDArray[np.float32]:
    """Vectors of *texts*; arguments, result and errors are those of :meth:`LanguageModel.embed`."""
    check_vectors(model.config.vector_dim, dimensions)
    check_type("prompt_name", prompt_name, "a text or None", str, None)
    check_type("texts", texts, "a text or a list of them", str, abc.Sequence, np.ndarray)
    inputs = [texts] if isinstance(texts, str) else texts
    requests = [Request(prompt=text, embed=True, prompt_name=prompt_name) for text in inputs]
    rows = np.empty((len(inputs), dimensions or model.config.vector_dim), dtype=np.float32)
    for row, sequence in zip(rows, _run(model, requests, truncate=truncate), strict=True):
        row[:] = sequence.vector(normalize=normalize, dimensions=dimensions)
    return rows


def rank(
    model: Runnable, query: str, documents: abc.Sequence[str], *, truncate: bool
) -> NDArray[np.float32]:
    """Score of each of *documents*, ``(len(documents),)``; see :meth:`LanguageModel.rank`."""
    check_type("query", query, "a text", str)
    check_type("documents", documents, "a list of texts", list, tuple)
    requests = [to_rank(query, document) for document in documents]
    running = _run(model, requests, truncate=truncate)
    return np.array([relevance(sequence) for sequence in running], dtype=np.float32)


def classify(
    model: Runnable, texts: str | abc.Sequence[str], *, truncate: bool
) -> NDArray[np.float32]:
    """Score of each label per text, ``(texts, labels)``; see :meth:`LanguageModel.classify`."""
    check_type("texts", texts, "a text or a list of them", str, list, tuple)
    inputs = [texts] if isinstance(texts, str) else texts
    requests = [Request(prompt=text, embed=True, scored=True) for text in inputs]
    running = _run(model, requests, truncate=truncate)
    width = len(model.config.classifier.labels) if model.config.classifier else 0
    rows = np.empty((len(inputs), width), dtype=np.float32)
    for row, sequence in zip(rows, running, strict=True):
        row[:] = shares(sequence)
    return rows


def to_rank(query: str, document: str) -> Request:
    """The request for the score of *document* as an answer to *query*."""
    return Request(prompt=query, document=document, embed=True, scored=True)


def find_rank_template(model: Runnable) -> str | None:
    """Text around a query and a document for a *model* that ranks; None without one.

    It is the template ``rerank``. A model that answers yes or no and has only a template of
    conversations gets the query and the document as messages with the roles ``query`` and
    ``document``; a template that does not write both is refused.
    """
    named = model.tokenizer.named_templates.get("rerank")
    classifier = model.config.classifier
    if named is not None or classifier is None or classifier.labels != YES_NO:
        return named
    prompt = model.prompts.texts.get(model.prompts.default, "")
    template = chat_template(model.tokenizer).render_pair(prompt)
    for name in ("query", "document"):
        if f"{{{name}}}" not in template:
            raise Unsupported(
                f"the chat template of {model.path.name} has no place for a {name}",
                hint="choose a file or folder with a template for a query and a document",
            )
    return template


def embedding_ids(
    model: Runnable, text: str | abc.Sequence[int], prompt_name: str | None, *, truncate: bool
) -> list[int]:
    """Ids of a *text* that *model* embeds, as :meth:`LanguageModel.embedding_ids` describes."""
    prompt = prompt_text(model.prompts, prompt_name, model.path.name)
    room = model.text_limit, model.context
    return as_list(text_ids(model.tokenizer, text, prompt, room=room, truncate=truncate))


def relevance(sequence: Sequence) -> float:
    """Score of the document of *sequence*, larger for a better answer."""
    classifier = sequence.config.classifier
    assert classifier is not None, "a request to rank was prepared"
    return float(classifier.relevance(sequence.scores()))


def shares(sequence: Sequence) -> NDArray[np.float32]:
    """Score of each label for the text of *sequence*, by the function of the model's settings."""
    classifier = sequence.config.classifier
    assert classifier is not None, "a request to classify was prepared"
    return classifier.shares(sequence.scores())


def prepare(
    model: Runnable, request: Request, *, truncate: bool = True
) -> tuple[TokenIds, Request]:
    """Ids of *request* for a vector or scores, and the request completed for running.

    For a pair of texts and a model with embeddings of token types, the completed request says where
    the second text begins. A text with ``config.uncounted_token`` is refused.
    """
    ids, request = _prepare(model, request, truncate=truncate)
    uncounted = model.config.uncounted_token
    if uncounted is not None and uncounted in ids:
        name = model.tokenizer.spelling(uncounted).decode("utf-8", "replace")
        raise Unsupported(
            f"a text has {name!r}, the token of padding of {model.path.name}: it would shift the "
            "positions behind it, which is not supported",
            hint="remove it from the text",
        )
    return ids, request


def _prepare(model: Runnable, request: Request, *, truncate: bool) -> tuple[TokenIds, Request]:
    _check_head(model, request)
    room = model.text_limit, model.context
    # Without a limit in the settings nothing is cut: a text beyond the context is refused.
    truncate = truncate and model.text_limit is not None
    prompt = prompt_text(model.prompts, request.prompt_name, model.path.name)
    if request.document is None:
        ids = text_ids(model.tokenizer, request.prompt, prompt, room=room, truncate=truncate)
        return ids, request
    if not isinstance(request.prompt, str):
        raise UsageError("query: expected a text", field="query")
    template = model.rank_template
    if template is not None:
        prompt = ""  # it is in the template, if anywhere
    pair = (prompt + request.prompt, request.document)
    ids, second = pair_ids(model.tokenizer, pair, template, room=room, truncate=truncate)
    has_types = model.config.text_rows > 1 and model.tokenizer.second_type > 0
    return ids, replace(request, second=second if has_types else None)


def _check_head(model: Runnable, request: Request) -> None:
    """Refuse *request* if the head of *model* is for something else."""
    classifier = model.config.classifier
    name = model.path.name
    if not request.scored:
        if classifier is not None:
            hint = "bitnet rank --help" if classifier.ranks else "bitnet classify --help"
            raise Unsupported(f"{name} scores texts and makes no vectors of them", hint=hint)
        return
    if classifier is None:
        raise Unsupported(
            f"{name} has no head that scores texts",
            hint="compare vectors instead: "
            f"bitnet embed {shell_quote(model.path)} --input texts.txt",
        )
    if request.document is None and classifier.labels == YES_NO:
        raise Unsupported(
            f"{name} answers yes or no to a query and a document, and has no labels of texts",
            hint="bitnet rank --help",
        )
    if request.document is not None and not classifier.ranks:
        raise Unsupported(
            f"{name} tells {len(classifier.labels)} labels apart and does not rank documents",
            hint="bitnet classify --help",
        )


def _run(model: Runnable, requests: abc.Sequence[Request], *, truncate: bool) -> list[Sequence]:
    """The sequences of *requests*, in their order, after they have run."""
    scheduler = model.scheduler(max_batch=AT_ONCE)
    running = []
    for request in requests:
        ids, complete = prepare(model, request, truncate=truncate)
        running.append(scheduler.prepare(ids, complete))
    # Longest first, so that texts of one pass are of similar length and finish together.
    for sequence in sorted(running, key=lambda sequence: sequence.prompt_tokens, reverse=True):
        scheduler.queue(sequence)
    while scheduler.busy:
        for sequence, _ in scheduler.step():
            if sequence.error:
                raise sequence.error
    return running
