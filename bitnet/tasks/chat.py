"""``inv chat``."""

from __future__ import annotations

import json
import sys
from contextlib import closing, suppress
from pathlib import Path

from bitnet.errors import BitnetError, UsageError, from_os_error
from bitnet.hub.options import FetchOptions
from bitnet.options import CacheOptions
from bitnet.runtime.options import AnswerOptions, ModelOptions, SamplingParams
from bitnet.tasks.declare import Output, task
from bitnet.tasks.running import open_model, say, summary, write

LEAVE = ("/exit", "/quit")
HELP = """\
/clear        forget the conversation
/system TEXT  instructions for the model; without TEXT: none
/save FILE    write the conversation as JSON
/stats        figures of the last answer
/help         this list
/exit         leave, as Ctrl-D does; Ctrl-C stops an answer"""


@task(help={"system": "instructions that come before the conversation"})
def chat(
    c,
    system="",
    wanted=AnswerOptions(max_tokens=1024),
    model=ModelOptions(),
    sampling=SamplingParams(),
    fetch=FetchOptions(),
    cache=CacheOptions(),
    output=Output(),
):
    """Talk with a model, in its own chat template.

    On a terminal lines can be edited and recalled, and /help lists what else there is. From a pipe
    every line is a message, and the first error ends the program.
    """
    from bitnet.runtime.conversation import Conversation

    with open_model(model, fetch=fetch, cache=cache, output=output) as running:
        talk = Conversation(running, wanted, sampling=sampling, system=system)
        if sys.stdin.isatty():
            say(f"{running.path.name} on {running.backend}. /help lists commands.")
            _talk(talk)
            return
        for line in _lines():
            _answer(talk, line, json_line=output.json)


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
        line = input("> ").strip()
        if line and line not in LEAVE:
            _answer(talk, line)
    except KeyboardInterrupt:
        say("\n(stopped; /exit leaves)")
        return True
    except BitnetError as error:
        say(f"Error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
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
    """What *line* asks for: a command, or an answer on stdout."""
    if line.startswith("/"):
        _command(talk, line)
        return
    with closing(talk.ask(line)) as pieces:
        try:
            for piece in pieces:
                if not json_line:
                    write(piece)
        finally:
            if not json_line:
                write("\n")
    if json_line:
        print(json.dumps(talk.messages[-1], ensure_ascii=False), flush=True)


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
        _save(talk, Path(value).expanduser())
    else:
        raise UsageError(f"no command {line!r}", hint="/help lists them")


def _save(talk, path):
    try:
        path.write_text(json.dumps(talk.messages, ensure_ascii=False, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise from_os_error(error, path) from error
    say(f"saved {len(talk.messages)} messages to {path}")
