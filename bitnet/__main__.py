"""``python -m bitnet`` is the ``bitnet`` command."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType, SimpleNamespace
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


def _import_invoke() -> None:
    """Import Invoke without two modules that only its tests and its version number need.

    They load asyncio, ssl and email: a third of the time in which help is shown. What imports them
    afterwards gets the real ones.
    """
    mock = ModuleType("unittest.mock")
    mock.Mock = object  # type: ignore[attr-defined]
    metadata = ModuleType("importlib.metadata")
    metadata.version = lambda _name: "unknown"  # type: ignore[attr-defined]
    stand_ins = {its.__name__: its for its in (mock, metadata) if its.__name__ not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        import invoke  # noqa: F401 - for its side effect
    finally:
        for name in stand_ins:
            del sys.modules[name]


def main() -> None:
    """Run the command line and exit; the console script."""
    sys.meta_path.insert(0, SimpleNamespace(find_spec=_find_yaml))
    try:
        _import_invoke()
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
