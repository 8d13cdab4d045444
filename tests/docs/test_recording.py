"""The pictures of terminals show commands of this program, and load nothing."""

import re
import shlex
from pathlib import Path

import pytest

from bitnet.commands import load

ROOT = Path(__file__).parents[2]
PICTURES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in (ROOT / "docs/images").glob("terminal*.svg")
}
SCRIPT = (ROOT / "docs/recording.py").read_text(encoding="utf-8")


def commands():
    """Words of each command that docs/recording.py runs."""
    block = re.search(r"^COMMANDS = \((.*?)^\)", SCRIPT, re.DOTALL | re.MULTILINE)[1]
    return [
        shlex.split(line.strip().strip(",").strip("'\"")) for line in block.strip().splitlines()
    ]


def test_the_picture_shows_the_commands_that_the_script_runs():
    known = load().task_names
    assert len(commands()) >= 3
    for words in commands():
        assert words[1] in known
        assert f"bitnet {words[1]}" in re.sub(r"<[^>]*>", "", PICTURES["terminal"])


def test_there_is_a_picture_of_each_size():
    sizes = re.findall(r"^    \((\d+), (\d+)\): \"bitnet ", SCRIPT, re.MULTILINE)
    assert {f"terminal-{columns}x{lines}" for columns, lines in sizes} == PICTURES.keys() - {
        "terminal"
    }


@pytest.mark.parametrize("name", ["terminal-80x24", "terminal-120x40"])
def test_the_text_of_a_picture_fits_its_terminal(name):
    columns, lines = map(int, re.findall(r"\d+", name))
    rows = re.findall(r"<text [^>]*>(.*?)</text>", PICTURES[name])
    assert lines // 2 < len(rows) <= lines  # it is filled for the most part
    texts = [re.sub(r"&\w+;", "&", re.sub(r"<[^>]*>", "", row)) for row in rows]
    assert columns - 5 < max(map(len, texts)) <= columns  # and its width is used


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)
def test_a_picture_loads_nothing_and_shows_no_folder_of_a_machine(picture):
    addresses = set(re.findall(r"https?://[^\s\"<]+", picture)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert set(re.findall(r"href=\"(.)", picture)) <= {"#"}
    assert "@media (prefers-color-scheme: dark)" in picture
    assert not re.search(r"/(home|root|tmp|work|Users)/", picture)


def test_readers_who_want_less_motion_get_the_last_frame():
    picture = PICTURES["terminal"]
    last = re.findall(r'<g id="(f\d+)">', picture)[-1]
    rule = re.search(r"@media \(prefers-reduced-motion: reduce\) \{(.*)\}", picture)[1]
    assert "animation: none !important" in rule
    assert f"#{last} {{ animation: none; visibility: visible }}" in rule
    assert "prefers-reduced-motion" in SCRIPT
