"""A file of rows that grows while a command computes, and that a killed command continues.

Beside the output ``vectors.npy`` stand, until it is complete::

    .vectors.npy.rows       the rows that are computed
    .vectors.npy.progress   how many of them are on the disk, of what, as JSON
    .vectors.npy.growing    the lock of the process that writes them

A record counts only for the same computation: its *key* must be equal, and its digest must be that
of the inputs which the rows are made of.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from bitnet.base import locks
from bitnet.base.errors import from_os_error
from bitnet.base.files import is_file_or_folder, write_text
from bitnet.base.outputs import json_in

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.base.outputs import OutputFile

_LONGEST_NAME = 99  # bytes of a name that those of its files repeat


class GrowingFile:
    """Rows of an output, appended and synced in blocks; use it as a context manager.

    Attributes:
        rows: number of rows on the disk; first those that an earlier run left.
        digest: digest of the inputs of these rows.
        path: the file with these rows.
    """

    def __init__(self, output: OutputFile, key: dict[str, Any], *, beginning: int = 0) -> None:
        """Rows of *output*, computed as *key* says, behind *beginning* bytes for a header."""
        self._output = output
        self._key = key
        self._beginning = beginning
        self._target = output.path.resolve()
        self.path = self._beside("rows")
        self._record = self._beside("progress")
        self._size = beginning
        self._held = ExitStack()
        self._file: BinaryIO | None = None
        self.rows = 0
        self.digest = ""

    def __enter__(self) -> GrowingFile:
        self._output.check()
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._held.enter_context(
                locks.hold(
                    self._beside("growing"),
                    timeout_s=0,
                    what=str(self._output.path),
                    hint="wait for that run to end, or choose another --output",
                    leave=False,
                )
            )
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
        """Close the file; rows on the disk stay for the next run."""
        if not self.rows:
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
        """Make the rows, behind *header*, the output."""
        assert self._file is not None, "it is open"
        assert len(header) == self._beginning, "there is room for the header"
        try:
            self._cut()
            self._file.seek(0)
            self._file.write(header)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._output.publish(self.path)
            self.rows = 0  # nothing is left for another run
        except OSError as error:
            raise from_os_error(error, self._output.path) from error

    def _read_record(self) -> None:
        """Take up the rows of an earlier run with the same key; else start from the first."""
        record = json_in(self._record)
        if isinstance(record, dict) and record.get("key") == self._key:
            size = record.get("size")
            rows = record.get("rows")
            digest = record.get("digest")
            if isinstance(size, int) and isinstance(rows, int) and isinstance(digest, str):
                self._take_up(size, rows, digest)
        self._cut()

    def _take_up(self, size: int, rows: int, digest: str) -> None:
        """Continue behind *rows*, if the *size* of the file allows that they are there."""
        if rows > 0 and self._beginning <= size <= self.path.stat().st_size:
            self._size = size
            self.rows = rows
            self.digest = digest

    def _cut(self) -> None:
        """Remove what is behind the rows that count."""
        assert self._file is not None, "it is open"
        self._file.truncate(self._size)

    def _remove(self) -> None:
        for path in (self.path, self._record):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _beside(self, end: str) -> Path:
        return self._target.with_name(f".{self._target.name[:_LONGEST_NAME]}.{end}")
