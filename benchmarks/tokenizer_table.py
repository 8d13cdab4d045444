"""Write ``docs/reference/tokenizers.md``: results of both engines on every recorded vocabulary.

    python benchmarks/tokenizer_table.py DATA

DATA is the folder of BITNET_TEST_DATA. Both engines encode every string.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from bitnet.base.errors import Unsupported
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.from_gguf import spec_from_gguf

PAGE = Path(__file__).parent.parent / "docs/reference/tokenizers.md"
SEPARATOR = "\n__ggml_vocab_test__\n"
LLAMA_CPP = "llama.cpp's `.inp`/`.out`"
# File of strings and ids, vocabulary, libraries that recorded the ids, True if special tokens in
# the strings were parsed.
EXPECTED = [
    ("llama3", "tokenizers/llama3/tokenizer.json", "tokenizers, tiktoken", True),
    ("llama3", "vocab/ggml-vocab-llama-bpe.gguf", "tokenizers, tiktoken", True),
    ("llama3_meta_ordinary", "tokenizers/llama3/tokenizer.model", "tiktoken", False),
    ("llama2", "tokenizers/llama2/tokenizer.model", "sentencepiece", False),
    ("llama2", "vocab/ggml-vocab-llama-spm.gguf", "sentencepiece", False),
    ("gpt2", "tokenizers/gpt2", "tiktoken, tokenizers", True),
    ("gpt2", "vocab/ggml-vocab-gpt-2.gguf", "tiktoken, tokenizers", True),
    ("phi3", "tokenizers/phi3/tokenizer.json", "tokenizers", True),
    ("phi3", "vocab/ggml-vocab-phi-3.gguf", "tokenizers", True),
    ("bert", "vocab/ggml-vocab-bert-bge.gguf", "tokenizers", True),
]
LOADS = 7  # the time is their median


def spec_of(path):
    """The specification of a file or folder."""
    if path.suffix == ".gguf":
        with GGUF.open(path) as gguf:
            return spec_from_gguf(gguf)
    return spec_from_file(path / "vocab.json") if path.is_dir() else spec_from_file(path)


def recorded(data):
    """Yield ``(file, oracle, parse_special, [(text, ids)])`` for everything that was recorded."""
    for path in sorted((data / "vocab").glob("*.gguf")):
        texts = Path(f"{path}.inp").read_bytes().decode().split(SEPARATOR)
        lines = Path(f"{path}.out").read_text().split("\n")
        ids = [[int(word) for word in line.split()] for line in lines]
        yield path, LLAMA_CPP, True, list(zip(texts, ids, strict=True))
    for name, file, oracle, parse_special in EXPECTED:
        with gzip.open(data / f"expected/{name}.jsonl.gz", "rt") as stream:
            rows = [json.loads(line) for line in stream]
        yield data / file, oracle, parse_special, [(row["text"], row["ids"]) for row in rows]


def count_right(path, parse_special, cases, backend):
    """Number of *cases* with the recorded ids, and name of the engine that ran them.

    *backend* is the value of BITNET_BACKEND.
    """
    os.environ["BITNET_BACKEND"] = backend
    tokenizer = Tokenizer.from_spec(spec_of(path))
    right = sum(
        tokenizer.encode(text, add_special=False, parse_special=parse_special) == ids
        for text, ids in cases
    )
    return right, tokenizer.engine


def load_ms(path):
    """Milliseconds from the specification to a usable tokenizer, compiled form in the cache."""
    os.environ["BITNET_BACKEND"] = "auto"
    times = []
    for _ in range(LOADS):
        spec = spec_of(path)
        start = time.perf_counter()
        Tokenizer.from_spec(spec)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def table(data):
    """Yield the lines of the table; "libraries" are those with which the portable engine encodes.

    A file that the compiled engine does not run has the result of the portable one in its column.
    """
    yield "| vocabulary | oracle | cases | compiled engine | libraries | load (ms) |"
    yield "|---|---|---:|---:|---:|---:|"
    for path, oracle, parse_special, cases in recorded(data):
        n_right, engine = count_right(path, parse_special, cases, "auto")
        try:
            portable = str(count_right(path, parse_special, cases, "reference")[0])
        except Unsupported:
            portable = "refused"
        native = str(n_right) if engine == "native" else f"{n_right} (portable)"
        name = path.relative_to(data)
        yield (
            f"| `{name}` | {oracle} | {len(cases)} | {native} | {portable} | {load_ms(path):.1f} |"
        )


def main():
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    with tempfile.TemporaryDirectory() as cache:
        os.environ["BITNET_CACHE_DIR"] = cache
        lines = [
            "# Tokenizers",
            "<!-- Written by `python benchmarks/tokenizer_table.py`; run it again instead. -->",
            "Strings that come out exactly as the oracle recorded them. Load: from the "
            "specification to a usable tokenizer with the compiled form in the cache, median.",
            "\n".join(table(data)),
        ]
    PAGE.write_text("\n\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
