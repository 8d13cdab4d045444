"""Generation with tiny models: what is yielded, why it ends, what the cache keeps."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tiny_keys import VOCAB
from tiny_models import tiny

from bitnet.base.errors import InferenceError, UsageError
from bitnet.kernels.kv_cache import KVCache
from bitnet.models.load import load_model
from bitnet.runtime.request import Request
from bitnet.runtime.sampling import Sampler
from bitnet.runtime.scheduler import Scheduler

PROMPT = [5, 9, 33, 2]


@pytest.fixture(scope="module")
def model():
    return load_model(tiny("llama"))


def greedy_by_hand(model, ids, count):
    """*count* greedy tokens after *ids*; each is computed from all ids before it, without reuse."""
    ids = list(ids)
    for _ in range(count):
        cache = KVCache(model.config, 64, dtype=np.float32)
        ids.append(int(model.forward(ids, cache)[0].argmax()))
    return ids[-count:]


def tokens(pieces):
    return [piece.token for piece in pieces]


def test_greedy_tokens_are_those_of_recomputing_every_step(model):
    engine = Scheduler(model, cache_dtype=np.float32)
    pieces = list(engine.generate(PROMPT, Request(max_tokens=8)))
    assert tokens(pieces) == greedy_by_hand(model, PROMPT, 8)
    assert [piece.finish_reason for piece in pieces] == [None] * 7 + ["length"]


def test_a_prompt_in_chunks_has_the_same_answer(model):
    whole = list(Scheduler(model).generate(PROMPT * 5, Request(max_tokens=5)))
    chunked = Scheduler(model)
    chunked.prefill_chunk = 3
    assert tokens(chunked.generate(PROMPT * 5, Request(max_tokens=5))) == tokens(whole)


def test_a_stop_id_ends_the_answer(model):
    third = greedy_by_hand(model, PROMPT, 3)[2]
    first = greedy_by_hand(model, PROMPT, 3).index(third)
    params = Request(max_tokens=9, stop_ids=frozenset({third}))
    pieces = list(Scheduler(model).generate(PROMPT, params))
    assert pieces[-1].token == third
    assert pieces[-1].finish_reason == "stop"
    assert len(pieces) == first + 1


def test_a_full_context_ends_the_answer(model):
    engine = Scheduler(model, context=6)
    pieces = list(engine.generate(PROMPT, Request(max_tokens=50)))
    assert len(pieces) == 3  # two fill the context, the third needs no room
    assert pieces[-1].finish_reason == "context"


def test_a_prompt_that_fills_the_context_gives_one_token(model):
    pieces = list(Scheduler(model, context=4).generate(PROMPT, Request(max_tokens=50)))
    assert [piece.finish_reason for piece in pieces] == ["context"]


def test_a_prompt_beyond_the_context_is_refused_at_once(model):
    with pytest.raises(InferenceError, match="the prompt has 4 tokens, the context holds 3"):
        Scheduler(model, context=3).generate(PROMPT)


def test_a_context_beyond_the_models_is_refused(model):
    with pytest.raises(UsageError, match="made for 64"):
        Scheduler(model, context=65)


@pytest.mark.parametrize("ids", [[], [VOCAB], [-1]])
def test_an_empty_prompt_or_an_id_outside_the_vocabulary_is_refused_at_once(model, ids):
    with pytest.raises(UsageError):
        Scheduler(model).generate(ids)


def test_closing_an_answer_ends_it(model):
    engine = Scheduler(model)
    sequence = engine.prepare(PROMPT)
    pieces = engine.run(sequence)
    assert next(pieces).finish_reason is None
    pieces.close()
    assert (sequence.finish_reason, engine.busy) == ("cancelled", False)


def test_an_engine_goes_on_after_a_cancelled_prompt(model):
    engine = Scheduler(model, cache_dtype=np.float32)
    pieces = engine.generate(PROMPT)
    next(pieces)
    pieces.close()
    generated = tokens(engine.generate(PROMPT, Request(max_tokens=4)))
    assert generated == greedy_by_hand(model, PROMPT, 4)


def test_a_continued_prompt_reuses_what_is_cached(model, monkeypatch):
    engine = Scheduler(model, cache_dtype=np.float32)
    answer = tokens(engine.generate(PROMPT, Request(max_tokens=4)))
    longer = [*PROMPT, *answer, 7]
    tokens_per_pass = []
    hidden = model.hidden

    def counting_hidden(parts, *adapters):
        tokens_per_pass.append(len(parts[0].tokens))
        return hidden(parts, *adapters)

    monkeypatch.setattr(model, "hidden", counting_hidden)
    continued = tokens(engine.generate(longer, Request(max_tokens=3)))
    monkeypatch.undo()
    assert tokens_per_pass == [2, 1, 1]  # the last token of the answer was never run
    assert continued == greedy_by_hand(model, longer, 3)


def test_a_prompt_that_shares_a_prefix_with_the_last_one_has_its_own_answer(model):
    engine = Scheduler(model, cache_dtype=np.float32)
    list(engine.generate(PROMPT, Request(max_tokens=4)))
    other = [5, 9, 1, 1]
    assert tokens(engine.generate(other, Request(max_tokens=4))) == greedy_by_hand(model, other, 4)


def test_the_same_seed_repeats_and_another_one_differs(model):
    def run(seed):
        sampling = {"temperature": 20.0, "seed": seed}
        return tokens(Scheduler(model).generate(PROMPT, Request(max_tokens=16, **sampling)))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_logits_have_every_position_and_the_answer_follows_the_last_one(model):
    engine = Scheduler(model, cache_dtype=np.float32)
    logits = engine.logits(PROMPT)
    assert logits.shape == (4, VOCAB)
    piece = next(iter(engine.generate(PROMPT, Request(logprobs=3))))
    assert piece.token == logits[-1].argmax()
    assert [token for token, _ in piece.top_logprobs] == np.argsort(-logits[-1])[:3].tolist()


def test_a_request_for_zero_tokens_is_refused():
    with pytest.raises(UsageError, match="max_tokens is 0"):
        Request(max_tokens=0)


def test_logits_with_a_cache_of_16_bit_codes_are_close_to_those_of_float32(model):
    codes = Scheduler(model).logits(PROMPT)
    single = Scheduler(model, cache_dtype="f4").logits(PROMPT)
    # A thousandth of their range.
    assert 0 < np.abs(codes - single).max() < 1e-3 * np.ptp(single)


def test_threads_that_share_an_engine_get_the_answers_of_a_single_thread(model):
    engine = Scheduler(model)
    params = Request(max_tokens=20)
    prompts = [[*PROMPT, at] for at in range(6)]
    alone = [tokens(engine.generate(prompt, params)) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = pool.map(lambda prompt: tokens(engine.generate(prompt, params)), prompts * 4)
        likeliest = list(pool.map(lambda prompt: engine.logits(prompt)[-1].argmax(), prompts))
        assert list(together) == alone * 4
    # The first token of each answer is the likeliest one by the logits.
    assert likeliest == [first for first, *_ in alone]


class Signal(BaseException):
    """A signal that a handler turned into an exception."""


@pytest.mark.parametrize("error", [Signal, KeyboardInterrupt, SystemExit])
def test_a_signal_ends_the_program_and_not_only_the_answer(model, monkeypatch, error):
    def interrupted(*_args, **_more):
        raise error

    engine = Scheduler(model)
    monkeypatch.setattr(Sampler, "sample", interrupted)
    with pytest.raises(error):
        list(engine.generate([3, 4, 5], Request(max_tokens=4)))
    monkeypatch.undo()
    assert len(list(engine.generate([3, 4, 5], Request(max_tokens=4)))) == 4
