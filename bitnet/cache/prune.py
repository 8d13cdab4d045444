"""Remove files from the cache: plan first, then remove those that are still unused."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base import locks, settings
from bitnet.base.errors import CacheBusy, NotFound, UsageError, from_os_error
from bitnet.base.options import parse_duration
from bitnet.base.progress import human_size
from bitnet.base.tables import DIGITS, quantity
from bitnet.base.trust import SHA256
from bitnet.cache.entries import Entry, entries, locks_for
from bitnet.store import Store, links
from bitnet.store.blobs import tag_problem

if TYPE_CHECKING:
    from bitnet.cache import Selection


@dataclass(frozen=True)
class Removal:
    """Files to remove from *root*."""

    root: Path  # the cache folder
    remove: tuple[Entry, ...]  # entries to remove
    busy: tuple[Entry, ...] = ()  # entries kept because a process holds them

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
    chosen = [entry for entry in entries(root) if _in_scope(root, entry, selection)]
    if selection.key:
        keys = sorted({entry.key for entry in chosen if entry.key})
        chosen = [entry for entry in chosen if _has_key(entry, selection.key)]
        if not chosen:
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
    return Removal(root, tuple(entry for entry in chosen if not entry.owner), busy)


def _in_scope(root: Path, entry: Entry, selection: Selection) -> bool:
    if entry.is_stored and entry.kind == "model":
        return selection.models
    area = entry.path.relative_to(root).parts[0]
    if selection.tokenizers_only:
        return area == "tokenizers" or (entry.is_stored and entry.kind == "tokenizer")
    return area != "models" or selection.models


def _has_key(entry: Entry, key: str) -> bool:
    if SHA256.fullmatch(entry.key):  # as a terminal shows it, or whole
        digits = key.rstrip("…")
        return len(digits) >= DIGITS and entry.key.startswith(digits)
    spelled = key.replace("/", "--", 1) if key.count("/") == 1 else key  # org/repo as people write
    return entry.key in (key, spelled) or entry.key.startswith((f"{key}/", f"{spelled}/"))


def refuse_unless_cache(root: Path) -> None:
    """Refuse a folder that is not certainly a cache of ours before anything in it is removed."""
    real, home = root.resolve(), settings.expand_home(Path("~")).resolve()
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


def prune(planned: Removal) -> Removal:
    """Remove the planned entries that are still unused; those removed, and those that are busy."""
    removed, busy = [], list(planned.busy)
    for entry in planned.remove:
        if planned.root.resolve() not in entry.path.parent.resolve().parents:
            busy.append(replace(entry, owner="a link that leads out of the cache"))
            continue
        with contextlib.ExitStack() as stack:
            try:
                for path in filter(Path.is_file, locks_for(entry.path)):
                    stack.enter_context(locks.hold(path, timeout_s=0))
            except CacheBusy:
                busy.append(replace(entry, owner="another process"))
                continue
            _remove(planned.root, entry)
            removed.append(entry)
    Store(planned.root).verified.sweep()
    return Removal(planned.root, tuple(removed), tuple(busy))


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
