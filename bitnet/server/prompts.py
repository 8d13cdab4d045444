"""Make sequences of a model from requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.errors import InvalidFormat, UsageError
from bitnet.runtime.request import EVERYTHING
from bitnet.server.refusals import Refused

if TYPE_CHECKING:
    from bitnet.runtime.request import Request
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.service import Service

__all__ = ["DEFAULT_TOKENS", "prepared", "sequences_of"]

DEFAULT_TOKENS = 128


def prepared(request: Request, service: Service) -> tuple[list[int], Request]:
    """Prompt ids, and *request* prepared for the model.

    Raises:
        UsageError: the prompt is empty, or an id is not in the vocabulary.
        Refused: the chat template does not accept the conversation.
        BitnetError: as :meth:`bitnet.runtime.language_model.LanguageModel.prepare`.
    """
    size, context = service.model.config.vocab_size, service.model.context
    given = None if isinstance(request.prompt, str) or request.embed else request.prompt
    if given is not None and (not given or max(given) >= size):
        raise UsageError(f"token ids must be below {size:,}, one at least", field="prompt")
    outside = [token for token in request.sampling.logit_bias if token >= size]
    if outside:
        raise UsageError(f"'{outside[0]}' is not a token id below {size:,}", field="logit_bias")
    try:
        found, ready = service.model.prepare(request)
    except InvalidFormat as error:  # caused by the client's input: the template itself was parsed
        raise Refused(400, error.message, param="messages") from error
    if request.embed and (not 0 < len(found) <= context or max(found) >= size):
        raise UsageError(f"each input needs 1 to {context:,} known tokens", field="input")
    return found, ready


def sequences_of(request: Request, service: Service, *, choices: int = 1) -> list[Sequence]:
    """Sequences for the prompt or the messages of *request*, one for each choice.

    An answer without a length limit reserves at most its share of the memory, so that others
    fit as well.

    Raises:
        Refused: something in it cannot be.
        BitnetError: as :func:`prepared`.
    """
    ids, ready = prepared(request, service)
    tokens = request.max_tokens
    if tokens == EVERYTHING:
        room = max(1, service.model.context - len(ids))
        share = max(DEFAULT_TOKENS, service.worker.fair_positions - len(ids))
        tokens = min(room, service.max_output_tokens, share)
    return service.sequences(ids, ready, tokens=tokens, choices=choices)
