"""Tell the address that started a worker that it is ready."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import NetworkError, Offline
from bitnet.base.trust import redact_url
from bitnet.hub.http import requests
from bitnet.hub.session import BACKOFF_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bitnet.hub.fetch_options import FetchOptions


def call_back(
    url: str,
    facts: Mapping[str, Any],
    options: FetchOptions,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """POST *facts* as JSON to *url*, three times or as often as ``--retries`` says."""
    if options.is_offline:
        raise Offline(f"offline: {redact_url(url)} is not told that the worker is ready")
    how: dict[str, Any] = {"timeout": 10.0, "allow_redirects": False}
    problem = ""
    attempts = options.retries or 3
    for attempt in range(attempts):
        if attempt:
            sleep(BACKOFF_S * 2 ** (attempt - 1))
        try:
            reply = requests.post(url, json=dict(facts), **how)
            problem = f"HTTP {reply.status_code}"
            if reply.ok:
                return
        except requests.RequestException as error:
            problem = type(error).__name__
    raise NetworkError(
        f"callback to {redact_url(url)} failed after {attempts} attempts: {problem}",
        hint="check --callback-url; the worker serves all the same",
    )
