"""Convert requests of any dialect to sequences of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.errors import InvalidFormat, Unsupported, UsageError
from bitnet.runtime.limits import check_schema
from bitnet.runtime.request import Request
from bitnet.server.refusals import Refused, from_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.runtime.sequence import Sequence
    from bitnet.server.service import Service

__all__ = ["DEFAULT_TOKENS", "check_size", "made", "prepared", "sequences_of"]

DEFAULT_TOKENS = 128


def made(
    given: Mapping[str, Any], *, names: Mapping[str, str] | None = None, **sampling: Any
) -> Request:
    """Our request for *given*; ``None`` means the default.

    Args:
        given: fields of a :class:`Request`.
        names: a dialect's own names of fields, for errors.
        sampling: defaults of the dialect.

    Raises:
        Refused: a value is out of its range, or two contradict each other; names the field.
    """
    default = Request()
    default = replace(default, sampling=replace(default.sampling, **sampling))
    try:
        return Request.from_mapping(given, default, names=names)
    except UsageError as error:
        raise from_error(error) from error


def prepared(request: Request, service: Service) -> tuple[list[int], Request]:
    """Prompt ids, and *request* prepared for the model.

    Args:
        request: as parsed.
        service: provides the model.

    Raises:
        Refused: the prompt is empty or has unknown ids.
    """
    size = service.model.config.vocab_size
    if not isinstance(request.prompt, str) and (not request.prompt or max(request.prompt) >= size):
        raise Refused(400, f"token ids must be below {size:,}, one at least", param="prompt")
    outside = [token for token in request.sampling.logit_bias if token >= size]
    if outside:
        raise Refused(400, f"'{outside[0]}' is not a token id below {size:,}", param="logit_bias")
    try:
        ids, ready = service.model.prepare(request)
    except UsageError as error:
        refused = from_error(error)
        if request.messages is None and not refused.param:
            refused.param = "prompt" if "the prompt" in error.message else None
        raise refused from error
    except Unsupported as error:
        raise from_error(error) from error
    return ids, ready


def sequences_of(
    request: Request,
    service: Service,
    *,
    tokens: int | None,
    choices: int = 1,
) -> list[Sequence]:
    """Sequences for the prompt or the messages of *request*, one for each choice.

    An answer without a length limit reserves at most its share of the memory, so that others
    fit as well.

    Args:
        request: the request.
        service: runs the model.
        tokens: most tokens of an answer; ``None``: as many as fit.
        choices: number of answers.

    Raises:
        Refused: something in it cannot be.
        BitnetError: the model's chat template does not accept the conversation.
    """
    try:
        ids, ready = prepared(request, service)
    except InvalidFormat as error:  # caused by the client's input: the template itself was parsed
        raise Refused(400, error.message, param="messages") from error
    if tokens is None:
        room = max(1, service.model.context - len(ids))
        share = max(DEFAULT_TOKENS, service.worker.fair_positions - len(ids))
        tokens = min(room, service.max_output_tokens, share)
    return service.sequences(ids, ready, tokens=tokens, choices=choices)


def check_size(name: str, value: Any) -> None:
    """Check the size of the field *name*, schemas or a regular expression for a grammar.

    Raises:
        Refused: it is too large.
    """
    try:
        check_schema(name, value)
    except UsageError as error:
        raise from_error(error) from error
