"""Rooms stay as small as they became: docs/architecture/rooms.md has their files and lines."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/architecture/rooms.md"
ROW = re.compile(r"^\| `([\w/]+)` \| ([\d,]+) \| ([\d,]+) \|", re.MULTILINE)
SLACK = 0.03  # a row may be this much above its room before it must be lowered


def lines_of(paths):
    return sum(len(path.read_bytes().splitlines()) for path in paths)


def rooms():
    """Files of each room: a folder of the package or of C++, or a module of the package itself."""
    found = {}
    for top, patterns in (("bitnet", ["*.py"]), ("native", ["*.cpp", "*.hpp"])):
        for pattern in patterns:
            for path in (ROOT / top).rglob(pattern):
                parts = path.relative_to(ROOT / top).parts
                room = f"{top}/{parts[0]}" if len(parts) > 1 else top
                found.setdefault(room, []).append(path)
    return found


ROOMS = rooms()
ROWS = {
    room: (int(files.replace(",", "")), int(lines.replace(",", "")))
    for room, files, lines in ROW.findall(PAGE.read_text(encoding="utf-8"))
}


def test_every_room_has_a_row_and_every_row_a_room():
    assert set(ROWS) == set(ROOMS)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_grows_only_where_its_row_does(room):
    """Raise the row in the commit that says why; lower it when the room became smaller."""
    files, lines = ROWS.get(room, (0, 0))
    assert len(ROOMS[room]) <= files
    assert lines * (1 - SLACK) - 20 <= lines_of(ROOMS[room]) <= lines
