"""Adapters that requests name: the answers of a model with that adapter alone, in any company."""

from dataclasses import replace

import pytest
from adapter_files import adapter_file, factors
from tiny_models import in_encoding, tiny

from bitnet.base.errors import UsageError
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.adapted import with_adapters
from bitnet.models.load import load_model
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler

PROMPT = [5, 9, 33, 2, 61, 17, 8, 40]
NAMES = ("", "first", "second")


@pytest.fixture(scope="module", params=["reference", "native"])
def models(request, tmp_path_factory):
    """A model that has two adapters, and by name one for each that was loaded with it."""
    checkpoint = tiny("llama")
    ops = ReferenceOps()
    if request.param == "native":
        pytest.importorskip("bitnet._native")
        checkpoint, ops = in_encoding(checkpoint, "Q8_0"), NativeOps(threads=2)
    checkpoint = replace(checkpoint, gguf=True)
    folder = tmp_path_factory.mktemp("adapters")
    model = load_model(checkpoint, ops=ops)
    alone = {}
    for seed, name in enumerate(NAMES):
        pairs = {
            f"blk.{block}.{part}.weight": factors(
                *checkpoint.weights[f"blk.{block}.{part}.weight"].shape, 4, seed + block
            )
            for block in range(2)
            for part in ("attn_q", "attn_v", "ffn_down")
        }
        its = [(adapter_file(folder / f"{name}.gguf", pairs), 4.0)] if name else []
        adapted = with_adapters(checkpoint, its)
        alone[name] = load_model(adapted, ops=ops)
        if name:
            model.adapters[name] = load_model(adapted, base=model)
    return model, alone


def written(scheduler, requests):
    """Ids of the answers to *requests*, which run together."""
    sequences = [scheduler.submit(ids, request) for ids, request in requests]
    while scheduler.busy:
        scheduler.step()
    return [sequence.ids[sequence.prompt_tokens :] for sequence in sequences]


def test_each_answer_is_that_of_its_adapter_alone(models):
    model, alone = models
    asked = [(PROMPT[: 4 + at], NAMES[at % 3], 6 + at) for at in range(5)]
    expected = [
        written(Scheduler(alone[name]), [(ids, Request(max_tokens=most))])[0]
        for ids, name, most in asked
    ]
    requests = [(ids, Request(max_tokens=most, lora=name)) for ids, name, most in asked]
    assert written(Scheduler(model), requests) == expected
    assert written(Scheduler(model, max_batch=2, prefill_chunk=3), requests) == expected
    answers = {tuple(written(Scheduler(its), [(PROMPT, Request())])[0]) for its in alone.values()}
    assert len(answers) == 3


def test_a_prefix_is_reused_under_its_own_adapter_alone(models):
    model, _ = models
    scheduler = Scheduler(model)
    reused = []
    for name in ("first", "second", "", "first"):
        sequence = scheduler.submit(PROMPT, Request(max_tokens=2, lora=name))
        while scheduler.busy:
            scheduler.step()
        reused.append(sequence.reused_tokens)
    assert reused == [0, 0, 0, len(PROMPT) - 1]


def test_prompts_that_wait_for_a_prefix_wait_for_their_own_adapter(models):
    model, alone = models
    ids = [(7 * at) % 60 + 3 for at in range(60)]
    requests = [(ids, Request(max_tokens=3, lora=name)) for name in ("first", "second", "first")]
    expected = [
        written(Scheduler(alone[its.lora]), [(ids, Request(max_tokens=3))])[0]
        for _, its in requests
    ]
    assert written(Scheduler(model), requests) == expected


def test_weights_and_head_are_there_once(models):
    model, _ = models
    for its in model.adapters.values():
        assert its.head is model.head
        assert its._weights["blk.0.attn_q.weight"] is model._weights["blk.0.attn_q.weight"]


def test_an_unknown_adapter_is_refused(models):
    model, _ = models
    with pytest.raises(UsageError, match="no adapter 'third'"):
        Scheduler(model).submit(PROMPT, Request(lora="third"))
