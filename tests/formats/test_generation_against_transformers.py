"""Random generation_config.json files give the sampling that transformers derives from them."""

import json
import random
from types import SimpleNamespace

import pytest

from bitnet.formats.checkpoint import Inventory
from bitnet.formats.generation import GenerationSettings, read_generation_settings
from bitnet.runtime.request import Request

FOLDERS = 200  # configurations that are drawn
# The values that a key may have in a configuration.
VALUES = {
    "do_sample": (True, False, None),
    "temperature": (0.6, 1.0, None),
    "top_k": (20, 0, None),
    "top_p": (0.8, 1.0, None),
    "min_p": (0.05, None),
    "repetition_penalty": (1.1, None),
    "max_new_tokens": (77, None),
    "suppress_tokens": ([3, 5], None),
    "begin_suppress_tokens": ([4], None),
    "eos_token_id": (2, [1, 2]),
}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="pip install 'bitnet-xtask[parity]'")


@pytest.fixture(scope="module")
def model(transformers):
    """A model of one small layer, whose `generate` prepares the settings of a folder."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 16}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=1)
    return transformers.LlamaForCausalLM(config)


def _draw(draw):
    """Content of a `generation_config.json`: each key is absent, or has one of its values."""
    names = [name for name in VALUES if draw.random() < 0.6]
    return {name: draw.choice(VALUES[name]) for name in names}


@pytest.mark.parametrize("seed", range(FOLDERS))
def test_a_folders_settings_are_those_that_transformers_prepares(
    tmp_path, transformers, model, seed
):
    config = _draw(random.Random(seed))
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path)
    model.generation_config = theirs
    prepared, _ = model._prepare_generation_config(None)
    folder = SimpleNamespace(gguf=None, path=tmp_path, inventory=Inventory(tmp_path))
    settings: GenerationSettings = read_generation_settings(folder)
    ours = Request().with_settings(settings)
    assert ours.repetition_penalty == prepared.repetition_penalty
    assert (ours.temperature > 0) == prepared.do_sample
    if prepared.do_sample:
        for name in ("temperature", "top_k", "top_p"):
            assert getattr(ours, name) == getattr(prepared, name), name
        assert ours.min_p == (prepared.min_p or 0.0)
    assert settings.suppressed == {*(prepared.suppress_tokens or ())}
    assert settings.suppressed_first == {*(prepared.begin_suppress_tokens or ())}
    if prepared.max_new_tokens is not None:
        assert ours.length_limit == prepared.max_new_tokens
