"""Remove files from the cache: plan first, then remove those that are still unused.

    cache clean       plan             entries by age, number or key
    rm                plan_model       the names of a model, and the bytes that no other name has
    end of an update  plan_superseded  versions whose names mean other bytes now

All three plans are carried out by :func:`prune`. It removes links before the bytes that they name,
and names last: if it is killed anywhere, the same command finishes the removal.
"""

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
from bitnet.base.errors import BitnetError, CacheBusy, NotFound, UsageError, from_os_error
from bitnet.base.files import path_of, real_path
from bitnet.base.options import parse_duration
from bitnet.base.quantities import human_size
from bitnet.base.tables import DIGITS, quantity
from bitnet.base.trust import SHA256
from bitnet.cache.entries import Entry, entries, file_ids, locks_for
from bitnet.store import Store, links
from bitnet.store.placing import sweep_placings
from bitnet.store.root import tag_problem
from bitnet.store.tree import PLACING, SUPERSEDED, claim_path, store_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from bitnet.cache import Selection
    from bitnet.store import Pin

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Removal:
    """Files to remove from *root*: a plan, or what :func:`prune` removed."""

    root: Path  # the cache folder
    remove: tuple[Entry, ...]  # entries to remove
    busy: tuple[Entry, ...] = ()  # entries kept because a process holds them
    names: tuple[Pin, ...] = ()  # recorded names to delete, also of bytes that other names need
    # entries of the store that other models need, each with the repositories of these models
    kept: tuple[tuple[Entry, tuple[str, ...]], ...] = ()
    is_whole: bool = False  # nothing is removed if one of the entries is busy
    marks: tuple[Path, ...] = ()  # marks of superseded versions, to be removed at the end

    @property
    def size_bytes(self) -> int:
        """Bytes that the removal frees; a file with a hard link elsewhere stays on the disk."""
        removed_links = Counter(entry.inode for entry in self.remove)
        files = {entry.inode: entry for entry in self.remove}
        return sum(
            entry.size_bytes
            for inode, entry in files.items()
            if removed_links[inode] >= entry.links
        )

    @property
    def lone_names(self) -> list[Pin]:
        """Names to drop without removing bytes, which other names need, or which are gone."""
        digests = {entry.path.name for entry in self.remove if entry.is_stored}
        return [name for name in self.names if name.sha256 not in digests]

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to remove."""
        return not (self.remove or self.names or self.marks)

    def holders_of(self, entry: Entry) -> list[str]:
        """Paths of projects, and the number of other links, that still hold the bytes of *entry*.

        Links that the plan removes do not count.
        """
        planned = sum(each.inode == entry.inode for each in self.remove)
        # A project's file may also be a reflink or a copy, which is not a link.
        of_users = sum(_inode_of(path) == entry.inode for path in entry.users)
        other_links = entry.links - of_users - max(planned, 1)
        return [*entry.users, *([quantity(other_links, "link")] if other_links > 0 else [])]

    def facts(self) -> dict[str, Any]:
        """The plan as JSON values."""
        groups = {"remove": self.remove, "busy": self.busy}
        facts = {name: [entry.facts() for entry in group] for name, group in groups.items()}
        names = [name.key for name in self.lone_names]
        return {"root": str(self.root), "size_bytes": self.size_bytes, **facts, "names": names}

    def summary(self, verb: str) -> str:
        """The plan as one line; *verb* is ``would remove`` or ``removed``."""
        names = f", {quantity(len(self.lone_names), 'name')}" if self.lone_names else ""
        note = f"; {quantity(len(self.busy), 'file')} kept" if self.busy else ""
        files = quantity(len(self.remove), "file")
        return f"{verb} {files}, {human_size(self.size_bytes)}{names}{note}"

    def files(self, verb: str) -> list[str]:
        """The files and lone names of the plan, one per line."""
        return [
            *(f"{verb} {e.path} ({e.kind}, {human_size(e.size_bytes)})" for e in self.remove),
            *(f"{verb} the name {name.key}" for name in self.lone_names),
            *self.busy_lines(),
        ]

    def busy_lines(self) -> list[str]:
        """The files that stay because they are in use, one per line."""
        return [f"kept: {entry.path} (in use by {entry.owner})" for entry in self.busy]


def _inode_of(path: str) -> tuple[int, int] | None:
    """Device and inode number of *path* itself; None if it is gone."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def plan(root: Path, selection: Selection, *, now_s: float | None = None) -> Removal:
    """Plan of what *selection* removes; *now_s* is the time since the epoch, for ages."""
    refuse_unless_cache(root)
    if selection.keep < 0:
        raise UsageError(f"--keep expects a number of files, 0 or more, got {selection.keep}")
    if selection.tokenizers_only and selection.models:
        raise UsageError("--tokenizers-only and --models exclude each other")
    age_s = parse_duration(selection.older_than, "--older-than") if selection.older_than else None
    now_s = time.time() if now_s is None else now_s
    everything = entries(root)
    ids = file_ids(root, everything)
    chosen = [entry for entry in everything if _in_scope(root, entry, selection)]
    names: list[Pin] = []
    keys = sorted({entry.key for entry in chosen if entry.key})
    if selection.key:
        chosen, names = _of_key(root, chosen, everything, ids, selection.key)
    names += _names_without_bytes(root, selection)
    if selection.key and not (chosen or names):
        raise NotFound(
            f"nothing in {root} has the key {selection.key!r}",
            hint=f"keys are: {', '.join(keys) or 'none'}; see: bitnet cache list",
        )

    # A file is kept or removed as a whole, with its paths in the cache and its recorded names.
    id_of_name = {name: _id_of_name(root, name, ids) for name in names}
    last_used = _last_used_by_file(everything, ids)
    complete = {ids[entry.path] for entry in chosen if entry.kind not in ("partial", "leftover")}
    complete.update(each for each in id_of_name.values() if each is not None)
    newest = sorted(complete, key=lambda file: last_used[file], reverse=True)
    kept = set(newest[: selection.keep])
    if age_s is not None:
        kept.update(file for file, used_s in last_used.items() if now_s - used_s <= age_s)
    chosen = [entry for entry in chosen if ids[entry.path] not in kept]
    names = [name for name in names if id_of_name[name] not in kept]

    owners = {ids[entry.path]: entry.owner for entry in everything if entry.owner}
    busy = [
        replace(entry, owner=entry.owner or owners[ids[entry.path]])
        for entry in chosen
        if ids[entry.path] in owners
    ]
    free = [entry for entry in chosen if ids[entry.path] not in owners]
    return Removal(root, tuple(free), tuple(busy), tuple(names))


def _last_used_by_file(
    everything: list[Entry], ids: Mapping[Path, Hashable]
) -> dict[Hashable, float]:
    """Last use of each file under any of its names in the cache, since the epoch, by identity."""
    last_used: dict[Hashable, float] = {}
    for entry in everything:
        file = ids[entry.path]
        last_used[file] = max(entry.last_used_s, last_used.get(file, entry.last_used_s))
    return last_used


def _id_of_name(root: Path, name: Pin, ids: Mapping[Path, Hashable]) -> Hashable | None:
    """Identity of the file that *name* means; None if neither it nor its link is in the cache."""
    place = None if name.place is None else ids.get(root / path_of(name.place))
    return ids.get(Store(root).path_of(name.sha256), place)


@dataclass(frozen=True)
class ModelFiles:
    """Predicates for the files of one model in the cache."""

    is_name: Callable[[Pin], bool]  # the recorded name is of the model
    is_link: Callable[[Path], bool]  # the path in the cache is a place of the model
    is_unfinished: Callable[[Entry], bool]  # an interrupted download of the model left it


def plan_model(root: Path, files: ModelFiles) -> Removal:
    """Plan to remove the *files* of a model, and what an interrupted download of it left.

    A file that is also a part of another model is kept.
    """
    store = Store(root)
    sweep_placings(store.folder)
    everything = entries(root)

    # Bytes are removed with their last name. A record of the kind `version`, of bytes that a server
    # once sent, is not a name. It counts only for the wheels of a packaged model, which have no
    # other record until they are extracted.
    records = list(store.index)
    matching_records = [record for record in records if files.is_name(record)]
    other_names: dict[str, list[str]] = {}
    for record in records:
        if record.kind != "version" and record not in matching_records:
            other_names.setdefault(record.sha256, []).append(record.repository)
    digests = {record.sha256 for record in matching_records}
    stored = [entry for entry in everything if entry.is_stored and entry.path.name in digests]
    freed_entries = [entry for entry in stored if entry.path.name not in other_names]
    shared = tuple(
        (entry, tuple(dict.fromkeys(other_names[entry.path.name])))
        for entry in stored
        if entry not in freed_entries
    )

    # Links: at the places of the model, and to the bytes that are removed.
    ids = file_ids(root, everything)
    freed_ids = {ids[entry.path] for entry in freed_entries}
    named_places = [record.place for record in matching_records if record.place is not None]
    places = {root / path_of(place) for place in named_places}
    link_entries = [
        entry
        for entry in everything
        if files.is_link(entry.path)
        or entry.path in places
        or (ids[entry.path] in freed_ids and not entry.is_stored)
    ]
    unfinished = [entry for entry in everything if files.is_unfinished(entry)]
    names = tuple(record for record in matching_records if record.kind != "version")
    return Removal(
        root, (*freed_entries, *unfinished, *link_entries), (), names, shared, is_whole=True
    )


def plan_superseded(root: Path) -> list[Removal]:
    """Plans to remove the versions that updates replaced, unless a name or a project needs them."""
    store = Store(root)
    marks = store.list_superseded()
    if not marks:
        return []
    named_digests = {record.sha256 for record in store.index if record.kind != "version"}
    users = store.users()
    everything = entries(root)
    ids = file_ids(root, everything)
    plans = []
    for digest, mark in marks.items():
        if digest in users:
            continue
        stored = [entry for entry in everything if entry.is_stored and entry.path.name == digest]
        same: list[Entry] = []
        if digest in named_digests:
            stored = []  # a name means this version again: only the mark is removed
        elif stored:
            # A link to a stored file has the identity of that file, which is its digest.
            same = [each for each in everything if ids[each.path] == digest and not each.is_stored]
        plans.append(Removal(root, (*stored, *same), is_whole=True, marks=(mark,)))
    return plans


def drop_superseded(root: Path) -> None:
    """Remove the versions that updates replaced; those in use are kept for the next command."""
    try:
        for planned in plan_superseded(root):
            for entry in prune(planned).remove:
                if entry.is_stored:
                    logger.info("removed %s, which an update replaced", entry.path)
    except BitnetError as error:
        logger.warning("what the update replaced stays in the cache: %s", error)


def _in_scope(root: Path, entry: Entry, selection: Selection) -> bool:
    """True if *selection* may remove an *entry* of this kind, whatever its age and key."""
    if entry.is_stored and entry.kind == "model":
        return selection.models
    if entry.kind == "leftover" and _is_needed(root, entry.path.name):
        return False
    area = entry.path.relative_to(root).parts[0]
    if selection.tokenizers_only:
        return area == "tokenizers" or (entry.is_stored and entry.kind == "tokenizer")
    return area != "models" or selection.models


def _is_needed(root: Path, name: str) -> bool:
    """True for the *name* of a note or a mark that a later command still reads."""
    if name.startswith(PLACING):
        return True  # `sweep_placings` has removed those of processes that have ended
    if not name.endswith(SUPERSEDED):
        return False
    digest = name.removesuffix(SUPERSEDED)
    return bool(SHA256.fullmatch(digest)) and Store(root).path_of(digest).exists()


def _names_without_bytes(root: Path, selection: Selection) -> list[Pin]:
    """Names that *selection* covers and whose bytes are gone, as a killed removal leaves them."""
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
    root: Path,
    scope: list[Entry],
    everything: list[Entry],
    ids: Mapping[Path, Hashable],
    key: str,
) -> tuple[list[Entry], list[Pin]]:
    """Entries of *scope* with this *key*, every other link to their bytes, and the names to drop.

    Bytes that also have a name with another key are kept: only the links of *key* are removed.
    Bytes outside of *scope* are added with their names if every name is one of the links chosen.
    """
    paths = {entry.path for entry in scope if _means(entry.key, key)}
    names: list[Pin] = []
    for entry in scope:
        meant = [name for name in entry.names if _means(name.key, key)]
        are_all_meant = bool(meant) and len(meant) == len(entry.names)
        is_digest_meant = entry.is_stored and _means(entry.path.name, key)
        if are_all_meant or is_digest_meant:
            # The bytes are removed, with every link to them.
            names += entry.names
            paths.update(each.path for each in everything if ids[each.path] == ids[entry.path])
        elif meant:
            # The bytes are kept for the other names.
            names += meant
            paths.discard(entry.path)
            paths.update(root / path_of(name.place) for name in meant if name.place is not None)

    # Bytes are removed if all of their names are links chosen above. A name without a place in the
    # cache is that of a project's file, for which the bytes are kept.
    for entry in everything:
        places = [root / path_of(name.place) for name in entry.names if name.place is not None]
        are_all_in_cache = bool(places) and len(places) == len(entry.names)
        if entry.path not in paths and are_all_in_cache and paths.issuperset(places):
            paths.add(entry.path)
            names += entry.names
    return [entry for entry in everything if entry.path in paths], names


def _means(own: str, key: str) -> bool:
    """True if *key*, as a user types it, means *own*, the key of an entry or a digest."""
    if SHA256.fullmatch(own):  # *key* may be a digest as it is shown on a terminal, cut with "…"
        digits = key.rstrip("…")
        return len(digits) >= DIGITS and own.startswith(digits)
    # Keys have org--repo for the org/repo that users type.
    spelled = key.replace("/", "--", 1) if key.count("/") == 1 else key
    return own in (key, spelled) or own.startswith((f"{key}/", f"{spelled}/"))


def refuse_unless_cache(root: Path) -> None:
    """Refuse a folder that is not certainly a cache of ours before anything in it is removed."""
    real = real_path(root)
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


def prune(planned: Removal) -> Removal:
    """Remove the planned entries that are still unused.

    Returns what was removed, and what is busy.
    """
    store = Store(planned.root)
    removed: list[Entry] = []
    busy = list(planned.busy)
    ids = file_ids(planned.root, planned.remove)
    batches = [list(planned.remove)] if planned.is_whole else _by_file(planned.remove, ids)
    for batch in batches:
        with contextlib.ExitStack() as stack:
            free, held = _lock(planned.root, batch, ids, stack)
            busy += held
            if planned.is_whole and held:
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
    if not busy:
        try:
            for mark in planned.marks:
                links.remove(mark)
        except OSError as error:
            raise from_os_error(error, error.filename or store.folder, in_cache=True) from error
    store.verified.sweep()
    names = () if busy else planned.names
    return replace(planned, remove=tuple(removed), busy=tuple(busy), names=names)


def _forget_bytes(store: Store, digests: set[str]) -> None:
    """Delete the records of removed files with these *digests*."""
    if digests:
        store.index.forget_if(lambda record: record.sha256 in digests)


def _by_file(planned: tuple[Entry, ...], ids: Mapping[Path, Hashable]) -> list[list[Entry]]:
    """*planned* in batches, each with the entries of one file."""
    batches: dict[Hashable, list[Entry]] = {}
    for entry in planned:
        batches.setdefault(ids[entry.path], []).append(entry)
    return list(batches.values())


def _lock(
    root: Path, batch: list[Entry], ids: Mapping[Path, Hashable], stack: contextlib.ExitStack
) -> tuple[list[Entry], list[Entry]]:
    """Lock *batch* until *stack* ends.

    Returns what may be removed, links first, and what is busy.
    """
    free: list[Entry] = []
    busy: list[Entry] = []
    held: set[Path] = set()  # entries may share a lock, which even this process cannot hold twice
    # Files of the store first: if one is busy, the links to it are kept, too.
    for entry in sorted(batch, key=lambda entry: not entry.is_stored):
        # The store itself may be a link: users move it to another disk.
        is_in_store = entry.path.is_relative_to(store_folder(root))
        top = store_folder(root) if is_in_store else root
        folder = entry.path.parent.resolve()
        if top.resolve() not in (folder, *folder.parents):
            busy.append(replace(entry, owner="a link that leads out of the cache"))
            continue
        holder = next((each for each in busy if ids[each.path] == ids[entry.path]), None)
        if holder is not None:
            busy.append(replace(entry, owner=holder.owner))
            continue
        try:
            for path in locks_for(entry.path):
                # The lock of claims to a digest is made if it is missing, so that no command claims
                # it meanwhile; others are held only where they are.
                is_claim = entry.is_stored and path == claim_path(path.parents[1], entry.path.name)
                is_needed = path.is_file() or (is_claim and path.parent.is_dir())
                if is_needed and path not in held:
                    stack.enter_context(locks.hold(path, timeout_s=0, leave=not is_claim))
                    held.add(path)
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
            may_be_held = os.name == "nt" and path.suffix == ".lock"
            with contextlib.suppress(PermissionError) if may_be_held else contextlib.nullcontext():
                links.remove(path)
    except OSError as error:
        raise from_os_error(error, error.filename or entry.path, in_cache=True) from error
    for folder in entry.path.parents:
        if folder.parent in (root, folder):  # keep the cache's own folders, such as models
            return
        try:
            folder.rmdir()
        except OSError:  # not empty, or not ours to remove
            return
