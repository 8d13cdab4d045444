"""``inv chat``."""

from __future__ import annotations

import json
import sys
from contextlib import closing, suppress
from pathlib import Path

from bitnet import settings
from bitnet.errors import BitnetError, InferenceError, NotFound, UsageError
from bitnet.files import write_text
from bitnet.runtime.options import ModelOptions
from bitnet.runtime.request import Request
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.tasks.running import (
    given_text,
    open_model,
    say,
    say_escaped,
    summary,
    write,
    write_json,
)

LEAVE = ("/exit", "/quit")
HELP = """\
/clear        forget the conversation
/system TEXT  instructions for the model; without TEXT: none
/save FILE    write the conversation as JSON
/stats        metrics of the last answer
/help         this list
/exit         leave, as Ctrl-D does; Ctrl-C stops an answer"""
CUT_OFF = {
    "length": "(cut off: --max-tokens allows no more)",
    "context": "(cut off: the context is full; /clear forgets the conversation)",
}


@task(
    group="Run",
    example="bitnet chat smollm2-135m",
    help={"system": "instructions that come before the conversation"},
)
def chat(
    c,
    system="",
    request=Request(max_tokens=1024),
    model=ModelOptions(),
    common=Context(),
):
    """Talk with a model, in its own chat template.

    On a terminal lines can be edited and recalled, and /help lists what else there is. From a pipe
    every line is a message, and the first error ends the program.
    """
    from bitnet.runtime.conversation import Conversation

    with open_model(model, common) as running:
        instructions = given_text(system, "--system")
        if sys.stdin.isatty():
            talk_on_terminal(running, request, instructions)
            return
        talk = Conversation(running, request, system=instructions)
        for line in _lines():
            _answer(talk, line, json_line=common.output.json)


def talk_on_terminal(running, request, instructions):
    """A conversation of the model *running* with the person at this terminal, until it ends."""
    from bitnet.runtime.conversation import Conversation

    talk = Conversation(running, request, system=instructions)
    say(f"{running.path.name} on {running.backend}. /help lists commands.")
    _talk(talk)


def _talk(talk):
    """Lines from a terminal until it ends; errors are shown and the talk goes on."""
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401 - gives input() line editing and history
    with suppress(EOFError):
        while _turn(talk):
            pass
    say("")


def _turn(talk):
    """One line and its answer; whether the talk goes on."""
    try:
        line = given_text(input("> "), "the line").strip()
        if line and line not in LEAVE:
            _answer(talk, line)
    except KeyboardInterrupt:
        say("\n(stopped; /exit leaves)")
        return True
    except BitnetError as error:
        full = isinstance(error, InferenceError) and talk.turns
        hint = "/clear forgets the conversation" if full else error.hint
        say(f"Error: {error.message}" + (f"\nhint: {hint}" if hint else ""))
        return True
    return line not in LEAVE


def _lines():
    """Messages from a pipe."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"line {number} of stdin is not UTF-8: byte {raw[error.start]:#04x}",
                hint="convert it first, for example with: iconv -f latin1 -t utf-8",
            ) from None
        if line in LEAVE:
            return
        if line:
            yield line


def _answer(talk, line, *, json_line=False):
    """Run *line*: a command, or a message that is answered on stdout."""
    from bitnet.runtime.request import check_prompt

    check_prompt(line)
    if line.startswith("/"):
        _command(talk, line)
        return
    with closing(talk.ask(line)) as pieces:
        if json_line:
            write_json({"role": "assistant", "content": "".join(pieces)})
            return
        begun = escaped = False
        try:
            for piece in pieces:
                begun = True
                escaped = write(piece) or escaped
        finally:
            if begun:
                write("\n")
            if escaped:
                say_escaped()
    if talk.finish_reason in CUT_OFF:
        say(CUT_OFF[talk.finish_reason])


def _command(talk, line):
    name, _, value = line.partition(" ")
    value = value.strip()
    if name == "/help":
        say(HELP)
    elif name == "/clear":
        talk.turns.clear()
    elif name == "/system":
        talk.system = value
    elif name == "/stats":
        say(summary(talk.stats) if talk.stats else "no answer yet")
    elif name == "/save":
        if not value:
            raise UsageError("/save needs the name of a file", hint="/save talk.json")
        _save(talk, settings.expanded(Path(value)))
    else:
        raise UsageError(f"no command {line!r}", hint="/help lists them")


def _save(talk, path):
    if not path.parent.is_dir():
        raise NotFound(f"no such folder: {path.parent}", hint="make it, or choose another")
    write_text(path, json.dumps(talk.messages, ensure_ascii=False, indent=2) + "\n")
    say(f"saved {len(talk.messages)} messages to {path}")
