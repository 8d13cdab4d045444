"""GPT-2 and its relatives: LayerNorm with biases, and a network without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Branch, FeedForward
from bitnet.families.dense import (
    ModelConfig,
    attention,
    dense,
    everywhere,
    is_fused,
    model_of,
    sizes,
)
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, experts
from bitnet.families.family import ATTENTION, LlamaCppSupport, register, register_variant
from bitnet.families.fused_rows import split_projections
from bitnet.families.keys import (
    HARMLESS,
    Config,
    Keys,
    neutral,
    reads,
    refusal,
    value_refusal,
)
from bitnet.families.rope import rope_parameters, rope_table, with_rope_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.family import Parts, Values

#: Rule for the key with the epsilon of LayerNorm.
LAYER_NORM_EPS = reads("attention.layer_norm_epsilon")
#: Names of the matrices of a block without a gate, where queries, keys and values are one matrix.
FUSED_PRODUCTS = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
#: The same where they are three.
SPLIT_PRODUCTS = (*ATTENTION, "ffn_up", "ffn_down")
#: Support of families of which llama.cpp loads all biases.
WITH_BIASES = LlamaCppSupport(tensors=("output.weight", ".bias"), only_whole_width=True)
#: Sizes in ``config.json`` by their names in GPT-1 and GPT-2.
GPT_SIZES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
_KEYS = {"activation_function": "hidden_act", **GPT_SIZES}
#: Names of tensors in GPT-1 and GPT-2.
GPT_TENSORS = {
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
#: Names of the tensors of networks in the style of Megatron.
MEGATRON_TENSORS = {"mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}
#: Rule for the activation: names of GELU by the hyperbolic tangent.
_GELU_TANH = neutral("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
_GPT2_CONFIG = {
    **reads("layer_norm_epsilon n_inner"),
    "hidden_act": _GELU_TANH,
    "scale_attn_weights": neutral(None, True),
    "scale_attn_by_inverse_layer_idx": neutral(None, False),
    "reorder_and_upcast_attn": HARMLESS,  # the same in exact arithmetic
}


def layer_norm_fields(keys: Keys) -> dict[str, Any]:
    """Fields of :class:`ModelConfig` for LayerNorm with weights and biases."""
    eps = keys.number("attention.layer_norm_epsilon")
    return {"norm_eps": eps, "centered_norms": True, "norm_biases": True}


def layer_norms(keys: Keys, **overrides: Any) -> ModelConfig:
    """ModelConfig of the usual blocks with LayerNorm; *overrides* are those of :func:`dense`."""
    model = layer_norm_fields(keys) | overrides.pop("model", {})
    return dense(keys, model=model, **overrides)


def _gpt2(keys: Keys) -> ModelConfig:
    network = {"gated": False, "activation": "gelu_tanh"}
    fields = {"biases": FUSED_PRODUCTS, "positions": True}
    return layer_norms(keys, rope=None, fused=True, ffn=network, model=fields)


def refuse_bidirectional_alibi(config: Config) -> None:
    """Refuse bidirectional attention, since transformers 5.24 does not combine it with ALiBi.

    It leaves out ALiBi in Falcon, fails in MPT, and computes BLOOM's in eager code only.
    """
    if config.get("is_causal") is False:
        raise refusal("is_causal", False, "ALiBi is computed for attention to earlier tokens only")


def equal_heads(config: Config) -> dict[str, Any]:
    """GGUF keys of attention with as many key heads as heads, together as wide as the model."""
    heads = config["num_attention_heads"]
    return {
        "attention.head_count_kv": heads,
        "attention.key_length": config["hidden_size"] // heads,
    }


def _gpt2_keys(config: Config) -> dict[str, Any]:
    return equal_heads(config) | {
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": config.get("n_inner") or 4 * config["hidden_size"],
    }


def _transpose(matrix: NDArray[Any]) -> NDArray[Any]:
    transposed: NDArray[Any] = matrix.T
    return transposed


def transpose_matrices(names: tuple[str, ...]) -> Values:
    """Functions that transpose matrices of these *names*, which folders store by input."""
    return dict.fromkeys([f"{name}.weight" for name in names], _transpose)


def transpose_products(_config: Config) -> Values:
    """Functions that transpose the matrices of GPT-1 and GPT-2."""
    return transpose_matrices(FUSED_PRODUCTS)


_GPT2 = register(
    title="GPT-2",
    architecture="gpt2",
    model_types=("gpt2", "gpt-sw3"),
    activation="gelu_new",
    aliases=_KEYS,
    defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    config_keys=_GPT2_CONFIG,
    gguf_keys=LAYER_NORM_EPS,
    tensors=GPT_TENSORS,
    orders=transpose_products,
    biases={"": FUSED_PRODUCTS},
    rotates=False,
    llama_cpp=WITH_BIASES,
    translate=_gpt2_keys,
    decoder=_gpt2,
)


def _starcoder_keys(config: Config) -> dict[str, Any]:
    return _gpt2_keys(config) | {"attention.head_count_kv": 1}


# All query heads share one key head and one value head.
register_variant(
    _GPT2,
    title="StarCoder 1",
    architecture="starcoder",
    model_types=("gpt_bigcode",),
    config_keys={
        "attention_softmax_in_fp32": HARMLESS,
        "multi_query": neutral(None, True),
        "scale_attention_softmax_in_fp32": HARMLESS,
    },
    orders=lambda _config: {},
    translate=_starcoder_keys,
)


# Matrices of a block that may have one for queries, keys and values, or three.
_ALL = ("attn_qkv", *SPLIT_PRODUCTS)
_TANH_NETWORK: dict[str, Any] = {"gated": False, "activation": "gelu_tanh"}


def _starcoder2(keys: Keys) -> ModelConfig:
    return layer_norms(keys, ffn=_TANH_NETWORK, model={"biases": SPLIT_PRODUCTS})


def _starcoder2_keys(config: Config) -> dict[str, Any]:
    return everywhere(config) | {"attention.layer_norm_epsilon": config["norm_epsilon"]}


register(
    title="StarCoder 2",
    architecture="starcoder2",
    activation="gelu_pytorch_tanh",
    defaults={"tie_word_embeddings": True, "sliding_window": None},
    config_keys={
        **reads("norm_epsilon sliding_window"),
        "hidden_act": _GELU_TANH,
        "use_bias": neutral(None, True),
    },
    gguf_keys=LAYER_NORM_EPS,
    tensors={
        "input_layernorm": "attn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
        "post_attention_layernorm": "ffn_norm",
    },
    biases={"": SPLIT_PRODUCTS},
    llama_cpp=WITH_BIASES,
    translate=_starcoder2_keys,
    decoder=_starcoder2,
)


def beside_attention(keys: Keys, network: FeedForward, **overrides: Any) -> ModelConfig:
    """ModelConfig of blocks whose *network* is parallel to attention, behind one norm.

    *overrides* has fields of :class:`ModelConfig` and, as ``attention``, of :class:`Attention`.
    """
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, **overrides.pop("attention", {}))
    blocks = [(Branch("attn_norm", (mixer, network)),)] * model_sizes.layers
    return model_of(keys, model_sizes, blocks, **(layer_norm_fields(keys) | overrides))


def _phi2(keys: Keys) -> ModelConfig:
    network = FeedForward(sizes(keys).ffn, **_TANH_NETWORK)
    overrides = {"attention": {"fused": is_fused(keys)}, "biases": (*_ALL, "output")}
    return beside_attention(keys, network, **overrides)


# llama.cpp does not load a head that is the embedding, nor one without a bias.
register(
    title="Phi-1, 1.5 and 2",
    architecture="phi2",
    model_types=("phi",),
    activation="gelu_new",
    config_keys={
        **reads("layer_norm_eps partial_rotary_factor"),
        "hidden_act": _GELU_TANH,
    },
    partial_rotation=True,
    gguf_keys=LAYER_NORM_EPS,
    tensors={
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
        "self_attn.dense": "attn_output",
    },
    biases={"": (*SPLIT_PRODUCTS, "output")},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", ".bias"),
        required=("output.weight", "output.bias"),
        tied=False,
        only_whole_width=True,
    ),
    decoder=_phi2,
)


def _gptj(keys: Keys) -> ModelConfig:
    network = FeedForward(sizes(keys).ffn, **_TANH_NETWORK)
    return beside_attention(keys, network, biases=("ffn_up", "ffn_down", "output"))


def _gptj_keys(config: Config) -> dict[str, Any]:
    for key in ("rope_parameters", "rope_scaling"):
        if config.get(key):
            raise refusal(key, config[key], "transformers has one rotation for all GPT-J models")
    if config.get("rope_theta") not in (None, 10000):
        raise refusal("rope_theta", config["rope_theta"], "transformers always has 10000")
    return _gpt2_keys(config) | {"rope.dimension_count": config["rotary_dim"]}


_GPTJ = register(
    title="GPT-J",
    architecture="gptj",
    activation="gelu_new",
    aliases=_KEYS,
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    defaults={"layer_norm_epsilon": 1e-5},
    config_keys={
        **reads("layer_norm_epsilon n_inner rotary_dim"),
        "hidden_act": _GELU_TANH,
        "rotary": neutral(None, True),
        "scale_attn_weights": neutral(None, True),
    },
    gguf_keys=LAYER_NORM_EPS,
    tensors={
        "attn.k_proj": "attn_k",
        "attn.out_proj": "attn_output",
        "attn.q_proj": "attn_q",
        "attn.v_proj": "attn_v",
        "ln_1": "attn_norm",
        "mlp.fc_in": "ffn_up",
        "mlp.fc_out": "ffn_down",
    },
    biases={"": ("ffn_up", "ffn_down", "output")},
    llama_cpp=None,
    translate=_gptj_keys,
    decoder=_gptj,
)
# CodeGen stores a fused matrix in this many parts, one for each device that it was trained on.
_PARTITIONS = 4


def _codegen_parts(_config: Config) -> Parts:
    """Functions that split a matrix whose partitions each have rows of queries, values and keys."""
    return split_projections(_PARTITIONS, names=("attn_q", "attn_v", "attn_k"))


register_variant(
    _GPTJ,
    title="CodeGen",
    in_gguf=False,
    model_types=("codegen",),
    tensors={"attn.qkv_proj": "attn_qkv"},
    parts=_codegen_parts,
)


# Twice the ``router_jitter_noise``, which is 0.01 in all models and not a key of GGUF.
_NEARNESS = 0.02


def _phimoe(keys: Keys) -> ModelConfig:
    if (used := keys.integer("expert_used_count")) != 2:
        why = "its router chooses two"
        raise value_refusal(keys, "expert_used_count", used, why, is_ignorable=False)
    mixture = experts(
        keys,
        width=sizes(keys).ffn,
        routing={"gating": "sparse", "renormalised": False, "nearness": _NEARNESS},
    )
    head = ("output",) if "output.bias" in keys.weights else ()
    model = {
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "centered_norms": True,
        "norm_biases": True,
        "biases": head,
    }
    return dense(keys, mixture=mixture, model=model)


# Factors on rotated queries and keys, which count instead of that of the scaling.
_MSCALES = ("short_mscale", "long_mscale")


def _phimoe_keys(config: Config) -> dict[str, Any]:
    rope = with_rope_type(rope_parameters(config))
    kind = rope.get("rope_type") or "default"
    keys = everywhere(config)
    if kind == "default":  # transformers reads the mscales of a scaling only
        return keys
    table = rope_table(config)
    if kind != "longrope":
        raise refusal(f"{table}.rope_type", kind, "known are default, longrope")
    stated = {name: rope[name] for name in _MSCALES}  # a missing one is named by its KeyError
    if len(set(stated.values())) > 1:
        raise refusal(table, stated, "only equal mscales are computed")
    return keys | {"rope.scaling.attn_factor": float(stated["short_mscale"])}


register(
    title="Phi-3.5-MoE",
    architecture="phimoe",
    defaults={"attention_bias": False, "sliding_window": None},
    config_keys={
        **EXPERT_CONFIG,
        **reads("original_max_position_embeddings sliding_window"),
        "router_jitter_noise": neutral(None, 0.01),
    },
    rope_parameters={
        "short_mscale": "factor on rotated queries and keys of `longrope`, instead of its own",
        "long_mscale": "the same, which must be equal",
    },
    gguf_keys=EXPERT_KEYS,
    biases={"attention_bias": ATTENTION, "lm_head_bias": ("output",)},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", ".bias", "rope_factors_long.weight", "rope_factors_short.weight"),
        required=("output.weight", "output.bias", "attn_output.bias"),
        tied=False,
        only_whole_width=True,
        always="has RMS norms, and another choice of experts, in",
    ),
    translate=_phimoe_keys,
    decoder=_phimoe,
)
