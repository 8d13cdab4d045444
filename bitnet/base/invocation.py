"""The command that started this process, for hints that can be pasted, and those of its children.

Texts name the program ``bitnet``; when shown, they use the user's own command: ``inv`` in a
checkout, ``.venv/bin/inv`` if that is not on the path, ``python -m bitnet``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

NO_BREAK = "\x1f"  # no text that is shown has one
_PROGRAMS = ("bitnet", "inv", "invoke")
# A command: at the start, after a blank, bracket or backtick; not a path or `bitnet` alone.
_COMMAND = re.compile(r"(?<![^\s(`'\"])bitnet(?= (?:[a-z]|--|COMMAND)[\w.-]*)")

# C0 and C1 except tab and line feed, and characters that change the text direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# ``-I`` leaves out the working folder, and also places where the packages may well be.
_RUN = (
    "import runpy, sys; sys.path += sys.argv.pop(1).split({sep!r}); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def isolate(module: str, *words: str) -> list[str]:
    """Command that runs *module* with the packages of this process.

    Unlike ``python -m``, it never imports a file of the working folder, where a downloaded model
    may lie: a ``json.py`` there would be run.
    """
    here = Path.cwd()
    places = [place for place in sys.path if place and Path(place).resolve() != here]
    places.append(str(Path(__file__).parents[2]))  # this program, whatever put it on the path
    command = [sys.executable, "-I", "-X", f"utf8={sys.flags.utf8_mode}"]
    return [*command, "-c", _RUN.format(sep=os.pathsep), os.pathsep.join(places), module, *words]


def program() -> str:
    """Words that start this program in a shell; ``bitnet`` if something else runs."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py" and script.parent.name in _PROGRAMS:
        return f"{as_typed(sys.orig_argv[0])} -m {script.parent.name}"
    name = script.name.removesuffix(".exe")
    return as_typed(sys.argv[0]) if name in _PROGRAMS else "bitnet"


def as_typed(path: str) -> str:
    """*path* as a shell word: only its name if the search path finds it."""
    name = Path(path).name
    found = shutil.which(name)
    is_found = found is not None and Path(found).absolute() == Path(path).absolute()
    return name if is_found else shlex.quote(path)


def word(path: str | os.PathLike[str]) -> str:
    """*path* as one quoted word of a command."""
    return shlex.quote(os.fspath(path))


def harmless(text: str) -> str:
    """*text* with terminal control characters escaped, except line ends and tabs."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def unbroken(text: str) -> str:
    """*text*, as it was started, with a no-break space for each space in its commands."""
    command = rf"(?<![^\s(`'\"]){re.escape(program())} (?:[a-z]|--)[^,;)`]*"
    return re.sub(command, lambda found: found[0].replace(" ", NO_BREAK), text)


def as_started(text: str) -> str:
    """*text* with its commands as the user would type them."""
    return _COMMAND.sub(lambda _: program(), text)
