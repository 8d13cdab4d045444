"""Ask servers for the same thing, one after the other: the hub and its mirrors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from bitnet.base.errors import AuthError, HashMismatch, NetworkError, NotFound, RateLimited
from bitnet.base.trust import redact_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.base.errors import BitnetError

T = TypeVar("T")

logger = logging.getLogger(__name__)

# Errors of one server after which the next one is asked.
PASSING = (AuthError, HashMismatch, NetworkError, NotFound, RateLimited)
_ATTEMPTS = 3  # before the next server is asked, if there is one


def first_answer(urls: Sequence[str], ask: Callable[..., T]) -> tuple[str, T]:
    """The first of *urls* whose server answers, and its answer.

    *ask* gets an address, and by the keyword ``attempts`` how often it may try; None is the
    session's own number. If no server answers, the error is that of the first one that replied,
    for which a NetworkError, also one for HTTP 5xx, does not count.
    """
    errors: list[BitnetError] = []
    for url in urls:
        is_last = url == urls[-1]
        try:
            return url, ask(url, attempts=None if is_last else _ATTEMPTS)
        except PASSING as error:
            errors.append(error)
            if not is_last:
                text = "%s: another server is asked: %s"
                logger.warning(text, redact_url(url), error.message)
    replies = [error for error in errors if not isinstance(error, NetworkError)]
    raise replies[0] if replies else errors[-1]
