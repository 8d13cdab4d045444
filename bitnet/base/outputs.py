"""Files that a user names for a command to write.

Every such file is an :class:`OutputFile`. It is checked before the work begins, so that the command
does not refuse it after minutes of computing, and again when it is written. It never replaces

- an input of the same command, however either is spelled: files are compared by device and inode;
- a file that this command could not have written itself, unless the user adds ``--force``.

The content is written to a draft beside the output, synced and renamed, so the output is complete
or unchanged. The next process that writes the output removes the drafts of killed processes.
"""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from bitnet.base import locks
from bitnet.base.errors import BitnetError, CacheBusy, UsageError, from_os_error
from bitnet.base.files import beside, open_file, real_path, write_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_LONGEST_JSON = 1 << 26  # bytes; no command writes a larger document
# Seconds to wait for a writer that removes old drafts, which takes it no time unless it is stopped.
_REMOVAL_S = 60.0


@dataclass(frozen=True)
class OutputKind:
    """A kind of file that a command writes."""

    noun: str  # with its article, for messages: "an attestation"
    recognises: Callable[[Path], bool]  # True if the file at this path is one


@dataclass(frozen=True)
class OutputFile:
    """A file to write, and what it may replace."""

    path: Path
    kind: OutputKind | None = None  # what it may replace; None: no existing file
    option: str = "--output"  # the option that names it, for messages
    inputs: tuple[Path, ...] = ()  # files and folders that the command reads
    force: bool | None = None  # replace a file of another kind; None: the command has no --force

    def check(self) -> None:
        """Refuse the output if it would replace a file that it must not.

        Devices and pipes are accepted. Unless ``kind`` is None, an empty file may be replaced:
        nothing is lost.
        """
        status = _status(self.path)
        if status is None:
            if self.kind is None and os.path.lexists(self.path):  # a dangling link
                raise self._exists_error()
            return
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(
                f"{self.option} {self.path} is a folder", hint="name a file in this folder"
            )
        if not stat.S_ISREG(status.st_mode):
            return
        self._refuse_input(status)
        if self.kind is None:
            raise self._exists_error()
        is_own = status.st_size == 0 or _recognises(self.kind, self.path)
        if not (is_own or self.force):
            hint = f"name another {self.option}, or move the file away"
            if self.force is not None:
                hint = f"name another {self.option}, or replace the file with --force"
            raise UsageError(
                f"{self.path} exists and is not {self.kind.noun}: it is not overwritten", hint=hint
            )

    @property
    def is_regular(self) -> bool:
        """True if it is a regular file, or will be once it is written; not a device or a pipe."""
        status = _status(self.path)
        return status is None or stat.S_ISREG(status.st_mode)

    def write(self, *parts: bytes | memoryview) -> None:
        """Check the output and write *parts* to it, completely or not at all."""
        self.check()
        status = _status(self.path)
        if status is not None and not stat.S_ISREG(status.st_mode):  # a device or a pipe
            write_bytes(self.path, *parts)
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, self.path.parent) from error
        with self.draft() as draft, draft.open("xb") as out:
            out.writelines(parts)
            out.flush()
            os.fsync(out.fileno())

    def write_text(self, text: str) -> None:
        """As :meth:`write`, with *text* as UTF-8."""
        self.write(text.encode())

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """A path to write and sync, which becomes the output if the block ends without an error.

        If another process creates the output meanwhile, the rules of :meth:`check` apply to it.
        """
        target = real_path(self.path)
        # The random part: threads, and containers with a common folder, may share a process id.
        draft = beside(target, f"{os.getpid()}-{token_hex(4)}.partial")
        with _drafting(target):
            try:
                yield draft
                self.publish(draft)
            except BitnetError as error:
                # Name the output, which the user knows, and not the draft, which is deleted.
                error.message = error.message.replace(draft.name, target.name)
                error.hint = error.hint.replace(draft.name, target.name)
                error.args = (error.message,)
                raise
            except OSError as error:
                raise from_os_error(error, self.path) from error
            finally:
                with suppress(OSError):
                    draft.unlink(missing_ok=True)

    def publish(self, draft: Path) -> None:
        """Rename *draft*, a file beside the output, to the output, if :meth:`check` permits it."""
        target = real_path(self.path)
        self.check()
        status = _status(target)
        if status is not None and self.kind is not None:
            draft.chmod(stat.S_IMODE(status.st_mode))
            draft.replace(target)
            return
        try:
            os.link(draft, target)
        except OSError:  # created meanwhile, or a file system without hard links
            if os.path.lexists(target):
                raise self._exists_error() from None
            draft.rename(target)

    def _exists_error(self) -> UsageError:
        """The error for an output that exists and may not be replaced."""
        hint = f"name another {self.option}"
        if self.force is not None:
            hint += ", or replace the file with --force"
        return UsageError(f"{self.path} exists and is not overwritten", hint=hint)

    def _refuse_input(self, status: os.stat_result) -> None:
        """Refuse to replace an input, or a file of another kind in an input folder.

        *status* is that of the existing output.
        """
        for path in self.inputs:
            input_status = _status(path)
            if input_status is None:
                continue
            if os.path.samestat(input_status, status):
                raise _input_error(self.option, self.path, path)
            if not stat.S_ISDIR(input_status.st_mode):
                continue
            is_own = self.kind is not None and _recognises(self.kind, self.path)
            if not is_own and _contains(path, status):
                raise _input_error(self.option, self.path, path)


@contextmanager
def _drafting(target: Path) -> Iterator[None]:
    """Hold a lock while *target* is written; first remove drafts that killed processes left.

    Writers share the lock. A process that gets it exclusively knows that there is no other writer.
    If another process holds it exclusively for a minute, raise :class:`CacheBusy`: that process may
    be removing drafts, and could remove ours.
    """
    guard = beside(target, "lock")
    hint = "wait for that process to end, or end it"
    with ExitStack() as stack:
        with suppress(BitnetError, OSError), locks.hold(guard, timeout_s=0, leave=False) as lock:
            if lock.is_kernel:
                _remove_drafts(target)
        shared_lock = locks.hold(
            guard, timeout_s=_REMOVAL_S, what=target.name, hint=hint, leave=False, shared=True
        )
        try:
            stack.enter_context(shared_lock)
        except CacheBusy:
            raise
        except BitnetError:
            pass  # a lock file cannot be created here, so no other process removes drafts either
        yield


def _remove_drafts(target: Path) -> None:
    """Remove the drafts of *target* that killed processes left; no process may be writing one."""
    stem = re.escape(beside(target, "").name)
    # Earlier versions of this program named a draft by the process alone.
    name = re.compile(stem + r"\d+(-[0-9a-f]{8})?\.partial")
    for path in list(target.parent.iterdir()):
        if name.fullmatch(path.name):
            path.unlink()


def refuse_inputs(outputs: Iterable[tuple[str, Path]], inputs: Iterable[Path]) -> None:
    """Refuse if one of *outputs*, pairs of an option and its path, is also one of *inputs*."""
    statuses: list[tuple[Path, os.stat_result]] = []
    for path in inputs:
        with suppress(OSError, ValueError):  # an input that is not a file, such as a name
            statuses.append((path, path.stat()))
    for option, output in outputs:
        written = _status(output)
        if written is None or not stat.S_ISREG(written.st_mode):
            continue
        for path, status in statuses:
            if os.path.samestat(status, written):
                raise _input_error(option, output, path)


def json_in(path: Path) -> Any:
    """The JSON document in the file *path*, or None if it does not contain one."""
    try:
        with open_file(path) as file:
            raw = file.read(_LONGEST_JSON + 1)
        return json.loads(raw) if len(raw) <= _LONGEST_JSON else None
    except (OSError, ValueError, RecursionError):
        return None


def begins_with(path: Path, *beginnings: bytes) -> bool:
    """True if the file *path* begins with one of *beginnings*."""
    try:
        with open_file(path) as file:
            head = file.read(max(map(len, beginnings)))
    except OSError:
        return False
    return head.startswith(beginnings)


def _recognises(kind: OutputKind, path: Path) -> bool:
    """True if the file *path* is certainly of this *kind*."""
    try:
        return kind.recognises(path)
    except (OSError, ValueError):
        return False


def _input_error(option: str, output: Path, source: Path) -> UsageError:
    """The error for an *output*, named by *option*, that is the input *source*."""
    same = "" if output == source else f", which is {source}"
    return UsageError(
        f"{option} {output} is an input of this command{same}: it is not overwritten",
        hint=f"name another {option}",
    )


def _status(path: Path) -> os.stat_result | None:
    """Status of the file behind *path*, or None if there is none."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the path
        return None
    except OSError as error:
        raise from_os_error(error, path) from error


def _contains(folder: Path, status: os.stat_result) -> bool:
    """True if a file below *folder* is the one with this *status*."""
    for folder_path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                if os.path.samestat(os.stat(os.path.join(folder_path, name)), status):  # noqa: PTH116, PTH118
                    return True
    return False
