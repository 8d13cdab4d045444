"""Choosing the next token: filters, penalties, seeds, log-probabilities."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.base.errors import InferenceError, UsageError
from bitnet.runtime.request import Request
from bitnet.runtime.sampling import Sampler

# Of five tokens: the likeliest are 1, 3, 4, 0 and 2, in this order.
LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], dtype=np.float32))


def draws(params, n=400, logits=LOGITS):
    """Number of times each token was drawn, each time by a sampler of its own seed."""
    counts = Counter()
    for seed in range(n):
        options = {**params, "seed": seed}
        counts[Sampler(Request(**options)).sample(logits).token] += 1
    return counts


def test_temperature_zero_takes_the_likeliest():
    assert Sampler(Request()).sample(LOGITS).token == 1


def test_the_lower_of_two_ids_with_equal_logits_is_taken():
    assert Sampler(Request()).sample(np.zeros(5, dtype=np.float32)).token == 0


def test_draws_follow_the_probabilities():
    counts = draws({"temperature": 1.0}, n=4000)
    expected = np.exp(LOGITS) * 4000
    drawn = np.array([counts[token] for token in range(5)])
    # Four standard deviations of a Poisson count, which are more than those of a binomial one.
    assert (np.abs(drawn - expected) < 4 * np.sqrt(expected)).all()


def test_a_low_temperature_sharpens():
    # Fourth powers: 0.4 ** 4 is 0.746 of their sum, so 746 draws of 1,000 are expected.
    counts = draws({"temperature": 0.25}, n=1000)
    assert 700 < counts[1] < 800


def test_top_k_leaves_the_k_likeliest():
    assert set(draws({"temperature": 1.0, "top_k": 2})) == {1, 3}


def test_top_k_of_equal_logits_leaves_exactly_k():
    flat = np.zeros(5, dtype=np.float32)
    assert set(draws({"temperature": 1.0, "top_k": 2}, logits=flat)) == {0, 1}


def test_top_p_keeps_the_token_that_reaches_the_sum():
    # Token 1 has 0.4; with token 3 the sum is 0.7.
    assert set(draws({"temperature": 1.0, "top_p": 0.5})) == {1, 3}
    assert set(draws({"temperature": 1.0, "top_p": 0.0})) == {1}


def test_min_p_is_a_share_of_the_likeliest():
    # Half of the likeliest is 0.2, which 0.3 reaches as well.
    assert set(draws({"temperature": 1.0, "min_p": 0.5})) == {1, 3}


def test_the_same_seed_gives_the_same_tokens():
    first, second = (Sampler(Request(temperature=1.0, seed=7)) for _ in range(2))
    assert [first.sample(LOGITS).token for _ in range(20)] == [
        second.sample(LOGITS).token for _ in range(20)
    ]


def test_without_a_seed_runs_differ_unless_determinism_is_asked_for(monkeypatch):
    assert Request().actual_seed() != Request().actual_seed()
    monkeypatch.setenv("BITNET_DETERMINISTIC", "1")
    assert Request().actual_seed() == 42  # DEFAULT_SEED
    monkeypatch.setenv("BITNET_SEED", "9")
    assert Request().actual_seed() == 9
    assert Request(seed=3).actual_seed() == 3
    monkeypatch.delenv("BITNET_SEED")
    monkeypatch.setenv("BITNET_DETERMINISTIC", "0")
    assert Request().actual_seed() != Request().actual_seed()


def test_seeds_of_several_answers_count_up_from_the_requested_seed():
    params = Request(seed=7, top_k=3)
    assert params.choice(0) == params
    assert [params.choice(number).seed for number in range(3)] == [7, 8, 9]
    drawn = Request().choice(0)  # its random seed is drawn once
    assert drawn.actual_seed() == drawn.actual_seed()
    assert Request(seed=2**64 - 1).choice(1).seed == 0  # seeds have 64 bits


def test_repetition_penalty_counts_the_prompt_in():
    params = Request(repetition_penalty=2.0)
    logits = np.array([1.0, 1.5, -1.0], dtype=np.float32)
    sampler = Sampler(params, prompt=[1])
    assert sampler.sample(logits).token == 0  # 1.5 / 2 < 1
    # The answer's first token counts as well: 1 / 2 < 1.5 / 2.
    assert sampler.sample(logits).token == 1


def test_a_repetition_penalty_makes_negative_logits_more_negative():
    params = Request(repetition_penalty=2.0)
    logits = np.array([-1.0, -1.5], dtype=np.float32)
    # -1 is multiplied by the penalty: -2 < -1.5.
    assert Sampler(params, prompt=[0]).sample(logits).token == 1


def test_frequency_penalty_grows_with_every_use_and_presence_does_not():
    logits = np.array([2.0, 1.0], dtype=np.float32)
    frequent = Sampler(Request(frequency_penalty=0.6))
    # 2 - 0.6 is still above 1, 2 - 1.2 is not.
    assert [frequent.sample(logits).token for _ in range(3)] == [0, 0, 1]
    present = Sampler(Request(presence_penalty=0.6))
    # Subtracted once.
    assert [present.sample(logits).token for _ in range(3)] == [0, 0, 0]


def test_logit_bias_moves_a_token():
    assert Sampler(Request(logit_bias={2: 100.0})).sample(LOGITS).token == 2
    assert Sampler(Request(logit_bias={1: -math.inf})).sample(LOGITS).token == 3


def test_log_probabilities_are_those_before_the_bias():
    sampled = Sampler(Request(logit_bias={2: 100.0})).sample(LOGITS, top=2)
    assert sampled.logprob == pytest.approx(math.log(0.05), abs=1e-6)
    assert [token for token, _ in sampled.top_logprobs] == [1, 3]
    assert [value for _, value in sampled.top_logprobs] == pytest.approx(
        [math.log(0.4), math.log(0.3)]
    )


def test_logits_that_are_not_numbers_are_an_error():
    with pytest.raises(InferenceError, match="not finite"):
        Sampler(Request()).sample(np.array([0, np.nan], dtype=np.float32))


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
    with pytest.raises(UsageError, match=f"{name} is"):
        Request(**{name: value})


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=20),
    st.floats(0.01, 5),
    st.integers(0, 25),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 99),
)
def test_any_settings_choose_a_token_of_the_vocabulary(logits, temperature, k, p, low, seed):
    params = Request(temperature=temperature, top_k=k, top_p=p, min_p=low, seed=seed)
    token = Sampler(params).sample(np.array(logits, dtype=np.float32)).token
    assert 0 <= token < len(logits)


def falling(logits):
    """Ids by falling logit, equal ones by id."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def large_logits(seed=0, spread=4.0, size=30_000):
    """Normal logits of a large vocabulary."""
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


@pytest.mark.parametrize("count", [1, 40, 400, 4000, 29_999])
def test_the_likeliest_of_a_large_vocabulary_are_those_sorting_finds(count):
    logits = np.round(large_logits(), 1)  # with many ties
    top = Sampler(Request()).sample(logits, top=count).top_logprobs
    assert [token for token, _ in top] == falling(logits)[:count]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 3}, 3),
        ({"top_p": 0.55}, 4),
        ({"top_k": 3, "top_p": 0.8}, 3),
        ({"min_p": 0.6}, 4),
        ({"top_p": 0.95}, 8),
    ],
)
def test_filters_keep_the_likeliest_tokens_of_a_large_vocabulary(options, kept):
    # Eight tokens share the probability in steps of a few hundredths; their ids are far apart.
    logits = np.full(30_000, -40, dtype=np.float32)
    best = np.arange(8) * 3_001 + 7
    logits[best] = np.log(np.array([20, 16, 14, 13, 11, 10, 9, 7]) / 100)
    drawn = set(draws({"temperature": 1.0} | options, n=300, logits=logits))
    assert drawn == set(best[:kept].tolist())


def test_a_flat_distribution_needs_more_than_the_tokens_sorted_at_first():
    logits = np.zeros(3000, dtype=np.float32)
    drawn = set(draws({"temperature": 1.0, "top_p": 0.5}, n=3000, logits=logits))
    # Half of 3,000 equal tokens are kept, more than FIRST_SORTED.
    assert max(drawn) in range(1400, 1500 + 1)


def test_draws_from_a_large_vocabulary_follow_the_probabilities():
    logits = large_logits(spread=1.0, size=3000)
    share = np.exp(logits.astype(np.float64))
    share /= share.sum()
    half = int(np.searchsorted(np.cumsum(share), 0.5))
    sampler = Sampler(Request(temperature=1.0, seed=3))
    lower_half = sum(sampler.sample(logits).token <= half for _ in range(4000))
    # Four standard deviations of a binomial count: 4,000 draws at about one half.
    assert abs(lower_half - 4000 * share[: half + 1].sum()) < 4 * math.sqrt(1000)


def test_a_token_without_weight_is_never_drawn():
    logits = np.full(2000, -1e4, dtype=np.float32)
    logits[[511, 512, 1999]] = 0.0  # on both sides of a border between blocks, and the last one
    assert set(draws({"temperature": 1.0}, logits=logits)) == {511, 512, 1999}


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2, "min_p": 0.01}]
)
def test_only_allowed_tokens_are_chosen(options):
    sampler = Sampler(Request(**options))
    allowed = np.array([0, 2, 4])
    chosen = {sampler.sample(LOGITS, allowed=allowed).token for _ in range(200)}
    assert chosen <= {0, 2, 4}
    assert 4 in chosen  # the likeliest of the allowed ones


def test_log_probabilities_are_those_before_the_mask():
    sampled = Sampler(Request()).sample(LOGITS, top=1, allowed=np.array([2]))
    assert (sampled.token, sampled.top_logprobs[0][0]) == (2, 1)
    assert sampled.logprob == pytest.approx(math.log(0.05), abs=1e-6)


def test_sampling_without_an_allowed_token_is_an_error():
    with pytest.raises(InferenceError, match="no token may be chosen"):
        Sampler(Request()).sample(LOGITS, allowed=np.array([], dtype=np.intp))
    banned = Request(logit_bias=dict.fromkeys(range(5), -math.inf))
    with pytest.raises(InferenceError, match="no token may be chosen"):
        Sampler(banned).sample(LOGITS)


def test_log_probabilities_are_computed_only_if_requested():
    sampler = Sampler(Request())
    assert sampler.sample(LOGITS).logprob is None
    assert sampler.sample(LOGITS, top=0).top_logprobs == ()
    assert sampler.sample(LOGITS, top=0).logprob == pytest.approx(math.log(0.4), abs=1e-6)


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-3])
def test_a_tiny_temperature_takes_the_likeliest(temperature):
    assert set(draws({"temperature": temperature}, n=20)) == {1}
    assert set(draws({"temperature": temperature, "top_p": 0.9}, n=20)) == {1}
