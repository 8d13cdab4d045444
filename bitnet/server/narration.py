"""Narration of a worker: events for people and for programs.

Each event names its actor and action, and describes it twice: plainly and kindly. On a console::

    INFO actor="model-loader" action="gguf_load_complete" human="..." cute="..."

or, as one JSON object per line, for a collector. A terminal gets the address, warnings and errors
alone. If the destination cannot be written to (a full
disk, a closed pipe), the event is lost and nothing else.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import re
import sys
import threading
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, get_args

from bitnet.base.errors import UsageError
from bitnet.base.options import check_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["ACTIONS", "Level", "Narrator", "log_as_events", "narrate", "stderr_as_events"]

Level = Literal["INFO", "WARN", "ERROR"]

SPAN_S = 10.0
MOST_LINES = 20  # lines per action in a span
_UNSEEN = re.compile(r"[\x7f-\x9f\u2028\u2029]")  # controls that JSON does not escape

WORKER = "llm-worker-rbee"
LOADER = "model-loader"
SERVER = "http-server"

#: All actions, with their actors.
ACTIONS: dict[str, str] = {
    "startup": WORKER,
    "device_init": "device-manager",
    "gguf_metadata_loaded": LOADER,
    "gguf_vocab_size_derived": LOADER,
    "gguf_tokenizer_extract_start": "tokenizer-loader",
    "gguf_tokenizer_metadata_extracted": "tokenizer-loader",
    "gguf_tokenizer_extracted": "tokenizer-loader",
    "gguf_load_complete": LOADER,
    "model_load_success": WORKER,
    "model_load_failed": WORKER,
    "models_found": WORKER,
    "model_unloaded": WORKER,
    "test_mode": WORKER,
    "callback_sent": WORKER,
    "callback_failed": WORKER,
    "server_start": SERVER,
    "inference_start": SERVER,
    "inference_complete": SERVER,
    "inference_cancelled": SERVER,
    "inference_failed": SERVER,
    "request_refused": SERVER,
    "http_request": SERVER,
    "worker_failed": WORKER,
    "draining": SERVER,
    "server_stop": SERVER,
}


class Narrator:
    """Writes events for one worker."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        worker_id: str,
        as_json: bool = False,
        brief: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """A narrator that passes lines, without a newline, to *write*.

        Events have the *worker_id*; *brief*: the address, warnings and errors alone, as sentences.
        """
        self._write = write
        self._as_json = as_json
        self._brief = brief
        self._now = now
        self.worker_id = worker_id
        self._writing = threading.Lock()
        self._said: dict[str, tuple[float, int, int]] = {}  # begin of a span, lines, left out
        self._always: dict[str, Any] = {}

    def about(self, **fields: Any) -> Narrator:
        """This narrator, with *fields* in every event."""
        other = copy.copy(self)
        other._always = {**self._always, **fields}
        return other

    def narrate(
        self,
        actor: str,
        action: str,
        human: str,
        cute: str = "",
        *,
        level: Level = "INFO",
        **fields: Any,
    ) -> None:
        """Report that *actor* did *action*, described plainly and kindly.

        *fields* are further facts, such as ``request_id``; those that are ``None`` are left out.
        """
        if self._brief:
            if level != "INFO":
                self._line(f"{'Warning' if level == 'WARN' else 'Error'}: {human}")
            return
        event = {"actor": actor, "action": action}
        event |= {"worker_id": self.worker_id} if self.worker_id else {}
        known = {**fields, **self._always}
        event |= {name: value for name, value in known.items() if value is not None}
        event |= {"human": human, "cute": cute} if cute else {"human": human}
        if self._as_json:
            line = json.dumps({"time": self._now().isoformat(), "level": level, **event})
        else:
            line = f"{level} " + " ".join(f"{k}={_quote(v)}" for k, v in event.items())
        self._line(line)

    def __call__(
        self, action: str, human: str, cute: str = "", *, level: Level = "INFO", **fields: Any
    ) -> None:
        """:meth:`narrate` with the actor of *action*."""
        self.narrate(ACTIONS[action], action, human, cute, level=level, **fields)

    def narrate_limited(
        self, action: str, human: str, cute: str = "", *, level: Level = "INFO", **fields: Any
    ) -> None:
        """Narrate at most MOST_LINES events of *action* in a span, and count the rest.

        The first line of the next span has their number.
        """
        now = self._now().timestamp()
        begin, lines, left_out = self._said.get(action, (now, 0, 0))
        if now - begin >= SPAN_S:
            begin, lines = now, 0
        if lines >= MOST_LINES:
            self._said[action] = begin, lines, left_out + 1
            return
        self._said[action] = begin, lines + 1, 0
        self(action, human, cute, level=level, left_out=left_out or None, **fields)

    def plain(self, text: str) -> None:
        """A line without an actor; left out of JSON, where every line is an event."""
        if not self._as_json and not self._brief:
            self._line(f"INFO {text}")

    def announce(self, names: Iterable[str], address: str) -> None:
        """The last line of a start: the models that are served, and where."""
        self.plain(f"open {address}")
        if self._brief:
            self._line(f"Serving {', '.join(names)} on {address} (Ctrl-C stops it)")

    def _line(self, line: str) -> None:
        with self._writing, suppress(OSError, ValueError):  # ValueError: the stream is closed
            self._write(line)


def narrate(
    actor: str,
    action: str,
    human: str,
    cute: str = "",
    *,
    level: Level = "INFO",
    worker_id: str = "",
    as_json: bool = False,
    **fields: Any,
) -> None:
    """Write one event to stderr, in the form of a worker's own.

    Args:
        actor: who acts.
        action: what happens, in snake case.
        human: plain description.
        cute: kind description.
        level: severity.
        worker_id: the worker that the event is about; left out when empty.
        as_json: a JSON line instead of the console form.
        fields: further facts, such as ``request_id``; ``None`` is left out.

    Raises:
        UsageError: *level* is not one of those there are.
        WrongType: a value is not a text.
    """
    texts = {"actor": actor, "action": action, "human": human, "cute": cute, "worker_id": worker_id}
    for name, value in texts.items():
        check_type(name, value, "a text", str)
    if level not in get_args(Level):
        raise UsageError(
            f"level is {level!r}, expected {', '.join(get_args(Level))}", field="level"
        )
    narrator = Narrator(_to_stderr, worker_id=worker_id, as_json=as_json)
    narrator.narrate(actor, action, human, cute, level=level, **fields)


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


class _Events(logging.Handler):
    """Passes log records to a narrator."""

    def __init__(self, narrate: Narrator) -> None:
        super().__init__()
        self._narrate = narrate

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        level: Level = "INFO"
        if record.levelno >= logging.WARNING:
            level = "ERROR" if record.levelno >= logging.ERROR else "WARN"
        kind = type(error).__name__ if error else None
        self._narrate.narrate(record.name, "log", record.getMessage(), level=level, error=kind)


@contextmanager
def log_as_events(narrate: Narrator) -> Iterator[None]:
    """Write log lines as events of *narrate*, with the logger's name."""
    loggers = [logging.getLogger(), logging.getLogger("bitnet")]
    before = [logger.handlers[:] for logger in loggers]
    for logger in loggers:
        logger.handlers[:] = [_Events(narrate)]
    try:
        yield
    finally:
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers


class _Lines(io.TextIOBase):
    """A stream for text whose lines become events."""

    encoding = "utf-8"

    def __init__(self, narrate: Narrator) -> None:
        super().__init__()
        self._narrate = narrate
        self._held = ""
        self._lock = threading.RLock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._held = (self._held + text).split("\n")
            for line in lines:
                self._tell(line)
        return len(text)

    def rest(self) -> None:
        """Report a last line without a line end."""
        with self._lock:
            self._tell(self._held)
            self._held = ""

    def _tell(self, line: str) -> None:
        if line.strip():
            self._narrate.narrate("worker", "log", line.strip())


@contextmanager
def stderr_as_events(narrate: Narrator) -> Iterator[None]:
    """Turn everything written to stderr, such as the progress of a download, into events.

    *narrate* writes to the stream that was stderr before.
    """
    before, lines = sys.stderr, _Lines(narrate)
    sys.stderr = lines
    try:
        yield
    finally:
        sys.stderr = before
        lines.rest()


def _quote(value: object) -> str:
    # JSON's escapes keep one event on one line, whatever a client has put into it.
    text = json.dumps(value if isinstance(value, str) else str(value), ensure_ascii=False)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
