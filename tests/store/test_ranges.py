from hypothesis import given
from hypothesis import strategies as st

from bitnet.store.partial import Ranges

PARTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@given(PARTS, st.integers(0, 70))
def test_ranges_are_the_set_of_their_bytes(parts, size):
    ranges = Ranges()
    there = set()
    for start, stop in parts:
        ranges.add(start, stop)
        there |= set(range(start, stop))
    assert {byte for part in ranges for byte in range(*part)} == there
    assert ranges.total == len(there)
    assert {b for gap in ranges.missing(size) for b in range(*gap)} == set(range(size)) - there
    assert ranges.frontier == next(byte for byte in range(61) if byte not in there)
    edges = [edge for part in ranges for edge in part]
    assert edges == sorted(set(edges))
