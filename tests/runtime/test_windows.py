"""Layers with sliding windows: freed pages are never read again, and memory is bounded."""

import numpy as np
import pytest
from cache_steps import take_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling import params, prompt, run, sampled
from tiny_models import in_encoding, seeing, tiny

from bitnet.base import native
from bitnet.base.errors import InferenceError
from bitnet.families.blocks import KeysValues
from bitnet.kernels.kv_cache import KVCache, page_tables
from bitnet.kernels.kv_codes import PAGE
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Interpreter, Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.hidden_program import hidden_program
from bitnet.models.load import config_from
from bitnet.models.transformer import Model
from bitnet.runtime.scheduler import Scheduler

CONTEXT = 1024
# Positions that each layer attends to; 0: all. Layers with the same window share a table of pages.
WINDOWS = (70, 0, 200, 70)
LAYERS = len(WINDOWS)
IDS = prompt(700, seed=3)
compiled = pytest.mark.skipif(native.module() is None, reason="the compiled module is not built")


def checkpoint():
    """A tiny Gemma 3 of four layers; :func:`config` replaces its windows by WINDOWS."""
    more = {"block_count": LAYERS, "context_length": CONTEXT, "attention.sliding_window": 70}
    return tiny("gemma3", **more)


def config():
    return seeing(config_from(checkpoint()), WINDOWS)


def model_on(ops):
    weights = checkpoint() if isinstance(ops, ReferenceOps) else in_encoding(checkpoint(), "Q8_0")
    return Model(weights, config(), ops=ops)


def logits(model, cuts, **more):
    """Logits after every one of IDS, run in pieces that end at *cuts*."""
    cache = KVCache(model.config, CONTEXT, **more)
    ends = [*cuts, len(IDS)]
    pieces = [IDS[a:b] for a, b in zip([0, *cuts], ends, strict=True)]
    return np.concatenate([model.forward(ids, cache, all_positions=True) for ids in pieces])


def test_layers_of_one_window_share_their_pages():
    narrow, wide, full = (KeysValues(2, 64, window) for window in (70, 200, 0))
    assert page_tables(config().caches) == {narrow: (0, 3), full: (1,), wide: (2,)}
    assert page_tables((full, KeysValues(1, 64, 0))) == {full: (0,), KeysValues(1, 64, 0): (1,)}


@compiled
@pytest.mark.parametrize(("step", "threads"), [(1, 1), (63, 3), (64, 1), (256, 3)])
def test_a_long_prompt_gives_the_same_bits_however_it_is_cut(step, threads):
    model = model_on(NativeOps(threads=threads))
    # Single tokens come behind 600 at once: a pass frees pages only when it has ended.
    start = 600 if step == 1 else 0
    cuts = range(start or step, len(IDS), step)
    assert logits(model, cuts).tobytes() == logits(model, []).tobytes()


@compiled
def test_the_interpreter_gives_the_bits_of_the_compiled_program():
    ops = NativeOps(threads=2)
    model = model_on(ops)
    weights = model._weights
    interpreter = Interpreter(hidden_program(model.config, weights), weights, ops)
    caches = [KVCache(model.config, CONTEXT) for _ in range(2)]
    for at in range(0, 640, 80):
        segments = [Segment(IDS[at : at + 80], cache, "all") for cache in caches]
        (compiled_rows,) = model.hidden(segments[:1])
        assert interpreter.run(segments[1:]).tobytes() == compiled_rows.tobytes()


def test_the_reference_computes_the_same_whether_pages_are_freed_or_not():
    model = model_on(ReferenceOps(dtype=np.float64))
    whole = logits(model, [], dtype=np.float64)
    np.testing.assert_allclose(
        logits(model, [5, 300, 301, 650], dtype=np.float64), whole, rtol=0, atol=1e-12
    )


def test_memory_stops_growing_with_the_windows():
    cache = KVCache(config(), 100_000)
    full = KVCache(seeing(config(), (0,) * 4), 100_000)
    page_bytes = full.cost(PAGE, 1) // LAYERS  # of one layer
    step = 256
    for length in range(0, 20_480, step):
        cache.pages(step)
        cache.advance(step)
        assert cache.size_bytes <= cache.cost(length + step, step)
    whole = 20_480 // PAGE * page_bytes  # of the layer without a window
    windows = cache.size_bytes - whole
    assert cache.cost(PAGE, 1) == full.cost(PAGE, 1)
    # Pages that a window of 70, in two layers, or of 200 touches in a pass of 256.
    assert windows == 2 * page_bytes * 6 + page_bytes * 8
    assert full.cost(20_480, step) == 4 * whole
    # The bound on the cost has room for kept prefixes, too: less than 40 pages for each layer.
    assert cache.cost(20_480, step) < whole + 4 * page_bytes * 40


@settings(max_examples=20)
@given(st.integers(1, 5000), st.integers(1, 300))
def test_affordable_positions_are_the_most_whose_cost_fits(positions, step):
    cache = KVCache(config(), 4096)
    affordable = cache.affordable(cache.cost(positions, step), step)
    assert min(positions, 4096) <= affordable
    assert affordable == 4096 or cache.cost(affordable + 1, step) > cache.cost(positions, step)


class Sequence:
    """A cache whose keys are the ids in it and whose values are their negatives, and these ids."""

    def __init__(self):
        self.cache = KVCache(CONFIG, CONTEXT)
        self.ids = []

    def append(self, ids):
        rows = np.zeros((len(ids), 2, 64), np.float32)
        rows[:] = np.array(ids, dtype=np.float32)[:, None, None]
        self.ids = self.ids[: self.cache.length] + ids
        for layer, window in enumerate(WINDOWS):
            keys, values = self.cache.append(layer, rows, -rows)
            seen = min(len(self.ids), window + len(ids) - 1) if window else len(self.ids)
            expected = np.array(self.ids[-seen:])
            np.testing.assert_allclose(keys[0, -seen:, 0], expected, rtol=2e-4)
            np.testing.assert_allclose(values[-1, -seen:, -1], -expected, rtol=2e-4)
        self.cache.advance(len(ids))


CONFIG = config()
# Steps of take_steps(): a name and a number of ids or a length.
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 140)),
    st.tuples(st.just("keep"), st.integers(0, 700)),
    st.tuples(st.just("truncate"), st.integers(0, 700)),
    st.tuples(st.just("branch"), st.integers(0, 700)),
)


@settings(max_examples=60)
@given(st.lists(STEPS, min_size=4, max_size=25))
def test_every_position_within_a_window_is_stored_after_any_order_of_steps(steps):
    take_steps(Sequence, steps, CONTEXT)


def test_a_cache_returns_to_a_kept_length_but_not_to_lengths_whose_pages_are_freed():
    sequence = Sequence()
    sequence.cache.keep_truncatable_to(400)
    for at in range(0, 1000, 100):
        sequence.append(list(range(at, at + 100)))
    sequence.append([5])
    assert sequence.cache.reusable(1000) == 1000
    assert [sequence.cache.reusable(length) for length in (400, 399, 150)] == [400, 399, 150]
    assert sequence.cache.reusable(800) == 448  # the end of the page of position 399, which is kept
    assert sequence.cache.reusable(100) == 0  # more than SLACK before the kept length
    other = KVCache(CONFIG, CONTEXT)
    with pytest.raises(InferenceError, match="800 positions to copy; there are 448"):
        other.copy_prefix(sequence.cache, 800)
    other.copy_prefix(sequence.cache, 400)
    assert other.size_bytes < sequence.cache.size_bytes
    sequence.cache.truncate(800)
    assert sequence.cache.length == 448
    sequence.append([1, 2, 3])


@pytest.fixture(scope="module")
def model():
    return model_on(NativeOps(threads=2) if native.module() else ReferenceOps())


def test_a_repeated_prompt_is_reused_but_for_its_last_token(model):
    scheduler = Scheduler(model, context=CONTEXT, max_batch=1, prefill_chunk=64)
    ids = prompt(500, seed=5)
    first = scheduler.submit(ids, params(400))
    written = run(scheduler)[first]
    again = scheduler.submit(ids, params(20))
    assert run(scheduler)[again] == written[:20]
    assert again.reused_tokens == 499
    longer = scheduler.submit([*ids[:450], 3, 4], params(5))
    run(scheduler)
    assert longer.reused_tokens == 450


def test_a_third_prompt_reuses_the_prefix_that_two_others_shared(model):
    scheduler = Scheduler(model, context=CONTEXT, max_batch=3, prefill_chunk=64)
    system = prompt(400, seed=6)
    reused = []
    for seed in (1, 2, 3):
        own = scheduler.submit(system + prompt(420, seed=seed), params(5))
        run(scheduler)
        reused.append(own.reused_tokens)
    # The second prompt shows that the prefix is shared, so its end is kept for the third.
    assert reused == [0, 0, 400]


def test_prompts_with_one_prefix_compute_it_once_and_generate_what_each_generates_alone(model):
    system = prompt(300, seed=6)
    prompts = [[*system, 3 + seed, *prompt(150 + 40 * seed, seed=seed)] for seed in range(3)]

    def write(together, **more):
        scheduler = Scheduler(model, context=CONTEXT, prefill_chunk=100, **more)
        sequences = []
        written = {}
        for ids in prompts:
            sequences.append(scheduler.submit(ids, params(30, **sampled(4))))
            if not together:
                written |= run(scheduler)
                scheduler.forget()
        written |= run(scheduler)
        return [written[sequence] for sequence in sequences], [
            sequence.reused_tokens for sequence in sequences
        ]

    alone, reused_alone = write(False, max_batch=1)
    batched, reused = write(True, max_batch=3)
    assert reused_alone == [0, 0, 0]
    assert reused == [0, 300, 300]
    if isinstance(model.ops, NativeOps):  # the reference promises no bits
        assert batched == alone


def test_a_late_prompt_does_not_wait_for_one_that_has_passed_it(model):
    scheduler = Scheduler(model, context=CONTEXT, max_batch=2, prefill_chunk=100)
    first = scheduler.submit(prompt(900, seed=1), params(3))
    for _ in range(6):  # 600 tokens: the pages of the first 150 are freed in layers with a window
        scheduler.step()
    late = scheduler.submit([*prompt(900, seed=1)[:150], 3, 4, 5], params(3))
    for _ in range(4):
        scheduler.step()
    assert late.cache.length > 0
    assert not first.finish_reason
    assert late.reused_tokens == 0


@settings(max_examples=4)
@given(room=st.integers(2, 40), seeds=st.lists(st.integers(0, 3), min_size=2, max_size=5))
def test_memory_stays_within_its_budget(model, room, seeds):
    shortest = Scheduler(model, context=CONTEXT).caches.cost(1)
    scheduler = Scheduler(
        model, context=CONTEXT, max_batch=3, prefill_chunk=64, kv_budget_bytes=room * shortest
    )
    for seed in seeds:
        ids = prompt(100 + 90 * seed, seed=seed)
        if scheduler.caches.cost(len(ids) + 2) <= room * shortest:
            scheduler.submit(ids, params(2))
        else:
            with pytest.raises(InferenceError, match="the budget is"):
                scheduler.submit(ids, params(2))
    while scheduler.busy:
        scheduler.step()
        assert scheduler.caches.size_bytes <= room * shortest
        caches = scheduler.caches._caches
        assert all(cache.size_bytes <= cache.reserved_bytes for cache in caches)
