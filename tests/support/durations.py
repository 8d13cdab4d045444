"""Recorded processor time of the fast tests, by folder, and a bound for each.

    inv test --record

A run names the folders that exceed their bound. It does not fail: timings do not decide tests, and
another machine may be slower or busy.
"""

import json
from pathlib import Path

TESTS = Path(__file__).parents[1]
RECORD = TESTS / "durations.json"
# A folder may take BOUND times its recorded seconds, and SPARE seconds more.
BOUND = 1.5
SPARE = 5


def folder_of(path):
    """Name of the folder of tests with the file at *path*; ``.`` for one directly in ``tests``."""
    parts = path.relative_to(TESTS).parts
    return parts[0] if len(parts) > 1 else "."


def recorded_seconds():
    """Seconds of a processor that all fast tests took when they were recorded."""
    return sum(json.loads(RECORD.read_text(encoding="utf-8")).values())


def write(seconds):
    """Record *seconds* by folder."""
    rounded = {folder: round(taken) for folder, taken in sorted(seconds.items())}
    RECORD.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def beyond_bounds(seconds):
    """A line for each folder whose *seconds* are beyond its bound."""
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    for folder, taken in sorted(seconds.items()):
        if taken > BOUND * recorded.get(folder, 0) + SPARE:
            yield f"{folder}: {taken:.0f} s of a processor, {recorded.get(folder, 0)} recorded"
