"""Compare with llama-quantize: the types it chooses, and the bytes and seconds of whole files.

    python benchmarks/quantizers.py LIBRARY [FILE.gguf ...]

LIBRARY is a libllama of llama.cpp, such as that in the npm package ``@node-llama-cpp/linux-x64``.
Without a FILE, the digests in tests/convert/test_mixtures.py are printed, and whether ``bitnet
convert`` chooses the same types. Each FILE, in F32, F16 or BF16, is quantized by both to every
mixture; printed is whether all tensors have the same bytes, and how long both took.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

import numpy as np
from llama_quantize import quantize_file
from mixture_models import MODELS, digest, grid, our_types, write

from bitnet.convert.convert_options import MIXTURES, ConvertOptions
from bitnet.convert.run import plan_conversion
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf import GGUF


def even(path):
    """An importance matrix of ones for every matrix of the file at *path*."""
    with GGUF.open(path) as file:
        return {
            its.name: np.ones(its.shape[-1] * (its.shape[0] if len(its.shape) > 2 else 1), "f4")
            for its in file.tensors.values()
            if len(its.shape) > 1
        }


def compare_types(library, folder):
    """Print the digest of each model's types."""
    for name, checkpoint in MODELS.items():
        source = folder / "source.gguf"
        output = folder / "output.gguf"
        write(source, checkpoint)
        lines = []
        for mixture, own in grid():
            weights = even(source) if own else None
            output.unlink(missing_ok=True)
            number = MIXTURES[mixture].file_type
            assert quantize_file(library, source, output, number, importance=weights)
            with GGUF.open(output) as file:
                found = [f"{key} {file.tensors[key].type.name}" for key in sorted(file.tensors)]
            for line, ours in zip(found, our_types(name, mixture, own), strict=True):
                if line != ours:
                    print(f"{name}, {mixture} {own}: {line}, ours {ours}")
            lines += found
        print(f'    "{name}": "{digest(lines)}",')


def compare_files(library, source, folder):
    """Print what becomes of the file *source* in every mixture."""
    for mixture in MIXTURES:
        if mixture == "Q2_K_S":
            continue
        theirs = folder / f"{mixture}-theirs.gguf"
        ours = folder / f"{mixture}-ours.gguf"
        started = time.perf_counter()
        assert quantize_file(library, source, theirs, MIXTURES[mixture].file_type)
        seconds = [time.perf_counter() - started]
        started = time.perf_counter()
        plan_conversion(source, ConvertOptions(mixture)).write(ours)
        seconds.append(time.perf_counter() - started)
        expected = open_checkpoint(theirs).weights
        found = open_checkpoint(ours).weights
        different = [
            name
            for name, its in expected.items()
            if (its.quant, its.data.tobytes()) != (found[name].quant, found[name].data.tobytes())
        ]
        verdict = f"differs in {', '.join(different)}" if different else "the same bytes"
        print(f"{mixture}: {verdict}; theirs {seconds[0]:.1f} s, ours {seconds[1]:.1f} s")
        theirs.unlink(), ours.unlink()


def main():
    """Compare types, or the files that are named."""
    library, *files = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            compare_files(library, Path(file), Path(folder))
        if not files:
            compare_types(library, Path(folder))


if __name__ == "__main__":
    main()
