"""Pieces are handed out in order; the tail of a slow one is taken by a connection without work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.hub.pieces import SMALLEST_BYTES, STEAL_AFTER_S, Pieces


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_pieces_come_in_the_order_of_the_file(clock):
    pieces = Pieces([(0, 250), (400, 450)], 100, clock)
    taken = [(p.at, p.stop) for p in iter(pieces.take, None)]
    assert taken == [(0, 100), (100, 200), (200, 250), (400, 450)]


def test_what_is_left_of_a_piece_is_handed_out_again(clock):
    pieces = Pieces([(0, 100)], 100, clock)
    piece = pieces.take()
    piece.at = 30
    pieces.end(piece)
    again = pieces.take()
    assert (again.at, again.stop) == (30, 100)


def test_a_slow_piece_is_shared_by_the_speeds_of_the_two(clock):
    pieces = Pieces([(0, 10_000_000)], 10_000_000, clock)
    slow = pieces.take()
    clock.now, slow.at = 10.0, 1_000_000  # 100 kB/s
    tail = pieces.take(rate=800_000.0)
    assert (tail.at, tail.stop) == (2_000_000, 10_000_000)
    assert (slow.at, slow.stop) == (1_000_000, 2_000_000)


def test_a_silent_connection_loses_all_that_is_left(clock):
    pieces = Pieces([(0, 10_000_000)], 10_000_000, clock)
    silent = pieces.take()
    clock.now = STEAL_AFTER_S
    tail = pieces.take(rate=1e6)
    assert (tail.at, tail.stop, silent.left) == (0, 10_000_000, 0)


def test_the_one_that_would_last_longest_is_taken_from(clock):
    pieces = Pieces([(0, 20_000_000)], 10_000_000, clock)
    fast, slow = pieces.take(), pieces.take()
    clock.now, fast.at, slow.at = 4.0, 4_000_000, slow.at + 1_000_000
    tail = pieces.take(rate=1e6)
    assert tail.stop == 20_000_000
    assert fast.stop == 10_000_000


@pytest.mark.parametrize(("now", "at"), [(1.9, 0), (10.0, 9_000_000)])
def test_what_has_only_begun_or_ends_soon_is_left_alone(clock, now, at):
    pieces = Pieces([(0, 10_000_000)], 10_000_000, clock)
    piece = pieces.take()
    clock.now, piece.at = now, at
    assert pieces.take(rate=1e9) is None
    assert piece.stop == 10_000_000


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5), st.integers(0, 200_000)), max_size=60)
)
def test_whatever_happens_every_byte_is_in_exactly_one_piece(steps):
    clock = Clock()
    pieces, size = Pieces([(0, 1_000_000)], 300_000, clock), 1_000_000
    running, came = [], []
    for kind, passed, count in steps:
        clock.now += passed
        if kind == 0 or not running:
            piece = pieces.take(rate=float(count))
            running += [piece] if piece is not None else []
            continue
        piece = running[count % len(running)]
        start = piece.at
        piece.at = min(piece.stop, piece.at + count)
        came.append((start, piece.at))
        if kind == 3:
            pieces.end(piece)
            running.remove(piece)
    for piece in running:
        pieces.end(piece)
    came += [(piece.at, piece.stop) for piece in iter(pieces.take, None)]
    parts = sorted(part for part in came if part[0] < part[1])
    assert [start for start, _ in parts] == [0, *[stop for _, stop in parts][:-1]]
    assert parts[-1][1] == size


def test_a_little_is_not_left_to_a_slow_connection(clock):
    pieces = Pieces([(0, SMALLEST_BYTES)], 1 << 20, clock)
    slow = pieces.take()
    clock.now, slow.at = 100.0, 100
    assert pieces.take(rate=1e6).at == 100
