"""A set of byte ranges against a set of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from bitnet.store.partial import Ranges

PARTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@given(PARTS, st.integers(0, 70))
def test_ranges_are_the_set_of_their_bytes(parts, size):
    ranges = Ranges()
    expected = set()
    for start, stop in parts:
        ranges.add(start, stop)
        expected |= set(range(start, stop))
    assert {byte for part in ranges for byte in range(*part)} == expected
    assert ranges.total == len(expected)
    assert {b for gap in ranges.missing(size) for b in range(*gap)} == set(range(size)) - expected
    # The first byte that is missing.
    assert ranges.frontier == next(byte for byte in range(61) if byte not in expected)
    # The ranges are in order, and neither overlap nor touch.
    edges = [edge for part in ranges for edge in part]
    assert edges == sorted(set(edges))
