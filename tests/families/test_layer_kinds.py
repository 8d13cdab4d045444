"""Kinds of layers of a folder: those of transformers' class, which counts them in several ways."""

import pytest

from bitnet.base.errors import InvalidFormat
from bitnet.families.config_json import describe

FULL, SLIDING, LINEAR, CONVOLUTION = (
    "full_attention",
    "sliding_attention",
    "linear_attention",
    "conv",
)
ONE_DENSE = ["dense", *["sparse"] * 7]
COHERE2 = {
    "model_type": "cohere2_moe",
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "expert_selection_fn": "sigmoid",
    "prefix_dense_intermediate_size": 48,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
PERIOD_OF_4 = [SLIDING, SLIDING, SLIDING, FULL]
KIMI = {"model_type": "kimi_linear", "num_hidden_layers": 4}
# Layers numbered from 1 on.
LISTS = {"full_attn_layers": [4], "kda_layers": [1, 2, 3]}
SECOND_IS_FULL = [LINEAR, FULL, LINEAR, LINEAR]
GRANITE = {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 4,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_expand": 2,
    "hidden_size": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LFM3 = {
    "model_type": "lfm3",
    "num_hidden_layers": 4,
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 1e6} for kind in (FULL, SLIDING)
    },
}
# ``config.json`` and the kinds of its layers, as transformers has them.
FOLDERS = {
    "only-mlp-layer-types": (COHERE2 | {"mlp_layer_types": ONE_DENSE}, PERIOD_OF_4 * 2),
    # Dense layers at the beginning are counted apart: the period of the others begins after them.
    "only-first-dense": (COHERE2 | {"first_k_dense_replace": 1}, [FULL, *PERIOD_OF_4 * 2][:8]),
    "both": (
        COHERE2 | {"mlp_layer_types": ONE_DENSE, "first_k_dense_replace": 2},
        [FULL, FULL, *PERIOD_OF_4 * 2][:8],
    ),
    "first-layers-of-a-period": (
        COHERE2
        | {
            "mlp_layer_types": ["sparse"] * 8,
            "first_k_dense_replace": 4,
            "prefix_dense_sliding_window_pattern": 2,
        },
        [SLIDING, FULL, SLIDING, FULL, *PERIOD_OF_4],
    ),
    "kimi-lists": (KIMI | {"linear_attn_config": LISTS}, [LINEAR, LINEAR, LINEAR, FULL]),
    "kimi-layer-types": (KIMI | {"layer_types": SECOND_IS_FULL}, SECOND_IS_FULL),
    "kimi-both": (
        KIMI | {"layer_types": SECOND_IS_FULL, "linear_attn_config": LISTS},
        SECOND_IS_FULL,
    ),
    # One list alone does not count: layers 4, 8, ..., numbered from 0 on, are full.
    "kimi-one-list": (
        KIMI | {"num_hidden_layers": 6, "linear_attn_config": {"full_attn_layers": [2]}},
        [LINEAR, LINEAR, LINEAR, LINEAR, FULL, LINEAR],
    ),
    "lfm3": (LFM3, [CONVOLUTION, CONVOLUTION, FULL, CONVOLUTION]),
    "lfm3-without-window": (
        LFM3 | {"sliding_window": None},
        [CONVOLUTION, CONVOLUTION, FULL, CONVOLUTION],
    ),
}


def kinds_of(config):
    """Kinds of the layers of *config* as they are computed, read from its GGUF keys."""
    described = describe(config, model="m")
    layers = config["num_hidden_layers"]
    heads = described.value("attention.head_count_kv")
    heads = heads if isinstance(heads, list) else [heads] * layers
    windows = described.value("attention.sliding_window_pattern") or [False] * layers
    without_attention = CONVOLUTION if config["model_type"] == "lfm3" else LINEAR
    with_attention = [SLIDING if has_window else FULL for has_window in windows]
    return [
        kind if count else without_attention
        for kind, count in zip(with_attention, heads, strict=True)
    ]


@pytest.mark.parametrize(("config", "kinds"), FOLDERS.values(), ids=FOLDERS)
def test_layers_have_the_kinds_of_transformers_class(config, kinds):
    assert kinds_of(config) == kinds


@pytest.mark.parametrize(("config", "kinds"), FOLDERS.values(), ids=FOLDERS)
def test_transformers_has_the_expected_kinds(config, kinds):
    reason = "pip install 'bitnet-xtask[parity]'"
    auto = pytest.importorskip("transformers", reason=reason).AutoConfig
    assert auto.for_model(**config).layer_types == kinds


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (COHERE2 | {"first_k_dense_replace": 9}, "first_k_dense_replace is 9"),
        (
            KIMI | {"linear_attn_config": LISTS | {"kda_layers": [1, 2, 3, 4]}},
            "linear_attn_config: full_attn_layers and kda_layers do not list each layer once",
        ),
        (
            KIMI | {"linear_attn_config": LISTS | {"kda_layers": [[1], 2, 3]}},
            r"linear_attn_config.kda_layers is \[\[1\], 2, 3\], expected a list",
        ),
        (
            KIMI | {"linear_attn_config": LISTS | {"head_dim": None}},
            "linear_attn_config.head_dim is null, expected an integer",
        ),
        (KIMI | {"layer_types": []}, r"layer_types is \[\], expected a list of 1 to"),
        (GRANITE | {"layers_block_type": []}, r"num_hidden_layers is 4, .* has 0 entries"),
        (
            LFM3 | {"num_hidden_layers": 5, "sliding_window": None},
            "layers with a window .*, and no sliding_window",
        ),
    ],
)
def test_lists_that_contradict_the_layers_are_refused_by_their_names(config, expected):
    with pytest.raises(InvalidFormat, match=expected):
        describe(config, model="m")
