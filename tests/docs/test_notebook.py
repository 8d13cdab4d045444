"""The notebook of the documentation runs without a network, and is kept without output."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs/examples/model.ipynb"
# Its outputs are numbers and texts of one machine: what it holds is what a reader runs.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient

notebook = NotebookClient(nbformat.read(sys.argv[1], 4), timeout=None).execute()
for cell in notebook.cells:
    for output in cell.get("outputs", []):
        print(output.get("text") or output["data"]["text/plain"])
"""


def cells():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def run(folder, *words):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"BITNET_OFFLINE": "1", "BITNET_CACHE_DIR": str(folder / "cache")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_no_output():
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]


def test_its_cells_are_a_program(tmp_path):
    code = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    said = run(tmp_path, "-c", "\n".join(code))
    assert "temperature is of type str, expected a number" in said


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("nbclient", "ipykernel"))),
    reason="no Jupyter here; pip install 'bitnet-xtask[notebook]'",
)
def test_it_runs_in_jupyter(tmp_path):
    said = run(tmp_path, "-c", EXECUTE, str(NOTEBOOK))
    assert "<LanguageModel" in said
    assert "temperature is of type str, expected a number" in said
