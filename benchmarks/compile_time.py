"""Time to compile the kernels from a clone: wall time of the build, processor time of each unit.

    python benchmarks/compile_time.py [--python PYTHON] [--json FILE]

PYTHON has pip, nanobind and scikit-build-core (``pip install -e .[dev]``). Nothing of an earlier
build is used, and the package is installed into a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOG = "COMPILE_TIME_LOG"  # variable with the path of a file, to which compilers append their times


def compile_unit(command: list[str]) -> int:
    """Run the compiler *command*, log its processor time, and return its exit code."""
    code = subprocess.run(command, check=False).returncode
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # this process had no other child
    # CMake joins the sources of a group in a file that ends with .cxx.
    source = next((word for word in command if word.endswith((".cpp", ".cxx"))), "")
    entry = {"unit": Path(source).name, "cpu_s": usage.ru_utime + usage.ru_stime}
    with open(os.environ[LOG], "a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")
    return code


def build(python: Path) -> dict[str, object]:
    """Seconds of a build by *python*, and the processor seconds of its units, longest first."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        # CMake puts this program before each command of the compiler.
        launcher = f"{sys.executable};{Path(__file__).absolute()};--unit"
        command = [
            *(str(python), "-m", "pip", "install", "--no-build-isolation", "--no-deps"),
            *("--target", f"{folder}/installed", "-C", f"build-dir={folder}/build"),
            *("-C", "cmake.define.BITNET_COMPILE=here"),
            *("-C", f"cmake.define.CMAKE_CXX_COMPILER_LAUNCHER={launcher}", str(ROOT)),
        ]
        started = time.perf_counter()
        environment = os.environ | {LOG: str(log)}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        wall_s = time.perf_counter() - started
        entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    units = {entry["unit"]: round(entry["cpu_s"], 1) for entry in entries if entry["unit"]}
    ordered = dict(sorted(units.items(), key=lambda unit: -unit[1]))
    return {"wall_s": round(wall_s, 1), "cpu_s": round(sum(units.values()), 1), "units": ordered}


def main() -> int:
    """Print the times as one JSON object, or run a compiler if CMake calls this as its launcher."""
    if sys.argv[1:2] == ["--unit"]:
        return compile_unit(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    text = json.dumps({"cores": os.cpu_count()} | build(options.python), indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
