"""A hint is followed as printed, and then the command that failed works.

Here the program is ``python -m bitnet``. ``.ci/doors`` follows the hints of its other entry points,
and those that need the package index.
"""

import sys
from pathlib import Path

import pytest
from following import follow_in
from hint_cases import CASES
from hint_pages import EXTRAS, PAGES
from hints import COMMANDS, EXTRA, SOURCES

from bitnet.base.invocation import as_typed

INSTALLED = f"{as_typed(sys.executable)} -m bitnet"  # as its hints name it


def test_every_hint_that_names_a_command_is_followed():
    """A hint without a row in the table of those that are followed fails here."""
    written = {words for _, _, words in COMMANDS}
    with_case = {case.hint for case in CASES}
    # Every hint has a case or a page, none has both, and the tables have no others.
    assert written - with_case - PAGES.keys() == set(), "give each a case in hint_cases.py"
    assert (with_case | PAGES.keys()) - written == set(), "no text has these any more"
    assert with_case & PAGES.keys() == set()
    assert all(PAGES.values())


def test_every_extra_in_a_hint_is_followed():
    sources = [path.read_text(encoding="utf-8") for path in SOURCES if path.suffix == ".py"]
    named = {name or extra for source in sources for name, extra in EXTRA.findall(source)}
    # The first needs gigabytes of torch, and has a job of its own; the second is for machines
    # without the compiled module.
    assert named == EXTRAS.keys() | {"parity", "sentencepiece"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="hints are written for a POSIX shell")
@pytest.mark.parametrize("case", [c for c in CASES if not c.network], ids=lambda case: case.name)
def test_the_hint_is_followed_and_then_it_works(case):
    assert follow_in(case, INSTALLED) == ""


def test_the_script_for_other_entry_points_follows_hints_and_all_extras():
    script = (Path(__file__).parents[2] / ".ci/doors").read_text(encoding="utf-8")
    assert "following.py" in script
    assert all(extra in script for extra in EXTRAS)
