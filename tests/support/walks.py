"""Count the files and functions of the package that run from a GGUF file or a text to its logits.

    python tests/support/walks.py MODEL.gguf [--list]

A function counts when it is called, not when its module is imported.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = str(Path(__file__).parents[2] / "bitnet")
# Code that is not a function of its own: modules, and parts of a function.
NOT_FUNCTIONS = ("<module>", "<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


class Walk:
    """The functions of the package that run during a call, by file."""

    def __init__(self) -> None:
        """Begin with an empty count."""
        self.functions: Counter[tuple[str, str]] = Counter()
        self.importing = 0

    def run(self, call: Callable[[], Any]) -> Any:
        """The result of *call*, during which functions are counted, also in new threads."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            return call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: Any, event: str, _: object) -> None:
        """Count a call, unless a module is being imported."""
        code = frame.f_code
        if code.co_name == "<module>":
            # Calls while a module is imported build tables: they are not steps of the walk.
            self.importing += {"call": 1, "return": -1}.get(event, 0)
        if event != "call" or self.importing or code.co_name in NOT_FUNCTIONS:
            return
        if code.co_filename.startswith(PACKAGE):
            # Python 3.10 has no qualified name: there, methods of one name count as one function.
            name = getattr(code, "co_qualname", code.co_name)
            self.functions[code.co_filename.removeprefix(PACKAGE), name] += 1

    @property
    def files(self) -> set[str]:
        """The files of these functions, relative to the package."""
        return {file for file, _ in self.functions}


def gguf_to_logits(path: Path) -> None:
    """Compute the logits of ids, by the model in the GGUF file at *path*."""
    from bitnet.formats.containers import open_checkpoint
    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.native import select
    from bitnet.models.load import load_model

    model = load_model(open_checkpoint(path), ops=select())
    model.forward([1, 2, 3], KVCache(model.config, 64))


def text_to_logits(path: Path) -> None:
    """Compute the logits of a text, by the model and the tokenizer in the GGUF file at *path*."""
    import bitnet

    with bitnet.load(path) as model:
        model.logits(model.tokenizer.encode("a"))


WALKS = {"GGUF to logits": gguf_to_logits, "text to logits": text_to_logits}


def main() -> None:
    """Print the numbers of the walk, and with ``--list`` the functions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--list", action="store_true", help="name the functions")
    options = parser.parse_args()
    for name, way in WALKS.items():
        walk = Walk()
        walk.run(lambda way=way: way(options.model))
        print(f"{name}: {len(walk.files)} files, {len(walk.functions)} functions")
        if options.list:
            for file, function in sorted(walk.functions):
                print(f"  {file}: {function}")


if __name__ == "__main__":
    main()
