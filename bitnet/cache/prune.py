"""Remove files from the cache: plan first, then remove those that are still unused."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base import locks, settings
from bitnet.base.errors import CacheBusy, NotFound, UsageError, from_os_error
from bitnet.base.options import parse_duration
from bitnet.base.quantities import human_size
from bitnet.base.tables import DIGITS, quantity
from bitnet.base.trust import SHA256
from bitnet.cache.entries import Entry, entries, locks_for
from bitnet.store import Store, links
from bitnet.store.blobs import tag_problem
from bitnet.store.tree import claim_path

if TYPE_CHECKING:
    from bitnet.cache import Selection
    from bitnet.store import Pin

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Removal:
    """Files to remove from *root*."""

    root: Path  # the cache folder
    remove: tuple[Entry, ...]  # entries to remove
    busy: tuple[Entry, ...] = ()  # entries kept because a process holds them
    names: tuple[Pin, ...] = ()  # names to drop, also of bytes that others keep

    @property
    def size_bytes(self) -> int:
        """Bytes that removing them frees; a file with another name elsewhere stays on the disk."""
        names = Counter(entry.inode for entry in self.remove)
        files = {entry.inode: entry for entry in self.remove}
        return sum(
            entry.size_bytes for inode, entry in files.items() if names[inode] >= entry.links
        )

    def facts(self) -> dict[str, Any]:
        """The plan as JSON values."""
        groups = {"remove": self.remove, "busy": self.busy}
        facts = {name: [entry.facts() for entry in group] for name, group in groups.items()}
        return {"root": str(self.root), "size_bytes": self.size_bytes, **facts}

    def summary(self, verb: str) -> str:
        """The plan as one line; *verb* is ``would remove`` or ``removed``."""
        kept = f"; {quantity(len(self.busy), 'file')} kept" if self.busy else ""
        return f"{verb} {quantity(len(self.remove), 'file')}, {human_size(self.size_bytes)}{kept}"

    def files(self, verb: str) -> list[str]:
        """The files of the plan, one per line."""
        return [
            *(f"{verb} {e.path} ({e.kind}, {human_size(e.size_bytes)})" for e in self.remove),
            *(f"kept: {e.path} (in use by {e.owner})" for e in self.busy),
        ]


def plan(root: Path, selection: Selection, *, now_s: float | None = None) -> Removal:
    """Entries that *selection* would remove; nothing is removed yet."""
    refuse_unless_cache(root)
    if selection.keep < 0:
        raise UsageError(f"--keep expects a number of files, 0 or more, got {selection.keep}")
    if selection.tokenizers_only and selection.models:
        raise UsageError("--tokenizers-only and --models exclude each other")
    age_s = parse_duration(selection.older_than, "--older-than") if selection.older_than else None
    now_s = time.time() if now_s is None else now_s
    everything = entries(root)
    chosen = [entry for entry in everything if _in_scope(root, entry, selection)]
    names: list[Pin] = []
    keys = sorted({entry.key for entry in chosen if entry.key})
    if selection.key:
        chosen, names = _of_key(root, chosen, everything, selection.key)
    names += _names_without_bytes(root, selection)
    if selection.key and not (chosen or names):
        raise NotFound(
            f"nothing in {root} has the key {selection.key!r}",
            hint=f"keys are: {', '.join(keys) or 'none'}; see: bitnet cache list",
        )
    published = [entry for entry in chosen if entry.kind not in ("partial", "leftover")]
    newest = sorted(published, key=lambda entry: entry.last_used_s, reverse=True)
    kept = {entry.path for entry in newest[: selection.keep]}
    chosen = [
        entry
        for entry in chosen
        if entry.path not in kept and (age_s is None or now_s - entry.last_used_s > age_s)
    ]
    busy = tuple(entry for entry in chosen if entry.owner)
    free = tuple(entry for entry in chosen if not entry.owner)
    return Removal(root, free, busy, tuple(names))


def _in_scope(root: Path, entry: Entry, selection: Selection) -> bool:
    if entry.is_stored and entry.kind == "model":
        return selection.models
    area = entry.path.relative_to(root).parts[0]
    if selection.tokenizers_only:
        return area == "tokenizers" or (entry.is_stored and entry.kind == "tokenizer")
    return area != "models" or selection.models


def _names_without_bytes(root: Path, selection: Selection) -> list[Pin]:
    """Names that *selection* means and whose bytes are gone, as a killed removal leaves them."""
    if not (selection.key or selection.models):
        return []
    store = Store(root)
    return [
        name
        for name in store.index
        if name.kind != "version"
        and (not selection.key or _means(name.key, selection.key))
        and not store.path_of(name.sha256).exists()
    ]


def _of_key(
    root: Path, scope: list[Entry], everything: list[Entry], key: str
) -> tuple[list[Entry], list[Pin]]:
    """Entries of *key* with every name of the same file, so that its bytes are freed; the names.

    Bytes that also have a name with another key stay: only the links of *key* go.
    """
    paths = {entry.path for entry in scope if _means(entry.key, key)}
    names: list[Pin] = []
    for entry in scope:
        meant = [name for name in entry.names if _means(name.key, key)]
        is_digest = entry.is_stored and _means(entry.path.name, key)
        if is_digest or (meant and len(meant) == len(entry.names)):
            names += entry.names
            paths |= {entry.path}
            paths |= {link.path for link in everything if is_same_file(link, entry, root)}
        elif meant:
            names += meant
            paths -= {entry.path}
            paths |= {root / name.place for name in meant if name.place is not None}

    # Bytes whose only names are chosen links go with them.
    for entry in everything:
        places = [root / name.place for name in entry.names if name.place is not None]
        # A name without a place in the cache is that of a project's file.
        has_places = len(places) == len(entry.names) > 0
        if entry.path not in paths and has_places and paths.issuperset(places):
            paths.add(entry.path)
            names += entry.names
    return [entry for entry in everything if entry.path in paths], names


def is_same_file(entry: Entry, stored: Entry, root: Path) -> bool:
    """True if *entry* is a link in the cache to the file *stored*, or its reflink or copy."""
    if entry.is_stored:
        return False
    if entry.inode == stored.inode and any(entry.inode):
        return True
    record = Store(root).verified.find(entry.path)
    is_placed = record is not None and record.placed and record.is_unchanged
    return is_placed and record is not None and record.sha256 == stored.path.name


def _means(own: str, key: str) -> bool:
    """True if *key*, as people write it, means the key *own*."""
    if SHA256.fullmatch(own):  # as a terminal shows it, or whole
        digits = key.rstrip("…")
        return len(digits) >= DIGITS and own.startswith(digits)
    spelled = key.replace("/", "--", 1) if key.count("/") == 1 else key  # org/repo as people write
    return own in (key, spelled) or own.startswith((f"{key}/", f"{spelled}/"))


def refuse_unless_cache(root: Path) -> None:
    """Refuse a folder that is not certainly a cache of ours before anything in it is removed."""
    real = root.resolve()
    home = settings.expand_home(Path("~")).resolve()
    try:
        problem = "" if real not in (home, *home.parents) else "it is not a cache folder"
        problem = problem or tag_problem(root)
    except OSError as error:
        raise from_os_error(error, root, in_cache=True) from error
    if problem:
        raise UsageError(
            f"nothing in {root} is removed: {problem}",
            hint="give the cache folder: --cache-dir DIR; in others delete files by hand",
        )


def prune(planned: Removal, *, whole: bool = False) -> Removal:
    """Remove the planned entries that are still unused; those removed, and those that are busy.

    Links go before the bytes that they name, and the names in the index go last: a removal that
    is killed anywhere is finished by the same command. With *whole* nothing is removed if one of
    the entries is busy.
    """
    store = Store(planned.root)
    removed: list[Entry] = []
    busy = list(planned.busy)
    batches = [list(planned.remove)] if whole else _by_file(planned.remove)
    for batch in batches:
        with contextlib.ExitStack() as stack:
            free, held = _lock(planned.root, batch, stack)
            busy += held
            if whole and held:
                continue
            for entry in free:
                _remove(planned.root, entry)
                if os.path.lexists(entry.path):
                    busy.append(replace(entry, owner="another process"))
                else:
                    removed.append(entry)
            digests = {entry.path.name for entry in free if entry.is_stored}
            gone = {digest for digest in digests if not store.path_of(digest).exists()}
            _forget_bytes(store, gone)
    if planned.names and not busy:
        store.index.forget_if(lambda record: record in planned.names)
    store.verified.sweep()
    return replace(planned, remove=tuple(removed), busy=tuple(busy))


def _forget_bytes(store: Store, digests: set[str]) -> None:
    """Drop every name of the removed files with these *digests*."""
    if digests:
        store.index.forget_if(lambda record: record.sha256 in digests)


def drop_superseded(root: Path) -> None:
    """Remove the versions that updates left, unless another name or a project has them.

    What is in use is left for the next command.
    """
    store = Store(root)
    marks = store.list_superseded()
    if not marks:
        return
    named = {record.sha256 for record in store.index if record.kind != "version"}
    users = store.users()
    everything = entries(root)
    for digest, mark in marks.items():
        if digest in users:
            continue
        stored = [entry for entry in everything if entry.is_stored and entry.path.name == digest]
        if stored and digest not in named:
            same = [entry for entry in everything if is_same_file(entry, stored[0], root)]
            if prune(Removal(root, (*stored, *same)), whole=True).busy:
                continue
            logger.info("removed %s, which an update replaced", stored[0].path)
        links.remove(mark)


def _by_file(planned: tuple[Entry, ...]) -> list[list[Entry]]:
    """*planned* in batches of one file's names, links to the store first."""
    batches: dict[object, list[Entry]] = {}
    for entry in planned:
        batches.setdefault(entry.inode if any(entry.inode) else entry.path, []).append(entry)
    return sorted(batches.values(), key=lambda batch: any(entry.is_stored for entry in batch))


def _lock(
    root: Path, batch: list[Entry], stack: contextlib.ExitStack
) -> tuple[list[Entry], list[Entry]]:
    """Lock *batch* until *stack* ends: what may be removed, links first, and what is busy."""
    free: list[Entry] = []
    busy: list[Entry] = []
    for entry in sorted(batch, key=lambda entry: not entry.is_stored):
        if root.resolve() not in entry.path.parent.resolve().parents:
            busy.append(replace(entry, owner="a link that leads out of the cache"))
            continue
        holder = next((other for other in busy if other.inode == entry.inode), None)
        if holder is not None and any(entry.inode):
            busy.append(replace(entry, owner=holder.owner))  # the link to a file that stays
            continue
        try:
            for path in locks_for(entry.path):
                is_claim = entry.is_stored and path == claim_path(path.parents[1], entry.path.name)
                if path.is_file() or (is_claim and path.parent.is_dir()):
                    stack.enter_context(locks.hold(path, timeout_s=0, leave=not is_claim))
        except CacheBusy:
            busy.append(replace(entry, owner=locks.holder_of(path)))
            continue
        free.append(entry)
    return sorted(free, key=lambda entry: entry.is_stored), busy


def _remove(root: Path, entry: Entry) -> None:
    """Delete the files of *entry*, then folders that became empty."""
    try:
        for path in (entry.path, *entry.companions):
            # Windows cannot delete the lock file while it is held.
            held = os.name == "nt" and path.suffix == ".lock"
            with contextlib.suppress(PermissionError) if held else contextlib.nullcontext():
                links.remove(path)
    except OSError as error:
        raise from_os_error(error, error.filename or entry.path, in_cache=True) from error
    for folder in entry.path.parents:
        if folder.parent in (root, folder):
            return
        try:
            folder.rmdir()
        except OSError:  # not empty, or not ours to remove
            return
