"""One wrong value in ``config.json``: the model opens or is refused by name, within seconds."""

import random
import time

import numpy as np
import pytest
from config_mutants import MODELS, changed, mutants_of, open_model

from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.families.config_json import READ, describe
from bitnet.families.config_values import KINDS
from bitnet.families.family import families
from bitnet.families.keys import Keys, split_ignored

SLICE = 500  # mutations that a fast test draws from all
MOST_S = 10.0  # of processor time: a model opens in 10 ms; counting to a wrong number takes minutes
# Mutations that once ended in another error than ours or took minutes: model, path, value.
FORMER_FAULTS = (
    ("llama", ("num_hidden_layers",), None),
    ("llama", ("num_hidden_layers",), 10**12),
    ("llama", ("num_hidden_layers",), 3 * 10**9),
    ("smollm3", ("num_hidden_layers",), 10**400),
    ("glm4moe", ("num_hidden_layers",), {}),
    ("mistral-head-dim", ("head_dim",), float("inf")),
    ("ministral3", ("head_dim",), 3 * 10**9),
    ("qwen3.5", ("head_dim",), 10**400),
    ("gemma3", ("query_pre_attn_scalar",), -1),
    ("granite", ("embedding_multiplier",), 10**400),
    ("falcon-h1", ("attention_out_multiplier",), None),
    ("falcon-h1", ("mlp_multipliers", 1), 10**400),
    ("falcon-h1", ("mamba_d_state",), 3 * 10**9),
    ("falcon-h1", ("mamba_d_state",), 2),
    ("falcon-h1-norm", ("mamba_n_groups",), 2.0),
    ("granitehybrid", ("mamba_n_groups",), 7),
    ("deepseek3", ("qk_nope_head_dim",), float("inf")),
    ("lfm2", ("intermediate_size",), float("-inf")),
    ("llama-yarn-rope", ("rope_parameters", "factor"), 10**400),
    ("llama-yarn-rope", ("rope_parameters", "original_max_position_embeddings"), float("inf")),
    ("gemma4-e2b", ("rope_parameters", "sliding_attention", "rope_theta"), 10**400),
    ("phi3-longrope", ("rope_parameters", "long_factor", 0), 10**400),
    ("ministral3", ("rope_parameters", "llama_4_scaling_beta"), 10**400),
    ("bitnet", ("quantization_config", "modules_to_not_convert"), -0.5),
)


def opens(name, path, value, folder, monkeypatch):
    """True if the model opens, False if it is refused by an error of ours."""
    start = time.process_time()
    try:
        open_model(name, changed(name, path, value), folder, monkeypatch)
    except BitnetError:
        return False
    finally:
        assert time.process_time() - start < MOST_S, (name, path, value)
    return True


def test_every_key_that_a_family_reads_has_a_kind():
    rules = [READ, *(family.config_rules for family in families())]
    read = {name for table in rules for name, rule in table.items() if rule.is_read}
    assert len(read) > 100
    assert read == KINDS.keys()


@pytest.mark.parametrize("name", MODELS)
def test_a_configuration_as_transformers_writes_it_opens(name, tmp_path, monkeypatch):
    open_model(name, MODELS[name]["config"], tmp_path, monkeypatch)


@pytest.mark.parametrize(("name", "path", "value"), FORMER_FAULTS)
def test_a_wrong_value_is_refused_by_the_name_of_its_key_or_tensor(
    name, path, value, tmp_path, monkeypatch
):
    with pytest.raises(BitnetError) as raised:
        open_model(name, changed(name, path, value), tmp_path, monkeypatch)
    keys = [str(part) for part in path if isinstance(part, str)]
    # A size of the right kind may be refused by the name of a tensor that does not fit it.
    tensors = ("ssm_in", "ssm_norm")
    assert any(word in str(raised.value) for word in (keys[-1], *tensors))


def test_a_drawn_slice_of_the_mutations_opens_or_is_refused(tmp_path, monkeypatch):
    mutants = [(name, *mutant) for name in MODELS for mutant in mutants_of(name)]
    assert len(mutants) > 50_000
    drawn = random.Random(8).sample(mutants, SLICE)
    results = [opens(*mutant, tmp_path, monkeypatch) for mutant in drawn]
    # Many models open, since a family does not read every key; some are refused.
    assert SLICE // 5 < sum(results) < SLICE


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_mutation_opens_or_is_refused(name, tmp_path, monkeypatch):
    results = [opens(name, *mutant, tmp_path, monkeypatch) for mutant in mutants_of(name)]
    assert any(results)
    assert not all(results)


def test_an_integer_written_as_a_float_is_refused_as_by_transformers():
    config = MODELS["llama"]["config"] | {"hidden_size": 64.0}
    with pytest.raises(InvalidFormat, match=r"hidden_size is 64\.0, expected an integer"):
        describe(config, model="m")


@pytest.mark.parametrize("name", ["falcon-h1-norm", "gemma4-31b", "lfm2", "deepseek3"])
def test_an_ignored_key_counts_as_one_that_the_file_lacks(name, tmp_path, monkeypatch):
    def outcome(config, ignore_keys=()):
        """The configuration of the model as text, or the message of the refusal."""
        try:
            return repr(open_model(name, config, tmp_path, monkeypatch, ignore_keys).config)
        except BitnetError as error:
            return error.message.partition("config.json says")[0]  # without the sizes listed there

    config = MODELS[name]["config"]
    results = []
    for key in config:
        without, _values = split_ignored(config, [key])
        results.append(outcome(config, [key]))
        assert results[-1] == outcome(without), key
    assert len(set(results)) > 5  # ignoring a key has an effect


def test_ignored_keys_leave_the_layers_of_experts_to_the_defaults(tmp_path):
    config = {
        "model_type": "jamba",
        "num_hidden_layers": 4,
        "num_experts": 4,
        "expert_layer_period": 3,
        "expert_layer_offset": 0,
    }
    ignored = ["expert_layer_period", "expert_layer_offset"]
    described = describe(config, model="m", ignore=ignored)
    # By transformers' default every second layer has experts, from layer 1 on.
    routers = [f"blk.{layer}.ffn_gate_inp.weight" for layer in (1, 3)]
    keys = Keys(
        path=tmp_path,
        architecture="jamba",
        metadata=described.metadata,
        weights={"token_embd.weight": np.zeros((64, 4096)), **dict.fromkeys(routers)},
        rope_style="half",
        config=config,
        text_config=described.config,
    )
    assert len(described.family.decoder(keys).blocks) == 4


# Expected are scale_depth / sqrt(4 layers), hidden_size / dim_model_base, and v_head_dim. The class
# has the defaults 1.4, 2560, 256 and 64.
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (1.4 / 2, 2560 / 256, 64)),
        ({"scale_depth": None}, (1.0, 2560 / 256, 64)),
        ({"scale_depth": 0}, (0.0, 2560 / 256, 64)),
        ({"dim_model_base": None}, (1.4 / 2, 1.0, 64)),
        ({"v_head_dim": None}, (1.4 / 2, 2560 / 256, 64)),
        ({"v_head_dim": 32}, (1.4 / 2, 2560 / 256, 32)),
    ],
)
def test_a_null_of_minicpm_3_does_not_get_the_default_of_its_class(changes, expected):
    config = {"model_type": "minicpm3", "num_hidden_layers": 4, "rope_theta": 10000.0}
    described = describe(config | changes, model="m")
    names = ("residual_scale", "logit_scale", "attention.value_length_mla")
    assert tuple(described.value(name) for name in names) == pytest.approx(expected)


@pytest.mark.parametrize("key", ["scale_depth", "dim_model_base"])
def test_a_null_that_a_family_cannot_compute_with_is_refused_by_its_key(key):
    with pytest.raises(InvalidFormat, match=f"{key} is null, from which minicpm cannot"):
        describe(MODELS["minicpm"]["config"] | {key: None}, model="m")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gemma4-31b", "head_dim"),
        ("gpt-oss", "intermediate_size"),
        ("granitehybrid", "shared_intermediate_size"),
        ("lfm2", "num_key_value_heads"),
        ("nemotron-h", "intermediate_size"),
        ("nemotron-h-experts", "norm_topk_prob"),
        ("nemotron-h-experts", "moe_intermediate_size"),
    ],
)
def test_a_null_is_refused_where_a_missing_gguf_key_has_a_default(name, key):
    with pytest.raises(InvalidFormat, match=f"{key} is null"):
        describe(changed(name, (key,), None), model="m")


GEMMA4_ROPE = MODELS["gemma4-31b"]["config"]["rope_parameters"]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "gemma3n_text", "rope_theta": 1e4}, "hidden_size_per_layer_input"),
        ({"model_type": "gemma4_text", "rope_parameters": GEMMA4_ROPE}, "global_head_dim"),
        ({"model_type": "gpt_neox", "rope_theta": 1e4}, "use_parallel_residual"),
    ],
)
def test_a_null_is_refused_where_a_missing_key_is_not(config, key):
    assert describe(config, model="m").metadata
    with pytest.raises(InvalidFormat, match=f"{key} is null"):
        describe(config | {key: None}, model="m")


@pytest.mark.parametrize("model_type", ["exaone_moe", "hy_v3"])
def test_a_mixture_without_shared_experts_is_refused_by_its_key(model_type):
    config = {"model_type": model_type, "rope_theta": 10000.0}
    assert describe(config, model="m").metadata
    with pytest.raises(Unsupported, match="num_shared_experts = 0: only a network beside"):
        describe(config | {"num_shared_experts": 0}, model="m")


def test_a_text_config_that_is_not_a_table_is_not_read(tmp_path, monkeypatch):
    config = MODELS["gemma4-31b"]["config"] | {"text_config": "none"}
    model = open_model("gemma4-31b", config, tmp_path, monkeypatch)
    # As the keys beside it say: full attention of Gemma 4 31B takes its keys as values.
    assert any(attention.keys_as_values for attention in model.config.attentions)
