"""The whole verdict for every family of folders against transformers."""

import pytest
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
CASES = DENSE | MIXED
# As many as the models have rows.
WORDS = (*TOKENS, *(f"<more {number}>" for number in range(TINY["vocab_size"] - len(TOKENS))))


@pytest.mark.parametrize("case", CASES)
def test_against_transformers_the_right_model_passes_and_wrong_ones_fail(case, tmp_path):
    make(*CASES[case], tmp_path / "model")
    check_verdicts(tokenizer_folder(tmp_path / "model", WORDS), Transformers())
