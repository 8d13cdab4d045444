"""Keywords of the methods that answer, in Python."""

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

    ``None`` means the default: that of the model's files, where they have one, for *max_tokens*,
    *temperature*, *top_k*, *top_p*, *min_p*, *repetition_penalty*, *repeat_last_n*, *samplers*,
    and those of XTC and mirostat. *max_tokens* may cut an answer with a grammar short.
    """

    max_tokens: int | None  # most tokens to generate (as the model's files say, else 128)
    min_tokens: int | None  # tokens before the first stop id is allowed (0)
    stop: str | Sequence[str] | None  # texts that end the answer and are not part of it
    lookup: int | None  # most tokens to draft per pass; never changes the answer (15)
    json_schema: str | bool | Mapping[str, Any] | None  # the answer is JSON that follows it
    regex: str | None  # the whole answer matches it
    grammar: str | None  # the whole answer follows it, in llama.cpp's form (GBNF)
    logprobs: int | None  # number of alternatives to report for each token
    temperature: float | None  # randomness; 0, this package's default, always chooses the likeliest
    top_k: int | None  # choose among this many most likely tokens; 0: all
    top_p: float | None  # choose among the most likely tokens with this share of the probability
    min_p: float | None  # leave out tokens less likely than this share of the most likely one
    repetition_penalty: float | None  # make tokens of the text so far less likely; 1: off
    frequency_penalty: float | None  # subtracted from a token's logit each time it is generated
    presence_penalty: float | None  # subtracted once from the logit of each generated token
    seed: int | None  # of the random choices; ``BITNET_SEED``, otherwise random
    logit_bias: Mapping[int, float] | None  # numbers added to the logits of token ids
    typical_p: float | None  # choose among the most typical tokens with this total probability
    top_n_sigma: float | None  # leave out tokens this many standard deviations below the best
    xtc_probability: float | None  # chance to leave out the likely tokens but the last of them
    xtc_threshold: float | None  # probability from which XTC calls a token likely (0.1)
    dynatemp_range: float | None  # vary the temperature by this much with the entropy
    dynatemp_exponent: float | None  # power of the entropy in ``dynatemp_range`` (1)
    mirostat: int | None  # hold the surprise of the answer: version 1 or 2; 0: off
    mirostat_tau: float | None  # surprise, in bits, that mirostat holds (5)
    mirostat_eta: float | None  # learning rate of mirostat (0.1)
    dry_multiplier: float | None  # make tokens that prolong a repetition less likely (DRY); 0: off
    dry_base: float | None  # base of DRY's penalty, whose exponent is the length (1.75)
    dry_allowed_length: int | None  # tokens that may be repeated (2)
    dry_penalty_last_n: int | None  # last tokens that are searched for repetitions; -1: all (64)
    dry_sequence_breakers: Sequence[str] | None  # texts that end a repetition
    repeat_last_n: int | None  # last tokens of prompt and answer that penalties look at; -1: all
    min_keep: int | None  # tokens that filters leave at least (0)
    samplers: Sequence[str] | None  # names of the samplers to run, in their order


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
