"""Commands inside sentences and tables of the pages exist, with their options."""

import importlib.util
import re
from pathlib import Path

import pytest
from command_lines import check_command

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"`(?P<program>inv|bitnet) (?P<words>[^`]+)`")
# Placeholders for numbers. Others in capitals stand for texts, which options take as they are.
FILLED = {"--minutes N": "--minutes 1", "--retries=N": "--retries=1"}
ANY_COMMAND = {"X", "COMMAND", "X --help"}


def _mentions():
    """Each command in a sentence as a test case: its program and its words."""
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for match in COMMAND.finditer(text):
            if match["words"] not in ANY_COMMAND:
                yield pytest.param(
                    match["program"], match["words"], id=f"{page.name}: {match['words']}"
                )


MENTIONS = list(_mentions())


def _namespace(program):
    """The commands of *program*; ``inv`` in a checkout has those of developers as well."""
    from bitnet.commands import load

    if program == "bitnet":
        return load()
    spec = importlib.util.spec_from_file_location("tasks_of_the_checkout", ROOT / "tasks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.namespace


def test_sentences_with_commands_are_found():
    assert len(MENTIONS) > 60


@pytest.mark.parametrize(("program", "words"), MENTIONS)
def test_a_command_in_a_sentence_exists(program, words):
    for written, meant in FILLED.items():
        words = words.replace(written, meant)
    check_command(words, _namespace(program), program)
