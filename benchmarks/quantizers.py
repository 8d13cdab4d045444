"""Compare ``bitnet convert`` with llama-quantize: types of tensors, or bytes and seconds of files.

    python benchmarks/quantizers.py LIBRARY [FILE.gguf ...]

LIBRARY is a libllama of llama.cpp, such as that in the npm package ``@node-llama-cpp/linux-x64``.
Without a FILE, this prints the digests for tests/convert/test_mixes.py, and the types that
``bitnet convert`` chooses differently. Otherwise both quantize each FILE, in F32, F16 or BF16, to
every mix, and this prints whether all tensors have the same bytes, and how long both took.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

import numpy as np
from llama_quantize import quantize_file
from mix_models import MODELS, digest, grid, our_types, write

from bitnet.convert.convert_options import MIXES, ConvertOptions
from bitnet.convert.run import plan_conversion
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf import GGUF


def even(path):
    """Importance of ones, by name, for every matrix of the GGUF file at *path*."""
    with GGUF.open(path) as file:
        return {
            # A matrix of experts has an importance of each input for each expert.
            tensor.name: np.ones(
                tensor.shape[-1] * (tensor.shape[0] if len(tensor.shape) > 2 else 1), "f4"
            )
            for tensor in file.tensors.values()
            if len(tensor.shape) > 1
        }


def compare_types(library, folder):
    """Print the digest of llama-quantize's types for each model, and the types that differ."""
    for name, checkpoint in MODELS.items():
        source = folder / "source.gguf"
        output = folder / "output.gguf"
        write(source, checkpoint)
        lines = []
        for mix, options in grid():
            weights = even(source) if options else None
            output.unlink(missing_ok=True)
            number = MIXES[mix].file_type
            assert quantize_file(library, source, output, number, importance=weights)
            with GGUF.open(output) as file:
                theirs = [f"{key} {file.tensors[key].type.name}" for key in sorted(file.tensors)]
            for line, ours in zip(theirs, our_types(name, mix, options), strict=True):
                if line != ours:
                    print(f"{name}, {mix} {options}: {line}, ours {ours}")
            lines += theirs
        print(f'    "{name}": "{digest(lines)}",')


def compare_files(library, source, folder):
    """Quantize the file *source* to every mix with both, and print a line for each."""
    for mix in MIXES:
        if mix == "Q2_K_S":  # it needs an importance matrix
            continue
        theirs = folder / f"{mix}-theirs.gguf"
        ours = folder / f"{mix}-ours.gguf"
        started = time.perf_counter()
        assert quantize_file(library, source, theirs, MIXES[mix].file_type)
        seconds = [time.perf_counter() - started]
        started = time.perf_counter()
        plan_conversion(source, ConvertOptions(mix)).write(ours)
        seconds.append(time.perf_counter() - started)
        expected = open_checkpoint(theirs).weights
        actual = open_checkpoint(ours).weights
        different = [
            name
            for name, weight in expected.items()
            if (weight.quant, weight.data.tobytes())
            != (actual[name].quant, actual[name].data.tobytes())
        ]
        verdict = f"differs in {', '.join(different)}" if different else "the same bytes"
        print(f"{mix}: {verdict}; theirs {seconds[0]:.1f} s, ours {seconds[1]:.1f} s")
        theirs.unlink()
        ours.unlink()


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
