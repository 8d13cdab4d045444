"""The two files of a batch: rows in, answers out; each answer is synced before it counts."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError, from_os_error
from bitnet.base.files import read_bytes, write_text
from bitnet.base.outputs import begins_with
from bitnet.batch.rows import BatchRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STDIN = "-"  # not the name of a file
_BEGINNING = b'{"id": '  # of every answer


class BatchFiles:
    """Reads rows and appends answers; use it as a context manager.

    An answer is one line with the ``id`` and the ``row`` digest of its row. A line that was left
    unfinished by a killed run is cut off. Rows with an answer are not returned again. ``errors``
    has the message of each row whose answer is an error, by id.
    """

    def __init__(self, source: Path, target: Path, *, retry_errors: bool = False) -> None:
        """Open the rows of *source* (``-``: stdin) and the answers of *target*, created if missing.

        With *retry_errors*, rows whose answer is an error count as unanswered.
        """
        try:
            self._rows = _read_rows(source)
            self._answered, self.errors = _read_answers(target, retry_errors=retry_errors)
            self._check(source, target)
            self._file = target.open("ab")
        except UnicodeDecodeError as error:
            raise UsageError(f"{source} is not UTF-8 at byte {error.start:,}") from None
        except OSError as error:
            raise from_os_error(error, error.filename or target) from error
        self.total = len(self._rows)  # rows of the input
        self.done = sum(row.id in self._answered for row in self._rows)  # answered before

    def remaining_rows(self) -> Iterator[BatchRow]:
        """Rows without an answer, in order."""
        return (row for row in self._rows if row.id not in self._answered)

    def write(self, row: BatchRow, facts: dict[str, Any]) -> None:
        """Write *facts* as the answer to *row*; it is on the disk when this returns."""
        line = json.dumps(row.output(facts), ensure_ascii=False) + "\n"
        try:
            # An id may contain half a surrogate pair: its escape is valid JSON.
            self._file.write(line.encode(errors="backslashreplace"))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise from_os_error(error, self._file.name) from error
        if "error" in facts:
            self.errors[row.id] = facts["error"]

    def __enter__(self) -> BatchFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _check(self, source: Path, target: Path) -> None:
        for row_id, count in Counter(row.id for row in self._rows).items():
            if count > 1:
                text = f"{source}: two rows have the id {row_id!r}"
                raise UsageError(text, hint="give every row its own id")
        digests = {row.id: row.digest for row in self._rows}
        for row_id, digest in self._answered.items():
            if digests.get(row_id) != digest:
                raise UsageError(
                    f"{target} answers another row {row_id!r}, which {source} does not contain",
                    hint="choose another --output, or delete it",
                )


def _read_rows(source: Path) -> list[BatchRow]:
    """The rows of *source*; one without an id has its line number, if no other states that id."""
    raw = sys.stdin.buffer.read() if str(source) == STDIN else read_bytes(source)
    # Not splitlines: texts may contain U+2028 and similar characters.
    lines = raw.decode("utf-8-sig").split("\n")
    rows = [
        BatchRow.parse(line.removesuffix("\r"), number)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    stated_ids = {row.id for row in rows if row.states_id}
    return [row.with_id_besides(stated_ids) for row in rows]


def _read_answers(target: Path, *, retry_errors: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Digests of the rows answered in *target*, and the errors among them, by id.

    The file is changed: an incomplete answer at its end is removed, and so are answers that a later
    line replaces and, with *retry_errors*, errors.
    """
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        return {}, {}
    # Checked before all of it is read; zeros are what a crash may leave (_is_incomplete_answer).
    if not (begins_with(target, b"{", b"\0") or target.stat().st_size == 0):
        raise _not_answers(target)
    content = read_bytes(target)
    complete_lines = content[: content.rfind(b"\n") + 1]
    lines: dict[str, bytes] = {}
    answered: dict[str, str] = {}
    errors: dict[str, str] = {}
    for line in complete_lines.splitlines(keepends=True):
        try:
            facts = _load(line)
            row_id = facts.get("custom_id", facts["id"])
            digest = facts["row"]
            error = facts.get("error")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise _not_answers(target) from None
        if not isinstance(row_id, str):
            raise _not_answers(target)
        if retry_errors and error is not None:
            continue
        lines[row_id] = line
        answered[row_id] = digest
        errors.pop(row_id, None)
        if error is not None:
            errors[row_id] = str(error.get("message") if isinstance(error, dict) else error)
    if not complete_lines and not _is_incomplete_answer(content):
        raise _not_answers(target)
    rewritten = b"".join(lines.values())
    if content.startswith(rewritten):
        # Cut in place: write_text writes a second file, which a killed run would leave behind.
        if len(rewritten) < len(content):
            os.truncate(target, len(rewritten))
    else:
        write_text(target, rewritten.decode())
    return answered, errors


def _not_answers(target: Path) -> UsageError:
    return UsageError(
        f"{target} contains something other than answers", hint="choose another --output"
    )


def _is_incomplete_answer(content: bytes) -> bool:
    """True if *content*, a file without a whole answer, is the beginning of one.

    If the machine crashes, zeros may be left where the answer was being written.
    """
    if not content.strip(b"\0"):
        return True
    if not (content.startswith(_BEGINNING) or _BEGINNING.startswith(content)):
        return False
    try:
        _load(content)
    except RecursionError:
        return False  # an answer is not nested so deep
    except ValueError:
        return True
    return False  # a whole document of another program, without a newline at its end


def _load(content: bytes) -> Any:
    """The JSON value *content*, which is UTF-8 and not another encoding that JSON may have."""
    return json.loads(content.decode())
