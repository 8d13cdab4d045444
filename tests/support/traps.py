"""A folder in which every module that a program could import is a trap."""

import importlib.metadata
import sys

MARK = "trapped"
_TRAP = "with open({mark!r}, 'w') as mark:\n    mark.write(__name__)\n"


def lay_traps(folder):
    """Fill *folder* with one module for every name that can be imported here."""
    names = sys.stdlib_module_names | importlib.metadata.packages_distributions().keys()
    for name in {"bitnet", *names}:
        if name.isidentifier():
            (folder / f"{name}.py").write_text(_TRAP.format(mark=str(folder / MARK)))


def trapped(folder):
    """Name of a module that was imported from *folder*; empty if none was."""
    mark = folder / MARK
    return mark.read_text() if mark.exists() else ""
