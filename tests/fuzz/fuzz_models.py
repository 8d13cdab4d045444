"""Random configurations of every family for some minutes: ``inv fuzz models --minutes 60``.

A configuration whose model computes other logits than the reference, or fails, is made small and
written below ``tests/models/found``, whose files ``tests/models/test_differential.py`` checks from
then on.
"""

import argparse
import hashlib
import logging
import secrets
import sys
import tempfile
import time
import warnings
from collections import Counter
from itertools import cycle
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "support"))

from differential import KINDS, as_json, cases, check, report  # noqa: E402 - from the folder of the tests

FOUND = ROOT / "models" / "found"
ROUND = 20  # examples of a family before the next one's turn


def wrong_case(kind, outcomes):
    """The smallest wrong case among ROUND examples of *kind* and its error, or None.

    Outcomes of the examples are counted in *outcomes*.
    """
    failed = []

    @seed(secrets.randbits(32))
    @settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(cases(kind))
    def examples(case):
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes[kind, check(case, Path(folder), engine=True)] += 1
            except Exception as error:
                failed[:] = [(case, str(error))]
                raise

    try:
        examples()
    except Exception:  # every failure of a case is a find
        if not failed:  # Hypothesis failed, and ran no case
            raise
        return failed[0]
    return None


def main():
    """Look for wrong cases for ``--minutes``; True, an exit status of 1, if there was one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    end = time.monotonic() + 60 * parser.parse_args().minutes
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    outcomes = Counter()
    paths = []
    for kind in cycle(KINDS):
        if time.monotonic() > end:
            break
        wrong = wrong_case(kind, outcomes)
        if wrong:
            case, why = wrong
            text = as_json(case)
            path = FOUND / f"{kind.lower()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            paths.append(path)
            print(f"{path}: {why}", flush=True)
    print(report(outcomes))
    return bool(paths)


if __name__ == "__main__":
    sys.exit(main())
