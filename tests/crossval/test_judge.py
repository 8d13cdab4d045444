"""Verdicts."""

import math
from dataclasses import replace

import pytest

from bitnet.crossval.compare import Comparison, Greedy, Row, TokenizerParity, compare
from bitnet.crossval.judge import bounds_for, judge, surprise
from bitnet.crossval.trace import Position, PromptTrace, Trace

BOUNDS = bounds_for("int8", "int8")
ROW = Row(0, 0, 1, 1, 3.0, False, 1.0, 1e-3, 0.99, 0.1, 1e-3, 2e-3, True)
SAME_TEXTS = TokenizerParity(3, 3)


def verdict(*rows, greedy=(), tokenizer=SAME_TEXTS, **more):
    return judge(Comparison(rows, tuple(greedy)), tokenizer, bounds=BOUNDS, **more)


def texts(next_chance, prompts=4):
    """A trace that gives the next token of every prompt this chance."""
    chances = sorted((next_chance, (1 - next_chance) * 0.9), reverse=True)
    ids = (7, 3) if next_chance > 0.5 else (3, 7)
    position = Position(ids, tuple(map(math.log, chances)), 0.0)
    prompt = PromptTrace("p", (1, 7, 7), (position, position, position))
    return Trace("x", prompts=(prompt,) * prompts)


def test_equal_engines_pass():
    found = verdict(ROW, greedy=[Greedy(0, 8, 8)])
    assert found.status == "passed"
    assert found.reasons == []
    assert [one.subject for one in found.findings] == ["tokenizer", "logits", "top-1", "greedy"]


def test_nothing_compared_is_a_failure():
    found = verdict()
    assert found.status == "failed"
    assert found.reasons == ["positions: no position was compared"]
    empty = judge(None, TokenizerParity(0, 0), bounds=BOUNDS)
    assert empty.status == "failed"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kl": 0.02}, "logits: mean KL 2.0e-02"),
        ({"kl": 0.5}, "worst position 5.0e-01"),
        ({"ours": 2, "exact_agrees": False}, "top-1: 0 of 1"),
    ],
)
def test_a_difference_beyond_the_noise_fails(change, reason):
    found = verdict(replace(ROW, **change))
    assert found.status == "failed"
    assert reason in found.reasons[0]


def test_one_bad_position_among_many_fails_though_the_mean_is_fine():
    rows = [replace(ROW, kl=1e-5)] * 999
    assert verdict(*rows).status == "passed"
    assert verdict(*rows, replace(ROW, kl=0.6)).status == "failed"


def test_near_ties_and_what_float64_decides_for_us_do_not_fail():
    assert verdict(replace(ROW, ours=2, gap=0.1, near_tie=True)).status == "passed"
    assert verdict(replace(ROW, ours=2, exact_agrees=True)).status == "passed"
    parts = Greedy(0, 8, 3, 2.0)
    assert verdict(ROW, greedy=[parts]).status == "failed"
    assert verdict(ROW, greedy=[replace(parts, near_tie=True)]).status == "passed"
    assert verdict(ROW, greedy=[replace(parts, exact_agrees=True)]).status == "passed"


def test_another_tokenizer_fails_and_the_text_is_shown():
    parity = TokenizerParity(3, 2, text="ab", ours=(1, 2), theirs=(3,))
    found = verdict(ROW, tokenizer=parity)
    assert found.status == "failed"
    assert "'ab': ours [1, 2], the reference's [3]" in found.reasons[0]
    assert judge(None, parity, bounds=BOUNDS).status == "failed"
    assert judge(None, SAME_TEXTS, bounds=BOUNDS).status == "passed"


def test_without_a_tokenizer_of_its_own_there_is_nothing_to_compare_tokenizers_with():
    assert judge(None, None, bounds=BOUNDS).status == "not run"


def test_ours_being_far_from_float64_fails_even_beside_a_worse_reference():
    exact = texts(0.5)
    found = verdict(replace(ROW, exact_ours=0.03, exact_theirs=0.04), exact=exact, theirs=exact)
    assert found.status == "failed"
    assert "float64: mean KL 3.0e-02 to ours" in found.reasons[0]


def test_a_broken_reference_is_rejected_and_judges_nothing():
    same = texts(0.5)
    row = replace(ROW, exact_theirs=0.2, kl=0.2, ours=2)
    found = verdict(row, exact=same, theirs=texts(0.4))
    assert (found.status, found.rejected) == ("not run", True)
    assert "rejected, its logits are wrong: mean KL 2.0e-01" in found.reasons[0]
    # A recording is of another machine and time: it cannot be checked here.
    assert verdict(row, exact=same).status == "failed"
    # Our own float64 pass is no judge of itself.
    own = verdict(replace(row, kl=1e-3, ours=1), exact=same, theirs=same, independent=False)
    assert own.status == "passed"


def test_a_reference_that_reads_the_text_better_is_no_broken_one():
    row = replace(ROW, exact_theirs=2.0, kl=2.0)
    found = verdict(row, exact=texts(0.05), theirs=texts(0.8))
    assert (found.status, found.rejected) == ("failed", False)
    assert "we read the model wrong" in found.reasons[0]


def test_a_rejected_reference_leaves_what_the_tokenizers_said():
    row = replace(ROW, exact_theirs=0.2)
    parity = TokenizerParity(3, 2, text="ab", ours=(1, 2), theirs=(3,))
    found = verdict(row, tokenizer=parity, exact=texts(0.5), theirs=texts(0.5))
    assert (found.status, found.rejected) == ("failed", True)


def test_surprise_is_the_mean_of_what_the_next_token_costs():
    assert surprise(texts(0.8)) == pytest.approx(-math.log(0.8))
    assert surprise(Trace("x")) == 0


def test_bounds_follow_from_the_noisier_side():
    exact = bounds_for("float", "float")
    assert exact.mean_kl <= BOUNDS.mean_kl / 100
    assert bounds_for("float", "int8").mean_kl == BOUNDS.mean_kl
    assert bounds_for("float", "int8").mean_kl_to_exact == exact.mean_kl_to_exact
    assert exact.near_tie < bounds_for("float", "int8").near_tie < BOUNDS.near_tie
    # Two C++ engines that are right pass each other's bounds.
    assert BOUNDS.mean_kl >= 2 * 5e-3


def test_the_module_compares_what_compare_gives():
    trace = texts(0.8)
    found = compare(trace, trace, near_tie=BOUNDS.near_tie, exact=trace)
    assert judge(found, None, bounds=BOUNDS, exact=trace, theirs=trace).status == "passed"
