"""Translate unsuccessful replies into errors with a hint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from bitnet.base.errors import (
    AuthError,
    BitnetError,
    LicenceNotAccepted,
    NetworkError,
    NotFound,
    RateLimited,
    TokenInvalid,
    TokenMissing,
)
from bitnet.base.trust import printable

if TYPE_CHECKING:
    import requests

_COUNT = re.compile(r"[0-9]{1,18}")  # of bytes; more digits cannot be a file size
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)

_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+|[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)")


def repository_of(url: str, endpoint: str) -> tuple[str, str, str] | None:
    """Repository, revision and file in *url*, if it is an address of the hub."""
    if not url.startswith(f"{endpoint}/"):
        return None
    match = _RESOLVE.fullmatch(urlsplit(url).path[len(urlsplit(endpoint).path) :])
    if match is None:
        return None
    return match["repo"], unquote(match["revision"]), unquote(match["file"])


def error_of(
    response: requests.Response, url: str, endpoint: str, *, with_token: bool
) -> BitnetError:
    """Error for *response* to a request for *url*.

    *url* and *endpoint* have no secrets; *with_token* says that a token was sent.
    """
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    message = printable(response.headers.get("X-Error-Message", ""))
    text = f"HTTP error {status}: {url}"
    if status < 400 or status >= 600:
        return NetworkError(
            f"HTTP status {status} for {url}: no file comes with it",
            hint="a proxy or mirror answers instead of the hub: another one with --base-url=URL",
        )
    if not f"{url}/".startswith(f"{endpoint}/") and status in (401, 403):
        return AuthError(
            f"{text}: this server refuses access{_quote(message)}",
            hint="check the address and its login; an access token of the hub is not sent there",
        )
    if status == 451 or code == "DisabledRepo" or (status == 403 and "disabled" in message.lower()):
        why = "for legal reasons" if status == 451 else "by the hub"
        return AuthError(
            f"{text}: access to this repository is disabled {why}{_quote(message)}",
            hint="no token and no licence opens it; choose another repository or a mirror",
        )
    missing = {"RevisionNotFound": "the revision", "EntryNotFound": "the file"}.get(code)
    if missing is not None:
        return NotFound(
            f"{text}: {missing} does not exist{_quote(message)}",
            hint=f"see what there is at {_page(url, endpoint)}",
        )
    if code == "RepoNotFound":
        return NotFound(
            f"{text}: the repository does not exist, or is private",
            hint=f"check the spelling at {endpoint}; for a private one set HF_TOKEN",
        )
    if status == 403 or (code == "GatedRepo" and with_token):
        text += _quote(message)
        return _forbidden(text, url, endpoint, gated=code == "GatedRepo", with_token=with_token)
    if status == 401 and with_token:
        return TokenInvalid(
            f"{text}: the access token in HF_TOKEN is not accepted; it may have expired",
            hint=f"make a new token at {endpoint}/settings/tokens, then: export HF_TOKEN=hf_...",
        )
    if status == 401:
        return TokenMissing(
            f"{text}: this file needs an access token and HF_TOKEN is not set{_quote(message)}",
            hint=(
                f"1. make a token at {endpoint}/settings/tokens  "
                f"2. accept the model's terms at {_page(url, endpoint)}  "
                "3. export HF_TOKEN=hf_..."
            ),
        )
    if status in (404, 410):
        return NotFound(text + _quote(message), hint=f"see what there is at {_page(url, endpoint)}")
    if status == 429:
        return RateLimited(
            f"{text}: too many requests",
            hint="wait, set HF_TOKEN (accounts have higher limits), or use --base-url=MIRROR",
        )
    return NetworkError(text + _quote(message), hint="")


def _quote(said: str) -> str:
    """The server's message about an error, as the end of a sentence."""
    return f' (the server says: "{said}")' if said else ""


def _forbidden(text: str, url: str, endpoint: str, *, gated: bool, with_token: bool) -> BitnetError:
    page = _page(url, endpoint)
    if gated or with_token:
        return LicenceNotAccepted(
            f"{text}: the account behind HF_TOKEN has not accepted this model's terms, "
            "or the token may not read it",
            hint=f"accept them at {page} and run the command again",
        )
    return TokenMissing(
        f"{text}: access is refused and HF_TOKEN is not set",
        hint=f"accept the model's terms at {page}, then: export HF_TOKEN=hf_...",
    )


def _page(url: str, endpoint: str) -> str:
    """Web page of the repository in *url*."""
    named = repository_of(url, endpoint)
    if named is not None:
        return f"{endpoint}/{named[0]}"
    match = _API.match(urlsplit(url).path[len(urlsplit(endpoint).path) :])
    return f"{endpoint}/{match['repo']}" if match and url.startswith(endpoint) else endpoint


def refuse_pages(response: requests.Response, url: str) -> None:
    """Refuse a web page, or an encoded body, in place of a file.

    Raises:
        NetworkError: *response* is one of them.
    """
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml") and not url.endswith((".html", ".htm")):
        raise not_expected(response, url, "a file")
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise NetworkError(
            f"{url}: the reply is {encoding}-encoded though the plain file was asked for",
            hint="a proxy or mirror alters replies; use another one with --base-url=URL",
        )


def not_expected(response: requests.Response, url: str, expected: str) -> NetworkError:
    """Error for a reply that is not *expected*."""
    kind = response.headers.get("Content-Type", "nothing known").partition(";")[0]
    return NetworkError(
        f"{url}: expected {expected}, got {kind}: a login page of this network, or a proxy's",
        hint="open a page in a browser and log in to the network; or run: bitnet doctor network",
    )


def as_count(value: str | None) -> int | None:
    """Number of bytes in a header; ``None`` if it is missing or invalid."""
    text = (value or "").strip()
    return int(text) if _COUNT.fullmatch(text) else None


def content_range(value: str | None) -> tuple[int, int, int | None] | None:
    """Start, stop (exclusive) and whole size of a ``Content-Range`` header; ``*`` is ``None``."""
    match = _CONTENT_RANGE.fullmatch((value or "").strip())
    if match is None:
        return None
    start, last, size = match.groups()
    return int(start), int(last) + 1, None if size == "*" else int(size)
