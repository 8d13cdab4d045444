"""Sampling and suppressed ids in the files of a model: read, bounded, and applied to answers."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_models import tiny_gguf

import bitnet
from bitnet.base.errors import InvalidFormat
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.generation import read_generation_settings
from bitnet.runtime.request import Request
from bitnet.runtime.sampling import Sampler

LOGITS = np.array([0.0, 5.0, 4.0, 3.0], dtype=np.float32)


def folder(path, **config):
    """A stand-in for the checkpoint of the folder *path*, with this ``generation_config.json``."""
    (path / "generation_config.json").write_text(json.dumps(config))
    return SimpleNamespace(gguf=None, path=path, inventory=Inventory(path))


def test_a_folder_that_samples_has_its_settings(tmp_path):
    settings = read_generation_settings(
        folder(tmp_path, do_sample=True, temperature=0.7, top_p=0.8, top_k=20, min_p=None)
    )
    values = {name: setting.value for name, setting in settings.sampling.items()}
    assert values == {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
    assert settings.sampling["top_p"].source == "generation_config.json: top_p"


def test_a_folder_that_does_not_sample_is_greedy_with_its_penalty(tmp_path):
    settings = read_generation_settings(folder(tmp_path, temperature=0.7, repetition_penalty=1.1))
    assert settings.sampling.keys() == {"repetition_penalty"}


def test_a_gguf_file_has_its_settings_and_its_suppressed_ids(tmp_path):
    keys = {"general.sampling.temp": 0.6, "general.sampling.top_k": 40}
    keys["tokenizer.ggml.suppress_tokens"] = [1, 3]
    settings = read_generation_settings(open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf", **keys)))
    assert settings.suppressed == {1, 3}
    assert settings.sampling["temperature"].value == pytest.approx(0.6)
    assert settings.sampling["top_k"].source == "general.sampling.top_k"


@pytest.mark.parametrize(
    "key", ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "suppress_tokens"]
)
@pytest.mark.parametrize("value", ["x", True, -2, float("nan"), 10**400, {"a": 1}, [None]])
def test_a_wrong_value_is_refused_by_the_name_of_its_key(tmp_path, key, value):
    with pytest.raises(InvalidFormat, match=key):
        read_generation_settings(folder(tmp_path, do_sample=True, **{key: value}))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_suppressed_ids_are_in_no_answer(temperature):
    request = Request(temperature=temperature, suppressed=frozenset({1, 2}), seed=1)
    sampler = Sampler(request)
    tokens = {sampler.sample(LOGITS).token for _ in range(200)}
    assert tokens <= {0, 3}  # 1 and 2 are the likeliest


def test_ids_suppressed_at_the_beginning_may_follow():
    sampler = Sampler(Request(suppressed_first=frozenset({1})))
    assert [sampler.sample(LOGITS).token for _ in range(3)] == [2, 1, 1]


def test_a_head_that_computes_some_logits_computes_those_of_suppressed_ids_too():
    sampler = Sampler(Request(suppressed=frozenset({1}), suppressed_first=frozenset({2})))
    assert {1, 2} <= set(sampler.needs().ids.tolist())
    sampler.sample(LOGITS)
    assert 1 in sampler.needs().ids.tolist()


def test_a_request_cannot_lift_the_suppression():
    sampler = Sampler(Request(suppressed=frozenset({1}), logit_bias={1: 100.0}))
    assert sampler.sample(LOGITS).token == 2


def test_a_model_never_writes_an_id_that_its_file_suppresses(tmp_path):
    path = tiny_gguf(tmp_path / "free.gguf")
    with bitnet.load(path) as model:
        free = model.answer(Request(prompt="ab", max_tokens=8, ignore_eos=True))
        "".join(free)  # generates: an answer is an iterator, and has its ids afterwards
    # The others are not ids of the model, and are ignored.
    keys = {"tokenizer.ggml.suppress_tokens": [free.ids[0], 10**6, -1]}
    with bitnet.load(tiny_gguf(tmp_path / "suppressed.gguf", **keys)) as model:
        answer = model.answer(Request(prompt="ab", max_tokens=8, ignore_eos=True))
        "".join(answer)
    assert answer.ids
    assert free.ids[0] not in answer.ids
