"""Check that type checkers know the type of every public name of the installed package.

Runs basedpyright on the package that this interpreter imports, and fails if a type is unknown.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import bitnet


def known_types() -> dict[str, bool]:
    """For each symbol, by its full name: True if the type checker knows its type completely."""
    words = ["--pythonpath", sys.executable, "--verifytypes", "bitnet", "--ignoreexternal"]
    done = subprocess.run(  # not checked: missing docstrings are exit code 1 as well
        [sys.executable, "-m", "basedpyright", *words, "--outputjson"],
        env=os.environ | {"PYTHONPATH": str(Path(bitnet.__file__).parents[1])},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    try:
        symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    except (ValueError, KeyError):
        sys.exit(f"basedpyright gave no answer: {done.stdout}{done.stderr}")
    return {symbol["name"]: symbol["isTypeKnown"] for symbol in symbols}


def main() -> None:
    """Print how many public names have known types; exit with 1 if a type is unknown."""
    is_known = known_types()
    public = [name for name in bitnet.__all__ if name != "__version__"]
    unknown = [name for name in public if not is_known.get(f"bitnet.{name}", False)]
    print(f"{len(public) - len(unknown)} of {len(public)} public names have known types")
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}")


if __name__ == "__main__":
    main()
