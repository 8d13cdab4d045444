"""The whole verdict for every family of folders against transformers."""

import pytest
from asked_here import share_this_process
from dense_models import DENSE
from hf_folders import tokenizer_folder
from hf_models import TINY, make
from mixed_models import MIXED
from tiny_models import TOKENS
from verdicts import check_verdicts

from bitnet.crossval.references import Transformers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
# transformers has no MiniCPM: the code of those repositories is their own.
CASES = {case: model for case, model in (DENSE | MIXED).items() if model[0] != "MiniCPM"}
# The epsilon of its configuration, 1e-8, is too small for a mistake in it to be seen.
CASES["helium"] = ("Helium", DENSE["helium"][1] | {"rms_norm_eps": 1e-6})
# As many as the models have rows.
WORDS = (*TOKENS, *(f"<more {number}>" for number in range(TINY["vocab_size"] - len(TOKENS))))


@pytest.mark.parametrize("case", CASES)
def test_against_transformers_the_right_model_passes_and_wrong_ones_fail(
    case, tmp_path, monkeypatch
):
    share_this_process(monkeypatch)  # it takes longer to start than to answer
    make(*CASES[case], tmp_path / "model")
    check_verdicts(tokenizer_folder(tmp_path / "model", WORDS), Transformers())
