"""``<file>.origin``: records that earlier versions wrote next to cached files; read-only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from glob import glob
from typing import TYPE_CHECKING

from bitnet.errors import from_os_error
from bitnet.files import digest_of
from bitnet.hub.package_index import PACKAGED
from bitnet.store import Store

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Origin", "known_digests"]


@dataclass(frozen=True)
class Origin:
    """Repository, requested revision, file, commit, digest and size.

    *repo* is empty for a file that was not downloaded.
    """

    repo: str
    revision: str
    file: str
    commit: str | None
    sha256: str
    size: int

    @classmethod
    def of(cls, path: Path) -> Origin:
        """Record made by reading the file at *path*."""
        try:
            size = path.stat().st_size
        except OSError as error:
            raise from_os_error(error, path) from error
        return cls("", "", path.name, None, digest_of(path), size)

    @classmethod
    def read(cls, path: Path) -> Origin | None:
        """Record next to *path*; ``None`` if there is no readable one."""
        try:
            record = cls(**json.loads(_beside(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        texts = (record.repo, record.revision, record.file, record.sha256)
        return record if all(isinstance(text, str) for text in texts) else None


def known_digests(cache: Path) -> dict[str, str]:
    """SHA-256 of files in *cache* whose digest is pinned or was recorded, by path."""
    known = {str(cache / model.entry): model.sha256 for model in PACKAGED.values()}
    # Path.glob fails on a folder that another process removes meanwhile.
    for record in sorted(glob("tokenizers/*/*.origin", root_dir=cache)):  # noqa: PTH207
        path = (cache / record).with_suffix("")
        origin = Origin.read(path)
        if origin is not None:
            known[str(path)] = origin.sha256
    store = Store(cache)
    known |= {str(blob.path): blob.sha256 for blob in store.blobs()}
    return known | {record.path: record.sha256 for record in store.verified if record.placed}


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.origin")
