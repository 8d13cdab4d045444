"""``bitnet.lock.json``: pins the files of a project, so that every machine gets the same bytes.

    {
      "version": 1,
      "files": [
        {
          "kind": "tokenizer",
          "repo": "baseten/Meta-Llama-3-tokenizer",
          "revision": "main",
          "file": "tokenizer.json",
          "commit": "1460c22666392e470910ce3d44ffeb2ab7dbd4df",
          "sha256": "...",
          "size": 9085657,
          "licence": "Meta Llama 3 Community License",
          "path": null
        }
      ]
    }

Sorted and without host names, times and machine paths: two people who lock the same files write the
same text, and a mirror can serve them. *path* is the place of the file relative to the folder of
the lock file; ``null`` means the cache.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from bitnet.errors import InvalidFormat, Unsupported, UsageError, from_os_error
from bitnet.files import text_of, write_text
from bitnet.trust import SHA256, is_plain_text, place_problem, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "NAME",
    "VERSION",
    "Locked",
    "find",
    "parse",
    "read",
    "record",
    "refuse_unreadable",
    "relative",
    "text_of_entries",
    "write",
]

NAME = "bitnet.lock.json"
VERSION = 1

Kind = Literal["tokenizer", "model", "package"]
_KINDS = ("tokenizer", "model", "package")
_LARGEST_FILE = 64 << 20  # bytes
_LARGEST_SIZE = 1 << 60


@dataclass(frozen=True)
class Locked:
    """One file of the lock file.

    Attributes:
        kind: ``tokenizer`` and ``model`` come from the hub, ``package`` from a package index.
        repo: repository on the hub, or the id of a packaged model.
        revision: as requested: a branch, a tag, a commit; the version of a package.
        file: path inside the repository.
        commit: commit of *revision* when it was locked; ``None`` if the server did not report it.
        sha256: lower-case hexadecimal digest of the file.
        size: bytes.
        licence: name of the terms, empty if unknown.
        path: place relative to the lock file, with forward slashes; ``None``: the cache.
    """

    kind: Kind
    repo: str
    revision: str
    file: str
    commit: str | None
    sha256: str
    size: int
    licence: str = ""
    path: str | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identity of the entry."""
        return (self.kind, self.repo, self.revision, self.file)


def read(path: Path) -> list[Locked]:
    """Entries of the lock file at *path*; empty if the file does not exist.

    Raises:
        InvalidFormat: it is damaged; the message says where.
        Unsupported: it has another schema version.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST_FILE + 1)
        if len(raw) > _LARGEST_FILE:
            raise InvalidFormat(f"{path} is larger than a lock file", hint=_restore(path))
        text = raw.decode("utf-8")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(error, path) from error
    except UnicodeDecodeError as error:
        raise InvalidFormat(f"{path} is not UTF-8 text", hint=_restore(path)) from error
    return parse(text, path)


def parse(text: str, path: Path) -> list[Locked]:
    """Entries of a lock file with this *text*; *path* is its name in messages.

    Raises:
        InvalidFormat: it is damaged; the message says where.
        Unsupported: it has another schema version.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise InvalidFormat(f"{path} is not JSON: {error}", hint=_restore(path)) from error
    if not isinstance(document, dict) or not isinstance(document.get("files"), list):
        raise InvalidFormat(f"{path} has no list 'files'", hint=_restore(path))
    if document.get("version") != VERSION:
        raise Unsupported(
            f"{path} has version {printable(repr(document.get('version')))}, this program reads "
            f"{VERSION}",
            hint="update bitnet, or write the file again: bitnet sync --update",
        )
    entries = [
        _entry(item, f"{path}: entry {number}") for number, item in enumerate(document["files"], 1)
    ]
    _refuse_contradictions(path, entries)
    return entries


def write(path: Path, entries: Iterable[Locked]) -> None:
    """Write *entries* to *path*, sorted, atomically: a reader sees the old or the new file.

    Raises:
        UsageError: :func:`read` would refuse one of them.
    """
    entries = list(entries)
    for entry in entries:
        refuse_unreadable(entry)
    write_text(path, text_of_entries(entries))


def text_of_entries(entries: Iterable[Locked]) -> str:
    """Text of a lock file with *entries*."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    document = {"version": VERSION, "files": [asdict(entry) for entry in ordered]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def find(entries: Iterable[Locked], entry: tuple[str, str, str, str]) -> Locked | None:
    """The entry with the key *entry*."""
    return next((known for known in entries if known.key == entry), None)


def record(path: Path, *entries: Locked) -> bool:
    """Put *entries* into the lock file at *path*, replacing those with equal keys.

    Hold the lock of the file if several processes may write.

    Returns:
        True if the file changed.
    """
    before = known = read(path)
    for entry in entries:
        if entry not in known:
            others = [_displaced(one, entry) for one in known if one.key != entry.key]
            known = [one for one in others if one is not None] + [entry]
    if known == before:
        return False
    write(path, known)
    return True


def _displaced(known: Locked, entry: Locked) -> Locked | None:
    """*known* after *entry* took its place: a tokenizer stays in the cache, a model is dropped."""
    if entry.path is None or known.path != entry.path or known.sha256 == entry.sha256:
        return known
    return replace(known, path=None) if known.kind == "tokenizer" else None


def relative(path: Path, folder: Path) -> str | None:
    """*path* relative to *folder* with forward slashes; ``None`` if it is outside."""
    try:
        return text_of(path.absolute().relative_to(folder.absolute()).as_posix())
    except ValueError:
        return None


def _entry(item: Any, where: str) -> Locked:
    names = {field.name for field in fields(Locked)}
    if not isinstance(item, dict) or not set(item) <= names:
        extra = sorted(set(item) - names) if isinstance(item, dict) else item
        raise InvalidFormat(f"{where}: unexpected {printable(repr(extra))}")
    if problem := _problem(item):
        raise InvalidFormat(f"{where}: not valid: {problem}")
    return Locked(**item)


def refuse_unreadable(entry: Locked) -> None:
    """Refuse to write an *entry* that :func:`read` would refuse.

    Raises:
        UsageError: it is one; says which of its values.
    """
    if problem := _problem(asdict(entry)):
        raise UsageError(
            f"{NAME} cannot pin {printable(entry.repo)}/{printable(entry.file)}: {problem}",
            hint="choose another folder, outside of the project: --output DIR",
        )


def _problem(item: Mapping[str, Any]) -> str:
    """Values of an entry that are not valid, as text; empty if all are."""
    size, path, file = item.get("size"), item.get("path"), item.get("file")
    licence = item.get("licence", "")
    checks = {
        "kind": item.get("kind") in _KINDS,
        "repo": is_plain_text(item.get("repo")),
        "revision": is_plain_text(item.get("revision")),
        "file": is_plain_text(file) and _stays_inside(str(file)),
        "commit": item.get("commit") is None or is_plain_text(item["commit"]),
        "sha256": isinstance(item.get("sha256"), str) and SHA256.fullmatch(item["sha256"]),
        "size": type(size) is int and 0 <= size < _LARGEST_SIZE,
        "licence": licence == "" or is_plain_text(licence),
        "path": path is None or (isinstance(path, str) and not place_problem(path)),
    }
    wrong = {name: printable(repr(item.get(name))) for name, good in checks.items() if not good}
    if isinstance(path, str) and "path" in wrong:
        wrong["path"] += f" ({place_problem(path)})"
    return ", ".join(f"{name} = {value}" for name, value in wrong.items())


def _refuse_contradictions(path: Path, entries: list[Locked]) -> None:
    """Refuse two digests for one path, or for one file of one revision."""
    seen: dict[object, Locked] = {}
    for entry in entries:
        names: list[object] = [entry.key]
        if entry.path is not None:
            names.append(PurePosixPath(entry.path))
        for name in names:
            other = seen.setdefault(name, entry)
            if other.sha256 != entry.sha256:
                where = entry.path if isinstance(name, PurePosixPath) else entry.file
                raise InvalidFormat(
                    f"{path} pins two files for {where}: {other.repo} ({other.revision}) with "
                    f"sha256 {other.sha256}, and {entry.repo} ({entry.revision}) with "
                    f"{entry.sha256}",
                    hint="remove one of the two entries, then: bitnet sync",
                )


def _stays_inside(text: str) -> bool:
    """False if *text* leaves the folder: lock files are untrusted."""
    path = PurePosixPath(text)
    leaves = path.is_absolute() or ".." in path.parts or "\\" in text or ":" in text
    return not leaves and path.as_posix() == text != "."


def _restore(path: Path) -> str:
    return f"restore it from version control, or delete it and lock again: rm {path}"
