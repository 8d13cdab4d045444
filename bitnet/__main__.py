"""``python -m bitnet`` is the ``bitnet`` command."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader

from bitnet.base.errors import Interrupted


class _Lazily:
    """Finds the parser of Invoke's configuration files, which is run at its first use.

    Importing it takes a tenth of a command's start, and few users have such a file.
    """

    @staticmethod
    def find_spec(name: str, *where: object) -> ModuleSpec | None:
        if name != "invoke.vendor.yaml":
            return None
        spec = PathFinder.find_spec(name, *where)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def main() -> None:
    """Run the command line and exit; the console script."""
    sys.meta_path.insert(0, _Lazily)
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
