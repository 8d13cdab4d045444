"""``python -m bitnet`` is the ``bitnet`` command."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import SimpleNamespace
from typing import Any

from bitnet.base.errors import Interrupted


def _find_yaml(name: str, *where: Any) -> ModuleSpec | None:
    """The parser of Invoke's configuration files, to be run at its first use.

    Importing it takes a tenth of a command's start, and few users have such a file.
    """
    spec = PathFinder.find_spec(name, *where) if name == "invoke.vendor.yaml" else None
    if spec is not None and spec.loader is not None:
        spec.loader = LazyLoader(spec.loader)
    return spec


def main() -> None:
    """Run the command line and exit; the console script."""
    sys.meta_path.insert(0, SimpleNamespace(find_spec=_find_yaml))
    try:
        from bitnet.commands import program

        program.main()
    except KeyboardInterrupt:  # before there is a command to report it
        sys.stderr.write("Error: interrupted\n")
        raise SystemExit(Interrupted.exit_code) from None


def inv() -> None:
    """Run ``inv`` in the environment of a checkout: Invoke, which reads ``tasks.py``."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        main()
    from invoke.main import program

    program.run()


if __name__ == "__main__":
    main()
