"""Which file a name stood for: the digest of a file of a repository, or of an address."""

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
    """A name and what it stood for when it was last looked up.

    Attributes:
        repo: repository on the hub, an address without anything secret, or a packaged model's id.
        revision: branch, tag, commit or version that was asked for; the ETag of an address.
        file: path inside the repository.
        commit: what *revision* was then.
        sha256: digest of the file, hexadecimal.
        size: bytes.
        kind: ``tokenizer``, ``model`` or ``package``.
        key: what the cache's listing calls it.
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
    """What the cache's listing calls a file of a model's repository."""
    return f"{repo.replace('/', '--')}/{revision}/{file}"


class Names:
    """The records in *folder*: one per identity."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[Name]:
        """Every record that can be read."""
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                name = _read(path)
                if name is not None:
                    yield name

    def find(self, *identity: str) -> Name | None:
        """What *identity* stood for, such as repository, revision and file."""
        return _read(self.file_for(*identity))

    def write(self, name: Name, *identity: str) -> None:
        """Note what *identity* stands for; without permission nothing happens."""
        if self.find(*identity) != name:
            keep(self.file_for(*identity), json.dumps(asdict(name)).encode())

    def of(self, sha256: str) -> list[Name]:
        """The names that the file with this digest had."""
        return [name for name in self if name.sha256 == sha256]

    def file_for(self, *identity: str) -> Path:
        """Where the record of *identity* is kept."""
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
