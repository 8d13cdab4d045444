"""Keys of generation_config.json: each of transformers is decided, and others are named."""

import json
from types import SimpleNamespace

import pytest
from hf_folders import tiny_folder

from bitnet.formats import generation_keys
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.generation import read_generation_settings
from bitnet.verify import verify_model


def settings(folder, **config):
    """Settings of *folder* with this ``generation_config.json``."""
    (folder / "generation_config.json").write_text(json.dumps(config))
    checkpoint = SimpleNamespace(gguf=None, path=folder, inventory=Inventory(folder))
    return read_generation_settings(checkpoint)


def test_every_attribute_of_transformers_is_decided_once():
    transformers = pytest.importorskip("transformers", reason="pip install 'bitnet-xtask[parity]'")
    attributes = transformers.GenerationConfig().to_dict()
    assert len(attributes) > 50
    assert generation_keys.find_unknown(attributes) == []
    decided = [
        *generation_keys.READ,
        *generation_keys.NOT_FOLLOWED,
        *generation_keys.NEUTRAL,
    ]
    assert len(decided) == len({*decided})


@pytest.mark.parametrize("key", generation_keys.NOT_FOLLOWED)
def test_a_key_that_answers_do_not_follow_is_named_unless_it_changes_nothing(key, tmp_path):
    assert settings(tmp_path, **{key: 7}).not_followed == (key,)
    for value in generation_keys.NOT_FOLLOWED[key]:
        assert settings(tmp_path, **{key: value}).not_followed == ()


def test_an_unknown_key_is_named(tmp_path):
    read = settings(tmp_path, temprature=0.5, temperature=0.5, do_sample=True)
    assert read.unknown == ("temprature",)


def test_verify_names_keys_that_are_not_followed_or_not_known(tmp_path):
    folder = tiny_folder(tmp_path / "m", "llama")
    (folder / "generation_config.json").write_text('{"num_beams": 4, "temprature": 1}')
    (finding,) = [check for check in verify_model(folder) if check.subject == "metadata"]
    assert finding.severity == "warning"
    assert "num_beams changes answers" in finding.text
    assert "temprature is not a key" in finding.text
