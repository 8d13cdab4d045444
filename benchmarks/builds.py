"""Compare versions of this program: is one faster in prefill or decode?

    python benchmarks/builds.py MODEL FOLDER FOLDER... [--tests pp512,pp4096] [--turns 5]

Each FOLDER is a source tree with its compiled module in ``bitnet/``, such as a ``git worktree`` of
an older commit. Each version runs in a process of its own, by the ``benchmarks/peer_engine.py`` of
its own tree, and they take turns test by test. The result has medians in tokens per second, their
ratios to those of the first version, and ``busy``, the number of measurements that other processes
disturbed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from arguments import at_least, tests_with_depths
from runtime import Engine, in_turns, killed_at_last


def main() -> None:
    """Print the rates as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--tests", type=tests_with_depths, default="pp512,pp4096")
    parser.add_argument("--turns", type=at_least(1), default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-type", default="f16", choices=("f16", "q8"))
    parser.add_argument("--tries", type=at_least(1), default=2, help="most attempts at a test")
    options = parser.parse_args()
    print(json.dumps(measure(options), indent=2))


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Results as JSON values: medians of each version's rates, and their ratios to the first's."""
    tests = options.tests
    # Positions of the longest test, with a margin.
    context = max(sum(map(int, test[2:].split("@"))) + 64 for test in tests)
    engines: dict[str, Engine] = {}
    with killed_at_last(engines):
        for name, folder in names_of(options.folders).items():
            engines[name] = Engine(
                "bitnet",
                sys.executable,
                options.model.absolute(),
                options.threads,
                context,
                options.kv_type,
                folder,
            )
        rates = measure_rates(engines, tests, options)
        busy = {name: engine.busy for name, engine in engines.items()}

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
        "busy": busy,
    }


def names_of(folders: list[Path]) -> dict[str, Path]:
    """Absolute paths of *folders* by name: the last part, or the whole path where two share it.

    A folder that is given twice, to show how far two measurements differ, gets numbered names.
    """
    paths = [folder.absolute() for folder in folders]
    path_by_name: dict[str, Path] = {}
    for path in paths:
        is_shared = any(other != path and other.name == path.name for other in paths)
        name = str(path) if is_shared else path.name
        count = paths.count(path)
        if count > 1:
            name += f" #{1 + sum(other == path for other in path_by_name.values())}"
        path_by_name[name] = path
    return path_by_name


def measure_rates(
    engines: dict[str, Engine], tests: list[str], options: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Tokens per second of each of *engines* by test, for every turn but the first (warm-up)."""
    rates: dict[str, dict[str, list[float]]] = {
        name: {test: [] for test in tests} for name in engines
    }
    for test, turn in in_turns(tests, options.turns):
        for name, engine in engines.items():
            if turn:
                seconds = engine.seconds(test, options.tries)
                rates[name][test].append(int(test[2:].partition("@")[0]) / seconds)
            else:
                engine.warm_up(test)
    return rates


if __name__ == "__main__":
    main()
