"""Narration of a worker: events for people and for programs.

Each event names its actor and action, and describes the action twice: plainly (``human``) and
playfully (``cute``). On a console::

    INFO actor="model-loader" action="gguf_load_complete" human="..." cute="..."

For a collector, each line is a JSON object instead. A terminal gets only the address, warnings and
errors. If the destination cannot be written to (a full disk, a closed pipe), the event is lost and
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
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, get_args

from bitnet.base.errors import UsageError
from bitnet.base.options import check_type
from bitnet.base.terminal import text_of_record

if TYPE_CHECKING:
    from collections.abc import Iterator

Level = Literal["INFO", "WARN", "ERROR"]
Narrate = Callable[..., None]  # as narrator returns it

SPAN_S = 10.0  # time to which MOST_LINES applies
MOST_LINES = 20  # refusals in a span; the rest are counted
# Actions whose event is a sentence for people alone, without fields: `plain` is written in the form
# `console` only, `open` in the form `brief` only.
_SENTENCES = ("plain", "open")
_UNSEEN = re.compile(r"[\x7f-\x9f\u2028\u2029]")  # controls and line ends that JSON does not escape

_WORKER = "llm-worker-rbee"
_LOADER = "model-loader"
_TOKENIZER = "tokenizer-loader"
_SERVER = "http-server"
#: Facts that any event may have, beside those of its action.
_COMMON_FACTS = ("model_name", "request_id", "left_out")


@dataclass(frozen=True)
class Action:
    """Something that a worker does: the actor, and two descriptions with facts in braces."""

    actor: str  # empty: the caller names it
    human: str
    cute: str = ""
    facts: tuple[str, ...] = ()  # names of the facts that become fields of the event
    level: Level = "INFO"  # unless the caller says otherwise


#: All events of a worker, by the name of their action.
ACTIONS: dict[str, Action] = {
    # The worker.
    "startup": Action(
        _WORKER, "Starting worker on port {port}",
        "Good morning! Let me put my glasses on! 🌅", ("port",),
    ),
    "models_found": Action(
        _WORKER, "Serving {names}; each is loaded when a request names it",
        "So many friends to talk to! 📚", ("count",),
    ),
    "model_load_success": Action(
        _WORKER, "Model {file} is loaded", "All set! My head is full of weights! 🧠", ("context",)
    ),
    "model_load_failed": Action(
        _WORKER, "Model load failed: {message}", "Oh no, the model would not load! 😟",
        level="ERROR",
    ),
    "model_unloaded": Action(_WORKER, "Model {model} is unloaded", "Time for a nap! 😴"),
    "test_mode": Action(
        _WORKER, "No callback address beyond this machine: test mode",
        "Running in test mode! No callback needed! 🧪",
    ),
    "callback_sent": Action(
        _WORKER, "Told the pool that this worker is ready", "Hello, I am here! 👋"
    ),
    "callback_failed": Action(
        _WORKER, "{message}", "My call was not answered! 📵", level="ERROR"
    ),
    "worker_failed": Action(_WORKER, "{message}", facts=("hint", "exit_code"), level="ERROR"),
    # Loading a model.
    "device_init": Action(
        "device-manager", "Computing with {backend}", "Warming up my little processor! 🔥",
        ("backend",),
    ),
    "gguf_metadata_loaded": Action(
        _LOADER, "Read {keys} metadata keys and {tensors} tensors", "Reading the label! 🏷️",
        ("architecture",),
    ),
    "gguf_vocab_size_derived": Action(
        _LOADER, "The vocabulary has {vocab_size} tokens", "Counting all my words! 🔢",
        ("vocab_size",),
    ),
    "gguf_load_complete": Action(
        _LOADER, "Loaded GGUF model ({architecture}, {vocab_size} tokens) in {load_s:.2f} s",
        "GGUF model loaded successfully! Ready to generate! 🎉✨", ("architecture", "vocab_size"),
    ),
    "gguf_tokenizer_extract_start": Action(
        _TOKENIZER, "Looking for the tokenizer in the GGUF file",
        "Hmm, where is the tokenizer? 🔍",
    ),
    "gguf_tokenizer_metadata_extracted": Action(
        _TOKENIZER, "The tokenizer is of the kind {model}", "I know how to cut words! ✂️",
        ("model", "pre"),
    ),
    "gguf_tokenizer_extracted": Action(
        _TOKENIZER, "Extracted tokenizer from GGUF ({vocab_size} tokens)",
        "Found the tokenizer inside the GGUF! 📝✨", ("vocab_size",),
    ),
    # Requests.
    "server_start": Action(
        _SERVER, "HTTP server listening on {address}", "Ready to help! Come and talk to me! 🚀",
        ("port",),
    ),
    "inference_start": Action(
        _SERVER, "Writing {answers}", "Here we go! Thinking of something! 💭", ("prompt_tokens",)
    ),
    "inference_complete": Action(
        _SERVER, "Wrote {tokens} tokens", "All done! Hope you like it! 🎀", ("tokens", "finish")
    ),
    "inference_failed": Action(
        _SERVER, "Inference failed: {message}", "Oh no, that did not work! 😿", ("code",), "ERROR"
    ),
    "inference_cancelled": Action(
        _SERVER, "The client has gone; its answer is given up", "Bye bye! 👋"
    ),
    "request_refused": Action(
        _SERVER, "{request}: {status}", "Sorry, I cannot do that! 🙅", ("status",), "WARN"
    ),
    "field_ignored": Action(
        _SERVER, "{path}: the field {name} cannot change the answer",
        "I read it, and it is all the same to me! 🙂",
    ),
    "http_request": Action(
        _SERVER, "{request}: {status} in {seconds:.3f} s", facts=("status", "seconds", "client")
    ),
    "draining": Action(
        _SERVER, "Stopping: {open} answers may finish, new ones are refused",
        "Let me just finish my sentence! 🧹",
    ),
    "server_stop": Action(_SERVER, "The worker has stopped", "Good night! 🌙"),
    # Lines for readers of a console, and records of other loggers.
    "plain": Action(_SERVER, "{text}"),
    "open": Action(_SERVER, "Serving {names} on {address} (Ctrl-C stops it)"),
    "log": Action("", "{text}", facts=("error",)),
}  # fmt: skip


def narrator(
    write: Callable[[str], object],
    *,
    worker_id: str = "",
    form: Literal["console", "json", "brief"] = "console",
) -> Narrate:
    """A function that passes events of one worker, as lines without a newline, to *write*.

    It takes the name of an action of :data:`ACTIONS` and its facts; facts that are ``None`` are
    left out, and ``level`` and ``actor`` replace those of the table. With the *form* ``brief``,
    only the address, warnings and errors are written, as sentences. At most MOST_LINES refused
    requests are written per span; the first line of the next span has the number of the others.
    """
    writing = threading.Lock()
    begin = -SPAN_S  # of the current span; the first event begins one
    lines = 0
    left_out = 0  # refusals that were only counted

    def narrate_event(
        name: str, /, *, level: Level | None = None, actor: str = "", **facts: Any
    ) -> None:
        nonlocal begin, lines, left_out
        action = ACTIONS[name]
        with writing, suppress(OSError, ValueError):  # ValueError: the stream is closed
            if name == "request_refused":
                now = time.monotonic()
                if now - begin >= SPAN_S:
                    begin = now
                    lines = 0
                lines += 1
                if lines > MOST_LINES:
                    left_out += 1
                    return
                facts["left_out"] = left_out or None
                left_out = 0
            listed = (*_COMMON_FACTS, *action.facts)
            event = {
                "actor": actor or action.actor,
                "action": name,
                "worker_id": worker_id or None,
                **{key: value for key, value in facts.items() if key in listed},
                "human": action.human.format_map(facts),
                "cute": action.cute,
            }
            level = level or action.level
            if form == "brief" or name in _SENTENCES:
                line = _sentence(form, name, event["human"], level)
            else:
                line = _line(event, level, as_json=form == "json")
            if line:
                write(line)

    return narrate_event


def _sentence(form: str, action: str, human: str, level: Level) -> str:
    """The line without fields of an *action*; empty if it is not written in this *form*."""
    if form == "brief":
        words = {"INFO": human if action == "open" else "", "WARN": f"Warning: {human}"}
        return words.get(level, f"Error: {human}")
    return f"INFO {human}" if (form, action) == ("console", "plain") else ""


def _line(facts: dict[str, Any], level: Level, *, as_json: bool) -> str:
    """The line of an event with all of its *facts*."""
    event = {name: value for name, value in facts.items() if value not in (None, "")}
    if as_json:
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
        cute: playful description.
        level: severity.
        worker_id: the worker that the event is about; left out when empty.
        as_json: a JSON line instead of the console form.
        fields: further facts, such as ``request_id``; ``None`` is left out, and a value that JSON
            does not have is written as a text.

    Raises:
        UsageError: *level* is unknown, or a field is called ``time``, as that of the event is.
        WrongType: a value is not a text.
    """
    texts = {"actor": actor, "action": action, "human": human, "cute": cute, "worker_id": worker_id}
    for name, value in texts.items():
        check_type(name, value, "a text", str)
    if level not in get_args(Level):
        raise UsageError(
            f"level is {level!r}, expected {', '.join(get_args(Level))}", field="level"
        )
    if "time" in fields:
        raise UsageError(
            "a field called time would replace the time of the event",
            hint="give it another name, such as started_at",
            field="time",
        )
    facts = {
        "actor": actor,
        "action": action,
        "worker_id": worker_id,
        **{name: _as_json_value(value) for name, value in fields.items()},
        "human": human,
        "cute": cute,
    }
    line = _line(facts, level, as_json=as_json)
    with suppress(OSError, ValueError):  # ValueError: the stream is closed
        sys.stderr.write(f"{line}\n")


def _as_json_value(value: Any) -> Any:
    """*value*, or its text if JSON cannot have it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value


class _Events(logging.Handler):
    """Passes log records to a narrator."""

    def __init__(self, narrate: Narrate) -> None:
        super().__init__()
        self._narrate = narrate

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        kind = type(error).__name__ if error else None
        # Index of the level: INFO, WARN or ERROR.
        at = (record.levelno >= logging.WARNING) + (record.levelno >= logging.ERROR)
        level = get_args(Level)[at]
        text = text_of_record(record)
        self._narrate("log", text=text, level=level, actor=record.name, error=kind)


class _Lines(io.TextIOBase):
    """A stream for text whose lines become events."""

    encoding = "utf-8"

    def __init__(self, narrate: Narrate) -> None:
        super().__init__()
        self._narrate = narrate
        self._held = ""  # text after the last newline
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._held = (self._held + text).split("\n")
            for line in filter(None, map(str.strip, lines)):
                self._narrate("log", text=line, actor="worker")
        return len(text)


@contextmanager
def output_as_events(narrate: Narrate) -> Iterator[None]:
    """Turn log lines, and everything else written to stderr, into events.

    *narrate* must write to another stream, such as the previous stderr.
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
    """*value* in quotation marks, as a field of a console line."""
    # JSON's escapes keep one event on one line, whatever a client has put into it.
    text = json.dumps(value if isinstance(value, str) else str(value), ensure_ascii=False)
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
