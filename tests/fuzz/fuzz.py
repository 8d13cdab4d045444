"""Coverage-guided fuzzing of one target; ``inv fuzz TARGET --minutes N`` starts it.

    python tests/fuzz/fuzz.py TARGET -max_total_time=600 NEW_FOLDER tests/fuzz/corpus/TARGET

Needs ``pip install atheris``. New inputs are written to the first folder. A crash, a hang or an
exception that is not the project's own ends the run, and its input is left in the working folder.
"""

import contextlib
import importlib
import sys
from pathlib import Path

import atheris

HERE = Path(__file__).parent


def instrumented(name):
    """The function to fuzz, called *name* in TARGETS, with the Python code of the package traced.

    The import hook of an editable installation hides the code from atheris. So only the compiled
    module is loaded through the hook; then the hook is removed, and the rest is imported from the
    checkout.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("bitnet._native")
    for module in [module for module in sys.modules if module.split(".")[0] == "bitnet"]:
        if module != "bitnet._native":
            del sys.modules[module]
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable_")
    ]
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "support"), str(HERE)]
    with atheris.instrument_imports(include=["bitnet"]):
        return importlib.import_module("targets").TARGETS[name].load()


if __name__ == "__main__":
    function = instrumented(sys.argv.pop(1))
    atheris.Setup(sys.argv, function)
    atheris.Fuzz()
