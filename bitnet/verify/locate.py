"""Locate the items of a long list that differ from the original, given only a few digests.

The items are arranged in a square, row by row; each row and each column has a short digest. A
differing item shows in its row and its column, so two short lists of digests identify one item in
262,144 without storing any. They only locate; equality is established by a full SHA-256.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.verify.content import Items

_SHORT = 8  # hexadecimal digits of a row's digest: 32 bits
_SHOWN = 4
_MOST_TRIES = 400_000  # hashes of a row, less than a second


@dataclass(frozen=True)
class Grid:
    """Short digests of rows and columns: eight hexadecimal digits per digest."""

    length: int
    rows: str
    columns: str

    @classmethod
    def parse(cls, length: int, rows: str, columns: str) -> Grid:
        """A grid read from a file."""
        side = _side(int(length))
        counts = math.ceil(int(length) / side), min(side, int(length))
        if (len(rows), len(columns)) != tuple(_SHORT * count for count in counts):
            raise ValueError("not the digests of so many items")
        bytes.fromhex(rows + columns)
        return cls(int(length), rows, columns)

    @property
    def side(self) -> int:
        """Number of items in a row."""
        return _side(self.length)


def grid_of(items: Items) -> Grid:
    """Digests of *items*."""
    side = _side(len(items))
    rows = (_row(items, number, side) for number in range(math.ceil(len(items) / side)))
    columns = (_column(items, number, side) for number in range(min(side, len(items))))
    return Grid(len(items), "".join(rows), "".join(columns))


def row_overlap(grid: Grid, items: Items) -> float:
    """Share of the rows of *grid* that *items* has, 0 to 1; both have the same length."""
    side, rows = grid.side, len(grid.rows) // _SHORT
    same = sum(_row(items, n, side) == _short(grid.rows, n) for n in range(rows))
    return same / rows if rows else 0.0


def locate(grid: Grid, items: Items, tokens: Items | None = None) -> str:
    """Description of the difference of *items* from the list of *grid*; they do differ.

    *tokens* is the vocabulary, if *items* are its merges: it names a missing merge.
    """
    if grid.length != len(items):
        return _length(grid, items, tokens)
    now = grid_of(items)
    rows, columns = _unequal(grid.rows, now.rows), _unequal(grid.columns, now.columns)
    at = [row * grid.side + column for row, column in product(rows, columns)]
    at = [index for index in at if index < len(items)]
    if len(rows) == len(columns) == 2:
        for first, second in combinations(at, 2):
            if _fit_swapped(grid, items, first, second):
                names = f"{first:,} {items.text(first)} and {second:,} {items.text(second)}"
                return f"items {names} are swapped"
    if not at:  # the short digests of two rows collide
        return "an item differs"
    if len(rows) == 1 or len(columns) == 1:
        return f"{_count_noun(len(at))}: {_quote_items(items, at)}"
    return (
        f"items differ in {len(rows):,} rows and {len(columns):,} columns of {grid.side:,}, "
        f"the first among {_quote_items(items, at)}"
    )


def _length(grid: Grid, items: Items, tokens: Items | None) -> str:
    summary = f"{len(items):,} items instead of {grid.length:,}"
    side, rows = grid.side, len(grid.rows) // _SHORT
    first = next((n for n in range(rows) if _row(items, n, side) != _short(grid.rows, n)), None)
    if first is None:
        return f"{summary}, added behind the last"
    missing = grid.length - len(items)
    start = first * side
    if missing == 1 and _is_shifted(grid, items, first + 1, missing):
        found = _missing_merge(grid, items, first, tokens) if tokens is not None else None
        if found is not None:
            index, merge = found
            return f"{summary}: item {index:,} {merge!r} is missing"
        stop = min(start + side, len(items)) - 1
        return f"{summary}: one is missing between {_quote_items(items, [start, stop], ' and ')}"
    return f"{summary}, different from item {start:,} on"


def _is_shifted(grid: Grid, items: Items, first: int, by: int) -> bool:
    """True if all rows from *first* on are present, *by* items earlier."""
    side, rows = grid.side, len(grid.rows) // _SHORT
    return all(
        _digest(items.between(row * side - by, (row + 1) * side - by)) == _short(grid.rows, row)
        for row in range(first, rows)
    )


def _missing_merge(
    grid: Grid, items: Items, row: int, tokens: Items | None
) -> tuple[int, str] | None:
    """Index and text of the merge that completes *row*.

    A token that no merge produces was produced by the missing one; its split and its position are
    found by trying.
    """
    if tokens is None or tokens.kind != "string" or items.kind != "string":
        return None
    texts = {_text(tokens, at) for at in range(len(tokens))}
    made = {_text(items, at).replace(b" ", b"") for at in range(len(items))}
    cuts = [
        text[:cut] + b" " + text[cut:]
        for text in texts - made
        for cut in range(1, len(text))
        if text[:cut] in texts and text[cut:] in texts
    ]
    start, stop = row * grid.side, (row + 1) * grid.side - 1
    expected = _short(grid.rows, row)
    if len(cuts) * grid.side > _MOST_TRIES:
        return None
    for at in range(start, min(stop, len(items)) + 1):
        before, after = bytes(items.between(start, at)), bytes(items.between(at, stop))
        for cut in cuts:
            if _digest(before + len(cut).to_bytes(8, "little") + cut + after) == expected:
                return at, cut.decode("utf-8", "backslashreplace")
    return None


def _text(items: Items, at: int) -> bytes:
    return bytes(items.between(at, at + 1))[8:]


def _fit_swapped(grid: Grid, items: Items, first: int, second: int) -> bool:
    """True if the rows of two items match after swapping them."""
    places = {first: second, second: first}
    for row in {first // grid.side, second // grid.side}:
        start, stop = row * grid.side, min((row + 1) * grid.side, len(items))
        order = [places.get(at, at) for at in range(start, stop)]
        joined = b"".join(items.between(at, at + 1) for at in order)
        if _digest(joined) != _short(grid.rows, row):
            return False
    return True


def _quote_items(items: Items, at: list[int], glue: str = ", ") -> str:
    more = f" and {len(at) - _SHOWN:,} more" if len(at) > _SHOWN else ""
    return glue.join(f"{index:,} {items.text(index)}" for index in at[:_SHOWN]) + more


def _count_noun(count: int) -> str:
    return "item" if count == 1 else f"{count:,} items"


def _unequal(before: str, now: str) -> list[int]:
    return [n for n in range(len(before) // _SHORT) if _short(before, n) != _short(now, n)]


def _short(digests: str, number: int) -> str:
    return digests[number * _SHORT : (number + 1) * _SHORT]


def _row(items: Items, number: int, side: int) -> str:
    return _digest(items.between(min(number * side, len(items)), (number + 1) * side))


def _column(items: Items, number: int, side: int) -> str:
    return _digest(b"".join(_every(items, number, side)))


def _every(items: Items, first: int, step: int) -> Iterator[memoryview]:
    return (items.between(at, at + 1) for at in range(first, len(items), step))


def _digest(raw: bytes | memoryview) -> str:
    return hashlib.sha256(raw).hexdigest()[:_SHORT]


def _side(length: int) -> int:
    return max(1, math.isqrt(max(0, length - 1)) + 1)
