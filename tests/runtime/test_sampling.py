"""Choosing the next token: filters, penalties, seeds, log-probabilities."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.errors import InferenceError, UsageError
from bitnet.runtime.sampling import Sampler, SamplingParams

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], dtype=np.float32))


def draws(params, n=400, logits=LOGITS):
    """How often each token was drawn, each time by a sampler of its own seed."""
    counts = Counter()
    for seed in range(n):
        options = {**params, "seed": seed}
        counts[Sampler(SamplingParams(**options)).sample(logits).token] += 1
    return counts


def test_temperature_zero_takes_the_likeliest():
    assert Sampler(SamplingParams()).sample(LOGITS).token == 1


def test_the_lower_id_wins_a_tie():
    assert Sampler(SamplingParams()).sample(np.zeros(5, dtype=np.float32)).token == 0


def test_draws_follow_the_probabilities():
    counts = draws({"temperature": 1.0}, n=4000)
    expected = np.exp(LOGITS) * 4000
    found = np.array([counts[token] for token in range(5)])
    # Four standard deviations of a binomial count.
    assert (np.abs(found - expected) < 4 * np.sqrt(expected)).all()


def test_a_low_temperature_sharpens():
    # 0.4 ** 4 against 0.3 ** 4: 76 of 100, the others 2 at most.
    counts = draws({"temperature": 0.25}, n=1000)
    assert 700 < counts[1] < 800


def test_top_k_leaves_the_k_likeliest():
    assert set(draws({"temperature": 1.0, "top_k": 2})) == {1, 3}


def test_top_k_of_equal_logits_leaves_exactly_k():
    flat = np.zeros(5, dtype=np.float32)
    assert set(draws({"temperature": 1.0, "top_k": 2}, logits=flat)) == {0, 1}


def test_top_p_keeps_the_token_that_reaches_the_sum():
    assert set(draws({"temperature": 1.0, "top_p": 0.5})) == {1, 3}
    assert set(draws({"temperature": 1.0, "top_p": 0.0})) == {1}


def test_min_p_is_a_share_of_the_likeliest():
    assert set(draws({"temperature": 1.0, "min_p": 0.5})) == {1, 3}


def test_the_same_seed_gives_the_same_tokens():
    first, second = (Sampler(SamplingParams(temperature=1.0, seed=7)) for _ in range(2))
    assert [first.sample(LOGITS).token for _ in range(20)] == [
        second.sample(LOGITS).token for _ in range(20)
    ]


def test_without_a_seed_runs_repeat_unless_determinism_is_off(monkeypatch):
    assert SamplingParams().actual_seed() == 42
    monkeypatch.setenv("BITNET_SEED", "9")
    assert SamplingParams().actual_seed() == 9
    assert SamplingParams(seed=3).actual_seed() == 3
    monkeypatch.delenv("BITNET_SEED")
    monkeypatch.setenv("BITNET_DETERMINISTIC", "0")
    assert SamplingParams().actual_seed() != SamplingParams().actual_seed()


def test_repetition_penalty_counts_the_prompt_in():
    params = SamplingParams(repetition_penalty=2.0)
    logits = np.array([1.0, 1.5, -1.0], dtype=np.float32)
    sampler = Sampler(params, prompt=[1])
    assert sampler.sample(logits).token == 0  # 1.5 / 2 < 1
    assert sampler.sample(logits).token == 1  # 1 / 2 < 1.5 / 2


def test_a_repetition_penalty_makes_negative_logits_more_negative():
    params = SamplingParams(repetition_penalty=2.0)
    logits = np.array([-1.0, -1.5], dtype=np.float32)
    assert Sampler(params, prompt=[0]).sample(logits).token == 1


def test_frequency_penalty_grows_with_every_use_and_presence_does_not():
    logits = np.array([2.0, 1.0], dtype=np.float32)
    frequent = Sampler(SamplingParams(frequency_penalty=0.6))
    assert [frequent.sample(logits).token for _ in range(3)] == [0, 0, 1]
    present = Sampler(SamplingParams(presence_penalty=0.6))
    assert [present.sample(logits).token for _ in range(3)] == [0, 0, 0]


def test_logit_bias_moves_a_token():
    assert Sampler(SamplingParams(logit_bias={2: 100.0})).sample(LOGITS).token == 2
    assert Sampler(SamplingParams(logit_bias={1: -math.inf})).sample(LOGITS).token == 3


def test_a_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(UsageError, match="token id 5"):
        Sampler(SamplingParams(logit_bias={5: 1.0})).sample(LOGITS)


def test_logprobs_are_the_models_own():
    sampled = Sampler(SamplingParams(logit_bias={2: 100.0})).sample(LOGITS, top=2)
    assert sampled.logprob == pytest.approx(math.log(0.05), abs=1e-6)
    assert [token for token, _ in sampled.top] == [1, 3]
    assert [value for _, value in sampled.top] == pytest.approx([math.log(0.4), math.log(0.3)])


def test_logits_that_are_no_numbers_are_an_error():
    with pytest.raises(InferenceError, match="not finite"):
        Sampler(SamplingParams()).sample(np.array([0, np.nan], dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("repetition_penalty", 0.0),
        ("seed", -1),
    ],
)
def test_values_out_of_range_name_the_option(name, value):
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is"):
        SamplingParams(**{name: value})


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=20),
    st.floats(0.01, 5),
    st.integers(0, 25),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 99),
)
def test_any_settings_choose_a_token_of_the_vocabulary(logits, temperature, k, p, low, seed):
    params = SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=low, seed=seed)
    token = Sampler(params).sample(np.array(logits, dtype=np.float32)).token
    assert 0 <= token < len(logits)
