"""Remove files from the cache: plan first, then remove those that are still unused."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bitnet.base import locks, settings
from bitnet.base.errors import (
    BitnetError,
    CacheBusy,
    NotFound,
    PermissionDenied,
    UsageError,
    from_os_error,
)
from bitnet.base.options import parse_duration
from bitnet.base.progress import human_size
from bitnet.base.tables import DIGITS, quantity
from bitnet.base.trust import SHA256
from bitnet.cache import Selection
from bitnet.cache.entries import Entry, entries, locks_for
from bitnet.store import Store, links
from bitnet.store.tag import has_tag, is_marked, strange_names


@dataclass(frozen=True)
class Removal:
    """Files to remove from *root*."""

    root: Path  # the cache folder
    remove: tuple[Entry, ...]  # entries to remove
    busy: tuple[Entry, ...]  # entries kept because a process holds them
    foreign: tuple[Entry, ...] = ()  # entries kept because nothing shows that they are ours

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
        groups = {"remove": self.remove, "busy": self.busy, "foreign": self.foreign}
        facts = {name: [entry.facts() for entry in group] for name, group in groups.items()}
        return {"root": str(self.root), "size_bytes": self.size_bytes, **facts}

    def summary(self, verb: str) -> str:
        """The plan as one line; *verb* is ``would remove`` or ``removed``."""
        left = len(self.busy) + len(self.foreign)
        kept = f"; {quantity(left, 'file')} kept" if left else ""
        return f"{verb} {quantity(len(self.remove), 'file')}, {human_size(self.size_bytes)}{kept}"

    def files(self, verb: str) -> list[str]:
        """The files of the plan, one per line."""
        return [
            *(f"{verb} {e.path} ({e.kind}, {human_size(e.size_bytes)})" for e in self.remove),
            *(f"kept: {e.path} (in use by {e.owner})" for e in self.busy),
            *(f"kept: {e.path} (not created by bitnet)" for e in self.foreign),
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
    seen = [entry for entry in entries(root) if _in_scope(root, entry, selection)]
    chosen = [entry for entry in seen if is_marked(root, entry.path)]
    foreign = tuple(entry for entry in seen if entry not in chosen)
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
    return Removal(
        root,
        remove=tuple(entry for entry in chosen if not entry.owner),
        busy=tuple(entry for entry in chosen if entry.owner),
        foreign=foreign,
    )


def space_hint(root: Path, missing: int) -> str:
    """Hint for *missing* bytes of space; names ``cache clean`` only if it frees as many."""
    elsewhere = "or choose another disk: --cache-dir DIR"
    with contextlib.suppress(BitnetError):
        for models in (False, True):
            frees = plan(root, Selection(models=models)).size_bytes
            if frees >= missing and models:
                return f"free {human_size(frees)}: bitnet cache clean --models, {elsewhere}"
            if frees >= missing:
                return f"free {human_size(frees)}: bitnet cache clean, {elsewhere}"
    return f"delete something else, {human_size(missing)} are missing, {elsewhere}"


def _in_scope(root: Path, entry: Entry, selection: Selection) -> bool:
    if selection.unreferenced and entry.is_stored and (entry.links > 1 or entry.users):
        return False
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
    """Refuse a folder that is not a cache of ours before anything in it is removed.

    It is one if it has our ``CACHEDIR.TAG``, or only the folders of a cache; then
    :func:`~bitnet.store.tag.is_marked` says which files in them are ours.
    """
    real = root.resolve()
    home = settings.expand_home(Path("~")).resolve()
    if real == home or real in home.parents:
        raise UsageError(
            f"{root} is not a cache folder: refusing to remove anything in it",
            hint="give the cache folder: --cache-dir DIR",
        )
    try:
        strange = strange_names(real)
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise PermissionDenied(f"cannot read {root}: {error.strerror}") from error
    except OSError as error:
        raise from_os_error(error, root, in_cache=True) from error
    if strange and not has_tag(real):
        raise UsageError(
            f"{root} does not look like a cache folder of bitnet: it also holds {strange[0]!r}: "
            "refusing to remove anything in it",
            hint="give the cache folder: --cache-dir DIR",
        )


def prune(planned: Removal) -> Removal:
    """Remove the planned entries that are still unused; those removed, and those that are busy."""
    removed: list[Entry] = []
    busy, foreign = list(planned.busy), list(planned.foreign)
    in_use = Store(planned.root).in_use
    for entry in planned.remove:
        if planned.root.resolve() not in entry.path.parent.resolve().parents:
            foreign.append(entry)  # a link leads out of the cache
            continue
        with contextlib.ExitStack() as stack:
            try:
                ours = (in_use,) if entry.is_stored else ()
                for path in filter(Path.is_file, (*locks_for(entry.path), *ours)):
                    stack.enter_context(locks.hold(path, timeout_s=0))
            except CacheBusy:
                busy.append(replace(entry, owner="another process"))
                continue
            _remove(planned.root, entry)
            removed.append(entry)
    Store(planned.root).verified.sweep()
    return Removal(planned.root, tuple(removed), tuple(busy), tuple(foreign))


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
