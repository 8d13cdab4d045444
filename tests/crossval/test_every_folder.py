"""The whole verdict for every family of folders against transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
from asked_here import share_this_process
from compared_folders import FOLDERS, compared_folder
from quiet_libraries import QUIET
from sensitivity import assert_only_right_passes, of_transformers
from verdicts import check_verdicts

from bitnet.crossval.operations import describe, list_planned, missing_operations
from bitnet.crossval.references import Transformers
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

pytestmark = [pytest.mark.slow, *QUIET]

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "sensitivity.json"


def test_the_measured_table_has_every_folder():
    row = json.loads(TABLE.read_text(encoding="utf-8"))["measured"]["transformers F32"]
    assert set(row["models"]) == set(FOLDERS)


@pytest.mark.parametrize("case", FOLDERS)
def test_against_transformers_the_right_model_passes_and_wrong_ones_fail(
    case, tmp_path, monkeypatch
):
    share_this_process(monkeypatch)  # another one takes longer to start than to answer
    check_verdicts(compared_folder(case, tmp_path / "model"), Transformers())


@pytest.mark.parametrize("case", FOLDERS)
def test_operations_of_transformers_pass_and_with_a_mistake_fail(case, tmp_path, monkeypatch):
    share_this_process(monkeypatch)
    checkpoint, judged, _ = of_transformers(case, tmp_path)
    exact = load_model(checkpoint, ops=ReferenceOps(dtype=np.float64))

    def verdict(model):
        steps = judged(model)
        missing = missing_operations(steps, list_planned(exact.program), all_of_them=False)
        return describe("transformers", (*steps, *missing), exact.config.n_layers)

    assert_only_right_passes(checkpoint, exact, verdict)
