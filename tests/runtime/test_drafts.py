"""Drafts by a model's own block: what it computes, and that no answer changes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from rotations import rotated, sylvester
from scheduling import prompt, run
from tiny_keys import DIM, VOCAB
from tiny_models import tiny

from bitnet.base.errors import InvalidFormat
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import select
from bitnet.kernels.program import Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import config_from, load_model
from bitnet.quants import registry, types
from bitnet.quants.weight import Weight
from bitnet.runtime.drafts import (
    FIRST_STAY,
    LONGEST_STAY,
    MOST_WAITING,
    TRIAL,
    BlockForesight,
    Pace,
)
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler

BLOCK = "blk.4."  # prefix of the tensors of DRAFTING's last block, which drafts
DRAFTING = tiny("qwen35", block_count=5, nextn_predict_layers=1, context_length=512)


def without_block(checkpoint):
    """*checkpoint* without the tensors of its block that drafts."""
    weights = {n: w for n, w in checkpoint.weights.items() if not n.startswith(BLOCK)}
    return replace(checkpoint, weights=weights)


def changed(checkpoint, values):
    """*checkpoint* with other tensors; *values*: a function of the shape by the end of a name."""
    weights = dict(checkpoint.weights)
    for name, weight in weights.items():
        for end, value in values.items():
            if name.endswith(end):
                array = np.ascontiguousarray(value(weight.shape), dtype="<f4")
                weights[name] = replace(weight, data=array.reshape(-1).view(np.uint8))
    return replace(checkpoint, weights=weights)


def predictable():
    """A model whose next token depends on the last one alone, and whose block always agrees.

    The outputs of all layers are zero, so that only the token's embedding reaches the head. The
    block reads an embedding beside a hidden state; its projection ignores the latter.
    """
    outputs = ("attn_output.weight", "ffn_down.weight", "ssm_out.weight")
    first_half = {"eh_proj.weight": lambda _: np.hstack([np.eye(DIM), np.zeros((DIM, DIM))])}
    return changed(DRAFTING, dict.fromkeys(outputs, np.zeros) | first_half)


def answer(model, ids, *, temperature=0.0, drafting=True, **more):
    """The sequence that continues *ids* with 60 tokens; it drafts always or, if asked, never."""
    scheduler = Scheduler(model, **more)
    if scheduler._pace:
        scheduler._pace.drafting = drafting
        # Without measured times, the choice between drafting and decoding stays as it is.
        scheduler._pace.observe = lambda *_, **__: None
    sampling = {"temperature": temperature, "seed": 3}
    sequence = scheduler.submit(ids, Request(max_tokens=60, lookup=0, **sampling))
    run(scheduler)
    return sequence


def in_basis(basis, rows):
    """*rows* in the rotated *basis*, in which rotated matrices read them."""
    turned = (rows * basis.signs_of(rows.shape[1])).reshape(-1, basis.block)
    return (turned @ sylvester(basis.block)).reshape(rows.shape)


def rotated_drafting():
    """DRAFTING with rotated matrices."""
    model = rotated(DRAFTING, 256)
    keys = {"prism.hadamard.gdn_v_grouped": False}
    return replace(model, metadata=dict(model.metadata) | keys)


@pytest.mark.parametrize("is_rotated", [False, True], ids=["plain", "rotated"])
def test_the_block_is_a_decoder_of_joined_rows(is_rotated):
    """Its states equal those of an ordinary model of one block whose embedding has these rows."""
    ops = ReferenceOps(dtype=np.float64)
    model = load_model(rotated_drafting() if is_rotated else DRAFTING, ops=ops)
    ids = np.random.default_rng(3).integers(3, 60, 12).tolist()
    hidden = np.random.default_rng(4).standard_normal((12, DIM))
    tensors = {n: registry.dequantize(w) for n, w in DRAFTING.weights.items()}

    def norm(x, name):
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + model.config.norm_eps)
        return x * tensors[f"{BLOCK}nextn.{name}.weight"]

    rows = np.hstack([norm(tensors["token_embd.weight"][ids], "enorm"), norm(hidden, "hnorm")])
    rows = rows @ tensors[f"{BLOCK}nextn.eh_proj.weight"].T
    weights = {n.replace(BLOCK, "blk.0."): w for n, w in DRAFTING.weights.items() if BLOCK in n}
    weights = {n: w for n, w in weights.items() if "nextn" not in n}
    for name in ("token_embd.weight", "output_norm.weight"):
        weights[name] = DRAFTING.weights[name]
    # The oracle is a model with this block as its only one, whose embedding is replaced by *rows*.
    keys = {"qwen35.block_count": 1, "qwen35.full_attention_interval": 1}
    single_block = replace(
        DRAFTING,
        weights=weights,
        metadata={k: v for k, v in DRAFTING.metadata.items() if "nextn" not in k} | keys,
    )
    oracle = load_model(single_block, ops=ops)
    steps = oracle.trace(list(range(12)), KVCache(oracle.config, 16, dtype=np.float64), head=False)
    traced = {}
    replacement = None
    while True:
        try:
            name, value = steps.send(replacement)
        except StopIteration:
            break
        traced[name] = value
        replacement = rows if name == "embed" else None
    basis = model.config.basis
    states = hidden if basis is None else in_basis(basis, hidden)
    cache = KVCache(model.config.drafter, 16, dtype=np.float64)
    first = model.foresee([Segment(ids[:7], cache, "all", states[:7])])
    second = model.foresee([Segment(ids[7:], cache, "all", states[7:])])
    computed = np.concatenate([first, second])
    expected = traced["result_norm"] if basis is None else in_basis(basis, traced["result_norm"])
    np.testing.assert_allclose(computed, expected, atol=1e-5 * np.ptp(expected))  # of their range


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("checkpoint", [DRAFTING, predictable()], ids=["random", "predictable"])
def test_no_answer_changes_and_good_drafts_save_passes(checkpoint, temperature):
    ops = select(threads=2)
    model = load_model(checkpoint, ops=ops)
    plain = load_model(without_block(checkpoint), ops=ops)
    expected = answer(plain, prompt(300), temperature=temperature)
    sequence = answer(model, prompt(300), temperature=temperature)
    assert sequence.ids == expected.ids
    assert sequence.drafted > 0
    if checkpoint is not DRAFTING:
        # Every draft is right, and has up to four tokens (MOST_OF_BLOCK).
        assert sequence.accepted == sequence.drafted
        assert sequence.passes < expected.passes / 3
    unused = answer(model, prompt(300), temperature=temperature, drafting=False)
    assert unused.ids == expected.ids
    assert unused.drafted == 0


def test_several_sequences_draft_together_within_the_bounds():
    model = load_model(predictable(), ops=select(threads=2))
    expected = [answer(model, prompt(40, seed=n), drafting=False).ids for n in range(3)]
    # A sequence has at most 100 positions: 40 of its prompt, 60 of its answer.
    scheduler = Scheduler(model, kv_budget_bytes=4 * Scheduler(model).caches.cost(100))
    scheduler._pace.observe = lambda *_, **__: None
    request = Request(max_tokens=60, lookup=0, temperature=0)
    sequences = [scheduler.submit(prompt(40, seed=n), request) for n in range(3)]
    for sequence in sequences:
        while not sequence.finish_reason:
            scheduler.step()
            for running in scheduler.running:
                cache = running.cache
                assert cache.size_bytes <= cache.cost(100, 256)  # in passes of PREFILL_CHUNK
                assert cache.drafter.length < len(running.ids)
    assert [sequence.ids for sequence in sequences] == expected
    assert all(sequence.accepted for sequence in sequences)


def test_an_answer_goes_on_without_memory_for_drafts(monkeypatch):
    model = load_model(predictable(), ops=select(threads=1))
    expected = answer(model, prompt(20), drafting=False)

    def no_room(_segments):
        raise MemoryError

    monkeypatch.setattr(model, "foresee", no_room)
    sequence = answer(model, prompt(20))
    assert (sequence.ids, sequence.drafted) == (expected.ids, 0)


def test_only_a_single_block_with_the_head_of_the_model_drafts():
    # Two blocks that draft, and a block with a head of its own: neither is used.
    for keys, name in (({"nextn_predict_layers": 2}, ""), ({}, "nextn.shared_head_head.weight")):
        metadata = dict(DRAFTING.metadata) | {f"qwen35.{key}": keys[key] for key in keys}
        weights = dict(DRAFTING.weights)
        if name:
            weights[BLOCK + name] = weights["token_embd.weight"]
        config = config_from(replace(DRAFTING, metadata=metadata, weights=weights))
        assert config.drafter is None
        assert config.n_layers == 5 - metadata["qwen35.nextn_predict_layers"]
        assert BLOCK in config.left_out
    lacking = {n: w for n, w in DRAFTING.weights.items() if not n.endswith("hnorm.weight")}
    with pytest.raises(InvalidFormat, match=r"blk\.4\.nextn\.hnorm\.weight .* is missing"):
        load_model(replace(DRAFTING, weights=lacking), ops=select())


@pytest.mark.parametrize("faster", [True, False])
def test_the_pace_stays_with_the_faster_way_and_tries_the_other_ever_more_rarely(faster):
    pace = Pace()
    ways = []
    for _ in range(20_000):
        ways.append(pace.drafting)
        pace.observe(1, 1.0 if pace.drafting == faster else 1.3)  # a token, and its seconds
    assert ways[:TRIAL] == [True] * TRIAL
    # After the first trial of each way, it stays with the faster one.
    assert set(ways[2 * TRIAL : 2 * TRIAL + FIRST_STAY]) == {faster}
    slower = [way for way in ways if way != faster]
    # Trials go on, of TRIAL passes after LONGEST_STAY: less than one pass in a hundred.
    assert TRIAL < len(slower) < 0.01 * len(ways)


def test_the_pace_returns_to_drafts_when_they_become_the_faster_way():
    pace = Pace()
    for step in range(8 * LONGEST_STAY):
        slow = pace.drafting if step < 2 * LONGEST_STAY else not pace.drafting
        pace.observe(1, 2.0 if slow else 1.0)
    assert pace.drafting


def test_states_that_wait_for_a_draft_are_bounded():
    config = config_from(DRAFTING)
    ids = list(range(200))
    text = []
    foresight = BlockForesight(text, KVCache(config.drafter, 512), 4)
    text.append(ids[0])
    for end in range(1, 200):
        text.append(ids[end])
        foresight.add(end, np.full((1, DIM), end - 1.0))  # a state that names its position
    segment = foresight.unread(1)
    assert segment.tokens == ids[-MOST_WAITING:]
    # Each token is read with the state of the one before it.
    assert segment.hidden[:, 0].tolist() == [token - 1 for token in segment.tokens]
    assert not foresight.unread(1)


TARGET = tiny("llama", context_length=512)
# Draft models, by how they differ from TARGET.
SMALL = {
    "itself": TARGET,
    "another": tiny("qwen3", seed=5, block_count=1, context_length=512),
    "with states": tiny("qwen35", seed=5, context_length=512),
    "with a window": tiny("gemma3", seed=5, context_length=512),
    "of a short context": tiny("llama", seed=5, block_count=1, context_length=96),
}


def run_within_bounds(scheduler):
    """Run *scheduler* until it is idle; no cache is larger than its reserved size after a pass."""
    while scheduler.busy:
        scheduler.step()
        for running in scheduler.running:
            cache = running.cache
            assert cache.size_bytes <= running.cache.reserved_bytes
            assert cache.drafter.length <= len(running.ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("small", SMALL)
def test_no_answer_changes_with_a_draft_model(small, temperature):
    ops = select(threads=1)
    model = load_model(TARGET, ops=ops)
    draft = load_model(SMALL[small], ops=ops)
    prompts = [prompt(40, seed=1), prompt(300, seed=2), prompt(9, seed=3)]
    expected = [answer(model, ids, temperature=temperature).ids for ids in prompts]
    scheduler = Scheduler(model, draft_model=draft, prefill_chunk=64)
    scheduler._pace.observe = lambda *_, **__: None
    sampling = {"temperature": temperature, "seed": 3}
    request = Request(max_tokens=60, lookup=0, **sampling)
    sequences = [scheduler.submit(ids, request) for ids in prompts]
    run_within_bounds(scheduler)
    assert [sequence.ids for sequence in sequences] == expected
    assert sequences[0].drafted > 0
    if small == "itself" and not temperature:
        assert all(sequence.accepted == sequence.drafted for sequence in sequences)
        assert sequences[0].passes < 25  # for 60 tokens, with drafts of up to MOST_OF_MODEL


def test_a_draft_model_reads_a_shared_prefix_once(monkeypatch):
    model = load_model(TARGET, ops=select(threads=1))
    draft = load_model(SMALL["another"], ops=select(threads=1))
    read_counts = []
    hidden = draft.hidden

    def counting_hidden(segments):
        read_counts.append(sum(len(segment.tokens) for segment in segments))
        return hidden(segments)

    monkeypatch.setattr(draft, "hidden", counting_hidden)
    scheduler = Scheduler(model, draft_model=draft)
    scheduler._pace.observe = lambda *_, **__: None
    request = Request(max_tokens=4, lookup=0, temperature=0)
    for end in ([5], [6]):
        read_counts.clear()
        scheduler.submit([*prompt(200), *end], request)
        run_within_bounds(scheduler)
    # The second prompt has 201 ids, of which 200 were read for the first one.
    assert 0 < sum(read_counts) < 60


def test_a_draft_model_reads_a_long_prompt_in_chunks_before_it_drafts():
    model = load_model(TARGET, ops=select(threads=1))
    scheduler = Scheduler(model, draft_model=model, prefill_chunk=32)
    scheduler._pace.observe = lambda *_, **__: None
    sequence = scheduler.submit(prompt(200), Request(max_tokens=60, lookup=0))
    scheduler.step()
    lengths = [0]
    while not sequence.finish_reason:
        scheduler.step()
        if sequence.cache and not sequence.drafted:
            lengths.append(sequence.cache.drafter.length)
    assert max(after - before for before, after in pairwise(lengths)) <= 32
    assert max(lengths) > 2 * 32  # it read several chunks before it drafted
    assert sequence.drafted


def test_drafts_that_a_grammar_shortens_change_no_answer():
    model = load_model(TARGET, ops=select(threads=1))
    expected = answer(model, prompt(30))
    scheduler = Scheduler(model, draft_model=model)
    scheduler._pace.observe = lambda *_, **__: None
    sequence = scheduler.submit(prompt(30), Request(max_tokens=60, lookup=0, temperature=0, seed=3))
    # In place of a grammar: it allows no draft after an odd number of ids.
    sequence.valid = lambda draft: 0 if len(sequence.ids) % 2 else len(draft)
    run(scheduler)
    assert sequence.ids == expected.ids
    assert 0 < sequence.drafted == sequence.accepted  # the model drafts for itself


def test_trials_of_a_slow_drafter_lose_at_most_three_percent():
    # A token takes 1 s without drafts, and *slowness* seconds with them. Every fifth pass with
    # drafts gives no token, because the drafter has to read the text first.
    for slowness in (1.01, 1.5, 3.0, 10.0):
        pace = Pace()
        lost_s = 0.0
        for step in range(60_000):
            is_behind = pace.drafting and step % 5 == 0
            passed_s = slowness if pace.drafting else 1.0
            pace.observe(0 if is_behind else 1, passed_s, steady=not is_behind)
            lost_s += passed_s - (not is_behind)
        assert lost_s < 0.03 * 60_000
        assert pace.gain == pytest.approx(1 / slowness)


def with_rows(checkpoint, rows, favoured):
    """*checkpoint* with *rows* ids in its vocabulary; *favoured* has 20 times its former logit."""
    embedding = checkpoint.weights["token_embd.weight"].take_rows(slice(0, rows))
    numbers = registry.dequantize(embedding).astype("<f4")
    numbers[favoured] *= 20
    head = Weight(
        "output.weight", numbers.shape, types.by_name("F32"), numbers.reshape(-1).view(np.uint8)
    )
    weights = dict(checkpoint.weights) | {embedding.name: embedding, head.name: head}
    metadata = dict(checkpoint.metadata) | {"llama.vocab_size": rows}
    return replace(checkpoint, weights=weights, metadata=metadata)


@pytest.mark.parametrize(
    ("rows", "draft_rows", "favoured"),
    # Ids of the model, ids of the draft model, and the id that the draft model often proposes.
    [(VOCAB, VOCAB - 8, VOCAB - 9), (VOCAB - 8, VOCAB, VOCAB - 1)],
    ids=["smaller", "larger"],
)
def test_padding_of_two_vocabularies_may_differ(rows, draft_rows, favoured):
    ops = select(threads=1)
    model = load_model(with_rows(TARGET, rows, 5), ops=ops)
    draft = load_model(with_rows(TARGET, draft_rows, favoured), ops=ops)
    prompts = [[5, 6, 7, 8], [5, 6, 7, rows - 1]]
    expected = [answer(model, ids).ids for ids in prompts]
    scheduler = Scheduler(model, draft_model=draft)
    scheduler._pace.observe = lambda *_, **__: None
    request = Request(max_tokens=60, lookup=0, temperature=0, seed=3)
    sequences = [scheduler.submit(ids, request) for ids in prompts]
    run_within_bounds(scheduler)
    assert [sequence.ids for sequence in sequences] == expected
    assert sequences[0].drafted > 0
    assert not any(sequence.error for sequence in sequences)


@pytest.mark.parametrize("error", [MemoryError(), OSError("the file was changed")])
def test_answers_go_on_without_a_draft_model_that_fails(monkeypatch, error):
    model = load_model(TARGET, ops=select(threads=1))
    draft = load_model(SMALL["another"], ops=select(threads=1))
    expected = [answer(model, prompt(20, seed=n)).ids for n in range(2)]

    def fail(_segments):
        raise error

    monkeypatch.setattr(draft, "hidden", fail)
    scheduler = Scheduler(model, draft_model=draft)
    scheduler._pace.observe = lambda *_, **__: None
    request = Request(max_tokens=60, lookup=0, temperature=0, seed=3)
    sequences = [scheduler.submit(prompt(20, seed=n), request) for n in range(2)]
    run_within_bounds(scheduler)
    assert [sequence.ids for sequence in sequences] == expected
    assert [sequence.drafted for sequence in sequences] == [0, 0]
