"""Layers that see a window: what is let go of is never missed, and what is kept is bounded."""

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
WINDOWS = (70, 0, 200, 70)  # two tables of two lengths, and one that keeps everything
LAYERS = len(WINDOWS)
IDS = prompt(700, seed=3)
compiled = pytest.mark.skipif(native.module() is None, reason="the compiled module is not built")


def checkpoint():
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
    start = 600 if step == 1 else 0  # one pass lets go of nothing until it has ended
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
        (whole,) = model.hidden(segments[:1])
        assert interpreter.run(segments[1:]).tobytes() == whole.tobytes()


def test_the_reference_computes_the_same_as_with_everything_kept():
    model = model_on(ReferenceOps(dtype=np.float64))
    whole = logits(model, [], dtype=np.float64)
    np.testing.assert_allclose(
        logits(model, [5, 300, 301, 650], dtype=np.float64), whole, rtol=0, atol=1e-12
    )


def test_memory_stops_growing_with_the_windows():
    cache = KVCache(config(), 100_000)
    full = KVCache(seeing(config(), (0,) * 4), 100_000)
    table = full.cost(PAGE, 1) // LAYERS  # one page of one layer
    step = 256
    for length in range(0, 20_480, step):
        cache.pages(step)
        cache.advance(step)
        assert cache.size_bytes <= cache.cost(length + step, step)
    whole = 20_480 // PAGE * table
    windows = cache.size_bytes - whole
    assert cache.cost(PAGE, 1) == full.cost(PAGE, 1)
    # Pages that a window of 70 or 200 before a pass of 256 touches.
    assert windows == 2 * table * 6 + table * 8
    assert full.cost(20_480, step) == 4 * whole
    assert cache.cost(20_480, step) < whole + 4 * table * 40


@settings(max_examples=20)
@given(st.integers(1, 5000), st.integers(1, 300))
def test_what_is_affordable_is_what_the_costs_allow(positions, step):
    cache = KVCache(config(), 4096)
    enough = cache.affordable(cache.cost(positions, step), step)
    assert min(positions, 4096) <= enough
    assert enough == 4096 or cache.cost(enough + 1, step) > cache.cost(positions, step)


class Sequence:
    """A cache beside the numbers of the ids it holds."""

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
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 140)),
    st.tuples(st.just("keep"), st.integers(0, 700)),
    st.tuples(st.just("truncate"), st.integers(0, 700)),
    st.tuples(st.just("branch"), st.integers(0, 700)),
)


@settings(max_examples=60)
@given(st.lists(STEPS, min_size=4, max_size=25))
def test_every_visible_position_is_there_in_any_order_of_steps(steps):
    take_steps(Sequence, steps, CONTEXT)


def test_a_place_that_is_kept_can_be_come_back_to_and_others_cannot():
    one = Sequence()
    one.cache.keep(400)
    for at in range(0, 1000, 100):
        one.append(list(range(at, at + 100)))
    one.append([5])
    assert one.cache.reusable(1000) == 1000
    assert [one.cache.reusable(length) for length in (400, 399, 150)] == [400, 399, 150]
    assert one.cache.reusable(800) == 448  # the end of the page that holds the last one kept
    assert one.cache.reusable(100) == 0
    other = KVCache(CONFIG, CONTEXT)
    with pytest.raises(InferenceError, match="800 positions to copy; there are 448"):
        other.copy_prefix(one.cache, 800)
    other.copy_prefix(one.cache, 400)
    assert other.size_bytes < one.cache.size_bytes
    one.cache.truncate(800)
    assert one.cache.length == 448
    one.append([1, 2, 3])


@pytest.fixture(scope="module")
def model():
    return model_on(NativeOps(threads=2) if native.module() else ReferenceOps())


def test_the_same_prompt_again_is_not_computed_again(model):
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


def test_where_two_prompts_part_a_third_one_goes_on(model):
    scheduler = Scheduler(model, context=CONTEXT, max_batch=3, prefill_chunk=64)
    system = prompt(400, seed=6)
    reused = []
    for seed in (1, 2, 3):
        own = scheduler.submit(system + prompt(420, seed=seed), params(5))
        run(scheduler)
        reused.append(own.reused_tokens)
    assert reused[0] == 0
    assert reused[2] == 400


def test_prompts_that_begin_alike_wait_for_each_other_and_write_as_if_alone(model):
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
        return [written[one] for one in sequences], [one.reused_tokens for one in sequences]

    alone, nothing = write(False, max_batch=1)
    beside, reused = write(True, max_batch=3)
    assert nothing == [0, 0, 0]
    assert reused == [0, 300, 300]
    if isinstance(model.ops, NativeOps):  # the reference promises no bits
        assert beside == alone


def test_a_late_prompt_does_not_wait_for_one_that_has_passed_it(model):
    scheduler = Scheduler(model, context=CONTEXT, max_batch=2, prefill_chunk=100)
    first = scheduler.submit(prompt(900, seed=1), params(3))
    for _ in range(6):
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
