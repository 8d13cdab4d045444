"""Speed of BitNet b1.58 2B-4T's shape here, and in every other engine that runs ternary models.

    python benchmarks/ternary.py MODEL [--llama FILE]... [--peers FOLDER] [--peer-python PYTHON]
        [--work FOLDER] [--tests pp128,pp512,tg128] [--threads 1,2] [--only REGEX]
        [--json FILE] [--table FILE]

MODEL is an I2_S file of synthetic.py. ik_llama.cpp reads I2_S wrongly, so its own converter first
writes IQ2_BN and IQ2_BN_R4: with the head in f16, as exact as ours, and with a head of four bits.
llama.cpp runs files of synthetic.py in TQ2_0, Q4_0 and Q8_0 (--type TQ2_0 --architecture bitnet),
which --llama names. Its graph is another one of about the same cost: only the speed is comparable.
bitnet.cpp, the build in BITNET_CPP_DIR, runs MODEL as it is. All engines run in processes of their
own and take turns test by test, after a short test that does not count. Measurements are added to
those in --json FILE, so a run can be made in pieces.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

from arguments import at_least, plain_tests
from runtime import Engine, available_engines, killed_at_last

from bitnet.bench import describe_machine
from bitnet.crossval.references import bitnet_cpp_library
from bitnet.formats.containers import open_checkpoint

# Conversions of the model by ik_llama.cpp: label, type, type of the head.
CONVERSIONS = (
    ("ik_llama.cpp IQ2_BN, f16 head", "iq2_bn", "f16"),
    ("ik_llama.cpp IQ2_BN_R4, f16 head", "iq2_bn_r4", "f16"),
    ("ik_llama.cpp IQ2_BN_R4, IQ4_NL head (lossy)", "iq2_bn_r4", "iq4_nl"),
)
# Labels of ours: with the best instruction set of the machine, and with AVX2. "whole head": without
# the search of the exact head.
OURS = "bitnet I2_S, f16 head"
OURS_AVX2 = "bitnet I2_S, f16 head, AVX2"
VARIANTS = {
    OURS: "bitnet",
    f"{OURS}, whole head": "bitnet::off",
    OURS_AVX2: "bitnet:avx2:auto",
    f"{OURS_AVX2}, whole head": "bitnet:avx2:off",
}
CONTEXT = 1024
WARM_UP = {"pp": "pp32", "tg": "tg8"}


def convert(model, kind, head, *, python, work):
    """Path of *model* as ik_llama.cpp converts it, which is written unless it exists.

    *kind* and *head* are its names of the types of the matrices and of the head; *python* is an
    interpreter that has its package.
    """
    path = work / f"{model.stem}.{kind}.{head}.gguf"
    if not path.exists():
        where = "import ik_llama_cpp, pathlib; print(pathlib.Path(ik_llama_cpp.__file__).parent)"
        package = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True)
        tool = Path(package.stdout.strip()) / "bin" / "llama-quantize"
        partial = path.with_suffix(".partial")
        options = ["--allow-requantize", "--token-embedding-type", head]
        subprocess.run([tool, *options, model, partial, kind], check=True, capture_output=True)
        partial.rename(path)
    return path


def contestants(options):
    """Label -> (engine, interpreter, model) of the available engines, and names of the others."""
    engines, absent = available_engines(options.peer_python, options.peers)
    entries = {label: (name, sys.executable, options.model) for label, name in VARIANTS.items()}
    if "ik_llama.cpp" in engines:
        python, engine = engines["ik_llama.cpp"]
        for label, kind, head in CONVERSIONS:
            path = convert(options.model, kind, head, python=python, work=options.work)
            entries[label] = (engine, python, path)
    if "llama.cpp" in engines:
        python, engine = engines["llama.cpp"]
        for path in options.llama:
            weights = open_checkpoint(path).weights
            kind = weights["blk.0.attn_q.weight"].quant.name
            entries[f"llama.cpp {kind}, f16 head"] = (engine, python, path)
    built = bitnet_cpp_library()
    if built:
        entries["bitnet.cpp I2_S, f16 head"] = (str(built), sys.executable, options.model)
    else:
        absent.append("bitnet.cpp")
    return entries, absent


def measure(entries, threads, tests, turns):
    """Rates of each test in tokens per second, load time in seconds and peak memory, by label."""
    running = {}
    with killed_at_last(running):
        for label, entry in entries.items():
            running[label] = Engine(*entry, threads, CONTEXT)
        rates = {label: {test: [] for test in tests} for label in running}
        for engine in running.values():
            for kind in {test[:2] for test in tests}:
                engine.warm_up(WARM_UP[kind])
        for _ in range(turns):
            for test in tests:
                for label, engine in running.items():
                    rates[label][test].append(int(test[2:]) / engine.seconds(test))
        return {
            label: {"rates": rates[label], "load_s": [engine.load_s], "peak_mb": engine.stop()}
            for label, engine in running.items()
        }


def add_results(old, new):
    """*old*, the measurements of earlier pieces, with *new* added to them."""
    for threads, by_label in new.items():
        entries = old.setdefault(str(threads), {})
        for label, facts in by_label.items():
            entry = entries.setdefault(label, {"rates": {}, "load_s": [], "peak_mb": 0})
            entry["load_s"] += facts["load_s"]
            entry["peak_mb"] = max(entry["peak_mb"], facts["peak_mb"])
            for test, rates in facts["rates"].items():
                entry["rates"].setdefault(test, []).extend(rates)
    return old


def table(results):
    """Medians in Markdown, with the ratios of :func:`ratios`."""
    tests = sorted({t for by in results.values() for e in by.values() for t in e["rates"]})
    head = ["threads", "engine", *(f"{test} tok/s" for test in tests), "load (s)", "peak (MB)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for threads, by_label in results.items():
        medians = {
            label: {test: statistics.median(entry["rates"].get(test, [0])) for test in tests}
            for label, entry in by_label.items()
        }
        for label, entry in by_label.items():
            cells = [f"{medians[label][test]:.1f}" for test in tests]
            cells += [f"{statistics.median(entry['load_s']):.2f}", f"{entry['peak_mb']:.0f}"]
            lines.append(f"| {threads} | {label} | " + " | ".join(cells) + " |")
        lines += ratios(medians, tests)
    return "\n".join(lines)


def ratios(medians, tests):
    """Rows with the ratios of ours to the best exact peer, and to the best of all peers.

    *medians* are tokens per second by label and test.
    """
    others = [label for label in medians if label not in VARIANTS]
    exact = [label for label in others if "lossy" not in label]
    lines = []
    for name, ours in (("ours", OURS), ("AVX2", OURS_AVX2)):
        for kind, peers in (("exact", exact), ("of all", others)):
            if peers and ours in medians:
                best = {test: max(medians[peer][test] for peer in peers) for test in tests}
                cells = [f"{medians[ours][t] / best[t]:.2f}" if best[t] else "" for t in tests]
                lines.append(f"| | {name} / best {kind} | " + " | ".join(cells) + " | | |")
    return lines


def main():
    """Measure, add the results to earlier ones, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--llama", type=Path, action="append", default=[], help="a model for llama.cpp"
    )
    parser.add_argument("--peers", type=Path, help="folder with builds of peers")
    parser.add_argument("--peer-python", default="", help="interpreter with packages of peers")
    parser.add_argument("--work", type=Path, default=Path(), help="folder for conversions")
    parser.add_argument("--tests", type=plain_tests, default="pp128,pp512,tg128")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=at_least(1), default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", default="", metavar="REGEX", help="engines to run")
    parser.add_argument("--only-convert", action="store_true")
    options = parser.parse_args()
    entries, absent = contestants(options)
    if options.only_convert:
        return
    entries = {label: entry for label, entry in entries.items() if re.search(options.only, label)}
    threads = [int(count) for count in options.threads.split(",")]
    tests = options.tests
    earlier = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    new = {count: measure(entries, count, tests, options.turns) for count in threads}
    results = add_results(earlier.get("results", {}), new)
    machine = describe_machine(threads)
    reads = earlier.get("machine", {}).get("read_bytes_per_s", {})
    for count, rate in machine["read_bytes_per_s"].items():
        reads[str(count)] = max(rate, reads.get(str(count), 0))
    machine["read_bytes_per_s"] = reads
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"]
    lines += [f"read with {n} threads: {rate / 1e9:.1f} GB/s" for n, rate in reads.items()]
    lines += [f"absent: {name}" for name in absent]
    text = "\n".join([*lines, "", table(results)])
    print(text)
    if options.table:
        options.table.write_text(text + "\n")
    if options.json:
        facts = {"machine": machine, "absent": absent, "results": results}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
