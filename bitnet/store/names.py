"""Records of names: the digest of a file in a repository, or at an address."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from bitnet.files import keep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Name", "Names", "model_key"]

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Name:
    """A name and its file when it was last looked up.

    Attributes:
        repo: repository on the hub, an address without secrets, or a packaged model's id.
        revision: branch, tag, commit or version that was requested; the ETag of an address.
        file: path inside the repository.
        commit: commit of *revision* at that time.
        sha256: digest of the file, hexadecimal.
        size: bytes.
        kind: ``tokenizer``, ``model`` or ``package``.
        key: its name in the cache's listing.
    """

    repo: str
    revision: str
    file: str
    commit: str | None
    sha256: str
    size: int
    kind: str = "model"
    key: str = ""


def model_key(repo: str, revision: str, file: str) -> str:
    """Name of a file of a model's repository in the cache's listing."""
    return f"{repo.replace('/', '--')}/{revision}/{file}"


class Names:
    """Records in *folder*, one per identity."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[Name]:
        """Every readable record."""
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                name = _read(path)
                if name is not None:
                    yield name

    def find(self, *identity: str) -> Name | None:
        """Record of *identity*, such as repository, revision and file."""
        return _read(self.file_for(*identity))

    def write(self, name: Name, *identity: str) -> None:
        """Record the meaning of *identity*; without permission nothing happens."""
        if self.find(*identity) != name:
            keep(self.file_for(*identity), json.dumps(asdict(name)).encode())

    def of(self, sha256: str) -> list[Name]:
        """Names of the file with this digest."""
        return [name for name in self if name.sha256 == sha256]

    def file_for(self, *identity: str) -> Path:
        """Path of the record of *identity*."""
        text = json.dumps(identity)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _read(path: Path) -> Name | None:
    try:
        name = Name(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (name.repo, name.revision, name.file, name.kind, name.key)
    sound = all(isinstance(text, str) for text in texts) and type(name.size) is int
    sound = sound and (name.commit is None or isinstance(name.commit, str))
    right = isinstance(name.sha256, str) and _SHA256.fullmatch(name.sha256)
    return name if sound and right else None
