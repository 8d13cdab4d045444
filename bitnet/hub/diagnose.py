"""Test the connection to the hub step by step, to find the first step that fails."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bitnet.base import settings
from bitnet.base.errors import BitnetError, NetworkError
from bitnet.base.findings import Finding
from bitnet.base.quantities import human_size
from bitnet.base.trust import origin, redact_url
from bitnet.hub.http import Transient, requests
from bitnet.hub.session import HubSession
from bitnet.hub.transport import context_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.hub.fetch_options import FetchOptions

PROBE = "openai-community/gpt2/resolve/main/tokenizer.json"  # small, public, needs no token
TIMEOUT_S = 10.0
SOCKS_PORT = 1080  # of a SOCKS proxy without one, as PySocks has it
SPEED_BYTES = 4 << 20  # fetched at most to measure the speed

_HINT = "try again, or use a mirror: --base-url=URL"
_HINTS = {
    "DNS": "check the host name and the DNS server; behind a proxy: export HTTPS_PROXY=URL",
    "TCP": "a firewall blocks it; behind a proxy: export HTTPS_PROXY=URL; a mirror: --base-url=URL",
    "TLS": "behind an inspecting proxy: export REQUESTS_CA_BUNDLE=FILE with its certificate",
}


def diagnose(options: FetchOptions) -> Iterator[Finding]:
    """Result of each step of a download, up to the first that fails; opens nothing offline."""
    if options.is_offline:
        switches = ", ".join(settings.offline.names)
        text = f"switched off ({switches} or --offline); nothing was opened"
        yield Finding("skipped", "network", text)
        return
    url = f"{options.endpoint}/{PROBE}"
    with requests.Session() as requests_session:
        request_settings = requests_session.merge_environment_settings(url, {}, None, None, None)
    verify = request_settings["verify"]  # REQUESTS_CA_BUNDLE, where it is set
    bundle = verify if isinstance(verify, str) else ""
    proxy = requests.utils.select_proxy(url, request_settings["proxies"])
    if proxy and "://" not in proxy:  # requests takes HOST:PORT for an HTTP proxy
        proxy = f"http://{proxy}"
    yield Finding("ok", "hub", redact_url(options.endpoint))
    yield Finding("ok", "proxy", redact_url(proxy) if proxy else "none")
    # Behind a proxy, DNS and TCP test the connection to the proxy; the reply is the first step that
    # reaches the hub, and includes TLS.
    is_secured = url.startswith("https:") and not proxy
    names = ["DNS", "TCP", "reply", "speed"]
    if is_secured:
        names.insert(2, "TLS")
    scheme, host, port = origin(proxy or url)
    if port is None:
        port = SOCKS_PORT if scheme.startswith("socks") else 443
    with HubSession(options) as session:
        steps = _steps(session, url, str(host), port, bundle if is_secured else None)
        for name in names:
            started = time.monotonic()
            try:
                step = Finding("ok", name, next(steps))
            except BitnetError as error:
                step = Finding.of(name, error)
            except Transient as broken:
                step = Finding.of(name, broken.error)
            except (OSError, UnicodeError) as error:  # UnicodeError: invalid host name
                text = f"{name} fails for {redact_url(url)}: {error}"
                step = Finding.of(name, NetworkError(text, hint=_HINTS.get(name, _HINT)))
            yield replace(step, duration_s=time.monotonic() - started)
            if step.failed:
                return


def _steps(
    session: HubSession, url: str, host: str, port: int, bundle: str | None
) -> Iterator[str]:
    """Result of each step in turn, as text.

    The TLS step trusts the certificates in *bundle*, by default (empty) those of a download. It is
    left out if *bundle* is None.
    """
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    yield f"{host} is {', '.join(addresses[:4])}"
    with socket.create_connection((host, port), timeout=TIMEOUT_S) as connection:
        yield f"connected to {connection.getpeername()[0]} port {port}"
        if bundle is not None:
            context = context_of(bundle)
            with context.wrap_socket(connection, server_hostname=host) as secured:
                certificate: dict[str, Any] = secured.getpeercert() or {}
                issuer = dict(part[0] for part in certificate.get("issuer", ()))
                name = issuer.get("organizationName") or issuer.get("commonName") or "unknown"
                yield f"{secured.version()}, certificate issued by {name}"
    with session.open(url, method="HEAD", leave_origin=False) as response:
        target = response.headers.get("Location", "")
        moved = f", the file comes from {urlsplit(target).hostname}" if target else ""
        yield f"status {response.status_code}{moved}"
    started = time.monotonic()
    size = 0
    part = {"Range": f"bytes=0-{SPEED_BYTES - 1}"}
    with session.open(url, headers=part, accept=(200, 206)) as response:
        for chunk in response.iter_content(1 << 16):
            size += len(chunk)
            if size >= SPEED_BYTES or time.monotonic() - started > TIMEOUT_S:
                break
    rate = size / max(time.monotonic() - started, 1e-6)
    yield f"{human_size(size)} from {urlsplit(response.url).hostname} at {human_size(rate)}/s"
