"""Bounds of agreement: what was measured on right engines passes, several times as much fails."""

import importlib.util
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from asked_here import share_this_process
from cases_of_engines import THEIRS
from crossval_evidence import ROW, evidence
from llama_cpp_models import written
from sensitivity import kept_rows, main
from verdicts import OPTIONS, TEXTS

from bitnet import load
from bitnet.crossval.judge import (
    ALLOWANCE,
    ENOUGH_POSITIONS,
    FLIPPED,
    MOST_TIGHTENING,
    NOISE,
    judge,
    kl_between,
    kl_of_ours,
    kl_of_reference,
)
from bitnet.crossval.plan import spread
from bitnet.crossval.references import LlamaCpp
from bitnet.crossval.run import cross_validate


def test_bounds_follow_from_the_noisier_side():
    noisy, exact, mixed = (
        kl_between(*pair, None, None)
        for pair in (("int8", "int8"), ("float", "float"), ("float", "int8"))
    )
    assert exact <= noisy / 100  # of two engines that do not round activations
    assert mixed == noisy
    assert kl_of_ours("float", "int8", None, positions=ENOUGH_POSITIONS) == exact
    assert kl_of_ours("float", "float", None, positions=ENOUGH_POSITIONS) == exact
    assert kl_of_ours("int8", "int8", None, positions=ENOUGH_POSITIONS) == noisy
    assert kl_of_reference("int8") == noisy
    assert FLIPPED["float32"] < FLIPPED["float"] < FLIPPED["int8"]
    # Two right C++ engines that round to int8 are 5.1e-3 apart: they pass, with room.
    assert noisy >= 2 * 5e-3


# Arithmetic of both engines; mean KL from the float64 pass to ours, from it to the reference, and
# from the reference to ours. The first three are those of benchmarks/results/crossval, the others
# were measured with the weights of SmolLM2 and Gemma 3 as F32.
MEASURED = {
    "smollm2": ("int8", 1.51e-3, 3.06e-3, 3.75e-3),
    "gemma3": ("int8", 9.1e-4, 3.9e-3, 4.6e-3),
    "bitnet-tiny": ("int8", 1.39e-4, 3.2e-4, 2.9e-4),
    "smollm2 in F32": ("float", 3.5e-8, 8.4e-7, 8.7e-7),
    "gemma3 in F32": ("float", 3.3e-7, 6.1e-7, 9.0e-7),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_passes_and_several_times_as_much_does_not(name):
    arithmetic, ours, theirs, between = MEASURED[name]
    most = kl_of_ours(arithmetic, arithmetic, theirs, positions=ENOUGH_POSITIONS)
    assert ours <= most <= max(ALLOWANCE * theirs, ALLOWANCE * NOISE[arithmetic] / MOST_TIGHTENING)
    assert theirs <= kl_of_reference(arithmetic)
    assert between <= kl_between(arithmetic, arithmetic, ours, theirs) <= 5 * between


@pytest.mark.parametrize("theirs", [1.0, 1e9])
def test_a_reference_further_away_than_its_arithmetic_allows_widens_no_bound(theirs):
    wide = kl_of_ours("int8", "int8", None, positions=ENOUGH_POSITIONS)
    assert kl_of_ours("int8", "int8", theirs, positions=ENOUGH_POSITIONS) == wide
    usual = kl_between("int8", "int8", None, None)
    assert kl_between("int8", "int8", 1e-3, theirs) == usual


def test_engines_with_another_arithmetic_do_not_narrow_ours():
    ours = kl_of_ours("int8", "float", 1e-6, positions=ENOUGH_POSITIONS)
    assert ours == pytest.approx(ALLOWANCE * NOISE["int8"])


def test_a_nearer_reference_lowers_our_bound_if_it_was_measured_on_enough_positions():
    # Eight times as far from float64 as the reference, where ALLOWANCE is three.
    further = replace(ROW, kl=5e-4, theirs_kl=1e-4, ours_kl=8e-4)
    assert judge(evidence(*[further] * (ENOUGH_POSITIONS - 1))).status == "passed"
    verdict = judge(evidence(*[further] * ENOUGH_POSITIONS))
    assert [finding.subject for finding in verdict.findings if finding.severity == "failed"] == [
        "float64"
    ]


# Standard deviation of the divergence of one position, as a part of its mean: the largest measured.
SCATTER = 2.9


def draw_rows(seed, count):
    """Positions of two right engines, equally far from float64, as scattered as any measured."""
    random = np.random.default_rng(seed)
    # A log-normal distribution with mean 1e-3 and a standard deviation of SCATTER times that.
    sigma = math.sqrt(math.log(1 + SCATTER**2))
    divergences = random.lognormal(math.log(1e-3) - sigma**2 / 2, sigma, (count, 2))
    return [
        replace(ROW, ours_kl=ours, theirs_kl=theirs, kl=(ours + theirs) / 2)
        for ours, theirs in divergences.tolist()
    ]


@pytest.mark.parametrize("seed", range(8))
def test_right_engines_pass_on_any_number_of_positions(seed):
    rows = draw_rows(seed, 2 * ENOUGH_POSITIONS)
    for count in (*range(1, ENOUGH_POSITIONS), ENOUGH_POSITIONS, 2 * ENOUGH_POSITIONS):
        verdict = judge(evidence(*rows[:count]))
        assert verdict.status == "passed", (count, verdict.reasons)


def cut(whole, limit):
    """The evidence that *whole* would have been with ``--max-positions`` *limit*."""
    shares = spread([len(prompt.ids) for prompt in whole.prompts], limit)
    prompts = [
        replace(prompt, ids=prompt.ids[:share])
        for prompt, share in zip(whole.prompts, shares, strict=True)
    ]
    rows = [row for row in whole.rows if row.position < shares[row.prompt]]
    return replace(whole, prompts=tuple(prompts), rows=tuple(rows))


SLOW = ("falcon", "gemma3", "lfm2", "yarn")  # cases that only the slow tests run


@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)
@pytest.mark.parametrize(
    "case",
    ["linear-without-a-type", *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_a_right_model_passes_with_any_number_of_positions(case, tmp_path, monkeypatch):
    share_this_process(monkeypatch)
    checkpoint = written(tmp_path / "tiny.gguf", *THEIRS[case], encoding="Q8_0")
    with load(checkpoint.path) as model:
        whole, _ = cross_validate(model, checkpoint, LlamaCpp(), OPTIONS, texts=TEXTS)
    for limit in range(1, OPTIONS.max_positions + 1):
        few = cut(whole, limit)
        assert len(few.rows) == limit
        verdict = judge(few)
        assert verdict.status == "passed", (limit, verdict.reasons)


def test_a_table_keeps_the_rows_of_engines_that_are_not_measured_again(tmp_path):
    path = tmp_path / "sensitivity.json"
    assert kept_rows(path, {"a": "1"}, ["bitnet"]) == {}
    rows = {"bitnet F32": {"models": [1]}, "llama.cpp F32": {"models": [2]}}
    path.write_text(json.dumps({"versions": {"a": "1"}, "measured": rows}))
    assert kept_rows(path, {"a": "1"}, ["bitnet"]) == {"llama.cpp F32": {"models": [2]}}
    assert kept_rows(path, {"a": "1"}, []) == rows
    assert kept_rows(path, {"a": "2"}, ["bitnet", "llama.cpp"]) == {}
    with pytest.raises(SystemExit, match="measure every engine again"):
        kept_rows(path, {"a": "2"}, ["bitnet"])
    with pytest.raises(SystemExit):
        main([str(path), "--engines", "bitnet,none"])
    assert json.loads(path.read_text())["measured"] == rows
