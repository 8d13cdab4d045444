"""OpenAI's embeddings, and what the other dialects' embeddings share with them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, cast

from bitnet.base.errors import UsageError
from bitnet.runtime.request import Request
from bitnet.runtime.sequence import check_vectors, round_vectors
from bitnet.wire.fields import INPUTS
from bitnet.wire.forms import Form
from bitnet.wire.schemas import FLAG, TEXT, mark_ignored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.model_options import Precision
    from bitnet.wire.forms import Body

#: Texts of one request, as OpenAI has it; clients send batches of 70 to 2,048.
MAX_TEXTS = 2048


def embedding_requests(
    body: Body, _: Request | None = None, model: LanguageModel | None = None
) -> list[Request]:
    """The requests of *body*, as :data:`EMBEDDING` reads it: one for each text.

    If *model* is known, dimensions and a precision that its vectors cannot have are refused.
    """
    if model is not None:
        check_vectors(model.config.vector_dim, body["dimensions"], vector_precision(body))
    texts = texts_of(body["input"], "input", at_most=MAX_TEXTS)
    return [to_embed(text, body["prompt_name"]) for text in texts]


def to_embed(text: str | list[int], prompt_name: str | None = None) -> Request:
    """The request for the vector of *text*."""
    return Request(prompt=text, embed=True, prompt_name=prompt_name)


def vector_precision(body: Body) -> Precision:
    """The precision of the vectors that *body* asks for."""
    dtype = body.get("output_dtype") or "float"
    return cast("Precision", "float32" if dtype == "float" else dtype)


def texts_of(inputs: Any, field: str, *, at_most: int) -> list[str | list[int]]:
    """The texts in *inputs*, the value of *field*; *at_most* is their greatest number.

    *inputs* are a text, a list of texts, the token ids of one text, or a list of such lists.
    """
    if isinstance(inputs, str):
        return [inputs]
    if inputs and isinstance(inputs[0], int):
        return [list(inputs)]
    check_count(inputs, field, at_most=at_most)
    return list(inputs)


def check_count(texts: Sequence[Any], field: str, *, at_most: int) -> None:
    """Refuse *texts*, the value of *field*, if there are none or too many."""
    if not texts:
        raise UsageError(f"{field}: the list is empty, expected at least one text", field=field)
    if len(texts) > at_most:
        raise UsageError(
            f"{field}: {len(texts):,} texts, expected at most {at_most:,}", field=field
        )


def vectors_of(body: Body, answers: Sequence[Answer]) -> list[NDArray[Any]]:
    """Vectors of *answers*, with the scale, length and precision that *body* asks for."""
    normalize = body.get("normalize") is not False
    dimensions = body.get("dimensions")
    precision = vector_precision(body)
    vectors = []
    for answer in answers:
        vector = answer.sequence.vector(normalize=normalize, dimensions=dimensions)
        vectors.append(round_vectors(vector, precision))
    return vectors


def embeddings_reply(body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/v1/embeddings``."""
    rows = vectors_of(body, answers)
    if body["encoding_format"] == "base64":
        raw = [row.astype(row.dtype.newbyteorder("<")).tobytes() for row in rows]
        vectors: list[Any] = [base64.b64encode(each).decode() for each in raw]
    else:
        vectors = [row.tolist() for row in rows]
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    usage = usage_of(answers)
    return {"object": "list", "data": data, "model": head["model"], "usage": usage}


def usage_of(answers: Sequence[Answer]) -> dict[str, int]:
    """Number of tokens in the texts of *answers*, which generate none."""
    tokens = sum(answer.prompt_tokens for answer in answers)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


EMBEDDING = Form(
    "EmbeddingRequest",
    {
        "input": INPUTS,
        "model": TEXT,
        "encoding_format": {"type": "string", "enum": ["float", "base64"]},
        "dimensions": {"type": "integer", "minimum": 1},
        "output_dtype": {
            "type": "string",
            "enum": ["float", "int8", "uint8", "binary", "ubinary"],
            "description": "type of a vector's numbers; binary packs 8 signs into a byte",
        },
        "prompt_name": TEXT
        | {"description": "the model's prompt that stands before texts, such as query"},
        "normalize": FLAG | {"description": "scale vectors to length one"},
        **mark_ignored(user=TEXT),
    },
    required=("input",),
    setters={"prompt": ("input",)}, tag="OpenAI", summary="Vectors of texts",
    requests=embedding_requests, reply=embeddings_reply, aliases=("/embeddings",),
)  # fmt: skip
