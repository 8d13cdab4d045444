"""``python -m bitnet`` is the ``bitnet`` command."""

from __future__ import annotations

import gc
import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType, SimpleNamespace
from typing import Any

from bitnet.base.errors import Interrupted

#: New objects after which the garbage collector runs. Imports create 85,000 that are never freed:
#: with Python's default of 700 the collections would take a tenth of a command's start.
GARBAGE_THRESHOLD = 10_000


def _find_yaml(name: str, *where: Any) -> ModuleSpec | None:
    """Spec of Invoke's YAML parser, which is loaded at its first use; None for other modules.

    It is the ``find_spec`` of an entry of ``sys.meta_path``. Importing the parser takes a tenth of
    a command's start, and few users have a configuration file.
    """
    spec = PathFinder.find_spec(name, *where) if name == "invoke.vendor.yaml" else None
    if spec is not None and spec.loader is not None:
        spec.loader = LazyLoader(spec.loader)
    return spec


def _import_invoke() -> None:
    """Import Invoke without two standard modules that only unused parts of it need.

    ``unittest.mock`` serves its class ``MockContext``, ``importlib.metadata`` its version. They
    import asyncio, TLS, e-mail and ZIP files: a third of the time to import Invoke.
    """
    mock = ModuleType("unittest.mock")
    mock.Mock = None  # type: ignore[attr-defined]
    metadata = SimpleNamespace(version=lambda _name: None)
    # A module that is already loaded is not replaced, as under pytest.
    if {"invoke", "unittest.mock", "importlib.metadata"} & sys.modules.keys():
        return
    sys.modules["unittest.mock"] = mock
    importlib.metadata = metadata  # type: ignore[assignment]
    try:
        import invoke

        del invoke.__version__
    finally:
        del sys.modules["unittest.mock"]
        del importlib.metadata


def main() -> None:
    """Run the command line and exit; the console script."""
    gc.set_threshold(GARBAGE_THRESHOLD)
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
        main()  # prints this program's version, not Invoke's, and exits
    from invoke.main import program

    program.run()


if __name__ == "__main__":
    main()
