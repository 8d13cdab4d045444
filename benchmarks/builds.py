"""Compare versions of this program: is one faster in prefill or decode?

    python benchmarks/builds.py MODEL FOLDER FOLDER... [--tests pp512,pp4096] [--turns 5]

Each FOLDER is a source tree with its compiled module in ``bitnet/``, such as a ``git worktree`` of
an older commit. Each version runs in a process of its own, with the benchmark's worker of its own
tree, and they take turns test by test. The result has medians in tokens per second, their ratios to
those of the first version, and ``busy``, the number of measurements that other processes disturbed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from runtime import Engine, in_turns


def main() -> None:
    """Print the rates as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--tests", default="pp512,pp4096")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-type", default="f16", choices=("f16", "q8"))
    parser.add_argument("--tries", type=int, default=2, help="while other processes run")
    options = parser.parse_args()
    print(json.dumps(measure(options), indent=2))


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Every version's rates and their medians over those of the first version."""
    tests = options.tests.split(",")
    context = max(sum(map(int, test[2:].split("@"))) + 64 for test in tests)
    engines = {
        folder.absolute().name: Engine(
            "bitnet",
            sys.executable,
            options.model.absolute(),
            options.threads,
            context,
            options.kv_type,
            folder.absolute(),
        )
        for folder in options.folders
    }
    rates: dict[str, dict[str, list[float]]] = {
        name: {test: [] for test in tests} for name in engines
    }
    for test, turn in in_turns(tests, options.turns):
        for name, engine in engines.items():
            seconds = engine.seconds(test, options.tries if turn else 1)
            if turn:
                rates[name][test].append(int(test[2:].partition("@")[0]) / seconds)

    medians = {
        name: {test: statistics.median(per_turn) for test, per_turn in by_test.items()}
        for name, by_test in rates.items()
    }
    first = next(iter(medians.values()))
    return {
        "model": options.model.name,
        "kv_type": options.kv_type,
        "turns": options.turns,
        "tokens_per_s": medians,
        "over_the_first": {
            name: {test: rate / first[test] for test, rate in by_test.items()}
            for name, by_test in medians.items()
        },
        "busy": {name: engine.busy for name, engine in engines.items()},
    }


if __name__ == "__main__":
    main()
