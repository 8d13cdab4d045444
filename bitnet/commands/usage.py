"""Help of the program and of a command; words that the tab key offers."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from bitnet.commands.declare import GROUPS, NETWORK, Option, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from invoke.collection import Collection

COLUMN = 28  # where the help of an option starts
NAMES = 22  # and that of a command
NARROWEST, WIDEST = 40, 100  # columns

_ABOUT = "Local language models that just work, and prove it."
_EXAMPLE = 'bitnet run smollm2-135m "Why is the sky blue?"'


def program_help(collection: Collection) -> Iterator[str]:
    """Lines about the program: an example, then the commands by group."""
    yield from (_ABOUT, "", "Usage: bitnet COMMAND [--options]", f"Example: {_EXAMPLE}")
    groups: dict[str, list[Task]] = {group: [] for group in [*GROUPS, "This checkout"]}
    for command in _commands(collection):
        groups[command.group or "This checkout"].append(command)
    for group, commands in groups.items():
        if commands:
            yield from ("", f"{group}:")
        for command in commands:
            yield from _entry(command.command_words, summary(command), NAMES)
    yield ""
    yield "What a command does and takes: bitnet COMMAND --help"
    yield "Completion by the tab key: bitnet completion bash (or zsh, fish), see its --help"


def commands_help(word: str, collection: Collection) -> Iterator[str]:
    """Lines about the commands of *collection* that begin with *word*, such as ``cache``."""
    yield from (f"Usage: bitnet {word} COMMAND [--options]", "")
    for command in _commands(collection):
        if command.command_words.startswith(f"{word} "):
            yield from _entry(command.command_words, summary(command), NAMES)
    yield from ("", f"What a command does and takes: bitnet {word} COMMAND --help")


def command_help(command: Task) -> Iterator[str]:
    """Lines about *command*: its use, what it does, an example, its options by section."""
    options = [entry for entry in command.get_arguments() if isinstance(entry, Option)]
    words = ["[--options]", *(option.in_usage() for option in options if option.positional)]
    yield from (" ".join([f"Usage: bitnet {command.command_words}", *words]), "")
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    for at, paragraph in enumerate(paragraphs):
        yield from ("",) * bool(at)
        yield from _wrap(" ".join(paragraph.splitlines()), 0)
    if command.example:
        yield from ("", "Example:", *(f"  {line}" for line in command.example.splitlines()))
    by_section: dict[str, list[Option]] = {}
    for option in options:
        by_section.setdefault(option.section, []).append(option)
    network = by_section.pop(NETWORK, [])
    for section, entries in by_section.items():
        yield from ("", f"{section}:")
        yield from _options(entries)
    if network:
        shown = " ".join(f"--{entry.names[0]}" for entry in network if not entry.hidden)
        yield from ("", f"{NETWORK}, explained by `bitnet help network`:")
        yield from _wrap(shown, 2)


def network_help(collection: Collection) -> Iterator[str]:
    """Lines about the options that every command of *collection* that fetches has."""
    shared = {
        option.names: option
        for command in _commands(collection)
        for option in command.get_arguments()
        if isinstance(option, Option) and option.section == NETWORK
    }
    yield from ("Every command that fetches something takes these:", "")
    yield from _options(shared.values())


def _commands(collection: Collection) -> list[Task]:
    """The commands of *collection* in the order of the names that are typed."""
    found = (collection[name] for name in collection.task_names)
    return sorted((one for one in found if isinstance(one, Task)), key=attrgetter("command_words"))


def summary(command: object) -> str:
    """The first line of the text of *command*."""
    return (command.__doc__ or "").strip().partition("\n")[0]


def _options(options: Iterable[Option]) -> Iterator[str]:
    ordered = sorted(options, key=attrgetter("hidden"))
    for hidden, entries in groupby(ordered, attrgetter("hidden")):
        if hidden:
            spelled = ", ".join(entry.spelling() for entry in entries)
            yield from ("", *_wrap(f"Settings that are taken here too: {spelled}", 0))
        else:
            for entry in entries:
                yield from _entry(entry.spelling(), entry.describe(), COLUMN)


def _entry(name: str, text: str, column: int) -> Iterator[str]:
    """A name and its text; a long name has a line of its own."""
    lines = _wrap(text, column)
    if len(name) + 4 > column:
        yield f"  {name}"
    else:
        first = next(lines, "").strip()
        yield f"  {name:<{column - 2}}{first}".rstrip()
    yield from lines


def _wrap(text: str, indent: int) -> Iterator[str]:
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
    margin = " " * indent
    yield from textwrap.wrap(
        text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )


_PLAIN = re.compile(r"[\w.:/@+-]+")  # a shell may expand anything else


def candidates(words: list[str], collection: Collection) -> list[str]:
    """Words that can follow, or complete, the last of *words*; the shell picks those that fit.

    Files are left to the shell.
    """
    tasks = [collection[name] for name in collection.task_names]
    by_name = {getattr(task, "command_words", task.name): task for task in tasks}
    names = list(by_name)
    command = next((name for name in names if words[: name.count(" ") + 1] == name.split()), "")
    if not command:
        first = words[0] if words else ""
        members = [name.split()[1] for name in names if name.startswith(f"{first} ")]
        return members or sorted({name.split()[0] for name in names})
    rest = words[command.count(" ") + 1 :]
    options = [option for option in by_name[command].get_arguments() if isinstance(option, Option)]
    by_flag = {f"--{name}": option for option in options for name in option.shown}
    last = rest[-1] if rest else ""
    for flag in reversed(rest[-2:]):
        if flag in by_flag and by_flag[flag].takes_value:
            return _values(by_flag[flag])
    if last.startswith("-"):
        off = [
            f"--no-{option.names[0]}"
            for option in options
            if option.kind is bool and option.default
        ]
        return [*by_flag, *off, "--help"]
    return [value for option in options if option.positional for value in _values(option)]


def _values(option: Option) -> list[str]:
    """Possible values of *option*, as far as they are known without looking into a file."""
    if option.names[0] != "model":
        return list(filter(_PLAIN.fullmatch, option.choices))
    from bitnet.base import settings
    from bitnet.hub.ref import names

    cached = (settings.cache_dir() / "models/hf").glob("*/*@*")
    found = (f"hf:{path.parent.name}/{path.name.removesuffix('@main')}" for path in cached)
    return [*names(), *filter(_PLAIN.fullmatch, found)]
