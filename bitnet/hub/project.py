"""A working folder with its lock file and cache, and the files provided to it."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from bitnet import locks
from bitnet.errors import Offline, PermissionDenied
from bitnet.files import check_writable
from bitnet.hub import lockfile
from bitnet.hub.limits import Limits
from bitnet.store import Store
from bitnet.store.tag import make_cache

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.hub.lockfile import Locked
    from bitnet.hub.options import FetchOptions
    from bitnet.progress import Mode

__all__ = ["Project", "Provided"]

logger = logging.getLogger(__name__)

_PIN_ATTEMPTS = 5


@dataclass(frozen=True)
class Project:
    """Paths and download options, shared by all files of one command.

    Attributes:
        folder: contains the lock file; ``models`` is below it.
        cache: the cache folder.
        options: how to fetch.
        progress: how progress is shown.
        force: fetch again what exists.
        update: accept files that differ from the lock file.
        verify: read files again instead of trusting records.
        records: write provided files into the lock file.
        limits: shared by all transfers.
        read_only: a second cache folder that is only read.
    """

    folder: Path
    cache: Path
    options: FetchOptions
    progress: Mode = "auto"
    force: bool = False
    update: bool = False
    verify: bool = False
    records: bool = True
    limits: Limits = field(default_factory=Limits, compare=False, repr=False)
    read_only: Path | None = None

    def writable(self) -> Project:
        """The project with a writable cache: below ``models`` if its own is not."""
        try:
            make_cache(self.cache)
            check_writable(self.cache / "store")
        except PermissionDenied as error:
            own = self.folder / "models/.cache"
            logger.warning("%s; what is fetched is kept in %s", error.message, own)
            return replace(self, cache=own.absolute(), read_only=self.cache)
        return self

    @property
    def lock_path(self) -> Path:
        """The lock file."""
        return self.folder / lockfile.NAME

    @property
    def store(self) -> Store:
        """The store in the cache folder."""
        return Store(self.cache, rehash=self.verify, beside=self.read_only)

    def pinned(self, key: tuple[str, str, str, str]) -> Locked | None:
        """Lock file entry of *key*; ``None`` if it is to be updated."""
        return None if self.update else self._known(key)

    def _known(self, key: tuple[str, str, str, str]) -> Locked | None:
        return lockfile.find(lockfile.read(self.lock_path), key)

    def pin(self, *entries: Locked) -> None:
        """Write *entries* into the lock file; safe for several processes."""
        if not self.records or self.folder.absolute() == self.cache.absolute():
            return
        changed = [entry for entry in map(self._completed, entries) if entry is not None]
        if not changed:
            return
        guard = self.lock_path.with_name(f".{lockfile.NAME}.lock")
        try:
            with locks.hold(guard, timeout_s=self.options.lock_s, what=lockfile.NAME, leave=False):
                for _ in range(_PIN_ATTEMPTS):  # again where locks have no effect
                    if not lockfile.record(self.lock_path, *changed):
                        break
        except PermissionDenied as error:
            files = ", ".join(f"{entry.repo}/{entry.file}" for entry in changed)
            logger.warning("%s is not pinned: %s", files, error)
            return
        for entry in changed:
            logger.info("pinned %s/%s in %s", entry.repo, entry.file, self.lock_path)

    def _completed(self, entry: Locked) -> Locked | None:
        """*entry* completed by the lock file's entry; ``None`` if that would not change it."""
        known = self._known(entry.key)
        if known is not None and known.sha256 == entry.sha256:
            entry = replace(
                entry,
                commit=entry.commit or known.commit,
                licence=entry.licence or known.licence,
                path=entry.path or known.path,
            )
        return None if known == entry else entry

    def require_connection(self, path: Path, command: str) -> None:
        """Raise if the network is switched off.

        Args:
            path: the file that would be fetched.
            command: the command that fetches it.

        Raises:
            Offline: the network is switched off.
        """
        if self.options.is_offline:
            state = "does not exist"
            if path.exists():
                again = self.force or self.update
                state = "would be fetched again" if again else "is not what was asked for"
            raise Offline(
                f"offline: {path} {state}, and the network is switched off",
                hint=f"with a connection: {command}",
            )


@dataclass(frozen=True)
class Provided:
    """A file in its place.

    Attributes:
        path: as requested by the caller.
        sha256: its digest.
        size: its bytes.
        commit: of the repository, if the server reported it.
        cached: no bytes were transferred.
        licence: the licence line.
    """

    path: Path
    sha256: str
    size: int
    commit: str | None
    cached: bool
    licence: str

    def facts(self) -> dict[str, object]:
        """The file as JSON values."""
        return asdict(self) | {"path": str(self.path)}
