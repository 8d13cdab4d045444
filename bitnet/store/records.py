"""Blobs and pins: a blob is a file on this machine, a pin is the record of a file.

A lock file, the index of a store and the list of a bundle hold pins in the same form::

    {
      "kind": "tokenizer", "repo": "baseten/Meta-Llama-3-tokenizer", "revision": "main",
      "file": "tokenizer.json", "commit": "1460c226...", "sha256": "...", "size": 9085657,
      "licence": "Meta Llama 3 Community License", "path": null
    }

*path* is a place relative to the folder that the record belongs to: a project's for a lock file, a
cache's for an index and a bundle; ``null`` means the usual place in the cache. ``bitnet.lock.json``
is sorted and has no times, no paths of machines, and no host names but those of addresses that were
given: two people who lock the same files write the same text, and a mirror can serve them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base.errors import InvalidFormat, Unsupported, UsageError, from_os_error
from bitnet.base.files import open_file, text_of, write_text
from bitnet.base.invocation import shell_quote
from bitnet.base.trust import SHA256, is_plain_text, path_problem, place_problem, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOCK_FILE = "bitnet.lock.json"
VERSION = 1

Kind = Literal["tokenizer", "model", "package", "version"]
_LOCKED_KINDS = ("tokenizer", "model", "package")
_LARGEST_FILE = 64 << 20  # bytes of a lock file
_LARGEST_SIZE = 1 << 60  # bytes of a pinned file; more cannot be right


@dataclass(frozen=True)
class Blob:
    """A file on this machine, by its content."""

    sha256: str  # lower-case hexadecimal digest of the content
    size: int  # bytes
    path: Path = field(compare=False)  # where it is


@dataclass(frozen=True)
class Pin:
    """The record of a file: where it comes from, and which bytes it is."""

    # ``version`` is in the index of a store only: the bytes that came for a version of a file whose
    # server announced no digest; or a wheel of a packaged model, until the model is unpacked
    kind: Kind = "model"
    # repository on the hub, an address without secrets, or the id of a packaged model
    repo: str = ""
    # as requested: a branch, a tag, a commit; the version of a package; the ETag of an address
    revision: str = ""
    file: str = ""  # path inside the repository
    commit: str | None = None  # of *revision* at that time, if the server reported it
    sha256: str = ""  # lower-case hexadecimal digest of the content
    size: int = 0  # bytes
    licence: str = ""  # name of the terms, empty if unknown
    # where it is recorded to belong, relative, with forward slashes; ``None``: the cache
    place: str | None = None
    # False: no digest was offered to verify it by; *sha256* is that of the bytes that came first
    verified: bool = True

    @property
    def index_name(self) -> tuple[str, str, str]:
        """Its name in the index of a store."""
        return self.repo, self.revision, self.file

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Kind and name; a lock file has one pin for each, whatever the digest."""
        return self.kind, *self.index_name

    @property
    def repository(self) -> str:
        """Its repository and revision, as commands take them."""
        if self.kind == "package" or "://" in self.repo:
            return self.repo
        return f"hf:{self.repo}{'' if self.revision == 'main' else f'@{self.revision}'}"

    @property
    def key(self) -> str:
        """Its key as ``bitnet cache list`` shows it; empty if its repository is not known."""
        if self.kind == "tokenizer" and self.place is not None:
            place = PurePosixPath(self.place)
            # ``tokenizers/KEY/FILE``; a lock file may name any place.
            if place.parts[0] == "tokenizers" and len(place.parts) > 1:
                return place.parts[1]
            return place.parent.name
        if "://" in self.repo:
            return self.repo
        if self.kind == "package":
            return f"package--{self.repo}/{self.revision}/{self.file}"
        return f"{self.repo.replace('/', '--')}/{self.revision}/{self.file}" if self.repo else ""


# Attributes of a pin by the name that a record has for them; ``verified`` is only written if False.
_FIELDS = {
    entry.name: entry.name for entry in fields(Pin) if entry.name not in ("place", "verified")
} | {"path": "place"}


def to_record(pin: Pin) -> dict[str, Any]:
    """*pin* as JSON values; ``"verified": false`` only where no digest was offered."""
    record = {name: getattr(pin, attribute) for name, attribute in _FIELDS.items()}
    if not pin.verified:
        record["verified"] = False
    return record


def from_record(record: Any, where: str) -> Pin:
    """The pin that *record*, JSON values from outside, describes; *where* is for messages."""
    names = {*_FIELDS, "verified"}
    if not isinstance(record, dict) or not set(record) <= names:
        extra = sorted(set(record) - names) if isinstance(record, dict) else record
        raise InvalidFormat(f"{where}: unexpected {printable(repr(extra))}")
    if problem := _problem(record):
        raise InvalidFormat(f"{where}: not valid: {problem}")
    values = {_FIELDS.get(str(name), str(name)): value for name, value in record.items()}
    return Pin(**values)


def refuse_unreadable(pin: Pin) -> None:
    """Refuse a *pin* that a lock file could not contain."""
    problem = _problem(to_record(pin))
    if pin.kind not in _LOCKED_KINDS:
        problem = f"kind = {pin.kind}"
    if problem:
        raise UsageError(
            f"{LOCK_FILE} cannot pin {printable(pin.repo)}/{printable(pin.file)}: {problem}",
            hint="choose another folder, outside of the project: --output DIR",
        )


def _problem(record: Mapping[str, Any]) -> str:
    """Values of *record* that are not valid, as text; empty if all are valid."""
    size = record.get("size")
    place = record.get("path")
    file = record.get("file")
    licence = record.get("licence", "")
    checks = {
        "kind": record.get("kind") in (*_LOCKED_KINDS, "version"),
        "repo": is_plain_text(record.get("repo")),
        "revision": is_plain_text(record.get("revision")),
        "file": is_plain_text(file) and not path_problem(str(file)),
        "commit": record.get("commit") is None or is_plain_text(record["commit"]),
        "sha256": isinstance(record.get("sha256"), str) and SHA256.fullmatch(record["sha256"]),
        "size": type(size) is int and 0 <= size < _LARGEST_SIZE,
        "licence": licence == "" or is_plain_text(licence),
        "verified": isinstance(record.get("verified", True), bool),
        "path": place is None or (isinstance(place, str) and not place_problem(place)),
    }
    wrong = {name: printable(repr(record.get(name))) for name, good in checks.items() if not good}
    if isinstance(place, str) and "path" in wrong:
        wrong["path"] += f" ({place_problem(place)})"
    return ", ".join(f"{name} = {value}" for name, value in wrong.items())


def relative(path: Path, folder: Path) -> str | None:
    """*path* relative to *folder* with forward slashes; ``None`` if it is outside."""
    try:
        # Links are followed only to remove "..": a link in *folder* to a file outside is inside.
        if ".." in path.parts or ".." in folder.parts:
            path = path.resolve()
            folder = folder.resolve()
        return text_of(path.absolute().relative_to(folder.absolute()).as_posix())
    except ValueError:
        return None


def read_lock(path: Path) -> list[Pin]:
    """Entries of the lock file at *path*; empty if the file does not exist."""
    try:
        with open_file(path) as file:
            raw = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(error, path) from error
    return parse_lock(raw, path)


def parse_lock(raw: bytes, path: Path) -> list[Pin]:
    """Entries of a lock file with this content; *path* is its name in messages."""
    remove = f"rm {shell_quote(path)}"
    remedy = f"restore it from version control, or delete it and lock again: {remove}"
    if len(raw) > _LARGEST_FILE:
        raise InvalidFormat(f"{path} is larger than a lock file", hint=remedy)
    try:
        document = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise InvalidFormat(f"{path} is not JSON: {error}", hint=remedy) from error
    if not isinstance(document, dict) or not isinstance(document.get("files"), list):
        raise InvalidFormat(f"{path} has no list 'files'", hint=remedy)
    if document.get("version") != VERSION:
        raise Unsupported(
            f"{path} has version {printable(repr(document.get('version')))}, this program reads "
            f"{VERSION}",
            hint=f"update bitnet, or {remedy}",
        )
    entries = [
        from_record(record, f"{path}: entry {number}")
        for number, record in enumerate(document["files"], 1)
    ]
    if strange := next((entry for entry in entries if entry.kind not in _LOCKED_KINDS), None):
        raise InvalidFormat(f"{path}: not valid: kind = {strange.kind!r}", hint=remedy)
    _refuse_contradictions(path, entries)
    return entries


def write_lock(path: Path, entries: Iterable[Pin]) -> None:
    """Write *entries* to *path*, sorted, atomically: a reader sees the old or the new file."""
    write_text(path, lock_text(entries))


def lock_text(entries: Iterable[Pin]) -> str:
    """Text of a lock file with *entries*, as :func:`write_lock`."""
    ordered = sorted(entries, key=lambda entry: entry.identity)
    for entry in ordered:
        refuse_unreadable(entry)
    document = {"version": VERSION, "files": [to_record(entry) for entry in ordered]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def complete_pin(pin: Pin, old: Pin) -> Pin:
    """*pin* with its empty fields filled from *old*, a pin of the same bytes."""
    return replace(
        pin,
        commit=pin.commit or old.commit,
        licence=pin.licence or old.licence,
        place=pin.place or old.place,
        verified=pin.verified or old.verified,
    )


def add_pins(pins: list[Pin], entries: Iterable[Pin]) -> list[Pin]:
    """*pins* with *entries*; each replaces the pin with its identity.

    An entry of the same bytes is completed by the pin that it replaces. A pin of other bytes at the
    path of an entry is displaced.
    """
    for entry in entries:
        old = find_pin(pins, entry.identity)
        if old is not None and old.sha256 == entry.sha256:
            entry = complete_pin(entry, old)
        if entry != old:
            rest = [_displace(each, entry) for each in pins if each.identity != entry.identity]
            pins = [each for each in rest if each is not None] + [entry]
    return pins


def find_pin(pins: Iterable[Pin], identity: tuple[str, ...]) -> Pin | None:
    """The first of *pins* with this identity."""
    return next((entry for entry in pins if entry.identity == identity), None)


def _displace(old: Pin, entry: Pin) -> Pin | None:
    """*old* after *entry* took its place: a tokenizer stays in the cache, a model is dropped."""
    if entry.place is None or old.place != entry.place or old.sha256 == entry.sha256:
        return old
    return replace(old, place=None) if old.kind == "tokenizer" else None


def _refuse_contradictions(path: Path, entries: list[Pin]) -> None:
    """Refuse *entries* with two digests for one place, or for one file of one revision."""
    seen: dict[object, Pin] = {}
    for entry in entries:
        for name in filter(None, (entry.identity, entry.place)):
            first = seen.setdefault(name, entry)
            if first.sha256 != entry.sha256:
                where = entry.place if name == entry.place else entry.file
                raise InvalidFormat(
                    f"{path} pins two files for {where}: sha256 {first.sha256} of {first.repo}, "
                    f"and {entry.sha256} of {entry.repo}",
                    hint="remove one of the two entries, then: bitnet sync",
                )
