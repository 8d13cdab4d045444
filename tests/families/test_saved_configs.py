"""``config.json`` of every class with its default values, as transformers saves it."""

import copy
import json

import pytest

from bitnet.base.errors import BitnetError
from bitnet.families.config_json import CHANGES, READ, describe
from bitnet.families.family import families

REASON = "transformers is not installed: pip install 'bitnet-xtask[parity]'"
CONFIG_MAPPING = pytest.importorskip("transformers", reason=REASON).CONFIG_MAPPING

# Types whose default model cannot be computed, with a word of the refusal.
REFUSED = {
    "afmoe": "mup_enabled",
    "dots1": "n_shared_experts",
    "nemotron_h": "layers_block_type",
    "qwen3_moe": "head_dim",
}
# Refusals of a folder that lacks a key for which there is no single default.
NO_DEFAULT = (
    "different values",
    "has no sliding_attention.rope_theta",
    "config.json has no rope_theta",
)
# Without this key of HRM-Text, transformers splits the layers, which contradicts their number.
CONTRADICTING = {("hrm_text", "num_layers_per_stack"), ("hrm_text", "num_hidden_layers")}


def saved_configs():
    """Model types with their family and a configuration of default values."""
    for family in families():
        for model_type in sorted({*family.model_types} & {*CONFIG_MAPPING}):
            yield model_type, family, CONFIG_MAPPING[model_type]()


def as_saved(config):
    """The content of the file that transformers writes for its object *config*."""
    return json.loads(config.to_json_string()) | {"architectures": None}


def values_of(config):
    """GGUF keys by *config*; a list of equal values counts as one."""
    metadata = describe(config, model="m").metadata
    return {
        key: value[0] if isinstance(value, list) and value == value[:1] * len(value) else value
        for key, value in metadata.items()
    }


def test_a_config_that_transformers_saves_is_described():
    described = 0
    for model_type, _family, config in saved_configs():
        if model_type in REFUSED:
            with pytest.raises(BitnetError, match=REFUSED[model_type]):
                describe(as_saved(config), model="m")
            continue
        assert describe(as_saved(config), model="m").metadata, model_type
        described += 1
    assert described > 100


@pytest.mark.slow
def test_without_a_key_a_saved_config_is_described_as_transformers_completes_it():
    compared = 0
    for model_type, family, config in saved_configs():
        whole = as_saved(config)
        read = (whole.keys() & {*CHANGES, *READ, *family.config_rules}) - {"architectures"}
        for key in sorted(read):
            if model_type in REFUSED or (model_type, key) in CONTRADICTING:
                continue
            without = {name: value for name, value in whole.items() if name != key}
            kept = copy.deepcopy(config.to_dict())
            kept.pop(key, None)
            completed = as_saved(type(config).from_dict(kept))
            try:
                actual = values_of(without)
            except BitnetError as error:
                assert any(part in error.message for part in NO_DEFAULT), (model_type, key)  # noqa: PT017
                continue
            expected = values_of(completed)
            both = actual.keys() & expected.keys()
            assert {name: actual[name] for name in both} == {
                name: expected[name] for name in both
            }, (model_type, key)
            compared += 1
    assert compared > 1000
