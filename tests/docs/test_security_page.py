"""The bounds that SECURITY.md states are those of the code, in Python and in C++."""

import re
from pathlib import Path

import pytest

from bitnet.base import native
from bitnet.tokenizer import chat_child, limits

ROW = re.compile(r"^\| `(\w+)` \| ([0-9,e]+) \|", re.MULTILINE)
PAGE = Path(__file__).parents[2] / "SECURITY.md"


def _stated():
    return {name: float(value.replace(",", "")) for name, value in ROW.findall(PAGE.read_text())}


def _held():
    held = {name: value for name, value in vars(limits).items() if name.isupper()}
    held |= {name: vars(chat_child)[name] for name in ("CPU_MS", "MAX_CHARS", "MEMORY_BYTES")}
    return {name: float(value) for name, value in held.items() if not name.startswith("_")}


def test_the_page_states_every_bound_and_nothing_else():
    assert _stated() == {name: value for name, value in _held().items() if name != "TYPE_CHECKING"}


@pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
def test_both_engines_have_the_same_bounds():
    for name, value in native.module().tokenizer_bounds().items():
        assert value == pytest.approx(vars(limits)[name])
