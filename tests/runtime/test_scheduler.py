"""Sequences that run together: the tokens of each alone, memory budgets, order and failures."""

import math
from collections import defaultdict
from dataclasses import replace

import pytest
from scheduling import alone, budget, params, prompt, run, sampled
from tiny_keys import VOCAB
from tiny_models import tiny

import bitnet
from bitnet.base.errors import InferenceError, UsageError
from bitnet.models.load import load_model
from bitnet.runtime.scheduler import Scheduler

GREEDY = {"temperature": 0.0}
# Makes sampling fail.
NOTHING_ALLOWED = {"logit_bias": dict.fromkeys(range(VOCAB), -math.inf)}


@pytest.fixture(scope="module")
def reference():
    return load_model(tiny("llama"))


def test_sequences_of_mixed_lengths_generate_what_each_generates_alone(model):
    requests = [
        (prompt(length, seed=length), params(3 + length % 7, **sampled(length)))
        for length in (1, 2, 30, 3, 17, 41, 8, 5, 11)
    ]
    scheduler = Scheduler(model, max_batch=4, prefill_chunk=8)
    sequences = [scheduler.submit(*request) for request in requests]
    written = run(scheduler)
    for sequence, request in zip(sequences, requests, strict=True):
        assert written[sequence] == alone(model, *request)
        assert sequence.finish_reason == "length"


def test_a_sequence_that_joins_later_changes_no_other_answer(model):
    scheduler = Scheduler(model)
    first = scheduler.submit(prompt(5), params(12))
    head = [piece.token for _ in range(4) for _, piece in scheduler.step()]
    second = scheduler.submit(prompt(20, seed=1), params(5))
    written = run(scheduler)
    assert head + written[first] == alone(model, prompt(5), params(12))
    assert written[second] == alone(model, prompt(20, seed=1), params(5))


def test_other_answers_continue_between_the_chunks_of_a_long_prompt(reference):
    scheduler = Scheduler(reference, prefill_chunk=4)
    quick = scheduler.submit(prompt(2), params(30))
    scheduler.step()
    long = scheduler.submit(prompt(22, seed=1), params(2))
    for length in (4, 8, 12, 16, 20):
        assert [sequence for sequence, _ in scheduler.step()] == [quick]
        assert long.cache.length == length
    assert {sequence for sequence, _ in scheduler.step()} == {quick, long}


def test_chunks_are_smallest_if_prompts_may_not_delay_others(reference):
    scheduler = Scheduler(reference, max_stall_s=0.0)
    quick = scheduler.submit(prompt(2), params(30))
    scheduler.step()
    long = scheduler.submit(prompt(50, seed=1), params(2))
    for length in (16, 32, 48):  # in steps of SMALLEST_CHUNK
        assert [sequence for sequence, _ in scheduler.step()] == [quick]
        assert long.cache.length == length
    assert {sequence for sequence, _ in scheduler.step()} == {quick, long}


def test_a_prompt_that_delays_no_answer_is_run_in_whole_chunks(reference):
    scheduler = Scheduler(reference, max_stall_s=0.0)
    long = scheduler.submit(prompt(50), params(2))
    assert [sequence for sequence, _ in scheduler.step()] == [long]


def test_short_prompts_share_a_chunk(reference):
    scheduler = Scheduler(reference, prefill_chunk=16)
    sequences = [scheduler.submit(prompt(5, seed), params()) for seed in range(4)]
    assert [sequence for sequence, _ in scheduler.step()] == sequences[:3]
    assert sequences[3].cache.length == 1  # 16 tokens: three prompts of five, and one more
    assert [sequence for sequence, _ in scheduler.step()] == sequences


def test_a_short_prompt_is_answered_in_its_first_pass_behind_long_ones(reference):
    scheduler = Scheduler(reference, prefill_chunk=8)
    long = [scheduler.submit(prompt(length, seed=length), params(2)) for length in (60, 50)]
    scheduler.step()
    # A quarter of a chunk of eight is reserved for the older prompt; the shorter one has the rest.
    assert [sequence.cache.length for sequence in long] == [2, 6]
    short = scheduler.submit(prompt(6, seed=1), params(1))
    assert [sequence for sequence, _ in scheduler.step()] == [short]
    assert [sequence.cache.length for sequence in long] == [4, 6]


def test_a_long_prompt_advances_in_every_pass_beside_new_short_ones(reference):
    scheduler = Scheduler(reference, prefill_chunk=8)
    long = scheduler.submit(prompt(40), params(1))
    passes = 0
    # In each pass a new prompt of six tokens takes the chunk, but for the reserve of two.
    while long.remaining > 6:
        passes += 1
        short = scheduler.submit(prompt(6, seed=100 + passes), params(1))
        assert short in dict(scheduler.step())
        assert long.cache.length >= 2 * passes
    run(scheduler)
    assert long.finish_reason == "length"


def test_sequences_run_in_the_order_of_their_submission(reference):
    scheduler = Scheduler(reference, max_batch=2)
    sequences = [scheduler.submit(prompt(3, seed), params(2 + seed)) for seed in range(5)]
    ended = []
    while scheduler.busy:
        for sequence, piece in scheduler.step():
            ended += [sequence] if piece.finish_reason else []
        assert len(scheduler.running) <= 2
    assert ended == sequences  # later ones have longer answers, so they end in order as well


def test_a_full_context_ends_only_the_sequence_that_fills_it(reference):
    scheduler = Scheduler(reference, context=8)
    full = scheduler.submit(prompt(6), params(50))
    short = scheduler.submit(prompt(1), params(4))
    written = run(scheduler)
    assert (full.finish_reason, short.finish_reason) == ("context", "length")
    assert len(written[full]) == 3  # two fill the context, the third needs no room


def test_an_answer_ends_with_a_stop_id(reference):
    free = alone(reference, prompt(4), params(9))
    stop = free[4]
    scheduler = Scheduler(reference)
    sequence = scheduler.submit(prompt(4), params(9, stop_ids=frozenset({stop})))
    assert run(scheduler)[sequence] == free[: free.index(stop) + 1]
    assert sequence.finish_reason == "stop"


# Budgets


@pytest.fixture(scope="module")
def roomy():
    """A model whose context is several pages."""
    return load_model(tiny("llama", context_length=300))


def test_a_sequence_waits_until_its_memory_is_free(reference):
    scheduler = Scheduler(reference, kv_budget_bytes=budget(reference, 2))
    sequences = [scheduler.submit(prompt(10, seed), params(6)) for seed in range(3)]
    most = 0
    written = defaultdict(list)
    while scheduler.busy:
        for sequence, piece in scheduler.step():
            written[sequence].append(piece.token)
        assert scheduler.caches.size_bytes <= budget(reference, 2)
        most = max(most, len(scheduler.running))
    assert most == 2
    for seed, sequence in enumerate(sequences):
        assert written[sequence] == alone(reference, prompt(10, seed), params(6))


def test_no_sequence_overtakes_the_one_that_waits_for_memory(roomy):
    # Two pages for the first sequence, two for the large one, and one for the small one.
    scheduler = Scheduler(roomy, kv_budget_bytes=budget(roomy, 3))
    scheduler.submit(prompt(70), params(6))
    large = scheduler.submit(prompt(60, seed=1), params(6))
    small = scheduler.submit(prompt(2, seed=2), params(2))
    scheduler.step()
    assert (len(scheduler.running), len(scheduler.waiting)) == (1, 2)
    while large.cache is None:
        assert small.cache is None
        scheduler.step()


def test_a_request_larger_than_the_budget_is_refused_at_once(roomy):
    scheduler = Scheduler(roomy, kv_budget_bytes=budget(roomy, 1))
    with pytest.raises(InferenceError, match=r"60 tokens of prompt and 6 of answer take [\d,]+ b"):
        scheduler.submit(prompt(60), params(6))
    with pytest.raises(InferenceError, match=r"70 tokens of input take [\d,]+ b") as refusal:
        scheduler.submit(prompt(70), params(embed=True))
    assert refusal.value.hint == "shorten the input"
    # The last token needs no position, so this one has 64 positions, a page.
    scheduler.submit(prompt(60), params(5))
    assert len(scheduler.waiting) == 1


def test_a_sequence_reserves_at_most_the_memory_of_the_context(roomy):
    scheduler = Scheduler(roomy, context=64, kv_budget_bytes=budget(roomy, 1))
    sequence = scheduler.submit(prompt(60), params(10_000))
    run(scheduler)
    assert sequence.finish_reason == "context"


def test_caches_kept_for_later_make_room_for_those_that_run(reference):
    scheduler = Scheduler(reference, kv_budget_bytes=budget(reference, 3))
    for seed in range(6):
        sequence = scheduler.submit(prompt(12, seed), params(6))
        assert run(scheduler)[sequence] == alone(reference, prompt(12, seed), params(6))
        assert 0 < scheduler.caches.size_bytes <= budget(reference, 3)


def test_a_cache_is_taken_over_where_a_copy_has_no_room(roomy):
    scheduler = Scheduler(roomy, kv_budget_bytes=budget(roomy, 2))
    first = scheduler.submit(prompt(70), params(4))
    run(scheduler)
    branch = scheduler.submit([*prompt(70)[:66], 5], params(4))
    assert run(scheduler)[branch] == alone(roomy, [*prompt(70)[:66], 5], params(4))
    assert branch.reused_tokens == 66
    assert scheduler.caches.best(first.ids)[1] == 66


# Prefixes


def count_tokens_of_passes(monkeypatch, model):
    """A list to which each later pass of *model* adds its number of tokens."""
    counts = []
    hidden = model.hidden

    def counting(parts, *adapters):
        counts.append(sum(len(part.tokens) for part in parts))
        return hidden(parts, *adapters)

    monkeypatch.setattr(model, "hidden", counting)
    return counts


def test_a_prompt_that_continues_another_reuses_its_cache(model, monkeypatch):
    scheduler = Scheduler(model)
    first = scheduler.submit(prompt(10), params(4))
    answer = run(scheduler)[first]
    longer = [*prompt(10), *answer, 7]
    counts = count_tokens_of_passes(monkeypatch, model)
    second = scheduler.submit(longer, params(3))
    written = run(scheduler)[second]
    monkeypatch.undo()
    assert counts == [2, 1, 1]  # the last token of the answer was never run
    assert second.reused_tokens == 13
    assert written == alone(model, longer, params(3))


def test_a_prefix_is_shared_with_one_that_still_runs(model):
    shared = prompt(30)
    scheduler = Scheduler(model)
    # Arguments of submit(): the prompt and the request.
    first, second = (([*shared, at], params(10, **sampled(at))) for at in (5, 6))
    older = scheduler.submit(*first)
    head = [piece.token for _, piece in scheduler.step()]
    younger = scheduler.submit(*second)
    written = run(scheduler)
    assert younger.reused_tokens == 30
    assert head + written[older] == alone(model, *first)
    assert written[younger] == alone(model, *second)


def test_prompts_that_arrive_together_compute_a_long_prefix_once(model, monkeypatch):
    shared = prompt(40)
    scheduler = Scheduler(model)
    counts = count_tokens_of_passes(monkeypatch, model)
    sequences = [scheduler.submit([*shared, at, at], params(2)) for at in (5, 6, 7)]
    written = run(scheduler)
    monkeypatch.undo()
    # A whole prompt, the two last ids of the others, and each answer's first token.
    assert sum(counts) == 42 + 2 * 2 + 3
    for at, sequence in zip((5, 6, 7), sequences, strict=True):
        assert written[sequence] == alone(model, [*shared, at, at], params(2))


def test_a_cache_that_is_longer_than_the_shared_prefix_is_copied_not_taken_over(reference):
    scheduler = Scheduler(reference)
    first = scheduler.submit(prompt(20), params(4))
    run(scheduler)
    branch = scheduler.submit([*prompt(20)[:10], 5, 5], params(4))
    run(scheduler)
    again = scheduler.submit(first.ids, params(4))
    run(scheduler)
    # All of the first sequence is there again: 20 ids and 4 tokens, but for the last one.
    assert (branch.reused_tokens, again.reused_tokens) == (10, 23)


def test_only_the_latest_caches_are_kept(reference):
    scheduler = Scheduler(reference, max_batch=2)
    for seed in range(3):
        scheduler.submit(prompt(8, seed), params(2))
        run(scheduler)
    # There are as many caches as sequences may run, so the oldest one was dropped.
    assert [scheduler.caches.best([*prompt(8, seed), 5])[1] > 1 for seed in range(3)] == [
        False,
        True,
        True,
    ]
    scheduler.forget()
    assert scheduler.caches.size_bytes == scheduler.caches.best(prompt(8, 2))[1] == 0


# Cancelling and failing


def test_a_waiting_sequence_can_be_cancelled(reference):
    scheduler = Scheduler(reference, max_batch=1)
    first = scheduler.submit(prompt(3), params(3))
    second = scheduler.submit(prompt(4), params(3))
    scheduler.cancel(second)
    assert second.finish_reason == "cancelled"
    assert set(run(scheduler)) == {first}


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_a_sequence_cancelled_within_prompt_or_answer_changes_no_other_one(model, steps):
    scheduler = Scheduler(model, prefill_chunk=4)
    other = scheduler.submit(prompt(3), params(12))
    leaving = scheduler.submit(prompt(16, seed=1), params(12))
    head = [
        piece.token
        for _ in range(steps)
        for sequence, piece in scheduler.step()
        if sequence is other
    ]
    scheduler.cancel(leaving)
    assert leaving.cache is None
    written = run(scheduler)
    assert leaving not in written
    assert head + written[other] == alone(model, prompt(3), params(12))
    # What it had computed is used by the next one.
    again = scheduler.submit(prompt(16, seed=1), params(5))
    assert run(scheduler)[again] == alone(model, prompt(16, seed=1), params(5))
    assert again.reused_tokens > 0


def test_cancelling_a_finished_sequence_changes_nothing(reference):
    scheduler = Scheduler(reference)
    sequence = scheduler.submit(prompt(3), params(2))
    run(scheduler)
    scheduler.cancel(sequence)
    assert sequence.finish_reason == "length"


def test_a_sequence_that_fails_changes_no_other_one(reference):
    scheduler = Scheduler(reference)
    good = scheduler.submit(prompt(3), params(5))
    bad = scheduler.submit(prompt(4), params(5, **NOTHING_ALLOWED))
    pieces = defaultdict(list)
    while scheduler.busy:
        for sequence, piece in scheduler.step():
            pieces[sequence].append(piece)
    assert [(piece.token, piece.finish_reason) for piece in pieces[bad]] == [(None, "error")]
    assert "no token may be chosen" in bad.error.message
    assert [piece.token for piece in pieces[good]] == alone(reference, prompt(3), params(5))


@pytest.mark.parametrize(("words", "reason"), [(["no room"], ": no room"), ([], "")])
def test_a_pass_without_memory_frees_idle_caches_then_fails_the_newest_sequence(
    reference, monkeypatch, words, reason
):
    scheduler = Scheduler(reference)
    scheduler.submit(prompt(9), params(2))
    run(scheduler)
    first = scheduler.submit(prompt(3, seed=1), params(4))
    second = scheduler.submit(prompt(4, seed=2), params(4))

    def failing(parts, *adapters):
        raise MemoryError(*words)

    monkeypatch.setattr(reference, "hidden", failing)
    assert scheduler.step() == []  # the cache of the first prompt is gone
    assert [sequence for sequence, _ in scheduler.step()] == [second]
    monkeypatch.undo()
    assert second.error.message == f"not enough memory for 4 positions{reason}"
    assert run(scheduler)[first] == alone(reference, prompt(3, seed=1), params(4))


def test_an_interrupted_pass_leaves_the_caches_as_they_were(reference, monkeypatch):
    scheduler = Scheduler(reference)
    sequence = scheduler.submit(prompt(6), params(4))
    hidden = reference.hidden

    def interrupted(parts, *adapters):
        hidden(parts, *adapters)
        raise KeyboardInterrupt

    monkeypatch.setattr(reference, "hidden", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scheduler.step()
    monkeypatch.undo()
    assert run(scheduler)[sequence] == alone(reference, prompt(6), params(4))


@pytest.mark.parametrize("ids", [[], [VOCAB], [-1]])
def test_an_empty_prompt_or_an_id_outside_the_vocabulary_is_refused_at_once(reference, ids):
    with pytest.raises(UsageError):
        Scheduler(reference).submit(ids)


def test_a_bias_outside_the_vocabulary_is_refused_at_once(reference):
    biased = params(logit_bias={VOCAB: 1.0})
    with pytest.raises(UsageError, match=f"token id {VOCAB}"):
        Scheduler(reference).submit([5], biased)


@pytest.mark.parametrize("name", ["max_batch", "prefill_chunk"])
def test_sizes_below_one_are_refused(reference, name):
    with pytest.raises(UsageError, match="expected at least 1"):
        Scheduler(reference, **{name: 0})


@pytest.mark.parametrize("file", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_real_models_generate_in_a_batch_what_they_generate_alone(test_models, file):
    pytest.importorskip("bitnet._native")
    with bitnet.load(test_models / file) as loaded:
        model = loaded.engine.model
        requests = [
            (loaded.tokenizer.encode(text), params(14, **sampling, lookup=lookup))
            for text, sampling, lookup in (
                ("The capital of France is", GREEDY, 0),
                ("one two one two", sampled(1), 4),
                ("def fib(n):\n" * 9, sampled(2), 8),
                ("a", GREEDY, 8),
            )
        ]
        scheduler = Scheduler(model, prefill_chunk=16)
        sequences = [scheduler.submit(*request) for request in requests]
        written = run(scheduler)
        for sequence, (ids, request) in zip(sequences, requests, strict=True):
            assert written[sequence] == alone(model, ids, replace(request, lookup=0))
