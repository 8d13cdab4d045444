"""Read-only memory-mapped files that may change while they are read.

A model's file can be truncated or overwritten in place, or vanish with its server, while the model
runs. :meth:`MappedFile.check` detects this. Until it is called, reads behind the new end of a file
return zeros; without the native module, the system ends the process with SIGBUS instead. A file
that is replaced by renaming another one over it, as downloads do, stays unchanged for those who
have mapped it.

The functions at the end make the errors for paths that are not a model, so that every command
reports them with the same text, exit code and hint.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bitnet.base import native
from bitnet.base.errors import IntegrityError, InvalidFormat, NotFound, from_os_error
from bitnet.base.files import refuse_special
from bitnet.base.invocation import shell_quote
from bitnet.base.tables import quantity
from bitnet.formats.gguf_names import list_companions, list_models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray


_FETCH = "check the path, or fetch a model: bitnet download-model smollm2-135m"
# First bytes of files that are not models, a name for their kind, and a hint.
_KINDS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "git lfs pull"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint", "convert it to GGUF first"),
    (b"<", "an HTML or XML page", "fetch it again: the server answered with a page"),
    (b"lmgg", "the format before GGUF", "convert it with llama.cpp of 2023 to 2024"),
    (b"fmgg", "the format before GGUF", "convert it with llama.cpp of 2023 to 2024"),
    (b"tjgg", "the format before GGUF", "convert it with llama.cpp of 2023 to 2024"),
)


class MappedFile(mmap.mmap):
    """A regular, non-empty file, mapped read-only."""

    path: Path  # as it was opened
    status: os.stat_result  # of the file when it was opened
    _file: int
    _guard: tuple[ModuleType, int] | None = None
    _finalizers: list[weakref.finalize[[int], Any]]

    @classmethod
    def open(cls, path: Path) -> MappedFile:
        """Map the file *path*."""
        try:
            status = path.stat()  # before opening: a pipe would block
            if stat.S_ISDIR(status.st_mode):
                raise folder_without_model(path)
            refuse_special(status, path)
            if not status.st_size:
                raise empty(path.name)
            file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except (FileNotFoundError, ValueError):  # ValueError: a NUL in the path
            raise missing(path) from None
        except OSError as error:
            raise from_os_error(error, path) from error
        try:
            mapped = cls(file, 0, access=mmap.ACCESS_READ)
            mapped.status = os.fstat(file)
        except (OSError, ValueError) as error:  # ValueError: it has become empty
            os.close(file)
            if isinstance(error, ValueError):
                raise empty(path.name) from error
            raise from_os_error(error, path) from error
        mapped.path = path
        mapped._file = file
        mapped._finalizers = []
        mapped._at_the_end(os.close, file)
        if (module := native.module()) is not None:
            mapped._guard = module, module.guard_mapping(mapped)
            mapped._at_the_end(module.release_mapping, mapped._guard[1])
        return mapped

    def watch(self) -> None:
        """Make reads of vanished parts return zeros; :meth:`check` reports them.

        This is so from the start, until other code, such as ``faulthandler``, handles SIGBUS.
        """
        if self._guard:
            self._guard[0].watch_mappings()

    def close(self) -> None:
        """Unmap the file."""
        super().close()
        for finalizer in self._finalizers:
            finalizer()

    def check(self) -> None:
        """Check that the file has not changed since it was mapped, and call :meth:`watch`.

        A file that was renamed over its path is not a change: the mapped one is still there.
        """
        self.watch()
        try:
            now = os.fstat(self._file)
        except OSError as error:
            raise self._change_error(f"it cannot be read any more ({error.strerror})") from error
        before = self.status
        if now.st_size != before.st_size:
            raise self._change_error(
                f"{before.st_size:,} bytes when it was opened, {now.st_size:,} now"
            )
        if now.st_mtime_ns != before.st_mtime_ns:
            raise self._change_error("it has been written to since it was opened")
        self.check_reads()

    def check_reads(self) -> None:
        """Check that everything read so far existed."""
        if self._guard and self._guard[0].is_torn(self._guard[1]):
            raise self._change_error("a part of it could not be read")

    def _at_the_end(self, function: Callable[[int], Any], number: int) -> None:
        """Call ``function(number)`` when the mapping is freed, but not as the process exits."""
        finalizer = weakref.finalize(self, function, number)
        finalizer.atexit = False
        self._finalizers.append(finalizer)

    def _change_error(self, how: str) -> IntegrityError:
        return IntegrityError(
            f"{self.path} changed while it was in use: {how}",
            hint="load it again; to replace a file that is in use, rename the new one over it",
        )


def files_behind(arrays: Iterable[NDArray[np.uint8]]) -> list[MappedFile]:
    """The files that *arrays* are views of."""
    import numpy as np

    files: dict[int, MappedFile] = {}
    for array in arrays:
        base: object = array
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        mapped = base.obj if isinstance(base, memoryview) else None
        if isinstance(mapped, MappedFile):
            files[id(mapped)] = mapped
    return list(files.values())


@contextmanager
def expect_unchanged(arrays: Iterable[NDArray[np.uint8]]) -> Iterator[None]:
    """Check the files of *arrays* at the end of the block that reads them."""
    files = files_behind(arrays)
    for file in files:
        file.watch()
    try:
        yield
    finally:
        for file in files:
            file.check()


# --- errors for paths that are not a model -------------------------------------------------------


def missing(path: Path) -> NotFound:
    """Error: *path* does not exist."""
    return NotFound(f"no such file or folder: {path}", hint=_FETCH)


def empty(label: str) -> InvalidFormat:
    """Error: the file *label* is empty."""
    return InvalidFormat(f"{label} is empty", hint="fetch the file again")


def folder_without_model(path: Path) -> NotFound:
    """Error: the folder *path* has no model, or has GGUF files of which one must be named."""
    models = list_models(path)
    if not models:
        problem = "neither *.gguf nor *.safetensors with config.json"
        companions = list_companions(path)
        if companions:
            problem = f"{companions[0].name} belongs to a model and is not one"
        return NotFound(f"no model in {path}: {problem}", hint=_FETCH)
    return NotFound(
        f"{path} is a folder with {quantity(len(models), 'GGUF file')}, "
        "expected a GGUF file, or a folder with config.json and *.safetensors",
        hint=f"name the file itself: {shell_quote(models[0])}",
    )


def kind_from_head(head: bytes) -> tuple[str, str] | None:
    """Kind of a file that begins with *head*, and a hint; ``None`` if unknown."""
    start = head.lstrip()
    return next(((what, hint) for magic, what, hint in _KINDS if start.startswith(magic)), None)


def begins_as_safetensors(head: bytes) -> bool:
    """True if *head*, at least 9 bytes, is the beginning of a safetensors file."""
    # The length of a header below four gigabytes, and its first character.
    return head[4:9] == b"\0\0\0\0{"


def other_kind(head: bytes, label: str) -> InvalidFormat:
    """Error: the file *label* is not a model; names its kind, if the first bytes *head* tell it.

    A safetensors file is an error where only a GGUF file is read.
    """
    if begins_as_safetensors(head):
        return InvalidFormat(
            f"{label} is a safetensors file, expected a GGUF file",
            hint="name a .gguf file",
        )
    neither = f"{label} is neither a GGUF file nor safetensors"
    if recognized := kind_from_head(head):
        what, hint = recognized
        return InvalidFormat(f"{neither} but {what}", hint=hint)
    return InvalidFormat(
        f"{neither}: it starts with {head[:4]!r}",
        hint="fetch it again, or pass a .gguf file or a folder with config.json and *.safetensors",
    )
