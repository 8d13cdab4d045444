"""Layers with a state of fixed size, which can return only to lengths that were kept."""

import numpy as np
import pytest
from cache_steps import take_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling import params, prompt, run, sampled
from tiny_keys import HYBRIDS
from tiny_models import in_encoding, tiny

from bitnet.base import native
from bitnet.base.errors import InferenceError
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.kv_pages import States
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import config_from, load_model
from bitnet.runtime.scheduler import Scheduler

CONTEXT = 512
CONFIG = config_from(tiny("qwen35"))
compiled = pytest.mark.skipif(native.module() is None, reason="the compiled module is not built")


class Sums:
    """A cache whose state is the sum of the ids in it, and these ids."""

    def __init__(self):
        self.cache = KVCache(CONFIG, CONTEXT)
        self.ids = []

    def append(self, ids):
        self.ids = self.ids[: self.cache.length] + ids
        state = self.cache.begin()
        assert (state == sum(self.ids[: self.cache.length])).all()
        state += sum(ids)
        # Layer 1 has attention: keys and values of two heads.
        rows = np.zeros((len(ids), 2, 64), np.float32)
        self.cache.append(1, rows, rows)
        self.cache.advance(len(ids))


# Steps of take_steps(): a name and a number of ids or a length.
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 60)),
    st.tuples(st.just("keep"), st.integers(0, 300)),
    st.tuples(st.just("truncate"), st.integers(0, 300)),
    st.tuples(st.just("branch"), st.integers(0, 300)),
    st.tuples(st.just("mark"), st.just(0)),
    st.tuples(st.just("interrupt"), st.just(0)),
)


@settings(max_examples=100)
@given(st.lists(STEPS, min_size=4, max_size=25))
def test_a_state_is_that_of_its_length_in_any_order_of_steps(steps):
    def costs_what_it_may(sequence):
        # 60 is the largest number of ids that a step appends.
        assert sequence.cache.size_bytes <= sequence.cache.cost(CONTEXT, 60)

    take_steps(Sums, steps, CONTEXT, costs_what_it_may)


def test_a_state_returns_to_kept_and_marked_lengths_alone():
    sequence = Sums()
    sequence.cache.keep_truncatable_to(40)
    sequence.append(list(range(30)))
    assert sequence.cache.next_stop == 40
    sequence.append(list(range(10)))
    assert sequence.cache.next_stop is None
    sequence.append(list(range(50)))
    assert [sequence.cache.reusable(length) for length in (100, 89, 40, 39)] == [90, 40, 40, 0]
    sequence.cache.mark()  # at 90
    sequence.append([1, 2, 3])
    sequence.cache.truncate(92)
    assert sequence.cache.length == 90
    other = KVCache(CONFIG, CONTEXT)
    with pytest.raises(InferenceError, match="80 positions to copy; there are 40"):
        other.copy_prefix(sequence.cache, 80)
    sequence.append([5])


def test_a_pass_after_an_interrupted_one_is_refused():
    states = States(4, np.float32)
    states.begin(0)
    states.end(3)
    states.begin(3)  # this pass never ends
    with pytest.raises(InferenceError, match="a pass was interrupted"):
        states.begin(3)


def model_on(ops, architecture="qwen35"):
    """A tiny model: F32 weights on the reference backend, ternary ones on the compiled backend."""
    checkpoint = tiny(architecture, block_count=4, context_length=CONTEXT)
    exact = isinstance(ops, ReferenceOps)
    return load_model(checkpoint if exact else in_encoding(checkpoint, "I2_S"), ops=ops)


@pytest.fixture(scope="module", params=["lfm2", "nemotron_h", "qwen35"])
def model(request):
    return model_on(NativeOps(threads=2), request.param)


@compiled
@pytest.mark.parametrize("architecture", HYBRIDS)
def test_the_two_backends_agree(architecture):
    exact = model_on(ReferenceOps(dtype=np.float64), architecture)
    native_model = load_model(
        tiny(architecture, block_count=4, context_length=CONTEXT), ops=NativeOps()
    )
    ids = prompt(100, seed=1)
    expected, found = (
        model.forward(ids, KVCache(model.config, 128, dtype=dtype), all_positions=True)
        for model, dtype in ((exact, np.float64), (native_model, np.int16))
    )
    # A thousandth of the range: the compiled cache has 16-bit codes.
    assert np.abs(found - expected).max() < 1e-3 * np.ptp(expected)


@compiled
def test_the_same_prompt_again_starts_from_its_state(model):
    scheduler = Scheduler(model, context=CONTEXT, max_batch=1, prefill_chunk=64)
    ids = prompt(300, seed=5)
    first = scheduler.submit(ids, params(40))
    written = run(scheduler)[first]
    again = scheduler.submit(ids, params(20))
    assert run(scheduler)[again] == written[:20]
    assert again.reused_tokens == 299  # all but the last id, which is always run
    continued = scheduler.submit([*ids, *written[:20], 5], params(5))
    run(scheduler)
    # All ids of *again* but the last one, which was never run.
    assert continued.reused_tokens == 319
    turn = scheduler.submit([*continued.ids, 6, 7], params(5))
    run(scheduler)
    assert turn.reused_tokens == len(continued.ids) - 1


@compiled
def test_prompts_that_begin_alike_share_the_state_where_they_part(model):
    system = prompt(150, seed=6)
    prompts = [[*system, 3 + seed, *prompt(50 + 40 * seed, seed=seed)] for seed in range(3)]

    def write(together, **more):
        scheduler = Scheduler(model, context=CONTEXT, prefill_chunk=100, **more)
        sequences = []
        written = {}
        for ids in prompts:
            sequences.append(scheduler.submit(ids, params(30, **sampled(4), lookup=3)))
            if not together:
                written |= run(scheduler)
                scheduler.forget()
        written |= run(scheduler)
        return [written[one] for one in sequences], [one.reused_tokens for one in sequences]

    alone, reused_alone = write(False, max_batch=1)
    batched, reused = write(True, max_batch=3)
    assert reused_alone == [0, 0, 0]
    assert reused[1:] == [150, 150]
    assert batched == alone


@compiled
def test_a_prompt_that_waited_for_a_shared_prefix_is_reused_whole_when_it_comes_again(model):
    system = prompt(150, seed=6)
    prompts = [[*system, 3 + seed, *prompt(50 + 40 * seed, seed=seed)] for seed in range(3)]
    scheduler = Scheduler(model, context=CONTEXT, prefill_chunk=100, max_batch=3)
    for ids in prompts:
        scheduler.submit(ids, params(5))
    run(scheduler)
    again = scheduler.submit(prompts[1], params(5))
    run(scheduler)
    assert again.reused_tokens == len(prompts[1]) - 1


@compiled
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.usefixtures("free_drafts")
def test_rejected_drafts_do_not_change_a_state(model, seed):
    ids = [*prompt(8, seed=seed)] * 6
    written = []
    for lookup in (0, 8):
        scheduler = Scheduler(model, context=CONTEXT)
        sequence = scheduler.submit(ids, params(60, **sampled(seed), lookup=lookup))
        written.append(run(scheduler)[sequence])
    assert sequence.drafted > sequence.accepted  # some drafts were rejected
    assert written[0] == written[1]


@compiled
def test_after_an_interrupted_pass_answers_continue_from_the_last_whole_state(model):
    answers = []
    for is_interrupted in (False, True):
        scheduler = Scheduler(model, context=CONTEXT, prefill_chunk=50)
        sequences = [scheduler.submit(prompt(120, seed=seed), params(20)) for seed in (1, 2)]
        written = {one: [] for one in sequences}
        passes = 0
        while scheduler.busy:
            if is_interrupted and passes % 5 == 3:  # what an interrupt within a pass leaves
                for sequence in scheduler.running:
                    sequence.cache.begin()[:] = np.nan
                    sequence.cache.truncate(sequence.cache.length)
            passes += 1
            for sequence, piece in scheduler.step():
                written[sequence].append(piece.token)
        answers.append([written[one] for one in sequences])
    assert answers[0] == answers[1]


@compiled
def test_a_sequence_that_fails_in_a_batch_changes_no_token_of_the_other(model):
    class Broken(KVCache):
        def begin(self):
            raise ValueError("broken")

    ids = prompt(90, seed=3)
    whole = Scheduler(model, context=CONTEXT, prefill_chunk=40)
    first = whole.submit(ids, params(12))
    expected = run(whole)[first]
    scheduler = Scheduler(model, context=CONTEXT, prefill_chunk=40)
    good = scheduler.submit(ids, params(12))
    bad = scheduler.submit(prompt(60, seed=4), params(12))
    scheduler._admit()  # gives each sequence its cache
    bad.cache.__class__ = Broken
    assert run(scheduler)[good] == expected
    assert bad.finish_reason == "error"
    assert good.finish_reason == "length"


def test_a_cache_of_floats_keeps_its_states_in_floats():
    assert KVCache(CONFIG, 8, dtype=np.float64).begin().dtype == np.float64
    assert KVCache(CONFIG, 8).begin().dtype == np.float32


def test_two_segments_share_no_state():
    model = load_model(tiny("qwen35"), ops=ReferenceOps())
    caches = [KVCache(model.config, 16) for _ in range(2)]
    ids = [prompt(6, seed=1), prompt(9, seed=2)]
    batched = model.run(
        [Segment(part, cache, "all") for part, cache in zip(ids, caches, strict=True)]
    )
    for part, rows in zip(ids, batched, strict=True):
        alone = model.forward(part, KVCache(model.config, 16), all_positions=True)
        np.testing.assert_allclose(rows, alone, rtol=1e-4, atol=1e-4)
