"""Measured times decide how much of a prompt a pass may have, and what a draft costs."""

from types import SimpleNamespace

import pytest

from bitnet.runtime.pass_times import HIGHEST_PRICE, LONGEST_UNMEASURED, SMALLEST_CHUNK, PassTimes


def sequence(tokens, proposed=0):
    """A stand-in for a sequence with *tokens* in a pass, of which *proposed* are drafts."""
    return SimpleNamespace(segment=SimpleNamespace(tokens=[0] * tokens), proposed=[0] * proposed)


def test_the_first_chunk_is_the_smallest_until_a_prompt_was_measured():
    times = PassTimes(max_stall_s=1.0)
    assert times.prompt_tokens(256) == SMALLEST_CHUNK
    assert times.prompt_tokens(4) == 4


def test_a_chunk_takes_as_long_as_prompts_may_delay_others():
    times = PassTimes(max_stall_s=0.1)
    times.observe([sequence(100)], passed_s=0.2)  # 2 ms per token
    assert times.prompt_tokens(256) == 50
    times.observe([sequence(100)], passed_s=20.0)  # now not one token fits into 0.1 s
    assert times.prompt_tokens(256) == SMALLEST_CHUNK


def test_a_draft_costs_what_its_pass_takes_longer():
    times = PassTimes(max_stall_s=1.0)
    assert times.observe([sequence(1)], passed_s=1.0) == 0.0
    # Two drafts make a pass of 1 s longer by 1 s. The average starts at 0 and moves by a quarter.
    assert times.observe([sequence(3, proposed=2)], passed_s=2.0) == pytest.approx(0.5 / 4)


def test_a_draft_never_costs_more_than_the_bound():
    times = PassTimes(max_stall_s=1.0)
    times.observe([sequence(1)], passed_s=1.0)
    for _ in range(50):
        price = times.observe([sequence(2, proposed=1)], passed_s=100.0)
    assert price == pytest.approx(HIGHEST_PRICE, rel=1e-3)


def test_a_pass_without_drafts_is_measured_again_after_many_with():
    times = PassTimes(max_stall_s=1.0)
    assert not times.has_undrafted(1)
    times.observe([sequence(1)], passed_s=1.0)
    assert times.has_undrafted(1)
    assert not times.has_undrafted(2)  # of two sequences no pass was measured
    for _ in range(LONGEST_UNMEASURED):
        times.observe([sequence(2, proposed=1)], passed_s=1.2)
    assert not times.has_undrafted(1)
