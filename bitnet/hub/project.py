"""A working folder with its lock file and cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bitnet.base import locks
from bitnet.base.errors import Offline, PermissionDenied
from bitnet.base.files import check_writable
from bitnet.hub.limits import Limits
from bitnet.store import Store, records
from bitnet.store.records import LOCK_FILE
from bitnet.store.tag import make_cache

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.base.progress import Mode
    from bitnet.hub.options import FetchOptions
    from bitnet.store import Artifact

__all__ = ["Project"]

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
        return self.folder / LOCK_FILE

    @property
    def store(self) -> Store:
        """The store in the cache folder."""
        return Store(self.cache, rehash=self.verify, beside=self.read_only)

    def pin_of(self, identity: tuple[str, str, str, str]) -> Artifact | None:
        """Lock file entry of this identity; ``None`` if it is to be updated."""
        return None if self.update else records.find_pin(self.pins(), identity)

    def place_of(self, path: Path | None) -> str | None:
        """*path* relative to the lock file; ``None`` if it is outside."""
        return records.relative(path, self.folder) if path is not None else None

    def pins(self) -> list[Artifact]:
        """Entries of the lock file."""
        return records.read_lock(self.lock_path)

    def pin(self, *entries: Artifact) -> None:
        """Write *entries* into the lock file; safe for several processes."""
        if not self.records or self.folder.absolute() == self.cache.absolute():
            return
        pins = self.pins()
        changed = [entry for one in entries if (entry := _complete(one, pins)) is not None]
        if not changed:
            return
        guard = self.lock_path.with_name(f".{LOCK_FILE}.lock")
        try:
            with locks.hold(guard, timeout_s=self.options.lock_s, what=LOCK_FILE, leave=False):
                for _ in range(_PIN_ATTEMPTS):  # again where locks have no effect
                    if not records.pin(self.lock_path, *changed):
                        break
        except PermissionDenied as error:
            files = ", ".join(f"{entry.repo}/{entry.file}" for entry in changed)
            logger.warning("%s is not pinned: %s", files, error)
            return
        for entry in changed:
            logger.info("pinned %s/%s in %s", entry.repo, entry.file, self.lock_path)

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


def _complete(entry: Artifact, pins: list[Artifact]) -> Artifact | None:
    """*entry* completed by the lock file's entry; ``None`` if that would not change it."""
    pinned = records.find_pin(pins, entry.identity)
    if pinned is not None and pinned.sha256 == entry.sha256:
        entry = replace(
            entry,
            commit=entry.commit or pinned.commit,
            licence=entry.licence or pinned.licence,
            place=entry.place or pinned.place,
        )
    return None if pinned == entry else entry
