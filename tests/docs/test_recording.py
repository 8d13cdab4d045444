"""The recording of a terminal shows commands of this program, and loads nothing."""

import re
import shlex
from pathlib import Path

from bitnet.tasks import load

ROOT = Path(__file__).parents[2]
PICTURE = (ROOT / "docs/images/terminal.svg").read_text(encoding="utf-8")
SCRIPT = (ROOT / "docs/recording.py").read_text(encoding="utf-8")


def commands():
    block = re.search(r"^COMMANDS = \((.*?)^\)", SCRIPT, re.DOTALL | re.MULTILINE)[1]
    return [
        shlex.split(line.strip().strip(",").strip("'\"")) for line in block.strip().splitlines()
    ]


def test_it_shows_the_commands_that_the_script_runs():
    known = load().task_names
    assert len(commands()) >= 3
    for words in commands():
        assert words[1] in known
        assert f"bitnet {words[1]}" in re.sub(r"<[^>]*>", "", PICTURE)


def test_it_loads_nothing_and_shows_no_folder_of_a_machine():
    addresses = set(re.findall(r"https?://[^\s\"<]+", PICTURE)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert set(re.findall(r"href=\"(.)", PICTURE)) == {"#"}
    assert not re.search(r"/(home|root|tmp|work|Users)/", PICTURE)
