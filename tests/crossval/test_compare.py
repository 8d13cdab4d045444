"""Comparisons of traces, with figures worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.crossval.compare import (
    compare,
    compare_tokenizers,
    divergence,
)
from bitnet.crossval.trace import Position, PromptTrace, Trace, positions_from


def position(*chances, ids=None):
    """A position whose stored tokens have these probabilities; they may leave something over."""
    order = sorted(range(len(chances)), key=lambda at: -chances[at])
    names = list(range(len(chances))) if ids is None else list(ids)
    logits = tuple(math.log(chances[at]) for at in order)
    return Position(tuple(names[at] for at in order), logits, 0.0)


def trace(*positions, greedy=(), gaps=(), ids=None):
    ids = tuple(range(len(positions))) if ids is None else ids
    return Trace("x", prompts=(PromptTrace("p", ids, positions, greedy, gaps),))


def test_divergence_of_whole_distributions_is_the_textbook_one():
    p, q = position(0.5, 0.25, 0.25), position(0.25, 0.25, 0.5)
    wanted = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert divergence(p, q) == pytest.approx(wanted)
    assert divergence(p, p) == 0


def test_what_is_not_stored_counts_as_one_event():
    p, q = position(0.5, 0.3), position(0.3, 0.3)  # 0.2 and 0.4 are left over
    assert divergence(p, q) == pytest.approx(0.5 * math.log(5 / 3) + 0.2 * math.log(0.5))


def test_a_token_the_other_lacks_is_at_most_as_likely_as_its_last():
    p = position(0.9, 0.05, ids=[7, 8])
    q = position(0.5, 0.02, ids=[1, 2])  # token 7 has at most 0.02
    wanted = 0.9 * math.log(0.9 / 0.02) + 0.05 * math.log(0.05 / 0.02)
    assert divergence(p, q) == pytest.approx(wanted + 0.05 * math.log(0.05))


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40))
def test_it_is_never_more_than_the_full_divergence(seed, kept_p, kept_q):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(2, 50)) * 3
    log_p, log_q = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    full = float((np.exp(log_p) * (log_p - log_q)).sum())
    (p,), (q,) = positions_from(logits[:1], kept=kept_p), positions_from(logits[1:], kept=kept_q)
    assert 0 <= divergence(p, q) <= full + 1e-9
    (p,), (q,) = positions_from(logits[:1]), positions_from(logits[1:])
    assert divergence(p, q) == pytest.approx(full)


def test_rows_say_who_prefers_what_and_how_sure_the_reference_was():
    ours = trace(position(0.6, 0.3, 0.1), position(0.2, 0.7, 0.1))
    theirs = trace(position(0.6, 0.3, 0.1), position(0.5, 0.4, 0.1))
    same, other = compare(ours, theirs, near_tie=0.1).rows
    assert same.agrees
    assert (same.kl, same.max_difference) == (0, 0)
    assert same.cosine == pytest.approx(1)
    assert same.overlap == 1
    assert (other.ours, other.theirs) == (1, 0)
    assert other.gap == pytest.approx(math.log(5 / 4))
    assert other.wrong
    assert other.max_difference == pytest.approx(math.log(5 / 2))


@pytest.mark.parametrize(("near_tie", "wrong"), [(0.1, True), (0.3, False)])
def test_an_order_within_the_noise_is_a_near_tie(near_tie, wrong):
    (row,) = compare(trace(position(0.4, 0.5)), trace(position(0.5, 0.4)), near_tie=near_tie).rows
    assert not row.agrees
    assert row.near_tie is not wrong
    assert row.wrong is wrong


@pytest.mark.parametrize(("truth", "wrong"), [((0.2, 0.8), False), ((0.8, 0.2), True)])
def test_the_float64_pass_decides_where_the_reference_was_sure(truth, wrong):
    ours, theirs, exact = position(0.3, 0.7), position(0.7, 0.3), position(*truth)
    (row,) = compare(trace(ours), trace(theirs), near_tie=0.1, exact=trace(exact)).rows
    assert row.exact_agrees is not wrong
    assert row.wrong is wrong
    assert row.exact_ours == pytest.approx(divergence(exact, ours))
    assert row.exact_theirs == pytest.approx(divergence(exact, theirs))


def test_rows_of_other_tokens_are_not_compared():
    one = position(0.5, 0.5)
    assert compare(trace(one, ids=(3,)), trace(one, ids=(4,)), near_tie=0.1).rows == ()


def test_fewer_positions_than_ids_are_compared_as_far_as_they_go():
    one = position(0.6, 0.4)
    found = compare(trace(one, one, one), trace(one, one, ids=(0, 1)), near_tie=0.1)
    assert [row.position for row in found.rows] == [0, 1]


def test_greedy_continuations_are_equal_up_to_their_first_difference():
    one = position(0.6, 0.4)
    ours = trace(one, greedy=(5, 6, 7, 9), gaps=(1.0, 1.0, 1.0, 1.0))
    theirs = trace(one, greedy=(5, 6, 8, 9), gaps=(2.0, 2.0, 0.25, 2.0))
    (part,) = compare(ours, theirs, near_tie=0.1).greedy
    assert (part.steps, part.agreed, part.gap) == (4, 2, 0.25)
    assert part.wrong
    (tie,) = compare(ours, theirs, near_tie=0.3).greedy
    assert not tie.wrong
    (whole,) = compare(ours, ours, near_tie=0.1).greedy
    assert (whole.agreed, whole.gap, whole.wrong) == (4, None, False)


def test_tokenizers_show_the_first_text_they_read_differently():
    texts = ("a", "b", "c")
    found = compare_tokenizers(texts, [[1], [2], [3]], [[1], [2, 2], [4]])
    assert (found.total, found.equal, found.text) == (3, 1, "b")
    assert (found.ours, found.theirs) == ((2,), (2, 2))
    assert compare_tokenizers(texts, [[1]] * 3, [[1]] * 3).text is None


def test_means_leave_out_what_was_not_measured():
    found = compare(trace(position(0.6, 0.4)), trace(position(0.6, 0.4)), near_tie=0.1)
    assert found.mean(lambda row: row.kl) == 0
    assert found.mean(lambda row: row.exact_ours) is None
