"""Coverage-guided fuzzing of the GGUF reader; needs ``pip install atheris``.

    python tests/fuzz/fuzz_gguf.py -max_total_time=600 NEW_FOLDER tests/fuzz/corpus/gguf

New inputs go to the first folder. A crash, a hang or an exception that is not ours ends it and
leaves the input behind; ``tests/fuzz/test_gguf_corpus.py`` replays the committed corpus.
"""

import contextlib
import importlib
import sys
from pathlib import Path

import atheris


def instrumented():
    """The function to fuzz, with the Python code below it instrumented.

    The import hook of an editable installation hides the code from atheris. So the compiled module
    is loaded through it, and everything else from the checkout.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("bitnet._native")
    for name in [name for name in sys.modules if name.split(".")[0] == "bitnet"]:
        if name != "bitnet._native":
            del sys.modules[name]
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable_")
    ]
    sys.path.insert(0, str(Path(__file__).parents[2]))
    with atheris.instrument_imports(include=["bitnet"]):
        return importlib.import_module("exercise_gguf").exercise


if __name__ == "__main__":
    atheris.Setup(sys.argv, instrumented())
    atheris.Fuzz()
