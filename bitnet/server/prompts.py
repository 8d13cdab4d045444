"""Make sequences of a model from requests, within the limits of its worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.base.errors import InferenceError, InvalidFormat, UsageError
from bitnet.runtime.request import EVERYTHING
from bitnet.server.refusals import Refused

if TYPE_CHECKING:
    from bitnet.runtime.request import Request
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.worker import Worker

__all__ = ["DEFAULT_TOKENS", "prepare", "prepare_sequences"]

DEFAULT_TOKENS = 128


def prepare(request: Request, worker: Worker) -> tuple[list[int], Request]:
    """Prompt ids, and *request* prepared for the model.

    Raises:
        UsageError: the prompt is empty, or an id is not in the vocabulary.
        Refused: the chat template does not accept the conversation.
        BitnetError: as :meth:`bitnet.runtime.language_model.LanguageModel.prepare`.
    """
    size, context = worker.model.config.vocab_size, worker.model.context
    ids = None if isinstance(request.prompt, str) or request.embed else request.prompt
    if ids is not None and (not ids or max(ids) >= size):
        raise UsageError(f"token ids must be below {size:,}, one at least", field="prompt")
    outside = [token for token in request.sampling.logit_bias if token >= size]
    if outside:
        raise UsageError(f"'{outside[0]}' is not a token id below {size:,}", field="logit_bias")
    try:
        prompt, ready = worker.model.prepare(request)
    except InvalidFormat as error:  # caused by the client's input: the template itself was parsed
        raise Refused(400, error.message, param="messages") from error
    if request.embed and (not 0 < len(prompt) <= context or max(prompt) >= size):
        raise UsageError(f"each input needs 1 to {context:,} known tokens", field="input")
    return prompt, ready


def prepare_sequences(request: Request, worker: Worker, *, choices: int = 1) -> list[Sequence]:
    """Sequences for the prompt or the messages of *request*, one for each choice.

    Each choice has its own seed. An answer without a length limit reserves at most its share of
    the memory, so that others fit as well.

    Raises:
        Refused: too many tokens are requested, or the cache cannot hold them.
        BitnetError: as :func:`prepare`.
    """
    ids, ready = prepare(request, worker)
    limit, context = worker.limits.max_output_tokens, worker.model.context
    tokens = request.max_tokens
    if tokens == EVERYTHING:
        share = max(DEFAULT_TOKENS, worker.fair_positions - len(ids))
        tokens = min(max(1, context - len(ids)), limit, share)
    if tokens > limit:
        raise Refused(
            400, f"{tokens:,} tokens asked for, this worker writes at most {limit:,}",
            param="max_tokens",
        )  # fmt: skip
    if len(ids) > context:
        raise Refused(
            400, f"the prompt has {len(ids):,} tokens, the context holds {context:,}",
            code="context_length_exceeded",
        )  # fmt: skip
    ready = replace(ready, max_tokens=tokens)
    try:
        return [worker.prepare(ids, ready.choice(number)) for number in range(choices)]
    except InferenceError as error:  # it would never fit the memory
        raise Refused(400, error.message, code="context_length_exceeded") from error
