"""Comparisons of traces, with numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.crossval.compare import compare, divergence, nearness
from bitnet.crossval.evidence import Row
from bitnet.crossval.trace import EngineFacts, Position, PromptTrace, Trace, positions_from


def position(*chances, ids=None):
    """A position whose stored tokens have these probabilities; they may leave something over."""
    order = sorted(range(len(chances)), key=lambda at: -chances[at])
    names = list(range(len(chances))) if ids is None else list(ids)
    logits = tuple(math.log(chances[at]) for at in order)
    return Position(tuple(names[at] for at in order), logits, 0.0)


def trace(*positions, greedy=(), gaps=(), ids=None):
    """A trace of one prompt with these *positions*; its ids are 0, 1, ... or *ids*."""
    ids = tuple(range(len(positions))) if ids is None else ids
    return Trace(EngineFacts("x"), prompts=(PromptTrace("p", ids, positions, greedy, gaps),))


def test_divergence_of_whole_distributions_is_the_textbook_one():
    p = position(0.5, 0.25, 0.25)
    q = position(0.25, 0.25, 0.5)
    # The sum of p log(p / q); the second token is equally likely in both.
    expected = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert divergence(p, q) == pytest.approx(expected)
    assert divergence(p, p) == 0


def test_what_is_not_stored_counts_as_one_event():
    p = position(0.5, 0.3)  # 0.2 and 0.4 are left over
    q = position(0.3, 0.3)
    assert divergence(p, q) == pytest.approx(0.5 * math.log(5 / 3) + 0.2 * math.log(0.5))


def test_a_token_the_other_lacks_is_at_most_as_likely_as_its_last():
    p = position(0.9, 0.05, ids=[7, 8])
    q = position(0.5, 0.02, ids=[1, 2])  # token 7 has at most 0.02
    expected = 0.9 * math.log(0.9 / 0.02) + 0.05 * math.log(0.05 / 0.02)
    # What is left over of p is 0.05, and of q at most everything.
    assert divergence(p, q) == pytest.approx(expected + 0.05 * math.log(0.05))


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40))
def test_divergence_of_stored_tokens_is_never_more_than_the_full_one(seed, kept_p, kept_q):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(2, 50)) * 3
    log_p, log_q = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    full = float((np.exp(log_p) * (log_p - log_q)).sum())
    (p,), (q,) = positions_from(logits[:1], count=kept_p), positions_from(logits[1:], count=kept_q)
    assert 0 <= divergence(p, q) <= full + 1e-9
    (p,), (q,) = positions_from(logits[:1]), positions_from(logits[1:])
    assert divergence(p, q) == pytest.approx(full)


def test_rows_say_who_prefers_what_and_how_sure_the_reference_was():
    ours = trace(position(0.6, 0.3, 0.1), position(0.2, 0.7, 0.1))
    theirs = trace(position(0.6, 0.3, 0.1), position(0.5, 0.4, 0.1))
    (same, other), _ = compare(ours, theirs)
    assert same.agrees
    assert same.kl == 0
    assert same.nll == pytest.approx(-math.log(0.3))  # of the next id, 1
    assert (other.nll, other.theirs_nll) == (None, None)  # nothing follows
    assert (other.ours, other.theirs) == (1, 0)
    assert other.gap == pytest.approx(math.log(5 / 4))
    assert not other.agrees


@pytest.mark.parametrize(("truth", "agrees"), [((0.2, 0.8), True), ((0.8, 0.2), False)])
def test_rows_say_what_the_float64_pass_prefers_and_how_near_both_are(truth, agrees):
    ours = position(0.3, 0.7)
    theirs = position(0.7, 0.3)
    exact = position(*truth)
    (row,), _ = compare(trace(ours), trace(theirs), exact=trace(exact))
    assert (row.exact == row.ours) is agrees
    assert row.ours_kl == pytest.approx(divergence(exact, ours))
    assert row.theirs_kl == pytest.approx(divergence(exact, theirs))


def test_stretched_logits_are_seen_in_the_slope_and_scattered_ones_are_not():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(1, 400)) * 3
    (exact,), (same,) = positions_from(logits), positions_from(logits * 1.06)
    assert nearness(exact, same)[1] == pytest.approx(1.06)
    (rough,) = positions_from(logits + rng.normal(size=logits.shape) * 0.05)
    kl, scale = nearness(exact, rough)
    assert kl > 0
    assert scale == pytest.approx(1, abs=0.05)


def test_a_position_without_numbers_has_a_row_without_numbers():
    finite = position(0.6, 0.4)
    none = positions_from(np.full((1, 2), np.nan))[0]
    ours = trace(finite, none)
    theirs = trace(none, finite)
    rows, _ = compare(ours, theirs, exact=trace(finite, finite))
    assert [(row.kl, row.gap, row.agrees) for row in rows] == [(None, None, False)] * 2
    assert [row.ours_kl is None for row in rows] == [False, True]
    assert [row.theirs_kl is None for row in rows] == [True, False]


def test_rows_of_other_tokens_are_not_compared():
    one = position(0.5, 0.5)
    assert compare(trace(one, ids=(3,)), trace(one, ids=(4,))) == ((), ())


def test_a_prompt_without_a_pair_leaves_the_others_in_their_places():
    one = position(0.6, 0.4)
    ours = Trace(
        EngineFacts("x"),
        prompts=(PromptTrace("a", (1,), error="not run"), PromptTrace("b", (2,), (one,))),
    )
    theirs = Trace(
        EngineFacts("y"), prompts=(PromptTrace("a", (1,), (one,)), PromptTrace("b", (2,), (one,)))
    )
    assert [row.prompt for row in compare(ours, theirs)[0]] == [1]


def test_greedy_continuations_are_equal_up_to_their_first_difference():
    one = position(0.6, 0.4)
    ours = trace(one, greedy=(5, 6, 7, 9), gaps=(1.0, 1.0, 1.0, 1.0))
    theirs = trace(one, greedy=(5, 6, 8, 9), gaps=(2.0, 2.0, 0.25, 2.0))
    _, (part,) = compare(ours, theirs)
    # Prompt 0, step 2, our token and theirs, and their gap at that step.
    assert part == Row(0, 2, 7, 8, 0.25)
    _, (whole,) = compare(ours, ours)
    assert (whole.position, whole.agrees) == (3, True)
