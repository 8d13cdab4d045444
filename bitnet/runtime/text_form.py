"""Answers in the form of OpenAI's completions and embeddings."""

from __future__ import annotations

import base64
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from bitnet.errors import UsageError
from bitnet.runtime.chat_form import finish_of, usage
from bitnet.runtime.vectors import check_vectors, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.options import Precision
    from bitnet.runtime.piece import TokenLogprob

__all__ = [
    "completion_choice",
    "completion_reply",
    "embeddings_reply",
    "text_logprobs",
    "vector_precision",
    "vectors_of",
]


def completion_reply(
    head: Mapping[str, Any],
    answers: Sequence[Answer],
    *,
    logprobs: bool,
    choices: int,
    echoed: Sequence[str],
) -> dict[str, Any]:
    """The whole reply of ``/v1/completions``.

    Args:
        head: its id, model and time.
        answers: all of them, those of a prompt together.
        logprobs: log-probabilities were asked for.
        choices: how many answers each prompt has.
        echoed: what stands before the text of each answer.
    """
    found = [
        completion_choice(
            index, echoed[index] + answer.text, finish_of(answer.finish_reason),
            text_logprobs(answer.logprobs) if logprobs else None,
        )
        for index, answer in enumerate(answers)
    ]  # fmt: skip
    counts = usage(answers, choices=choices)
    return {**head, "object": "text_completion", "choices": found, "usage": counts}


def completion_choice(
    index: int, text: str, finish: str | None, logprobs: Any = None
) -> dict[str, Any]:
    """One choice of ``/v1/completions``."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def text_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities of *tokens*, each with its alternatives."""
    lengths = [len(token.text) for token in tokens]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{one.text: one.logprob for one in token.top} for token in tokens],
        "text_offset": list(accumulate(lengths, initial=0))[:-1],
    }


def vector_precision(body: Mapping[str, Any], dim: int) -> Precision:
    """The precision of the vectors that *body* asks a model of *dim* dimensions for.

    Raises:
        UsageError: vectors of this model cannot be what it asks for; names the field.
    """
    dtype = body.get("output_dtype") or "float"
    precision = cast("Precision", "float32" if dtype == "float" else dtype)
    try:
        check_vectors(dim, body.get("dimensions"), precision)
    except UsageError as error:
        field = "output_dtype" if error.field == "precision" else error.field
        raise UsageError(error.message, hint=error.hint, field=field) from error
    return precision


def vectors_of(
    body: Mapping[str, Any], answers: Sequence[Answer], precision: Precision
) -> list[NDArray[Any]]:
    """The vectors that *answers* are, as *body* wants them."""
    normalize, dimensions = body.get("normalize") is not False, body.get("dimensions")
    return [
        rounded(answer.sequence.vector(normalize=normalize, dimensions=dimensions), precision)
        for answer in answers
    ]


def embeddings_reply(
    body: Mapping[str, Any], rows: Sequence[NDArray[Any]], model: str, tokens: int
) -> dict[str, Any]:
    """The reply of ``/v1/embeddings``.

    Args:
        body: what was asked for.
        rows: the vectors.
        model: its name.
        tokens: that all texts have together.
    """
    is_base64 = body.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(row) if is_base64 else row.tolist(),
        }
        for index, row in enumerate(rows)
    ]
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": counts}


def _base64(row: NDArray[Any]) -> str:
    return base64.b64encode(row.astype(row.dtype.newbyteorder("<")).tobytes()).decode()
