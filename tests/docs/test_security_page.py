"""The bounds that SECURITY.md states are those of the code, in Python and in C++."""

import re
from pathlib import Path

import pytest

from bitnet.tokenizer import chat_child, limits

ROW = re.compile(r"^\| `(\w+)` \| ([0-9,e]+) \|", re.MULTILINE)
PAGE = Path(__file__).parents[2] / "SECURITY.md"
NATIVE = PAGE.parent / "native" / "tokenizer"


def _bounds_on_the_page():
    """Bounds by name, as the page has them."""
    return {name: float(value.replace(",", "")) for name, value in ROW.findall(PAGE.read_text())}


def _bounds_in_the_code():
    """Bounds by name: the public constants of the tokenizer's limits, and those of templates."""
    bounds = {name: value for name, value in vars(limits).items() if name.isupper()}
    bounds |= {name: vars(chat_child)[name] for name in ("CPU_MS", "MAX_CHARS", "MEMORY_BYTES")}
    numbers = {name: value for name, value in bounds.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if not name.startswith("_")}


def test_the_page_states_every_bound_and_nothing_else():
    assert _bounds_on_the_page() == {
        name: value for name, value in _bounds_in_the_code().items() if name != "TYPE_CHECKING"
    }


def test_both_engines_have_the_same_bounds():
    sources = [(NATIVE / name).read_text() for name in ("budget.hpp", "file.hpp")]
    native = dict(re.findall(r"^constexpr \w+ k(\w+) = ([^;]+);", "\n".join(sources), re.MULTILINE))
    # kMaxTokens becomes MAX_TOKENS; Python calls two of the bounds TOKENS and MERGES.
    bounds = {re.sub(r"(?<=[a-z])([A-Z])", r"_\1", k).upper(): text for k, text in native.items()}
    bounds["TOKENS"] = bounds["MAX_TOKENS"]
    bounds["MERGES"] = bounds["MAX_MERGES"]
    shared = bounds.keys() & vars(limits).keys()
    assert len(shared) == 17, sorted(shared)
    for name in shared:
        value = eval(re.sub(r"(?<=\d)[uf]", "", bounds[name]))  # (1u << 21) - 2
        assert value == pytest.approx(vars(limits)[name]), name
