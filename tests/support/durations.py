"""Seconds of a processor that the fast tests take, by folder: recorded with a bound.

    inv test --record

A run shows where a change made tests slower: the file is read in a diff, and no test is timed.
"""

import json
from pathlib import Path

TESTS = Path(__file__).parents[1]
RECORD = TESTS / "durations.json"


def folder_of(path):
    """Name of the folder of tests with the file at *path*; ``.`` for those of the house."""
    parts = path.relative_to(TESTS).parts
    return parts[0] if len(parts) > 1 else "."


def write(seconds):
    rounded = {folder: round(taken) for folder, taken in sorted(seconds.items())}
    RECORD.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def read():
    return json.loads(RECORD.read_text(encoding="utf-8"))
