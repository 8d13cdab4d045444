"""Notification that a worker is ready."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import NetworkError, Offline
from bitnet.base.trust import redact_url
from bitnet.hub.http import requests
from bitnet.hub.patience import BACKOFF_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bitnet.hub.options import FetchOptions

TIMEOUT_S = 10.0
ATTEMPTS = 3


def call_back(
    url: str,
    facts: Mapping[str, Any],
    options: FetchOptions,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """POST *facts* as JSON to *url*, three times or as often as ``--retries`` says.

    Raises:
        Offline: the network is switched off.
        NetworkError: no attempt succeeded.
    """
    if options.is_offline:
        raise Offline(f"offline: {redact_url(url)} is not told that the worker is ready")
    problem = ""
    attempts = options.retries or ATTEMPTS
    for attempt in range(attempts):
        if attempt:
            sleep(BACKOFF_S * 2 ** (attempt - 1))
        try:
            reply = requests.post(url, json=dict(facts), timeout=TIMEOUT_S, allow_redirects=False)
        except requests.RequestException as error:
            problem = type(error).__name__
            continue
        if reply.ok:
            return
        problem = f"HTTP {reply.status_code}"
    raise NetworkError(
        f"callback to {redact_url(url)} failed after {attempts} attempts: {problem}",
        hint="check --callback-url; the worker serves all the same",
    )
