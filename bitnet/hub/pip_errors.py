"""Translate pip's output into an error of this project."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from bitnet.base.errors import (
    AuthError,
    BitnetError,
    HashMismatch,
    NetworkError,
    NoSpace,
    NotFound,
    PermissionDenied,
)

if TYPE_CHECKING:
    from pathlib import Path

_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_QUERY = re.compile(r"(\w+://[^\s?#'\"<>]*|/[^\s?#'\"<>]+)\?[^\s#'\"<>]+")
_SPACE = re.compile(r"No space left|Errno 28|Errno 122|Disk quota", re.IGNORECASE)
_ACCESS = re.compile(r"Permission denied|Errno 13|Read-only file system", re.IGNORECASE)
_LOGIN = re.compile(r"\b(401|403) (Client )?Error|Unauthorized|Forbidden")
_NETWORK = re.compile(
    r"connection broken|connection error:|ConnectionError|ConnectTimeout|ReadTimeout|Max retries"
    r"|timed out|name resolution|Name or service not known|getaddrinfo|ProxyError|SSLError"
    r"|certificate verify failed|IncompleteRead|\b5\d\d Server Error",
)
_HASHES = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch", re.IGNORECASE)
_MISSING = re.compile(r"No matching distribution found for (\S+)")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")


def explain(output: str, requirements: list[str], *, folder: Path) -> BitnetError:
    """Error for a failed pip with this *output*.

    Args:
        output: everything pip printed, both streams.
        requirements: the packages requested.
        folder: pip's working folder.
    """
    text = redact(output)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    needed = ", ".join(requirements)
    if "No module named pip" in text:
        return NotFound(
            f"pip is missing in this Python ({sys.executable}); it fetches {needed}",
            hint=f"{sys.executable} -m ensurepip --upgrade   (or: uv pip install pip)",
        )
    if _SPACE.search(text):
        return NoSpace(
            f"No space left on device (os error 28): pip could not write {needed} to {folder}",
            hint="free some space there, or choose another disk: --cache-dir DIR",
        )
    if _HASHES.search(text):
        return HashMismatch(
            f"pip refused {needed}: {_line(lines, _HASHES)}",
            hint="pip cache purge, then try again",
        )
    if _LOGIN.search(text):
        return AuthError(
            f"the package index refused access to {needed}: {_line(lines, _LOGIN)}",
            hint="check the index and its login: pip config list",
        )
    if _NETWORK.search(text):
        return NetworkError(
            f"pip could not reach the package index for {needed}: {_line(lines, _NETWORK)}",
            hint="check the connection, the proxy and the index: pip config list",
        )
    if missing := _MISSING.search(text):
        versions = _VERSIONS.search(text)
        found = versions.group(1) if versions else "none"
        return NotFound(
            f"the package index has no wheel of {missing.group(1)} (versions there: {found})",
            hint="check which index pip uses: pip config list; "
            f"pip download --no-deps {missing.group(1)}",
        )
    if _ACCESS.search(text):
        return PermissionDenied(
            f"pip could not write {needed} to {folder}: {_line(lines, _ACCESS)}",
            hint="choose a folder you may write to: --cache-dir DIR or BITNET_CACHE_DIR",
        )
    last = next((line for line in reversed(lines) if line.startswith("ERROR")), "")
    return NetworkError(
        f"pip download {needed} failed: {last or (lines[-1] if lines else 'it printed nothing')}",
        hint="run it with -v -v to see everything pip said",
    )


def redact(text: str) -> str:
    """*text* with addresses stripped of logins, signatures and paths on a server."""
    return _QUERY.sub(r"\1?***", _CREDENTIALS.sub("//***@", text))


def _line(lines: list[str], pattern: re.Pattern[str]) -> str:
    """The last matching line, shortened."""
    found = next((line for line in reversed(lines) if pattern.search(line)), "")
    return found if len(found) <= 300 else found[:297] + "..."
