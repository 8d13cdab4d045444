"""Experts: routing computed by hand, and products independent of batch and threads."""

from dataclasses import replace

import numpy as np
import pytest
from single import compute
from tiny_models import in_encoding, tiny

from bitnet.base import native
from bitnet.base.errors import InferenceError
from bitnet.families.blocks import Routing
from bitnet.kernels import packing
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.mixer_instructions import Combine, ExpertLinear, Route
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Pass, Register, Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

NATIVE = native.module()
ONLY_NATIVE = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")
BACKENDS = [ReferenceOps(), pytest.param("native", marks=ONLY_NATIVE)]


@pytest.fixture(params=BACKENDS, ids=["reference", "native"])
def ops(request):
    return NativeOps() if request.param == "native" else request.param


def route(ops, logits, rule, bias=None):
    """Experts and weights of one token, by descending score."""
    experts, weights = route_tokens(ops, np.array([logits], dtype=np.float32), rule, bias)
    return experts[0].tolist(), weights[0].tolist()


def route_tokens(ops, logits, rule, bias):
    """Experts and weights of each token, ``(T, rule.used)``."""
    bias = "" if bias is None else np.array(bias, dtype=np.float32)
    widths = {"experts": rule.used, "weights": rule.used}
    return compute(ops, Route, {"logits": logits}, widths, bias=bias, routing=rule)


def test_a_sparse_softmax_has_only_the_logits_near_the_best_remaining_one(ops):
    """The last logit is far from each of the others, and the first from the second and third."""
    rule = Routing(4, 2, "sparse", renormalised=False, nearness=0.02)
    logits = [3.0, 1.0, 0.99, -4.0]
    experts, weights = route(ops, logits, rule)
    assert experts == [0, 1]
    assert weights == pytest.approx([1.0, 1 / (1 + np.exp(-0.01))], rel=1e-6)


def test_softmax_weights_are_shares_among_all_experts(ops):
    logits = np.log([1, 4, 2, 3])
    experts, weights = route(ops, logits, Routing(4, 2, renormalised=False))
    assert experts == [1, 3]
    assert weights == pytest.approx([0.4, 0.3], rel=1e-6)


def test_weights_are_divided_by_their_sum_and_scaled(ops):
    experts, weights = route(ops, np.log([1, 4, 2, 3]), Routing(4, 2, scale=2.5))
    assert experts == [1, 3]
    assert weights == pytest.approx([2.5 * 4 / 7, 2.5 * 3 / 7], rel=1e-6)


def test_softmax_chosen_weights_are_shares_among_the_chosen_experts(ops):
    rule = Routing(4, 3, "softmax_chosen", renormalised=False)
    experts, weights = route(ops, np.log([1, 4, 2, 3]), rule)
    assert experts == [1, 3, 2]
    assert weights == pytest.approx([4 / 9, 3 / 9, 2 / 9], rel=1e-6)


def test_a_bias_decides_the_choice_and_not_the_weights(ops):
    rule = Routing(3, 1, "sigmoid", renormalised=False)
    experts, weights = route(ops, [0.0, 1.0, -1.0], rule, bias=[0, 0, 1])
    assert experts == [2]
    assert weights == pytest.approx([1 / (1 + np.e)], rel=1e-6)


def test_of_equal_scores_the_lower_expert_is_chosen(ops):
    assert route(ops, [1, 2, 2, 1, 2], Routing(5, 4))[0] == [1, 2, 4, 0]


def test_experts_outside_of_the_best_groups_are_not_chosen(ops):
    # Sums of the two best: 5 + 4, 6 + 0 and 4 + 4.5; the single best expert is in the second group.
    logits = [5, 4, 0, 6, 0, 0, 4, 4.5, 0]
    rule = Routing(9, 3, "softmax_chosen", groups=3, groups_used=2, renormalised=False)
    assert route(ops, logits, rule)[0] == [0, 7, 1]


def test_the_first_of_equal_groups_is_chosen(ops):
    rule = Routing(4, 1, "softmax_chosen", groups=2, groups_used=1, renormalised=False)
    assert route(ops, [1, 2, 2, 1], rule)[0] == [1]


def test_a_sum_of_weights_near_zero_does_not_become_infinite(ops):
    _, weights = route(ops, [-60.0, -60.0], Routing(2, 2, "sigmoid"))
    # The sum is not less than 2^-14, the smallest normal float16.
    assert weights == pytest.approx([np.exp(-60) * 2**14] * 2, rel=1e-5)


@ONLY_NATIVE
@pytest.mark.parametrize(
    "rule", [Routing(64, 6), Routing(64, 5, "sigmoid", groups=8, groups_used=3)]
)
def test_both_backends_choose_the_same_experts_with_nearly_the_same_weights(rule):
    logits = np.random.default_rng(1).standard_normal((50, 64)).astype(np.float32)
    bias = np.random.default_rng(2).standard_normal(64).astype(np.float32)
    expected, found = (
        route_tokens(its, logits, rule, bias) for its in (ReferenceOps(), NativeOps())
    )
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


def test_a_mixture_is_the_sum_of_weighted_products_of_the_two_best_experts():
    """Of three experts with biases, for four tokens, computed token by token."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 5))
    matrices = rng.standard_normal((3, 2, 5))
    biases = rng.standard_normal((3, 2))
    logits = rng.standard_normal((4, 3))
    ops = ReferenceOps(dtype=np.float64)
    on = Pass(None, {"m": tuple(matrices), "b": biases.reshape(-1)}, ops, [])
    rule = Routing(3, 2)
    h = Register("h", 5)
    router = Register("logits", 3)
    chosen = Register("chosen", 2)
    weights = Register("weights", 2)
    y = Register("y", 4)
    out = Register("out", 2)
    on.registers |= {h: x, router: logits}
    for one in (
        Route(chosen, weights, router, "", rule),
        ExpertLinear((y,), h, chosen, ("m",), ("b",)),
        Combine(out, y, weights),
    ):
        one.run(on)
    for token in range(4):
        best = np.argsort(-logits[token])[:2]
        share = np.exp(logits[token, best]) / np.exp(logits[token, best]).sum()
        products = [matrices[e] @ x[token] + biases[e] for e in best]
        expected = share[0] * products[0] + share[1] * products[1]
        np.testing.assert_allclose(on.registers[out][token], expected)


def states(model, cuts):
    """Hidden states of 40 ids, run in parts that end at *cuts*, ``(40, dim)``."""
    cache = KVCache(model.config, 64)
    ids = np.random.default_rng(5).integers(0, 64, 40).tolist()
    parts = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    return np.concatenate([model.hidden([Segment(it, cache, "all")])[0] for it in parts])


@ONLY_NATIVE
@pytest.mark.parametrize("encoding", ["F16", "Q8_0", "Q4_K", "TQ2_0"])
@pytest.mark.parametrize("rounds", [False, True])
def test_a_token_has_the_same_bits_in_any_batch_and_with_any_threads(encoding, rounds):
    checkpoint = in_encoding(tiny("qwen3moe"), encoding)
    weights = {
        name: replace(weight, rounds_input=rounds) for name, weight in checkpoint.weights.items()
    }
    checkpoint = replace(checkpoint, weights=weights)
    whole = states(load_model(checkpoint, ops=NativeOps(threads=1)), [])
    model = load_model(checkpoint, ops=NativeOps(threads=2))
    for cuts in ([], [1, 2, 3], [7, 39], [17]):
        np.testing.assert_array_equal(states(model, cuts), whole)


@ONLY_NATIVE
@pytest.mark.parametrize(
    "encoding", ["F16", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "IQ4_NL", "Q3_K", "TQ2_0"]
)
def test_experts_read_in_the_file_give_the_bits_of_their_copies(encoding, monkeypatch):
    checkpoint = in_encoding(tiny("qwen3moe"), encoding)
    states_by_setting = {}
    for setting in ("copied", "mapped"):
        monkeypatch.setenv("BITNET_EXPERTS", setting)
        model = load_model(checkpoint, ops=NativeOps())
        states_by_setting[setting] = states(model, [1, 2, 25])
        expert = model.ops.reads(model._weights["blk.0.ffn_up_exps.weight"][1])[0]
        in_place = np.shares_memory(expert, checkpoint.weights["blk.0.ffn_up_exps.weight"].data)
        # The kernels cannot read these two encodings as a file has them.
        assert in_place == (setting == "mapped" and encoding not in ("Q3_K", "TQ2_0"))
    np.testing.assert_array_equal(states_by_setting["mapped"], states_by_setting["copied"])


@ONLY_NATIVE
def test_experts_stay_in_the_file_if_their_copies_do_not_fit(monkeypatch):
    checkpoint = in_encoding(tiny("qwen3moe"), "Q8_0")
    weights = checkpoint.weights.values()
    kinds = native.module().kernel_types()
    total = sum(packing.bytes_in_memory(weight, kinds) for weight in weights)
    experts = sum(weight.size_bytes for weight in weights if len(weight.shape) == 3)
    monkeypatch.setattr(packing, "free_swap", lambda: 0)
    # Bytes of free memory (None: unknown), and whether experts stay in the file.
    for free, stay in ((None, False), (total, False), (total - 1, True), (total - experts, True)):
        monkeypatch.setattr(packing, "free_memory", lambda free=free: free)
        assert packing.experts_stay(weights, kinds) == stay
    monkeypatch.setattr(packing, "free_memory", lambda: total - experts - 1)
    with pytest.raises(InferenceError, match="must be in memory"):
        load_model(checkpoint, ops=NativeOps())
