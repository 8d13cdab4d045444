"""The picture of speed in the README is drawn from the measurements that are kept beside it."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plot():
    """The script that draws the picture, as a module."""
    spec = importlib.util.spec_from_file_location("speed_plot", ROOT / "benchmarks/speed_plot.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_picture_is_what_the_measurements_say(plot):
    assert plot.PICTURE.read_text(encoding="utf-8") == plot.picture()


def test_the_table_of_machines_is_what_the_measurements_say():
    program = ROOT / "benchmarks/machines.py"
    assert subprocess.run([sys.executable, program, "--check"], check=False).returncode == 0


def test_the_picture_has_a_bar_for_each_engine_and_kind_as_long_as_its_rate(plot):
    drawn = ElementTree.fromstring(plot.picture())
    bars = [element for element in drawn.iter() if element.get("class") in ("ours", "peer")]
    # Two kinds of speed for each engine of a group.
    assert len(bars) == sum(2 * len(group.bars) for group in plot.GROUPS) == 22
    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    for group in plot.GROUPS:
        for kind in plot.KINDS:
            rates = {name: plot.rate(group, row, kind) for name, row in group.bars.items()}
            assert set(rates) <= set(texts)
            assert {f"{rate:,.0f}" for rate in rates.values()} <= set(texts)
    # In the first group, every second bar is of prefill; widths are relative to the first one's.
    widths = [float(bar.get("width")) for bar in bars[: 2 * len(plot.GROUPS[0].bars) : 2]]
    prefill = [plot.rate(plot.GROUPS[0], row, "pp512") for row in plot.GROUPS[0].bars.values()]
    assert [width / widths[0] for width in widths] == pytest.approx(
        [rate / prefill[0] for rate in prefill], rel=1e-2
    )


def test_the_readme_shows_the_picture_of_speed():
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert "docs/images/speed.svg" in shown
    assert all((ROOT / path).is_file() for path in shown)


def test_no_text_is_clipped(plot):
    root = ElementTree.fromstring(plot.picture())
    for text in (element for element in root.iter() if element.tag.endswith("}text")):
        wide = 7 * len(text.text)  # pixels of a letter in the largest size, and more than most take
        assert float(text.get("x")) + wide <= plot.WIDTH, text.text
