"""Narration of a worker: events for people and for programs.

Each event names its actor and action, and describes it twice: plainly and kindly. On a console::

    INFO actor="model-loader" action="gguf_load_complete" human="..." cute="..."

or, as one JSON object per line, for a collector. A terminal gets the address, warnings and errors
alone. If the destination cannot be written to (a full disk, a closed pipe), the event is lost and
nothing else.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, get_args

from bitnet.base.errors import UsageError
from bitnet.base.options import check_type

if TYPE_CHECKING:
    from collections.abc import Iterator

Level = Literal["INFO", "WARN", "ERROR"]
Narrate = Callable[..., None]  # as narrator returns it

SPAN_S = 10.0
MOST_LINES = 20  # lines per action in a span
_SENTENCES = ("plain", "open")  # actions for readers of a console alone
_UNSEEN = re.compile(r"[\x7f-\x9f\u2028\u2029]")  # controls that JSON does not escape

#: All actions, with their actors.
ACTIONS: dict[str, str] = {
    action: actor
    for actor, actions in {
        "llm-worker-rbee": (
            *("startup", "model_load_success", "model_load_failed", "models_found"),
            *("model_unloaded", "test_mode", "callback_sent", "callback_failed", "worker_failed"),
        ),
        "device-manager": ("device_init",),
        "model-loader": ("gguf_metadata_loaded", "gguf_vocab_size_derived", "gguf_load_complete"),
        "tokenizer-loader": (
            *("gguf_tokenizer_extract_start", "gguf_tokenizer_metadata_extracted"),
            "gguf_tokenizer_extracted",
        ),
        "http-server": (
            *("server_start", "inference_start", "inference_complete", "inference_cancelled"),
            *("inference_failed", "request_refused", "http_request", "draining", "server_stop"),
            *_SENTENCES,
        ),
    }.items()
    for action in actions
}


def narrator(
    write: Callable[[str], None],
    *,
    worker_id: str = "",
    form: Literal["console", "json", "brief"] = "console",
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> Narrate:
    """A function that passes events of one worker, as lines without a newline, to *write*.

    It takes an action, its plain and its kind description, the level, and further facts such as
    ``request_id``, of which those that are ``None`` are left out. With the *form* ``brief`` there
    are the address, warnings and errors alone, as sentences.
    """
    writing = threading.Lock()

    def narrate_event(
        action: str, human: str, cute: str = "", *, level: Level = "INFO", **fields: Any
    ) -> None:
        actor = fields.pop("actor", "") or ACTIONS[action]
        facts = {"actor": actor, "action": action}
        facts |= {"worker_id": worker_id or None} | fields | {"human": human, "cute": cute or None}
        if action in _SENTENCES or form == "brief":
            line = _sentence(form, action, human, level)
        else:
            line = _line(facts, level, now() if form == "json" else None)
        if line:
            with writing, suppress(OSError, ValueError):  # ValueError: the stream is closed
                write(line)

    return narrate_event


def _sentence(form: str, action: str, human: str, level: Level) -> str:
    """The line of an event that is a sentence in this *form*; empty: it has none."""
    if form == "brief":
        if action == "open" or level == "INFO":
            return human if action == "open" else ""
        return f"{'Warning' if level == 'WARN' else 'Error'}: {human}"
    return f"INFO {human}" if form == "console" and action == "plain" else ""


def _line(facts: dict[str, Any], level: Level, now: datetime | None) -> str:
    """An event as JSON with the time *now*, or in the form of a console."""
    event = {name: value for name, value in facts.items() if value is not None}
    if now is not None:
        return json.dumps({"time": now.isoformat(), "level": level, **event})
    return f"{level} " + " ".join(f"{name}={_quote(value)}" for name, value in event.items())


def limit_lines(narrate: Narrate, now: Callable[[], float] = time.monotonic) -> Narrate:
    """*narrate* for at most MOST_LINES events of an action in a span; the rest are counted.

    The first line of the next span has their number.
    """
    spans: dict[str, tuple[float, int, int]] = {}  # begin of a span, lines, left out

    def narrate_limited(action: str, human: str, cute: str = "", **fields: Any) -> None:
        begin, lines, left_out = spans.get(action, (now(), 0, 0))
        if now() - begin >= SPAN_S:
            begin, lines = now(), 0
        if lines >= MOST_LINES:
            spans[action] = begin, lines, left_out + 1
            return
        spans[action] = begin, lines + 1, 0
        narrate(action, human, cute, left_out=left_out or None, **fields)

    return narrate_limited


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
    form: Literal["json", "console"] = "json" if as_json else "console"
    tell = narrator(_to_stderr, worker_id=worker_id, form=form)
    tell(action, human, cute, level=level, actor=actor, **fields)


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


class _Events(logging.Handler):
    """Passes log records to a narrator."""

    def __init__(self, narrate: Narrate) -> None:
        super().__init__()
        self._narrate = narrate

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        level: Level = "INFO"
        if record.levelno >= logging.WARNING:
            level = "ERROR" if record.levelno >= logging.ERROR else "WARN"
        kind = type(error).__name__ if error else None
        self._narrate("log", record.getMessage(), level=level, actor=record.name, error=kind)


@contextmanager
def log_as_events(narrate: Narrate) -> Iterator[None]:
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

    def __init__(self, narrate: Narrate) -> None:
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
            self._narrate("log", line.strip(), actor="worker")


@contextmanager
def stderr_as_events(narrate: Narrate) -> Iterator[None]:
    """Turn everything written to stderr, such as the progress of a download, into events.

    *narrate* writes to the stream that was stderr before.
    """
    lines = _Lines(narrate)
    try:
        with redirect_stderr(lines):
            yield
    finally:
        lines.rest()


def _quote(value: object) -> str:
    # JSON's escapes keep one event on one line, whatever a client has put into it.
    text = json.dumps(value if isinstance(value, str) else str(value), ensure_ascii=False)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
