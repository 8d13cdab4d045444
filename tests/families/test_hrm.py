"""HRM-Text: two stacks of blocks in turns on two streams, and what of it is refused."""

import numpy as np
import pytest
from tiny_models import tiny

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.config_json import describe
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from, load_model

IDS = [5, 9, 3, 44, 12]
# As the class of transformers 5.24 has them, but for the direction of a prompt's attention.
CONFIG = {
    "model_type": "hrm_text",
    "architectures": ["HrmTextForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 16,
    "num_layers_per_stack": 2,
    "max_position_embeddings": 64,
    "prefix_lm": False,
}


def key_of(config, name):
    return describe(config, model="m").metadata[f"hrm_text.{name}"]


def logits(checkpoint):
    """Logits of all positions on the reference backend."""
    model = load_model(checkpoint, ops=ReferenceOps())
    return model.forward(IDS, KVCache(model.config, 16), all_positions=True)


def test_each_run_of_a_block_has_a_cache_and_the_tensors_are_those_of_two_stacks():
    keys = {"hrm.layers_per_stack": 2, "hrm.l_cycles": 3, "hrm.h_cycles": 2, "block_count": 16}
    config = config_from(tiny("hrm_text", **keys))
    assert len(config.caches) == 16
    assert config.block_numbers == (0, 1, 0, 1, 0, 1, 2, 3) * 2
    numbers = {name.split(".")[1] for name in layout(config).required if name.startswith("blk.")}
    assert numbers == {"0", "1", "2", "3"}
    assert not any("norm" in name for name in layout(config).required)


@pytest.mark.parametrize("name", ["hrm.z_l_init", "blk.0.attn_q.weight", "blk.1.attn_q.weight"])
def test_the_first_low_stream_and_both_stacks_count(name):
    checkpoint = tiny("hrm_text")
    other = tiny("hrm_text", seed=1)
    changed = checkpoint.weights | {name: other.weights[name]}
    found = logits(type(checkpoint)(**vars(checkpoint) | {"weights": changed}))
    expected = logits(checkpoint)
    assert np.abs(found - expected).max() > 0.01 * np.ptp(expected)


def test_a_number_of_layers_that_is_not_that_of_the_turns_is_refused():
    with pytest.raises(InvalidFormat, match=r"5 layers, expected those of 2 cycles of 1 \+ 1"):
        config_from(tiny("hrm_text", block_count=5))
    with pytest.raises(InvalidFormat, match="num_hidden_layers is 15"):
        describe(CONFIG | {"num_hidden_layers": 15}, model="m")


def test_layers_of_a_stack_alone_are_those_of_older_folders():
    older = {key: value for key, value in CONFIG.items() if key != "num_layers_per_stack"}
    for config in (CONFIG, older | {"num_hidden_layers": 2}):
        assert key_of(config, "block_count") == 16
        assert key_of(config, "hrm.layers_per_stack") == 2


def test_the_scale_of_embeddings_is_one_over_their_deviation_unless_it_is_given():
    assert key_of(CONFIG, "embedding_scale") == 50.0
    assert key_of(CONFIG | {"initializer_range": 0.25}, "embedding_scale") == 4.0
    assert key_of(CONFIG | {"embedding_scale": 3}, "embedding_scale") == 3.0


def test_a_prompt_that_is_read_in_both_directions_is_refused_by_the_key():
    with pytest.raises(Unsupported, match="prefix_lm = true"):
        describe(CONFIG | {"prefix_lm": True}, model="m")
    with pytest.raises(Unsupported, match="prefix_lm = true"):
        describe({key: CONFIG[key] for key in CONFIG if key != "prefix_lm"}, model="m")
    with pytest.raises(Unsupported, match=r"hrm_text\.hrm\.prefix_lm = true"):
        config_from(tiny("hrm_text", **{"hrm.prefix_lm": True}))
