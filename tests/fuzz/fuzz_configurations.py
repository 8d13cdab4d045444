"""Random ``tokenizer.json`` files for some minutes: ``inv fuzz configurations --minutes 60``.

One with other ids or texts than the ``tokenizers`` library is written below
``tests/tokenizer/found``, which ``tests/tokenizer/test_configurations.py`` checks from then on.
"""

import argparse
import hashlib
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

from tokenizer_configurations import differences, random_document  # noqa: E402 - of the tests

FOUND = ROOT / "tokenizer" / "found"


def main():
    """Look for *minutes*; the exit status says whether something was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    end = time.monotonic() + 60 * parser.parse_args().minutes
    outcomes = Counter()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            document = random_document(secrets.randbits(64))
            different = differences(document, Path(folder))
            if different is None:
                outcomes["refused"] += 1
            elif not different:
                outcomes["the same"] += 1
            else:
                outcomes["different"] += 1
                text = json.dumps(document, separators=(",", ":"))
                path = FOUND / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                print(f"{path}: {different[0]}", flush=True)
    print(", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items()))
    return bool(outcomes["different"])


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main())
