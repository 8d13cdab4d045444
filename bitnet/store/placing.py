"""Notes about files that are being placed, so that the next command finds what a kill leaves.

A file appears beside its target as ``<file>.partial.<process>-<random>`` and is then renamed; a
folder appears in the same way, with all of its files. A note names the targets before the first of
them is made. A later command that can lock a note removes the unfinished files that it names, and
the note.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from contextlib import ExitStack, contextmanager, suppress
from secrets import token_hex
from typing import TYPE_CHECKING

from bitnet.base import locks
from bitnet.base.errors import BitnetError
from bitnet.base.files import keep, path_of, read_bytes, text_of
from bitnet.store.links import remove, short_name
from bitnet.store.tree import partial_folder, placement_note

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

ABANDONED_S = 900.0  # silence after which a placement counts as abandoned where locks do not work


@contextmanager
def placing(
    store_folder: Path, targets: Sequence[Path], folder: Path | None = None
) -> Iterator[None]:
    """Keep a note, during the block, that *targets* are being made.

    With *folder*, all of them are inside this unfinished folder. Without permission to write, the
    block runs without a note.
    """
    note = placement_note(store_folder, f"{os.getpid()}-{token_hex(4)}")
    guard = note.with_suffix(".lock")
    content = {
        "process": os.getpid(),
        "targets": [text_of(os.path.abspath(target)) for target in targets],  # noqa: PTH100
        "folder": text_of(os.path.abspath(folder)) if folder is not None else None,  # noqa: PTH100
    }
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.hold(guard, timeout_s=0, leave=False))
        except BitnetError as error:
            logger.debug("no note of what is placed: %s", error.message)
        else:
            problem = keep(note, json.dumps(content).encode())
            if problem:
                logger.debug("no note of what is placed: %s", problem)
            stack.callback(_forget, note)
        yield


def sweep_placings(store_folder: Path) -> None:
    """Remove what killed processes left of the files that they were placing."""
    try:
        notes = sorted(partial_folder(store_folder).glob(placement_note(store_folder, "*").name))
    except OSError:
        return
    for note in notes:
        guard = note.with_suffix(".lock")
        with suppress(BitnetError, OSError), locks.hold(guard, timeout_s=0, leave=False) as lock:
            is_old = time.time() - note.stat().st_mtime > ABANDONED_S
            if lock.is_kernel or is_old:
                _remove_left(note)
                _forget(note)


def sweep_beside(target: Path) -> None:
    """Remove unfinished files of *target* that processes left long ago, also without a note."""
    with suppress(OSError):
        for path in list(target.parent.iterdir()):
            if _is_unfinished(path.name, target.name, r"\d+"):
                silence_s = time.time() - max(path.lstat().st_mtime, path.lstat().st_ctime)
                if silence_s > ABANDONED_S and not path.is_dir():
                    remove(path)


def _remove_left(note: Path) -> None:
    """Remove the unfinished files that *note* names; finished and other files stay."""
    try:
        content = json.loads(read_bytes(note))
        process = str(int(content["process"]))
        targets = [path_of(str(target)) for target in content["targets"]]
        folder = path_of(str(content["folder"])) if content["folder"] is not None else None
    except (BitnetError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    for target in targets:
        with suppress(OSError):
            for path in list(target.parent.iterdir()):
                if _is_unfinished(path.name, target.name, process) and not path.is_dir():
                    logger.info("removed what a killed process left: %s", path)
                    remove(path)
    if folder is not None and re.search(rf"\.partial\.{process}-[0-9a-f]{{8}}$", folder.name):
        _remove_folder(folder, targets)


def _remove_folder(folder: Path, targets: Sequence[Path]) -> None:
    """Remove the *targets* in the unfinished *folder*, and the folder unless it has other files."""
    with suppress(OSError):
        for target in targets:
            if folder in target.parents:
                remove(target)
        inner = {parent for target in targets for parent in target.parents}
        own_folders = [path for path in inner if path == folder or folder in path.parents]
        for path in sorted(own_folders, key=lambda path: len(path.parts), reverse=True):
            path.rmdir()


def _is_unfinished(name: str, target: str, process: str) -> bool:
    """True if *name* is that of an unfinished file for *target*; *process* is a pattern."""
    pattern = rf"{re.escape(short_name(target))}\.partial\.{process}-[0-9a-f]{{8}}"
    return re.fullmatch(pattern, name) is not None


def _forget(note: Path) -> None:
    with suppress(OSError):
        remove(note)
