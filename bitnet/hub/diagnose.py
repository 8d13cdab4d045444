"""Test the connection to the hub step by step to find the one that fails."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bitnet.base.errors import BitnetError, NetworkError
from bitnet.base.findings import Finding
from bitnet.base.progress import human_size
from bitnet.base.trust import origin, redact_url
from bitnet.hub.http import requests
from bitnet.hub.limits import Transient
from bitnet.hub.session import HubSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.hub.options import FetchOptions

PROBE = "openai-community/gpt2/resolve/main/tokenizer.json"  # small, public, needs no token
TIMEOUT_S = 10.0
SPEED_BYTES = 4 << 20


def diagnose(options: FetchOptions) -> Iterator[Finding]:
    """Result of each step of a download, up to the first that fails; opens nothing offline."""
    if options.is_offline:
        text = "switched off (BITNET_OFFLINE, HF_HUB_OFFLINE); nothing was opened"
        yield Finding("skipped", "network", text)
        return
    url = f"{options.endpoint}/{PROBE}"
    with requests.Session() as finder:
        proxies = finder.merge_environment_settings(url, {}, None, None, None)
    chosen = proxies["verify"]  # REQUESTS_CA_BUNDLE, where it is set
    bundle = chosen if isinstance(chosen, str) else requests.utils.DEFAULT_CA_BUNDLE_PATH
    proxy = requests.utils.select_proxy(url, proxies["proxies"])
    yield Finding("ok", "hub", redact_url(options.endpoint))
    yield Finding("ok", "proxy", redact_url(proxy) if proxy else "none")
    _, host, port = origin(proxy or url)
    with HubSession(options) as session:
        steps = [
            ("DNS", partial(_resolve, str(host), port)),
            ("TCP", partial(_connect, str(host), port)),
            ("TLS", partial(_certificate, str(host), port, bundle)),
            ("reply", partial(_reply, session, url)),
            ("speed", partial(_speed, session, url)),
        ]
        for name, look in steps:
            if name == "TLS" and (proxy or not url.startswith("https:")):
                continue
            started = time.monotonic()
            try:
                step = Finding("ok", name, look())
            except BitnetError as error:
                step = Finding.of(name, error)
            except Transient as broken:
                step = Finding.of(name, broken.error)
            except (OSError, UnicodeError) as error:  # requests' are OSErrors, invalid names not
                text = f"{name} fails for {redact_url(url)}: {error}"
                step = Finding.of(name, NetworkError(text, hint=_HINTS[name]))
            yield replace(step, duration_s=time.monotonic() - started)
            if step.failed:
                return


_HINTS = {
    "DNS": "check the host name and the DNS server; behind a proxy: export HTTPS_PROXY=URL; "
    "a mirror: --base-url=URL",
    "TCP": "a firewall blocks it; behind a proxy: export HTTPS_PROXY=URL; a mirror: --base-url=URL",
    "TLS": "behind an inspecting proxy: export REQUESTS_CA_BUNDLE=FILE with its certificate",
    "reply": "try again, or use a mirror: --base-url=URL",
    "speed": "try again, or use a mirror: --base-url=URL",
}


def _resolve(host: str, port: int | None) -> str:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return f"{host} is {', '.join(addresses[:4])}"


def _connect(host: str, port: int | None) -> str:
    with socket.create_connection((host, port or 443), timeout=TIMEOUT_S) as connection:
        return f"connected to {connection.getpeername()[0]} port {port}"


def _certificate(host: str, port: int | None, bundle: str) -> str:
    context = ssl.create_default_context(cafile=bundle)
    with (
        socket.create_connection((host, port or 443), timeout=TIMEOUT_S) as connection,
        context.wrap_socket(connection, server_hostname=host) as secured,
    ):
        certificate = secured.getpeercert() or {}
        version = secured.version()
    issuer: dict[str, str] = {}
    for part in certificate.get("issuer", ()):
        issuer.update(part)  # type: ignore[arg-type]
    name = issuer.get("organizationName") or issuer.get("commonName") or "unknown"
    return f"{version}, certificate issued by {name}"


def _reply(session: HubSession, url: str) -> str:
    response = session.open(url, method="HEAD", leave_origin=False)
    response.close()
    target = response.headers.get("Location", "")
    moved = f", the file comes from {urlsplit(target).hostname}" if target else ""
    return f"status {response.status_code}{moved}"


def _speed(session: HubSession, url: str) -> str:
    started, size = time.monotonic(), 0
    response = session.open(url, headers={"Range": f"bytes=0-{SPEED_BYTES - 1}"}, accept=(200, 206))
    with response:
        for chunk in response.iter_content(1 << 16):
            size += len(chunk)
            if size >= SPEED_BYTES or time.monotonic() - started > TIMEOUT_S:
                break
    rate = size / max(time.monotonic() - started, 1e-6)
    return f"{human_size(size)} from {urlsplit(response.url).hostname} at {human_size(rate)}/s"
