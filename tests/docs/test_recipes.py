"""The recipes of docs/architecture/kernels.md: how many files an addition changes, and which.

Each recipe has an example: the files in which its name occurs are the ones to change.
"""

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
SOURCES = [path for path in PLACES if path.suffix in (".py", ".pyi", ".hpp", ".cpp", ".txt")]


def files_with(*words):
    """Source files of the kernels in which one of *words* occurs."""
    word = re.compile(rf"\b(?:{'|'.join(words)})\b")
    return {path for path in SOURCES if word.search(path.read_text(encoding="utf-8"))}


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
    files = files_with(*words)
    assert 0 < len(files) <= int(count)
    assert [path.name for path in files if path.name not in steps] == []
