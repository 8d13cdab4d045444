"""Convert tiny models with other tools, and print the digests that test_other_converters.py has.

    python benchmarks/converters.py [--bitnet-cpp FOLDER] [--llama-cpp FOLDER]

--bitnet-cpp is a checkout of https://github.com/microsoft/BitNet with its submodules, built: its
``convert-hf-to-gguf-bitnet.py`` (with PyTorch, and the ``gguf`` of the checkout) makes an F32 file
of each folder, its ``llama-quantize`` an I2_S file of that, as its ``setup_env.py`` calls them.
--llama-cpp is a source tree of llama.cpp, whose ``convert_hf_to_gguf.py`` writes TQ1_0 and TQ2_0,
with ``--no-lazy``: without it, b11434 fails for packed folders. This prints the digest of each
file's tensors, and whether ``bitnet convert`` writes the same ones.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

from published_bitnets import CONFIGS, MICROSOFT, MULTIPLIES, digest, with_tokenizer

from bitnet.convert.convert_options import ConvertOptions
from bitnet.convert.run import plan_conversion
from bitnet.formats.containers import open_checkpoint


def python(script, package, *words):
    """Run *script* with *words*, and with the package ``gguf`` in the folder *package*."""
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    words = [str(word) for word in (sys.executable, script, *words)]
    subprocess.run(words, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": path})


def by_bitnet_cpp(checkout, folder, out):
    """Write the I2_S file that Microsoft's tools make of *folder* to *out*."""
    wide = folder / "f32.gguf"
    script = checkout / "utils/convert-hf-to-gguf-bitnet.py"
    package = checkout / "3rdparty/llama.cpp/gguf-py"
    python(script, package, folder, "--outtype", "f32", "--outfile", wide)
    words = [checkout / "build/bin/llama-quantize", wide, out, "I2_S", "1"]
    subprocess.run(words, check=True, capture_output=True)


def by_llama_cpp(source, folder, out, encoding):
    """Write the file that llama.cpp's converter makes of *folder* to *out*."""
    words = ["--no-lazy", "--outtype", encoding.lower(), "--outfile", out]
    python(source / "convert_hf_to_gguf.py", source / "gguf-py", folder, *words)


def print_digest(name, encoding, tool, source, *words):
    """Convert the model *name* with *tool*, and print the line for the test.

    *source* is the folder of the other tool, *words* are its further arguments.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = with_tokenizer(Path(work) / name, name)
        theirs = folder / "theirs.gguf"
        ours = folder / "ours.gguf"
        tool(source, folder, theirs, *words)
        expected = digest(open_checkpoint(theirs))
        plan_conversion(folder, ConvertOptions(encoding, no_tokenizer=True)).write(ours)
        same = digest(open_checkpoint(ours)) == expected
        verdict = "is the same" if same else "differs"
        print(f'{name} "{encoding}": "{expected}",  # ours {verdict}')


def main():
    """Compare with each tool that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bitnet-cpp", type=Path)
    parser.add_argument("--llama-cpp", type=Path)
    options = parser.parse_args()
    if options.bitnet_cpp:
        for name in MICROSOFT:
            print_digest(name, "I2_S", by_bitnet_cpp, options.bitnet_cpp.resolve())
    if options.llama_cpp:
        source = options.llama_cpp.resolve()
        for name, config in CONFIGS.items():
            if config is MULTIPLIES:  # llama.cpp divides by the scale, which here multiplies
                continue
            for encoding in ("TQ1_0", "TQ2_0"):
                print_digest(name, encoding, by_llama_cpp, source, encoding)


if __name__ == "__main__":
    main()
