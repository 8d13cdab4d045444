"""The page of rooms lists every room and every file: docs/architecture/rooms.md."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/architecture/rooms.md"
# A room, what it does, and its files.
ROW = re.compile(r"^\| `([\w/]+)` \| .* \| (.*) \|$", re.MULTILINE)
SOURCES = {"bitnet": ["*.py"], "native": ["*.cpp", "*.hpp"]}


def rooms():
    """Files of each room: a folder of the package or of C++, or a module of the package itself."""
    files = {}
    for top, patterns in SOURCES.items():
        for pattern in patterns:
            for path in (ROOT / top).rglob(pattern):
                folder, *rest = path.relative_to(ROOT / top).parts
                room = f"{top}/{folder}" if rest else top
                files.setdefault(room, set()).add("/".join(rest) or folder)
    return files


ROOMS = rooms()
ROWS = {
    room: set(re.findall(r"`([^`]+)`", files))
    for room, files in ROW.findall(PAGE.read_text(encoding="utf-8"))
}


def test_every_room_has_a_row_and_every_row_a_room():
    assert set(ROWS) == set(ROOMS)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_row_names_the_files_of_its_room(room):
    assert ROWS[room] == ROOMS[room]
