"""Engines that choose other experts by rounding pass; a mistake among the experts fails."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from crossval_evidence import ROW, evidence
from mutants import mutated
from tiny_keys import DIM, VOCAB
from tiny_models import in_encoding, tiny, write_model

from bitnet import load
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.crossval.judge import judge
from bitnet.crossval.references import REFERENCES
from bitnet.crossval.run import cross_validate
from bitnet.families.blocks import Experts
from bitnet.formats.containers import open_checkpoint
from bitnet.quants import types
from bitnet.quants.registry import quantize

needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="the extra `crossval` is not installed"
)
TEXTS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ zyxwvutsrqponm abc",
    "thequickbrownfoxjumpsoverthelazydog THE QUICK BROWN fox",
    "etaoin shrdlu etaoin shrdlu ETAOIN",
)
KEYS = {"attention.head_count_kv": 4, "vocab_size": VOCAB, "context_length": 256, "block_count": 4}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A model of small experts with a head that shows every difference of its hidden states."""
    model = in_encoding(tiny("qwen3moe", **KEYS), "Q8_0")
    table = model.weights["token_embd.weight"]
    table.data.view("<f4")[:] *= np.float32(0.05)
    values = np.random.default_rng(4).standard_normal((VOCAB, DIM)).astype(np.float32) * 0.2
    head = quantize("output.weight", values, types.by_name("F32"))
    whole = replace(model, weights=model.weights | {"output.weight": head})
    return write_model(tmp_path_factory.mktemp("experts") / "model.gguf", whole)


def evidence_on(path):
    """Evidence of a comparison of the model at *path* with llama.cpp."""
    with load(path) as model:
        reference = REFERENCES["llama.cpp"]()
        options = CrossvalOptions(greedy=4)
        return cross_validate(model, open_checkpoint(path), reference, options, texts=TEXTS)[0]


@needs_llama_cpp
@pytest.mark.slow
def test_two_right_engines_agree_although_they_choose_other_experts_somewhere(path):
    comparison = evidence_on(path)
    assert judge(comparison).status == "passed", judge(comparison).reasons
    # Of a model without experts, the furthest positions count as well.
    dense = replace(comparison, model=replace(comparison.model, has_experts=False))
    assert judge(dense).status == "failed"


def _experts(config, change):
    """*config* with *change* applied to every mixture of experts."""

    def changed(branch):
        mixers = (change(mixer) if isinstance(mixer, Experts) else mixer for mixer in branch.mixers)
        return replace(branch, mixers=tuple(mixers))

    blocks = tuple(tuple(map(changed, block)) for block in config.blocks)
    return replace(config, blocks=blocks)


def _routing(**fields):
    """A function that returns a configuration with other *fields* of the routing."""

    def change(network):
        return replace(network, routing=replace(network.routing, **fields))

    return lambda config: _experts(config, change)


CONFIGURATIONS = {
    "weights that are not renormalised": _routing(renormalised=False),
    "weights off by 2 %": _routing(scale=1.02),
    "an expert less": _routing(used=1),
    "another gate": lambda it: _experts(it, lambda its: replace(its, activation="gelu_tanh")),
}


def _swap(weight):
    """*weight* with the matrices of the first two experts exchanged."""
    parts = weight.data.reshape(weight.shape[0], -1)
    return replace(weight, data=parts[[1, 0, *range(2, len(parts))]].reshape(-1))


def _negate_one(weight):
    """*weight*, of Q8_0, with the matrix of the first expert negated."""
    data = weight.data.reshape(weight.shape[0], -1, 34).copy()  # (experts, blocks, bytes)
    data[0, :, 1] ^= 128  # the sign of each float16 scale
    return replace(weight, data=data.reshape(-1))


WEIGHTS = {
    "two experts exchanged": ("blk.2.ffn_down_exps.weight", _swap),
    "an expert of the other sign": ("blk.1.ffn_up_exps.weight", _negate_one),
}


@needs_llama_cpp
@pytest.mark.slow
@pytest.mark.parametrize("mutant", [*CONFIGURATIONS, *WEIGHTS])
def test_a_mistake_among_experts_does_not_pass(path, mutant):
    with mutated(mutant, CONFIGURATIONS, WEIGHTS):
        verdict = judge(evidence_on(path))
    assert verdict.status == "failed", str(verdict.findings)


def test_the_nearest_half_of_a_mixture_of_experts_is_judged():
    far = replace(ROW, kl=2.0, ours_kl=2.0, ours=2)
    experts = replace(evidence().model, has_experts=True)
    verdict = judge(evidence(ROW, ROW, far, model=experts))
    assert verdict.status == "passed"
    assert "without the furthest 1 position" in str(verdict.findings)
    # Without experts every position counts; with experts, two of three far ones are too many.
    for rows, model in ([ROW, ROW, far], evidence().model), ([ROW, far, far], experts):
        assert judge(evidence(*rows, model=model)).status == "failed"


def test_a_position_without_numbers_is_among_the_nearest():
    """Such a position is not left out, as a far one would be, and fails."""
    experts = replace(evidence().model, has_experts=True)
    assert judge(evidence(ROW, ROW, replace(ROW, kl=None), model=experts)).status == "failed"
