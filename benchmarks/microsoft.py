"""Digests of what Microsoft's tools make of tiny models: those in tests/convert/test_microsoft.py.

    python benchmarks/microsoft.py BITNET

BITNET is a checkout of https://github.com/microsoft/BitNet with its submodules, built: its own
``convert-hf-to-gguf-bitnet.py`` (with PyTorch, and the ``gguf`` of the checkout) makes an F32 file
of each folder, its ``llama-quantize`` an I2_S file of that, as its ``setup_env.py`` calls them.
Printed is the digest of that file's tensors, and whether ``bitnet convert`` gives the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from published_bitnets import MICROSOFT, digest, with_tokenizer

from bitnet.convert import Request, convert
from bitnet.formats.containers import open_checkpoint


def theirs(bitnet, folder):
    """The I2_S file that the tools of the checkout *bitnet* make of *folder*."""
    wide, packed = folder / "f32.gguf", folder / "i2_s.gguf"
    package = bitnet / "3rdparty/llama.cpp/gguf-py"
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    script = bitnet / "utils/convert-hf-to-gguf-bitnet.py"
    words = [sys.executable, script, folder, "--outtype", "f32", "--outfile", wide]
    subprocess.run(words, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": path})
    words = [bitnet / "build/bin/llama-quantize", wide, packed, "I2_S", "1"]
    subprocess.run(words, check=True, capture_output=True)
    return packed


def main():
    """Print what belongs into the test."""
    bitnet = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as work:
        for name in MICROSOFT:
            folder = with_tokenizer(Path(work) / name, name)
            expected = digest(open_checkpoint(theirs(bitnet, folder)))
            ours = folder / "ours.gguf"
            convert(folder, ours, Request("I2_S", no_tokenizer=True))
            same = digest(open_checkpoint(ours)) == expected
            print(f'    "{name}": "{expected}",  # ours {"is the same" if same else "differs"}')


if __name__ == "__main__":
    main()
