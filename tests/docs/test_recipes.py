"""The recipes of docs/architecture/kernels.md name as many files as name their examples."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/architecture/kernels.md").read_text(encoding="utf-8")
PLACES = (
    *(ROOT / "bitnet/kernels").rglob("*"),
    *(ROOT / "native").rglob("*"),
    *(ROOT / "tests/native").glob("*"),
    ROOT / "bitnet/_native.pyi",
    ROOT / "CMakeLists.txt",
)
SOURCES = [one for one in PLACES if one.suffix in (".py", ".pyi", ".hpp", ".cpp", ".txt")]


def naming(*words):
    """Source files of the kernels that have one of *words*."""
    word = re.compile(rf"\b(?:{'|'.join(words)})\b")
    return {one for one in SOURCES if word.search(one.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("An instruction set", ["avx_vnni"]),
        ("An encoding", ["Q5_1", "Q5_1_R16"]),
        ("An operation", ["gate"]),
    ],
)
def test_a_recipe_has_the_files_of_its_example(recipe, words):
    count, steps = re.search(
        rf"\*\*{recipe}, (\d+) files[^*]*\*\*(.*?)(?=\n- \*\*|\n\n)", TEXT, re.S
    ).groups()
    found = naming(*words)
    assert 0 < len(found) <= int(count)
    assert [one.name for one in found if one.name not in steps] == []
