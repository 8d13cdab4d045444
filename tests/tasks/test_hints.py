"""A hint is pasted into a terminal: the commands and options it names must exist."""

import ast
import re
from pathlib import Path

import pytest

import bitnet
from bitnet.tasks import load

SOURCES = sorted(Path(bitnet.__file__).parent.rglob("*.py"))
COMMAND = re.compile(r"\b(?:bitnet|inv) (?P<name>[a-z][a-z.-]*[a-z])(?P<rest>[^;:,()]*)")
OPTION = re.compile(r"--[a-z][a-z0-9-]*")


def _texts(expression):
    for node in ast.walk(expression):
        if isinstance(node, ast.JoinedStr):
            parts = [getattr(part, "value", "") for part in node.values]
            yield "".join(part if isinstance(part, str) else "X" for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _hints():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                for text in _texts(node.value):
                    for match in COMMAND.finditer(text):
                        yield f"{path.name}:{node.value.lineno}", match


HINTS = list(_hints())


@pytest.mark.parametrize(("place", "match"), HINTS, ids=[place for place, _ in HINTS])
def test_a_hint_names_a_command_and_options_that_exist(place, match):
    commands = load()
    assert match["name"] in commands.task_names
    flags = {"--help"} | {
        f"--{name}" for entry in commands[match["name"]].get_arguments() for name in entry.names
    }
    assert set(OPTION.findall(match["rest"])) <= flags
    assert match[0].startswith("bitnet "), "inv works in a checkout only"
