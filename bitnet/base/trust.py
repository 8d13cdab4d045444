"""Trust boundary: decisions that text from outside may make, and those left to the user.

Servers, lock files, bundles and a project's own files are untrusted. They may name a file of a
repository and a place below the project. They may not receive the access token, leave the project,
replace a file of the user, or create a file that another program would run. The command line, the
environment and the user's own configuration are the user's decisions.
"""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit, urlunsplit

from bitnet.base import settings
from bitnet.base.errors import UsageError, from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator

SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

_LONGEST_LINE = 300  # characters of a text from outside in a message
_LONGEST_NAME = 255  # bytes of a file name, on every usual file system
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")  # one hub under several names
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_OUR_FILES = ("bitnet.lock.json", "bitnet.toml")
# Names of files that programs run or obey by themselves: Python, build tools, a desktop, an editor.
_PROGRAMS = re.compile(
    r"(gnu)?makefile|(docker|container|[jr]ust|rake|gem|pod|brew|guard|jenkins|proc|vagrant|pip)file"
    r"|wscript|scons(truct|cript)|workspace|build|meson\.build|cmakelists\.txt|requirements\.txt"
    r"|(package|package-lock|deno|composer)\.json"
    r"|.*\.(py[cdw]?|so|dylib|dll|exe|com|scr|msi|bat|cmd|psm?1|(ba|z|fi|c)?sh|command|pl|php"
    r"|rb|gemspec|[mc]?js|ts|lua|r|jar|class|app|appimage|desktop|mk|cmake|gradle|kts|bazel|bzl|toml"
    r"|cfg|ini|ya?ml|service|vb[es]|jse|ws[fh]|hta|lnk|url|reg|whl|egg|deb|rpm)",
    re.IGNORECASE | re.DOTALL,
)
# Names that Windows gives to devices, in every folder and with every suffix.
_DEVICES = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE | re.DOTALL)


def address(text: str, base: str = "") -> str:
    """The HTTP address in *text*, relative to *base*; ``ValueError`` if it is not a usable one."""
    # Request lines of more than 8,000 bytes need not be supported (RFC 9112, section 3).
    if len(text) > 8192 or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("characters that no address has")
    target = urljoin(base, text)
    parts = urlsplit(target)
    host = parts.hostname or ""
    if parts.scheme not in _PORTS or not host or parts.port == 0:  # `port` may raise ValueError
        raise ValueError("not an HTTP address")
    if ":" in host:
        ipaddress.ip_address(host.partition("%")[0])
    elif not _HOST.fullmatch(host) or any(len(label) > 63 for label in host.split(".")):
        raise ValueError("not a host name")
    return target


def redact_url(url: str) -> str:
    """*url* as one line without possible secrets: user, password, query, fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        without_query = settings.without_login(url).partition("?")[0]
        return printable(without_query.partition("#")[0])
    host = parts.netloc.rpartition("@")[2]
    return printable(urlunsplit((parts.scheme, host, parts.path, "", "")), longest=2000)


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of *url*."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def is_token_host(url: str, endpoint: str) -> bool:
    """True if the access token may be sent to *url*.

    *endpoint* is the address of the hub that the user chose, never one that a project names.
    """
    scheme, host, _ = origin(url)
    return (scheme == "https" or is_loopback(host or "")) and is_hub(url, endpoint)


def is_hub(url: str, endpoint: str) -> bool:
    """True if *url* is on the hub at *endpoint*, under any of its names."""
    scheme, host, port = origin(url)
    if origin(url) == origin(endpoint):
        return True
    _, hub_host, _ = origin(endpoint)
    # A hub that the user named with http:// may redirect to itself with https://.
    if host == hub_host and (scheme, port) == ("https", 443):
        return True
    if (scheme, port) == ("https", 443) and hub_host in _HUB_HOSTS and host in _HUB_HOSTS:
        return True
    is_configured = bool({host, f"{host}:{port}"} & set(settings.hub_hosts()))
    return is_configured and scheme in ("https", origin(endpoint)[0])


def is_loopback(host: str) -> bool:
    """True if only this machine can reach *host*."""
    name = host.strip("[]").lower()
    with suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


def printable(text: str, *, longest: int = _LONGEST_LINE) -> str:
    """*text* from outside as one line without control characters."""
    line = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text.strip()[: longest + 1]
    )
    return line if len(line) <= longest else f"{line[:longest]}..."


def encodable(text: str) -> str:
    """*text* with lone surrogates, which JSON may contain and UTF-8 cannot encode, as ``?``."""
    return text.encode(errors="replace").decode()


def is_plain_text(value: object, longest: int = 4096) -> bool:
    """True if *value* is a string of printable characters, not empty and not too long.

    Line ends and lone surrogates are not printable.
    """
    return isinstance(value, str) and 0 < len(value) <= longest and value.isprintable()


def path_problem(text: str) -> str:
    """Reason why *text* is not a path inside a folder, on any system; empty if it is one."""
    path = PurePosixPath(text)
    if path.as_posix() != text or text == ".":
        return "it is not a plain relative path"
    if path.is_absolute() or ".." in path.parts or "\\" in text or ":" in text:
        return "it leaves the folder, or would on another system"
    return ""


def place_problem(text: str) -> str:
    """Reason why a lock file may not name the path *text*; empty if it may.

    *text* is relative to the project. It must be valid on every system, and must not be a file that
    another program runs or obeys.
    """
    path = PurePosixPath(text)
    problem = path_problem(text) if is_plain_text(text) else "it is not a plain relative path"
    if problem:
        return problem
    if any(len(part.encode()) > _LONGEST_NAME for part in path.parts):
        return "its name is too long"
    if any(part.startswith(".") for part in path.parts):
        return "it is hidden"
    if any(_DEVICES.fullmatch(part) or part.endswith((".", " ")) for part in path.parts):
        return "on Windows it is a device, or another name"
    # Python obeys every ``.pth`` file there; elsewhere such a file has weights of a model.
    if {"site-packages", "dist-packages"}.intersection(path.parts):
        return "Python imports files of that folder"
    name = path.name.lower()
    if name in _OUR_FILES:
        return "it is a file of this program"
    if _PROGRAMS.fullmatch(name):
        return "other programs run or obey files of that name"
    return ""


def refuse_links(root: Path, folder: Path) -> Path:
    """The real path of *folder*; refuse it if links lead it out of *root*."""
    try:
        real_root = root.resolve()
        real = folder.resolve()
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{folder}: links in a circle", hint="remove them") from error
    if real != real_root and real_root not in real.parents:
        raise UsageError(
            f"{folder} is, through a link, {real}: outside of {root}",
            hint="remove the link, or choose the folder yourself: --output DIR",
        )
    return real


@contextmanager
def open_folder(root: Path, folder: Path) -> Iterator[int | None]:
    """Create *folder*, at or below *root*, and open it; yields a descriptor for ``dir_fd``.

    A link that leads out of *root* is refused, even if it is created meanwhile. On systems without
    such descriptors, the path is checked once, and None is yielded.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        real_root = root.resolve()
        real = refuse_links(root, folder)
        if os.open not in os.supports_dir_fd or not hasattr(os, "O_DIRECTORY"):  # Windows
            real.mkdir(parents=True, exist_ok=True)
            yield None
            return
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(real_root, flags)
        try:
            for part in real.relative_to(real_root).parts:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
                inner = os.open(part, flags, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)
    except OSError as error:
        raise from_os_error(error, folder) from error
