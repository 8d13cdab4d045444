"""The page about scale has the tables that its script computes."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture/scale.md").read_text(encoding="utf-8")


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("scale")


@pytest.mark.parametrize("table", ["check_table", "growth_table", "replica_table"])
def test_the_page_has_the_tables_of_the_script(scale, table):
    assert "\n".join(getattr(scale, table)()) in PAGE


def test_the_costs_are_within_half_of_what_was_measured(scale):
    for shape, machine, threads, test, rate in scale.MEASURED:
        assert rate / 1.5 < scale.predict(shape, machine, threads, test) < rate * 1.5


def test_more_cores_never_slow_a_prompt_down(scale):
    seconds = [scale.prefill_s(scale.TERNARY, scale.SERVER96, n, 512) for n in (1, 2, 8, 32, 96)]
    assert seconds == sorted(seconds, reverse=True)
