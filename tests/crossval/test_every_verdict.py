"""The whole verdict for every family against every engine that reads it."""

import importlib.util

import pytest
from cases_of_engines import THEIRS
from llama_cpp_models import written
from sensitivity import OTHERWISE, READ_BY_IK, REFUSED, TOO_SLOW
from verdicts import check_verdicts

from bitnet.crossval.references import REFERENCES

pytestmark = pytest.mark.slow

# llama.cpp does not load these, computes them differently, or takes too long.
LEFT_OUT = (*REFUSED, *OTHERWISE, *TOO_SLOW)


def needs(module):
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None,
        reason=f"{module} is not installed: an extra of crossval",
    )


@needs("xllamacpp")
@pytest.mark.parametrize("case", [name for name in THEIRS if name not in LEFT_OUT])
def test_against_llama_cpp_the_right_model_passes_and_wrong_ones_fail(case, tmp_path):
    path = written(tmp_path / "tiny.gguf", *THEIRS[case], encoding="Q8_0").path
    check_verdicts(path, REFERENCES["llama.cpp"]())


@needs("ik_llama_cpp")
@pytest.mark.parametrize("case", READ_BY_IK)
def test_against_ik_llama_cpp_the_right_model_passes_and_wrong_ones_fail(case, tmp_path):
    path = written(tmp_path / "tiny.gguf", *THEIRS[case], encoding="Q8_0").path
    check_verdicts(path, REFERENCES["ik_llama.cpp"]())
