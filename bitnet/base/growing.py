"""An output of rows that is appended to while a command computes; a rerun continues a killed one.

Until the output ``vectors.npy`` is complete, three files lie beside it::

    .vectors.npy.rows       the rows computed so far
    .vectors.npy.progress   how many of them are on the disk, and of which computation, as JSON
    .vectors.npy.growing    the lock of the process that writes them

Rows are reused only by the same computation: the *key* of the record must be equal. The caller must
compare the record's digest with that of its own inputs for these rows. Where locks have no effect,
each process uses files of its own, and none of them is continued.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any, BinaryIO

from bitnet.base import locks
from bitnet.base.errors import from_os_error
from bitnet.base.files import beside, is_file_or_folder, real_path, write_text
from bitnet.base.outputs import json_in

if TYPE_CHECKING:
    from bitnet.base.outputs import OutputFile


class GrowingFile:
    """Rows of an output, appended and synced in blocks; use it as a context manager.

    Attributes:
        rows: number of rows on the disk, including those of an earlier run.
        digest: digest of the inputs of these rows, for the caller to compare.
        path: the file with these rows.
    """

    def __init__(self, output: OutputFile, key: dict[str, Any], *, beginning: int = 0) -> None:
        """Prepare the rows of *output*.

        Args:
            output: the file that the rows become.
            key: JSON values that identify the computation, such as its model and options.
            beginning: bytes to leave free before the first row, for a header.
        """
        self._output = output
        self._key = key
        self._beginning = beginning
        self._target = real_path(output.path)
        self.path = beside(self._target, "rows")
        self._record = beside(self._target, "progress")
        self._size = beginning  # bytes of the file up to the end of the recorded rows
        self._held = ExitStack()  # the lock and the open file
        self._is_alone = True  # no other process writes this output: locks have an effect here
        self._file: BinaryIO | None = None
        self.rows = 0
        self.digest = ""

    def __enter__(self) -> GrowingFile:
        self._output.check()
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            lock = self._held.enter_context(
                locks.hold(
                    beside(self._target, "growing"),
                    timeout_s=0,
                    what=str(self._output.path),
                    hint="wait for that run to end, or choose another --output",
                    leave=False,
                )
            )
            self._is_alone = lock.is_kernel
            if not self._is_alone:
                own = f"{os.getpid()}-{token_hex(4)}"
                self.path = beside(self._target, f"{own}.rows")
                self._record = beside(self._target, f"{own}.progress")
            if self._is_published():
                self._remove()
            if is_file_or_folder(self.path):
                self._file = self._held.enter_context(open(self.path, "r+b"))
            else:
                self._file = self._held.enter_context(open(self.path, "w+b"))
            self._read_record()
        except OSError as error:
            self._held.close()
            raise from_os_error(error, self._output.path) from error
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the file; its rows stay for the next run where locks have an effect."""
        if not (self.rows and self._is_alone):
            self._remove()
        self._held.close()

    def append(self, content: bytes, *, rows: int, digest: str) -> None:
        """Add *content* with the next *rows*; they are on the disk when this returns.

        *digest* is that of the inputs of all rows so far.
        """
        assert self._file is not None, "it is open"
        try:
            self._file.seek(self._size)
            self._file.write(content)
            self._file.flush()
            os.fsync(self._file.fileno())
            record = {
                "key": self._key,
                "rows": self.rows + rows,
                "size": self._size + len(content),
                "digest": digest,
            }
            write_text(self._record, json.dumps(record))
        except OSError as error:
            raise from_os_error(error, self._output.path) from error
        self.rows += rows
        self._size += len(content)
        self.digest = digest

    def publish(self, header: bytes = b"") -> None:
        """Write *header* before the rows, and rename the file to the output."""
        assert self._file is not None, "it is open"
        assert len(header) == self._beginning, "there is room for the header"
        try:
            self._cut()
            self._file.seek(0)
            self._file.write(header)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._output.publish(self.path)
            self.rows = 0  # so that the record is removed: the next run begins at the first row
        except OSError as error:
            raise from_os_error(error, self._output.path) from error

    def _is_published(self) -> bool:
        """True if the rows are the output already: a killed run has linked them, and no more."""
        with suppress(OSError):
            return self.path.lstat().st_nlink > 1
        return False

    def _read_record(self) -> None:
        """Continue after the rows of an earlier run with the same key, or start from the first."""
        record = json_in(self._record)
        if isinstance(record, dict) and record.get("key") == self._key:
            size = record.get("size")
            rows = record.get("rows")
            digest = record.get("digest")
            if isinstance(size, int) and isinstance(rows, int) and isinstance(digest, str):
                self._take_up(size, rows, digest)
        if not self.rows:
            # Of another computation. Left there, it would be taken for one of the rows to come.
            self._record.unlink(missing_ok=True)
        self._cut()

    def _take_up(self, size: int, rows: int, digest: str) -> None:
        """Continue after *rows*, if the file has at least the recorded *size* in bytes."""
        if rows > 0 and self._beginning <= size <= self.path.stat().st_size:
            self._size = size
            self.rows = rows
            self.digest = digest

    def _cut(self) -> None:
        """Cut off bytes after the last recorded row, which a killed process left."""
        assert self._file is not None, "it is open"
        self._file.truncate(self._size)

    def _remove(self) -> None:
        for path in (self.path, self._record):
            with suppress(OSError):
                path.unlink(missing_ok=True)
