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
MOST_LINES = 20  # refusals in a span; the rest are counted
_SENTENCES = ("plain", "open")  # actions for readers of a console alone
_UNSEEN = re.compile(r"[\x7f-\x9f\u2028\u2029]")  # controls that JSON does not escape

#: The actor of each action.
ACTIONS: dict[str, str] = {
    action: actor
    for actor, actions in {
        "llm-worker-rbee": "startup model_load_success model_load_failed models_found "
        "model_unloaded test_mode callback_sent callback_failed worker_failed",
        "device-manager": "device_init",
        "model-loader": "gguf_metadata_loaded gguf_vocab_size_derived gguf_load_complete",
        "tokenizer-loader": "gguf_tokenizer_extract_start gguf_tokenizer_metadata_extracted "
        "gguf_tokenizer_extracted",
        "http-server": "server_start inference_start inference_complete inference_cancelled "
        "inference_failed request_refused field_ignored http_request draining server_stop plain "
        "open",
    }.items()
    for action in actions.split()
}


def narrator(
    write: Callable[[str], object],
    *,
    worker_id: str = "",
    form: Literal["console", "json", "brief"] = "console",
) -> Narrate:
    """A function that passes events of one worker, as lines without a newline, to *write*.

    It takes an action, its plain and its kind description, the level, and further facts such as
    ``request_id``, of which those that are ``None`` are left out. With the *form* ``brief`` there
    are the address, warnings and errors alone, as sentences. Of many refused requests, the first
    line of the next span says how many were left out.
    """
    writing = threading.Lock()
    begin = -SPAN_S
    lines = 0
    left_out = 0  # of the span of refusals

    def narrate_event(
        action: str, human: str, cute: str = "", *, level: Level = "INFO", **fields: Any
    ) -> None:
        nonlocal begin, lines, left_out
        facts = {"actor": fields.pop("actor", "") or ACTIONS[action], "action": action}
        with writing, suppress(OSError, ValueError):  # ValueError: the stream is closed
            if action == "request_refused":
                if (now := time.monotonic()) - begin >= SPAN_S:
                    begin = now
                    lines = 0
                lines += 1
                if lines > MOST_LINES:
                    left_out += 1
                    return
                fields["left_out"], left_out = left_out or None, 0
            facts |= {"worker_id": worker_id or None} | fields | {"human": human, "cute": cute}
            if line := _line(form, facts, level):
                write(line)

    return narrate_event


def _line(form: str, facts: dict[str, Any], level: Level) -> str:
    """The line of an event in this *form*; empty: it has none."""
    action = facts["action"]
    human = facts["human"]
    if form == "brief":
        words = {"INFO": human if action == "open" else "", "WARN": f"Warning: {human}"}
        return words.get(level, f"Error: {human}")
    if action in _SENTENCES:
        return f"INFO {human}" if (form, action) == ("console", "plain") else ""
    event = {name: value for name, value in facts.items() if value not in (None, "")}
    if form == "json":
        now = datetime.now(timezone.utc).isoformat()
        return json.dumps({"time": now, "level": level, **event})
    return f"{level} " + " ".join(f"{name}={_quote(value)}" for name, value in event.items())


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
    tell = narrator(lambda line: sys.stderr.write(f"{line}\n"), worker_id=worker_id, form=form)
    tell(action, human, cute, level=level, actor=actor, **fields)


class _Events(logging.Handler):
    """Passes log records to a narrator."""

    def __init__(self, narrate: Narrate) -> None:
        super().__init__()
        self._narrate = narrate

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        kind = type(error).__name__ if error else None
        at = (record.levelno >= logging.WARNING) + (record.levelno >= logging.ERROR)
        level = get_args(Level)[at]
        self._narrate("log", record.getMessage(), level=level, actor=record.name, error=kind)


class _Lines(io.TextIOBase):
    """A stream for text whose lines become events."""

    encoding = "utf-8"

    def __init__(self, narrate: Narrate) -> None:
        super().__init__()
        self._narrate = narrate
        self._held = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._held = (self._held + text).split("\n")
            for line in filter(None, map(str.strip, lines)):
                self._narrate("log", line, actor="worker")
        return len(text)


@contextmanager
def output_as_events(narrate: Narrate) -> Iterator[None]:
    """Turn log lines, and everything else written to stderr, into events.

    *narrate* writes to the stream that was stderr before.
    """
    loggers = [logging.getLogger(), logging.getLogger("bitnet")]
    before = [logger.handlers[:] for logger in loggers]
    for logger in loggers:
        logger.handlers[:] = [_Events(narrate)]
    lines = _Lines(narrate)
    try:
        with redirect_stderr(lines):
            yield
    finally:
        lines.write("\n")
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers


def _quote(value: object) -> str:
    # JSON's escapes keep one event on one line, whatever a client has put into it.
    text = json.dumps(value if isinstance(value, str) else str(value), ensure_ascii=False)
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
