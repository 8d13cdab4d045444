"""The compiled engine's tables of code points are what the `tokenizers` library believes."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "native/tokenizer"


@pytest.mark.slow
def test_the_tables_are_what_their_generator_writes():
    command = [sys.executable, FOLDER / "unicode_tables.py"]
    written = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    assert written == (FOLDER / "unicode_tables.hpp").read_text(encoding="utf-8")
