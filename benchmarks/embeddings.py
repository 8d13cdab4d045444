"""Prefill of BitNet's embedding models: this project beside bitnet.cpp and llama.cpp.

    python benchmarks/embeddings.py WORK --vocabulary VOCAB.gguf [--peers FOLDER]
        [--peer-python PYTHON] [--tests pp128,pp512] [--threads 1,2] [--json FILE] [--table FILE]

Synthetic models (synthetic.py) of the shapes of BitNet-embedding-0.6B and -270M are written into
WORK. Ours runs the model as it is published: I2_S with a norm before each product. bitnet.cpp, the
build in BITNET_CPP_DIR, may lack this architecture, so it gets a LLaMA with the same products in
I2_S, but without these norms and those of queries and keys: less work than ours. llama.cpp gets the
same backbone in F16, without the norms before the products. All run in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import synthetic
from arguments import at_least, plain_tests
from runtime import available_engines
from ternary import measure

from bitnet.bench import describe_machine
from bitnet.crossval.references import bitnet_cpp_library

MODELS = {"0.6B": "embedding-0.6b", "270M": "embedding-270m"}
OURS = "bitnet I2_S"
OURS_AVX2 = "bitnet I2_S, AVX2"
BITNET_CPP = "bitnet.cpp I2_S"
LLAMA_CPP = "llama.cpp F16"


def synthetic_model(work, vocabulary, name, kind, architecture=None):
    """Path of a model of the shape *name* in the encoding *kind*, which is written if missing."""
    shape = synthetic.SHAPES[name]
    shape = replace(shape, architecture=architecture or shape.architecture)
    path = work / f"{name}.{shape.architecture}.{kind}.gguf"
    if not path.exists():
        partial = path.with_suffix(".partial")
        synthetic.write(partial, vocabulary, kind=kind, shape=shape)
        partial.rename(path)
    return path


def contestants(name, options):
    """Label -> (engine, interpreter, model) of all engines that are available."""
    engines, _ = available_engines(options.peer_python, options.peers)
    ours = synthetic_model(options.work, options.vocabulary, name, "I2_S")
    entries = {
        OURS: ("bitnet", sys.executable, ours),
        OURS_AVX2: ("bitnet:avx2", sys.executable, ours),
    }
    library = bitnet_cpp_library()
    if library:
        plain = synthetic_model(options.work, options.vocabulary, name, "I2_S", "llama")
        entries[BITNET_CPP] = (str(library), sys.executable, plain)
    if "llama.cpp" in engines:
        python, engine = engines["llama.cpp"]
        wide = synthetic_model(options.work, options.vocabulary, name, "F16")
        entries[LLAMA_CPP] = (engine, python, wide)
    return entries


def table(results, tests):
    """Markdown with the medians of tokens per second, and the ratios of ours to each peer."""
    lines = [f"| model | threads | engine | {' | '.join(f'{test} tok/s' for test in tests)} |"]
    lines.append("|---" * (3 + len(tests)) + "|")
    for (model, threads), by_label in results.items():
        medians = {
            label: [statistics.median(facts["rates"][test]) for test in tests]
            for label, facts in by_label.items()
        }
        rows = {label: [f"{rate:.0f}" for rate in rates] for label, rates in medians.items()}
        for own in (OURS, OURS_AVX2):
            for peer in (label for label in (BITNET_CPP, LLAMA_CPP) if label in medians):
                pairs = zip(medians[own], medians[peer], strict=True)
                rows[f"{own} / {peer}"] = [f"{ours / theirs:.2f}" for ours, theirs in pairs]
        lines += [
            f"| {model} | {threads} | {label} | {' | '.join(cells)} |"
            for label, cells in rows.items()
        ]
    return "\n".join(lines)


def main():
    """Write the models, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True, help="GGUF file with LLaMA-3's")
    parser.add_argument("--peers", type=Path, help="folder with builds of peers")
    parser.add_argument("--peer-python", default="", help="interpreter with packages of peers")
    parser.add_argument("--tests", type=plain_tests, default="pp128,pp512")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=at_least(1), default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    tests = options.tests
    threads = [int(count) for count in options.threads.split(",")]
    results = {
        (model, count): measure(contestants(name, options), count, tests, options.turns)
        for model, name in MODELS.items()
        for count in threads
    }
    machine = describe_machine(threads)
    text = f"{machine['cpu']}, {machine['cores']} cores\n\n{table(results, tests)}"
    print(text)
    if options.table:
        options.table.write_text(text + "\n")
    if options.json:
        rows = [
            {"model": model, "threads": count, "engines": facts}
            for (model, count), facts in results.items()
        ]
        options.json.write_text(json.dumps({"machine": machine, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
