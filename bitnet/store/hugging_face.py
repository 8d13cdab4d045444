"""Models in Hugging Face's cache, as huggingface_hub 2.4 writes it; nothing here writes to it.

    <cache>/models--ORG--REPO/refs/REVISION           commit of a branch, tag or pull request
    <cache>/models--ORG--REPO/snapshots/COMMIT/FILE   link to a blob of the repository
    <cache>/models--ORG--REPO/blobs/DIGEST            a file, or a link into the shared store
    <cache>/blobs/AB/AB12...                          shared store of Xet files, by Xet hash

DIGEST is the SHA-256 of a large file and git's name of a small one, so the bytes can be checked.
A Xet hash is computed from chunks, so it cannot be used for that. A snapshot that holds a file
instead of a link (without symbolic links, on Windows) has no digest for it, so the file is not
taken.
Source: ``file_download.py`` and ``utils/_shared_blobs.py`` of that package.
"""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING

from bitnet.base import settings
from bitnet.base.files import git_oid, path_of, read_bytes, sha256_of, text_of
from bitnet.base.trust import COMMIT, SHA256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def files_of(repo: str, revision: str) -> tuple[str | None, dict[str, Path]]:
    """Commit and files of *repo* at *revision*, by their path in the repository.

    None of them is read: :func:`digest_of` says what each must be. The commit is None, and there
    are no files, if the cache does not have that revision.
    """
    try:
        root = _folder_of(repo)
        ref = root / "refs" / revision
        commit = read_bytes(ref).decode("ascii").strip() if ref.is_file() else revision
        if not COMMIT.fullmatch(commit):
            return None, {}
        folder = root / "snapshots" / commit
        files = [path for path in folder.rglob("*") if path.is_file()]
        linked = [path for path in files if _is_link_to(root / "blobs", path)]
        return commit, {text_of(path.relative_to(folder).as_posix()): path for path in linked}
    except (OSError, RuntimeError, ValueError):  # RuntimeError: a loop of links
        return None, {}


def digest_of(path: Path) -> str | None:
    """SHA-256 that *path*, one of :func:`files_of`, must have; None if it is found damaged.

    A small file is read and compared with git's name of it. For a large file the digest is the name
    of its blob; the file is not read, so callers must compare the digest with its bytes.
    """
    try:
        name = path.readlink().name
        if SHA256.fullmatch(name):
            return name
        return sha256_of(path) if git_oid(path) == name else None
    except OSError:
        return None


def blobs_with(sha256: str) -> list[Path]:
    """Blobs, of any repository, whose name is this digest; they may be links."""
    try:
        return sorted(settings.hugging_face_cache().glob(f"models--*/blobs/{sha256}"))
    except (OSError, RuntimeError):
        return []


def snapshots_of(repo: str, file: str) -> Iterator[Path]:
    """Paths of *file* in every snapshot of *repo*, sorted by commit."""
    name = glob.escape(str(path_of(file)))
    yield from sorted(_folder_of(repo).glob(f"snapshots/*/{name}"))


def _folder_of(repo: str) -> Path:
    return settings.hugging_face_cache() / path_of(f"models--{repo.replace('/', '--')}")


def _is_link_to(blobs: Path, path: Path) -> bool:
    """True if *path* is a link to a file in the folder *blobs*, whose name is its digest."""
    if not path.is_symlink():
        return False
    # One link only: the blob of a Xet file leads on to another file, whose name is a Xet hash.
    blob = path.parent / path.readlink()
    return blob.parent.resolve() == blobs.resolve()
