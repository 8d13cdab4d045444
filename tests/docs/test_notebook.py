"""The notebook of the documentation runs without a network, and is kept without output."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs/examples/model.ipynb"
# Runs the notebook whose path is its argument, and prints the outputs of all cells.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient

notebook = NotebookClient(nbformat.read(sys.argv[1], 4), timeout=None).execute()
for cell in notebook.cells:
    for output in cell.get("outputs", []):
        print(output.get("text") or output["data"]["text/plain"])
"""


def cells():
    """The cells of the notebook, as its JSON has them."""
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def run(folder, *words):
    """Output of Python, run with *words* in *folder* and offline; it has to succeed."""
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


def test_the_notebook_holds_no_output():
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]


def test_the_cells_of_the_notebook_run_as_one_program(tmp_path):
    code = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    output = run(tmp_path, "-c", "\n".join(code))
    # One of the cells shows the error for an option of a wrong type.
    assert "temperature is of type str, expected a number" in output


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("nbclient", "ipykernel"))),
    reason="no Jupyter here; pip install 'bitnet-xtask[notebook]'",
)
def test_the_notebook_runs_in_jupyter(tmp_path):
    output = run(tmp_path, "-c", EXECUTE, str(NOTEBOOK))
    assert "<LanguageModel" in output
    assert "temperature is of type str, expected a number" in output
