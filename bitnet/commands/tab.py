"""Words that the tab key offers; Invoke has the scripts for the shells, which ask for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bitnet.commands.declare import Option

if TYPE_CHECKING:
    from invoke.collection import Collection

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
