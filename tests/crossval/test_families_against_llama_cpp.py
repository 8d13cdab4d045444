"""Every family that llama.cpp knows, and keys of GGUF files, against llama.cpp itself."""

import importlib.util

import numpy as np
import pytest
from llama_cpp_models import CASES, IDS, OF_EXPERTS, written

from bitnet.base.errors import Unsupported
from bitnet.crossval.references import LlamaCpp
from bitnet.crossval.trace import Prompt, Question
from bitnet.formats.containers import open_gguf
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime.scheduler import Scheduler

# Of the range of the logits: llama.cpp keeps keys and values in float16.
MAX_RELATIVE_DIFFERENCE = 5e-3

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in OF_EXPERTS)]
)
def test_logits_are_those_of_llama_cpp(case, tmp_path):
    checkpoint = written(tmp_path / "tiny.gguf", *(CASES | OF_EXPERTS)[case])
    (theirs,) = LlamaCpp().trace(Question(checkpoint, prompts=(Prompt("", IDS),))).prompts
    ours = Scheduler(load_model(checkpoint, ops=ReferenceOps()), cache_dtype=np.float32).logits(IDS)
    assert len(theirs.positions) == len(IDS)
    for row, position in zip(ours, theirs.positions, strict=True):
        apart = np.abs(row[list(position.ids)] - position.logits).max() / np.ptp(ours)
        assert apart < MAX_RELATIVE_DIFFERENCE


def test_experts_in_mxfp4_are_those_of_llama_cpp(tmp_path):
    """Up to its rounding of inputs to eight bits, which could change a choice among experts."""
    keys = {"expert_used_count": 6}
    checkpoint = written(tmp_path / "tiny.gguf", "gpt-oss", keys, experts="MXFP4")
    assert checkpoint.weights["blk.0.ffn_up_exps.weight"].quant.name == "MXFP4"
    (theirs,) = LlamaCpp().trace(Question(checkpoint, prompts=(Prompt("", IDS),))).prompts
    ours = Scheduler(load_model(checkpoint, ops=ReferenceOps()), cache_dtype=np.float32).logits(IDS)
    for row, position in zip(ours, theirs.positions, strict=True):
        apart = np.abs(row[list(position.ids)] - position.logits).max() / np.ptp(ours)
        assert apart < 4 * MAX_RELATIVE_DIFFERENCE  # with inputs in eight bits beside the cache


@pytest.mark.parametrize(
    ("architecture", "keys", "zero"),
    [
        ("gemma2", {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
        ("gemma2", {"final_logit_softcapping": 0.0}, "final_logit_softcapping"),
        ("exaone4", {"block_count": 64}, "attention.sliding_window"),
    ],
)
def test_a_key_of_zero_with_which_llama_cpp_gives_no_usable_logits_is_refused(
    architecture, keys, zero, tmp_path
):
    checkpoint = written(tmp_path / "tiny.gguf", architecture, keys)
    # The question needs a configuration, which the key would refuse. llama.cpp reads the file as it
    # is, with the key.
    without = open_gguf(checkpoint.path, ignore_keys=[f"{architecture}.{zero}"])
    (theirs,) = LlamaCpp().trace(Question(without, prompts=(Prompt("", IDS),))).prompts
    for position in theirs.positions:  # not finite, or all equal
        assert not (position.is_finite and position.gap)
    with pytest.raises(Unsupported, match=rf"{architecture}\.{zero} = 0"):
        load_model(checkpoint)
