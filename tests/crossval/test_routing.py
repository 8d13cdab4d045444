"""Positions at which a rounding decides among experts are left out, and only these."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from crossval_evidence import ROW, evidence
from mutants import mutated
from tiny_models import DIM, VOCAB, in_encoding, tiny, write_model

from bitnet import load
from bitnet.crossval.judge import judge
from bitnet.crossval.operations import find_reroutes
from bitnet.crossval.options import CrossvalOptions
from bitnet.crossval.references import REFERENCES
from bitnet.crossval.run import cross_validate
from bitnet.families.blocks import Experts
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
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


def compared(path):
    with load(path) as model:
        reference, options = REFERENCES["llama.cpp"](), CrossvalOptions(greedy=4)
        return cross_validate(model, open_checkpoint(path), reference, options, texts=TEXTS)[0]


@needs_llama_cpp
@pytest.mark.slow
def test_two_right_engines_agree_where_they_choose_the_same_experts(path):
    found = compared(path)
    assert judge(found).status == "passed", judge(found).reasons
    left_out = [row for row in found.rows if row.rerouted]
    assert 0 < len(left_out) < len(found.rows) / 5
    assert "positions where a near-tie decides among experts" in str(judge(found).findings)
    everything = tuple(replace(row, rerouted=()) for row in found.rows)
    assert judge(replace(found, rows=everything)).status != "passed"


def _experts(config, change):
    def changed(branch):
        mixers = (change(it) if isinstance(it, Experts) else it for it in branch.mixers)
        return replace(branch, mixers=tuple(mixers))

    blocks = tuple(tuple(map(changed, block)) for block in config.blocks)
    return replace(config, blocks=blocks)


def _routing(**fields):
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
    """The matrices of the first two experts in turn."""
    parts = weight.data.reshape(weight.shape[0], -1)
    return replace(weight, data=parts[[1, 0, *range(2, len(parts))]].reshape(-1))


def _negate_one(weight):
    data = weight.data.reshape(weight.shape[0], -1, 34).copy()
    data[0, :, 1] ^= 128  # the signs of the scales of the first expert
    return replace(weight, data=data.reshape(-1))


WEIGHTS = {
    "two experts in turn": ("blk.2.ffn_down_exps.weight", _swap),
    "an expert of the other sign": ("blk.1.ffn_up_exps.weight", _negate_one),
}


@needs_llama_cpp
@pytest.mark.slow
@pytest.mark.parametrize("mutant", [*CONFIGURATIONS, *WEIGHTS])
def test_a_mistake_among_experts_does_not_pass(path, mutant):
    with mutated(mutant, CONFIGURATIONS, WEIGHTS):
        verdict = judge(compared(path))
    assert verdict.status == "failed", str(verdict.findings)


def test_only_a_choice_that_a_small_change_explains_is_a_near_tie():
    model = load_model(tiny("qwen3moe", expert_count=4), ops=ReferenceOps(dtype=np.float64))
    plain = np.tile([3.0, 2.0, 0.0, -1.0], (4, 1))
    near, far = plain.copy(), plain.copy()
    near[1:3, 2] = 1.7  # a change by 0.15 of each of the two is 0.1 of the deviation
    right = {"0": near, "1": plain}
    engine = {"0": near.copy(), "1": far}
    engine["0"][1, 2] = 2.1
    far[2, 2] = far[3, 2] = 2.1
    assert find_reroutes(model, right, engine).tolist() == [False, True, False, False]
    engine["0"][3, 2] = 2.1  # from 0.0: nothing explains that, whatever comes later
    right["1"][3], engine["1"][3] = near[1], [3.0, 1.9, 2.0, -1.0]
    assert find_reroutes(model, right, engine).tolist() == [False, True, False, False]


def test_an_engine_that_gives_no_logits_of_a_router_excuses_nothing():
    model = load_model(tiny("qwen3moe", expert_count=4), ops=ReferenceOps(dtype=np.float64))
    logits = np.zeros((3, 4))
    assert not find_reroutes(model, {"0": logits, "1": logits}, {"0": logits + np.eye(3, 4)}).any()


def test_rerouted_positions_are_left_out_unless_they_are_most():
    far = replace(ROW, kl=2.0, ours_kl=2.0, ours=2, rerouted=("ours",))
    assert judge(evidence(*[ROW] * 9, far)).status == "passed"
    for rows in ([*[ROW] * 9, replace(far, rerouted=())], [ROW, far, far]):
        assert judge(evidence(*rows)).status == "failed"


def test_a_reroute_of_one_engine_excuses_no_other():
    theirs = replace(ROW, ours_kl=2.0, rerouted=("theirs",))
    verdict = judge(evidence(*[ROW] * 9, theirs))
    failed = {one.subject for one in verdict.findings if one.severity == "failed"}
    assert failed == {"float64"}
