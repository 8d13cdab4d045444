"""Operations of every family against every reference: the right graph passes, a wrong one fails."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from llama_cpp_models import CASES, IDS, OF_EXPERTS, OF_STATES, written
from mutants import attending, rotated
from tiny_models import FAMILIES, HYBRIDS, LAYERED, MIXTURES, in_encoding, tiny

from bitnet.base import native
from bitnet.crossval.operations import (
    check_operations,
    describe,
    list_planned,
    missing_operations,
    our_intermediates,
    reference_operations,
)
from bitnet.crossval.references import LlamaCpp
from bitnet.crossval.trace import EngineFailed, Prompt, Question
from bitnet.families.blocks import LatentAttention
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Mark
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import config_from, load_model
from bitnet.models.transformer import Model

EVERY = (*FAMILIES, *HYBRIDS, *LAYERED, *MIXTURES)
needs_native = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)
needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)


def with_other_epsilon(config):
    def change(mixer):
        return replace(mixer, eps=mixer.eps * 100) if isinstance(mixer, LatentAttention) else mixer

    return replace(attending(config, change), norm_eps=config.norm_eps * 100)


CONFIGURATIONS = {
    "epsilon x100": with_other_epsilon,
    "theta x1.02": lambda it: rotated(it, lambda rope: replace(rope, theta=rope.theta * 1.02)),
}


def wrong_models(checkpoint):
    """Float64 models of *checkpoint* with one mistake each, by the name of the mistake."""
    ops, config = ReferenceOps(dtype=np.float64), config_from(checkpoint)
    has_rope = any(getattr(mixer, "rope", None) is not None for mixer in config.mixers())
    for name, change in CONFIGURATIONS.items():
        if name != "theta x1.02" or has_rope:
            yield name, Model(checkpoint, change(config), ops=ops)
    norms = [name for name in checkpoint.weights if name.endswith("norm.weight")]
    for name in norms[: len(norms) // 2 + 1]:
        values = checkpoint.weights[name].data.view("<f4") * np.float32(1.01)
        changed = replace(checkpoint.weights[name], data=values.view(np.uint8))
        other = replace(checkpoint, weights={**checkpoint.weights, name: changed})
        yield f"{name} x1.01", Model(other, config, ops=ops)


@pytest.mark.parametrize("architecture", EVERY)
def test_no_two_intermediates_have_one_name(architecture):
    program = load_model(tiny(architecture), ops=ReferenceOps()).program
    names = [step.name for step in program.instructions if isinstance(step, Mark)]
    assert len(names) == len(set(names))
    planned = [name for group in list_planned(program) for name in group]
    assert planned == [*names, "result_output"]


@needs_native
@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("encoding", ["Q8_0", pytest.param("F32", marks=pytest.mark.slow)])
def test_our_operations_pass_and_with_a_mistake_fail(architecture, encoding):
    checkpoint = in_encoding(tiny(architecture), encoding)
    ours = our_intermediates(load_model(checkpoint, ops=NativeOps()), IDS)
    exact = load_model(checkpoint, ops=ReferenceOps(dtype=np.float64))
    arithmetic = "float" if encoding == "F32" else "int8"

    def judged(model):
        steps = check_operations(
            model, checkpoint, IDS, ours, arithmetic=arithmetic, half_cache=False
        )
        missing = missing_operations(steps, list_planned(exact.program), all_of_them=True)
        return describe("bitnet", (*steps, *missing), exact.config.n_layers)

    is_right, text = judged(exact)
    assert is_right, text
    for mistake, wrong in wrong_models(checkpoint):
        assert not judged(wrong)[0], mistake


# Why llama.cpp (xllamacpp 2026) does not run a file of ours, if it does not.
REFUSED = {
    "bitnet-b1.58": "its name for the family is bitnet, with other operations",
    "helium": "it has no such family",
    "opt": "it has no such family",
}
LLAMA_CPP = {name: (name, {}) for name in (*FAMILIES, *LAYERED)} | CASES | OF_STATES | OF_EXPERTS
QUICK = ("phi3", "lfm2", "gpt-oss-experts")


@needs_llama_cpp
@pytest.mark.parametrize(
    "case",
    [
        case
        if case in ("phi3", "lfm2", "gpt-oss-experts")
        else pytest.param(case, marks=pytest.mark.slow)
        for case in LLAMA_CPP
    ],
)
def test_operations_of_llama_cpp_pass_and_with_a_mistake_fail(case, tmp_path):
    checkpoint = written(tmp_path / "tiny.gguf", *LLAMA_CPP[case])
    question = Question(checkpoint, prompts=(Prompt("", IDS),))
    if case in REFUSED:
        with pytest.raises(EngineFailed):
            LlamaCpp().intermediates(question)
        return
    reference, intermediates = LlamaCpp(), {}
    answer = reference.intermediates

    def remembered(asked):
        (prompt,) = asked.prompts
        if prompt.ids not in intermediates:
            intermediates[prompt.ids] = answer(asked)
        return intermediates[prompt.ids]

    reference.intermediates = remembered
    exact = load_model(checkpoint, ops=ReferenceOps(dtype=np.float64))

    def judged(model):
        steps = reference_operations(reference, question, model)
        missing = missing_operations(steps, list_planned(exact.program), all_of_them=False)
        return describe("llama.cpp", (*steps, *missing), exact.config.n_layers)

    is_right, text = judged(exact)
    assert is_right, text
    for mistake, wrong in wrong_models(checkpoint):
        assert not judged(wrong)[0], mistake
