"""Files mapped to be read, which may change under the reader.

A model's file can be cut off, written over in place, or vanish with its server while a model runs
from it. :meth:`MappedFile.check` notices; with the compiled module, reads behind a new end give
zeros until then, where the system would end the process with SIGBUS. A file that is replaced by
another one of its name, as downloads do it, stays what it was for those who have mapped it.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bitnet import native
from bitnet.errors import IntegrityError, InvalidFormat, from_os_error
from bitnet.formats import not_a_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MappedFile", "mapped_files", "unchanged"]


class MappedFile(mmap.mmap):
    """A regular file that is not empty, mapped to be read.

    Attributes:
        path: where it was opened.
    """

    path: Path
    _file: int
    _opened: os.stat_result
    _guard: tuple[ModuleType, int] | None = None
    _let_go: list[weakref.finalize[[int], Any]]

    @classmethod
    def open(cls, path: Path) -> MappedFile:
        """Map the file *path*.

        Raises:
            InvalidFormat: it is not a regular file, or empty.
            NotFound: there is none, or it is a folder.
            PermissionDenied: it may not be read.
        """
        try:
            status = path.stat()  # before opening: a pipe would block
            if stat.S_ISDIR(status.st_mode):
                raise not_a_model.folder_without_model(path)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidFormat(f"{path} is not a regular file")
            if not status.st_size:
                raise not_a_model.empty(path.name)
            file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise not_a_model.missing(path) from None
        except OSError as error:
            raise from_os_error(error, path) from error
        try:
            mapped = cls(file, 0, access=mmap.ACCESS_READ)
            mapped._opened = os.fstat(file)
        except (OSError, ValueError) as error:  # ValueError: it is empty by now
            os.close(file)
            if isinstance(error, ValueError):
                raise not_a_model.empty(path.name) from error
            raise from_os_error(error, path) from error
        mapped.path = path
        mapped._file = file
        mapped._let_go = []
        mapped._at_the_end(os.close, file)
        if (module := native.module()) is not None:
            mapped._guard = module, module.guard_mapping(mapped)
            mapped._at_the_end(module.release_mapping, mapped._guard[1])
        return mapped

    def watch(self) -> None:
        """Let reads of what is no longer there give zeros; :meth:`check` tells of them.

        It is so from the start, until something else handles such signals: ``faulthandler`` does.
        """
        if self._guard:
            self._guard[0].watch_mappings()

    def close(self) -> None:
        """Give the mapping back.

        Raises:
            BufferError: something still reads it.
        """
        super().close()
        for let_go in self._let_go:
            let_go()

    def check(self) -> None:
        """Make sure that the file is what was mapped, and :meth:`watch` over what is read next.

        Raises:
            IntegrityError: it has been cut off or written to since.
        """
        self.watch()
        try:
            now = os.fstat(self._file)
        except OSError as error:
            raise self._changed(f"it cannot be read any more ({error.strerror})") from error
        before = self._opened
        if now.st_size != before.st_size:
            raise self._changed(f"{before.st_size:,} bytes when it was opened, {now.st_size:,} now")
        if now.st_mtime_ns != before.st_mtime_ns:
            raise self._changed("it has been written to since it was opened")
        self.check_reads()

    def check_reads(self) -> None:
        """Make sure that everything read so far was there.

        Raises:
            IntegrityError: a part of the file was gone when it was read.
        """
        if self._guard and self._guard[0].is_torn(self._guard[1]):
            raise self._changed("a part of it could not be read")

    def _at_the_end(self, function: Callable[[int], Any], number: int) -> None:
        """Call ``function(number)`` once the mapping has gone, and not before the process ends."""
        let_go = weakref.finalize(self, function, number)
        let_go.atexit = False
        self._let_go.append(let_go)

    def _changed(self, how: str) -> IntegrityError:
        return IntegrityError(
            f"{self.path} changed while it was in use: {how}",
            hint="load it again; to replace a file that is in use, rename the new one over it",
        )


def mapped_files(arrays: Iterable[NDArray[np.uint8]]) -> list[MappedFile]:
    """The files that *arrays* are views of."""
    import numpy as np

    found: dict[int, MappedFile] = {}
    for array in arrays:
        base: object = array
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        mapped = base.obj if isinstance(base, memoryview) else None
        if isinstance(mapped, MappedFile):
            found[id(mapped)] = mapped
    return list(found.values())


@contextmanager
def unchanged(arrays: Iterable[NDArray[np.uint8]]) -> Iterator[None]:
    """While *arrays* are read; their files are checked at the end.

    Raises:
        IntegrityError: one of them changed; what was made of it is worth nothing.
    """
    files = mapped_files(arrays)
    for file in files:
        file.watch()
    try:
        yield
    finally:
        for file in files:
            file.check()
