"""Random tokenizer files for some minutes: ``inv fuzz configurations --minutes 60``.

They are ``tokenizer.json`` files and SentencePiece models, in turns. A file for which ids, offsets
or texts differ from the library's is written below ``tests/tokenizer/found``, whose files
``tests/tokenizer/test_configurations.py`` checks from then on. With ``--configurations N`` the
seeds are 0 to N - 1. At the end, the outcomes are counted for each engine.
"""

import argparse
import hashlib
import itertools
import json
import logging
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "support"))

from sentencepiece_configurations import compare_model, random_model  # noqa: E402 - of the tests
from tokenizer_configurations import ENGINES, compare, random_document  # noqa: E402 - of the tests

FOUND = ROOT / "tokenizer" / "found"


def main():
    """Look for differences; the exit status says whether one was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--configurations", type=int, help="as many of each kind, seeds 0 and on")
    parser.add_argument("--texts", type=int, default=25, help="texts of each")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    seeds = iter(lambda: secrets.randbits(64), None)
    if options.configurations:
        end = float("inf")
        seeds = range(options.configurations)
    counts = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in itertools.takewhile(lambda _: time.monotonic() < end, seeds):
            document = random_document(seed)
            model = random_model(seed)
            text = json.dumps(document, separators=(",", ":")).encode()
            for kind, content, outcome in (
                ("json", text, compare(document, Path(folder), count=options.texts)),
                ("model", model, compare_model(model, Path(folder), count=options.texts)),
            ):
                for name in ENGINES:
                    counts[kind, name, _verdict(name, outcome)] += 1
                if outcome.differences:
                    _keep(kind, content, outcome.differences[0])
    for (kind, name, verdict), count in sorted(counts.items()):
        print(f"{kind}, {name}: {count:,} {verdict}")
    return any(verdict == "different" for _, _, verdict in counts)


def _verdict(name, outcome):
    """Outcome for the engine *name*: ``refused``, ``different`` or ``equal``."""
    if name in outcome.refusals:
        return "refused"
    own = (
        line for line in outcome.differences if not line.startswith(tuple(set(ENGINES) - {name}))
    )
    return "different" if any(own) else "equal"


def _keep(kind, content, line):
    """Write the file to the folder of those found, and print the difference *line*."""
    path = FOUND / f"{hashlib.sha256(content).hexdigest()[:8]}.{kind}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    print(f"{path}: {line}", flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main())
