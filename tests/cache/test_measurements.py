"""Answers that are measured once: found again under the same conditions, and only then."""

import pytest

from bitnet.cache.entries import entries, verify
from bitnet.store.tag import measurement_path, read_measurement, write_measurement

HERE = {"processor": "A", "threads": 2}
FOUND = {"first": 1.5, "second": 2}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "bitnet"))
    return tmp_path / "bitnet"


def test_what_was_written_is_read_under_the_same_conditions(cache):
    assert read_measurement("speed", HERE) is None
    write_measurement("speed", HERE, FOUND)
    assert read_measurement("speed", dict(reversed(HERE.items()))) == FOUND
    assert read_measurement("speed", {**HERE, "threads": 3}) is None
    assert read_measurement("size", HERE) is None
    (entry,) = entries(cache)
    assert entry.kind == "measurement"
    assert verify(entry).intact


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"\xff",
        b"[]",
        b"{}",
        b'{"conditions": {"processor": "A", "threads": 2}}',
        b'{"conditions": {"processor": "A", "threads": 2}, "found": {"first": "x"}}',
        b'{"conditions": {"processor": "A", "threads": 2}, "found": {"first": true}}',
        b'{"conditions": {"processor": "A", "threads": 2}, "found": {"first": NaN}}',
        b'{"conditions": {"processor": "A", "threads": 2}, "found": {"first": 1%s}}' % (b"0" * 400),
        b'{"conditions": {"processor": "B", "threads": 2}, "found": {"first": 1}}',
    ],
)
def test_a_damaged_file_counts_as_none_and_is_written_again(damaged):
    write_measurement("speed", HERE, FOUND)
    measurement_path("speed", HERE).write_bytes(damaged)
    assert read_measurement("speed", HERE) is None
    write_measurement("speed", HERE, FOUND)
    assert read_measurement("speed", HERE) == FOUND


def test_a_cache_that_cannot_be_written_is_only_slower(cache):
    cache.write_text("a file where the folder should be")
    write_measurement("speed", HERE, FOUND)
    assert read_measurement("speed", HERE) is None
