"""How this process was started, so that a command in a hint can be pasted as it is.

Texts name the program ``bitnet``; where they are shown, they name it as the user did: ``inv`` in a
checkout, ``.venv/bin/inv`` where that is not on the path, ``python -m bitnet``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["as_started", "harmless", "program", "word"]

_PROGRAMS = ("bitnet", "inv", "invoke")
# A command: at the start, after a blank, a bracket or a backtick; a path or `bitnet` alone is none.
_COMMAND = re.compile(r"(?<![^\s(`'\"])bitnet(?= (?:[a-z]|--|COMMAND)[\w.-]*)")

# C0 and C1 but for tab and line feed, and what changes the direction of what follows.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def program() -> str:
    """The words that start this program, for a shell; ``bitnet`` where something else runs."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py" and script.parent.name in _PROGRAMS:
        return f"{_typed(sys.orig_argv[0])} -m {script.parent.name}"
    name = script.name.removesuffix(".exe")
    return _typed(sys.argv[0]) if name in _PROGRAMS else "bitnet"


def _typed(path: str) -> str:
    """*path* as a word of a shell: its name alone where the search path leads to it."""
    name = Path(path).name
    found = shutil.which(name)
    is_found = found is not None and Path(found).absolute() == Path(path).absolute()
    return name if is_found else shlex.quote(path)


def word(path: str | os.PathLike[str]) -> str:
    """*path* as one word of a command, whatever is in it."""
    return shlex.quote(os.fspath(path))


def harmless(text: str) -> str:
    """*text* with what steers a terminal written out, but for ends of lines and tabs."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def as_started(text: str) -> str:
    """*text* with its commands as the user would type them here."""
    return _COMMAND.sub(lambda _: program(), text)
