"""Remove one model from the cache."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base import locks
from bitnet.base.errors import NotFound, UsageError, from_os_error
from bitnet.base.progress import human_size
from bitnet.store import Artifact, Store, links

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.hub.project import Project
    from bitnet.hub.ref import Ref


@dataclass(frozen=True)
class ModelRemoval:
    """Files of one model, and the holders of each besides the cache.

    Attributes:
        store: the cache's store.
        folder: links to the files, in the cache.
        blobs: the files.
        identities: their names in the store's index.
        holders: paths of projects, by digest; other names on the disk count as ``N links``.
    """

    store: Store
    folder: Path
    blobs: tuple[Artifact, ...]
    identities: tuple[tuple[str, ...], ...]
    holders: dict[str, list[str]]

    @property
    def size_bytes(self) -> int:
        """Bytes that are freed."""
        return sum(blob.size for blob in self.blobs if not self.holders[blob.sha256])

    def apply(self) -> None:
        """Remove the files, their links in the cache, and their names.

        Raises:
            CacheBusy: another process is using the store.
            BitnetError: a file cannot be removed.
        """
        try:
            with locks.hold(self.store.in_use, timeout_s=0, what="the cache"):
                digests = {blob.sha256 for blob in self.blobs}
                for path in sorted(self.folder.rglob("*"), reverse=True):
                    if path.is_dir():
                        with suppress(OSError):
                            path.rmdir()  # unless it is not empty
                    elif path.name == ".files.json" or self.store.digest_of(path) in digests:
                        links.remove(path)
                with suppress(OSError):
                    self.folder.rmdir()
                for identity in self.identities:
                    self.store.index.forget(*identity)
                for blob in self.blobs:
                    if not self.store.index.of(blob.sha256):
                        self.store.drop(blob)
                self.store.verified.sweep()
        except OSError as error:
            raise from_os_error(error, error.filename or self.folder, in_cache=True) from error

    def facts(self) -> dict[str, Any]:
        """The removal as JSON values."""
        files = [
            {"path": str(b.path), "size_bytes": b.size, "held_by": self.holders[b.sha256]}
            for b in self.blobs
        ]
        return {"size_bytes": self.size_bytes, "files": files}

    def lines(self, verb: str) -> list[str]:
        """The removal as text; *verb* is ``would remove`` or ``removed``."""
        held = [
            f"still on the disk: {', '.join(self.holders[blob.sha256])}"
            for blob in self.blobs
            if self.holders[blob.sha256]
        ]
        files = [f"{verb} {blob.path} ({human_size(blob.size)})" for blob in self.blobs]
        return [*files, *held, f"{verb} {len(files)} files, {human_size(self.size_bytes)} freed"]


def removal_of(ref: Ref, project: Project) -> ModelRemoval:
    """Plan to remove the model *ref* from the cache.

    Raises:
        UsageError: it is a path, or part of this program.
        NotFound: the cache does not have it.
    """
    if ref.path is not None or ref.shipped:
        raise UsageError(
            f"{ref.text} is not a model in the cache",
            hint="`bitnet models` lists the names; a file of your own is removed as any other",
        )
    store = project.store
    owner = ref.packaged or ref.repo
    names = [
        name
        for name in store.index
        if name.repo == owner
        and (ref.packaged or name.revision == ref.revision)
        and ref.file in ("", name.file)
    ]
    blobs = {name.sha256: blob for name in names if (blob := store.find(name.sha256)) is not None}
    if not blobs:
        raise NotFound(f"{ref.text} is not in the cache", hint="`bitnet models` lists what is here")
    users, folder = store.users(), ref.folder(project.cache)
    holders = {}
    for sha256, blob in blobs.items():
        others = blob.path.stat().st_nlink - 1 - len(users.get(sha256, ()))
        ours = sum(path.samefile(blob.path) for path in folder.rglob("*") if path.is_file())
        more = max(0, others - ours)
        holders[sha256] = users.get(sha256, []) + ([f"{more} links"] if more else [])
    identities = tuple((name.repo, name.revision, name.file) for name in names)
    return ModelRemoval(store, folder, tuple(blobs.values()), identities, holders)
