"""Keywords of an answer in Python: fields of a request.

:class:`AnswerOptions` is for type checkers and editors; a test compares it with
:class:`bitnet.runtime.request.Request`, where each field is declared.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from bitnet.base.errors import WrongType
from bitnet.runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Method = TypeVar("Method", bound=Callable[..., Any])


class AnswerOptions(TypedDict, total=False):
    """Keywords of ``generate``, ``stream``, ``chat`` and their async twins.

    ``None`` means the default. *max_tokens* may cut an answer with a grammar short.

    Attributes:
        max_tokens: most tokens to generate (128).
        min_tokens: tokens before the first stop id is allowed (0).
        stop: texts that end the answer and are not part of it.
        lookup: most tokens to draft per pass from the text so far; never changes the answer (15).
        json_schema: the answer is JSON that follows it.
        regex: the whole answer matches it.
        logprobs: number of alternatives to report for each token.
        temperature: randomness; 0, the default, always chooses the most likely token.
        top_k: choose among this many most likely tokens; 0: all.
        top_p: choose among the most likely tokens with this share of the probability.
        min_p: leave out tokens less likely than this share of the most likely one.
        repetition_penalty: make tokens of the text so far less likely; 1: off.
        frequency_penalty: the same, for each time that a token was generated.
        presence_penalty: the same, once for each token that was generated.
        seed: of the random choices; ``BITNET_SEED``, otherwise random.
        logit_bias: numbers added to the logits of token ids.
    """

    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    lookup: int | None
    json_schema: str | bool | Mapping[str, Any] | None
    regex: str | None
    logprobs: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    seed: int | None
    logit_bias: Mapping[int, float] | None


def with_answer_options(method: Method) -> Method:
    """*method*, whose ``**options`` are :class:`AnswerOptions`, with each one in its signature.

    ``help`` and the completion of notebooks read the signature.
    """
    signature = inspect.signature(method)
    before = [entry for entry in signature.parameters.values() if entry.name != "options"]
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=entry.__forward_arg__
        )
        for name, entry in AnswerOptions.__annotations__.items()
    ]
    method.__signature__ = signature.replace(parameters=[*before, *keywords])  # type: ignore[attr-defined]
    return method


def request_of(prompt: str | Sequence[int], options: AnswerOptions) -> Request:
    """The request for the continuation of *prompt*."""
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in values:
        if name not in AnswerOptions.__annotations__:
            listed = ", ".join(AnswerOptions.__annotations__)
            raise WrongType(f"{name!r} is not an option of an answer: {listed}")
    return Request(prompt=prompt, **values)
