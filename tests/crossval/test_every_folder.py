"""The whole verdict for every family of folders against transformers."""

import pytest
from asked_here import share_this_process
from compared_folders import FOLDERS, compared_folder
from quiet_libraries import QUIET
from verdicts import check_verdicts

from bitnet.crossval.references import Transformers

pytestmark = [pytest.mark.slow, *QUIET]


@pytest.mark.parametrize("case", FOLDERS)
def test_against_transformers_the_right_model_passes_and_wrong_ones_fail(
    case, tmp_path, monkeypatch
):
    share_this_process(monkeypatch)  # it takes longer to start than to answer
    check_verdicts(compared_folder(case, tmp_path / "model"), Transformers())
