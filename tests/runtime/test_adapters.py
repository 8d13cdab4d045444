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
NAMES = ("", "first", "second")  # of adapters; the empty name: none


@pytest.fixture(scope="module", params=["reference", "native"])
def models(request, tmp_path_factory):
    """A model with both adapters, and models by the name of the only one that each has."""
    checkpoint = tiny("llama")
    ops = ReferenceOps()
    if request.param == "native":
        pytest.importorskip("bitnet._native")
        checkpoint, ops = in_encoding(checkpoint, "Q8_0"), NativeOps(threads=2)
    checkpoint = replace(checkpoint, gguf=True)  # as if read from GGUF, as the adapters are
    folder = tmp_path_factory.mktemp("adapters")
    model = load_model(checkpoint, ops=ops)
    alone_models = {}
    for seed, name in enumerate(NAMES):
        # Low-rank factors by the name of the matrix that they change.
        pairs = {
            f"blk.{block}.{part}.weight": factors(
                *checkpoint.weights[f"blk.{block}.{part}.weight"].shape, 4, seed + block
            )
            for block in range(2)
            for part in ("attn_q", "attn_v", "ffn_down")
        }
        # Each adapter with the factor on what it adds.
        files = [(adapter_file(folder / f"{name}.gguf", pairs), 4.0)] if name else []
        adapted = with_adapters(checkpoint, files)
        alone_models[name] = load_model(adapted, ops=ops)
        if name:
            model.adapters[name] = load_model(adapted, base=model)
    return model, alone_models


def answers_to(scheduler, requests):
    """Ids of the answers to *requests*, pairs of a prompt and a request, in one scheduler."""
    sequences = [scheduler.submit(ids, request) for ids, request in requests]
    while scheduler.busy:
        scheduler.step()
    return [sequence.ids[sequence.prompt_tokens :] for sequence in sequences]


def test_each_answer_is_that_of_its_adapter_alone(models):
    model, alone = models
    # Prompt, adapter and length of each answer.
    cases = [(PROMPT[: 4 + at], NAMES[at % 3], 6 + at) for at in range(5)]
    expected = [
        answers_to(Scheduler(alone[name]), [(ids, Request(max_tokens=max_tokens))])[0]
        for ids, name, max_tokens in cases
    ]
    requests = [(ids, Request(max_tokens=max_tokens, lora=name)) for ids, name, max_tokens in cases]
    assert answers_to(Scheduler(model), requests) == expected
    assert answers_to(Scheduler(model, max_batch=2, prefill_chunk=3), requests) == expected
    answers = {
        tuple(answers_to(Scheduler(single), [(PROMPT, Request())])[0]) for single in alone.values()
    }
    assert len(answers) == 3  # each adapter changes the answer


def test_a_prefix_is_reused_under_its_own_adapter_alone(models):
    model, _ = models
    scheduler = Scheduler(model)
    reused = []
    for name in ("first", "second", "", "first"):
        sequence = scheduler.submit(PROMPT, Request(max_tokens=2, lora=name))
        while scheduler.busy:
            scheduler.step()
        reused.append(sequence.reused_tokens)
    # The last id of a prompt is always run.
    assert reused == [0, 0, 0, len(PROMPT) - 1]


def test_equal_prompts_submitted_together_are_answered_by_their_own_adapters(models):
    model, alone = models
    # So long that a prompt waits for another one's computed prefix (WORTH_WAITING).
    ids = [(7 * at) % 60 + 3 for at in range(60)]
    requests = [(ids, Request(max_tokens=3, lora=name)) for name in ("first", "second", "first")]
    expected = [
        answers_to(Scheduler(alone[request.lora]), [(ids, Request(max_tokens=3))])[0]
        for _, request in requests
    ]
    assert answers_to(Scheduler(model), requests) == expected


def test_adapters_share_head_and_weights_with_the_model(models):
    model, _ = models
    for adapted in model.adapters.values():
        assert adapted.head is model.head
        assert adapted._weights["blk.0.attn_q.weight"] is model._weights["blk.0.attn_q.weight"]


def test_an_unknown_adapter_is_refused(models):
    model, _ = models
    with pytest.raises(UsageError, match="no adapter 'third'"):
        Scheduler(model).submit(PROMPT, Request(lora="third"))
