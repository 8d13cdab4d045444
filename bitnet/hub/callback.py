"""Send a message to the callback address of a worker when it is ready."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, NetworkError, Offline
from bitnet.base.trust import redact_url
from bitnet.hub.http import Transient
from bitnet.hub.patience import BACKOFF_S
from bitnet.hub.session import HubSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bitnet.hub.fetch_options import FetchOptions

TIMEOUT_S = 10.0
_HINT = "check --callback-url; the worker serves all the same"


def call_back(
    url: str,
    facts: Mapping[str, Any],
    options: FetchOptions,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """POST *facts* as JSON to *url*, in up to three attempts or as many as ``--retries`` says.

    A redirect is not followed: it would make the POST a GET, or lead to another server.
    """
    if options.is_offline:
        raise Offline(f"offline: {redact_url(url)} is not told that the worker is ready")
    attempts = options.retries or 3
    problem = ""
    with HubSession(replace(options, timeout=options.timeout or TIMEOUT_S)) as session:
        for attempt in range(attempts):
            if attempt:
                sleep(BACKOFF_S * 2 ** (attempt - 1))
            try:
                problem = _post(url, facts, session)
            except Transient as broken:
                problem = broken.reason
            except BitnetError as error:  # another attempt would fail in the same way
                text = f"callback to {redact_url(url)} failed: {error.message}"
                raise NetworkError(text, hint=error.hint or _HINT) from error
            if not problem:
                return
    raise NetworkError(
        f"callback to {redact_url(url)} failed after {attempts} attempts: {problem}", hint=_HINT
    )


def _post(url: str, facts: Mapping[str, Any], session: HubSession) -> str:
    """The problem with the reply to *facts*; empty if they were accepted."""
    with session.post(url, facts) as reply:
        if 200 <= reply.status_code < 300:
            return ""
        target = reply.headers.get("Location", "")
        leads = f" to {redact_url(target)}, which is not followed" if target else ""
        return f"HTTP {reply.status_code}{leads}"
