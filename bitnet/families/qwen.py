"""Qwen 2 to 3.8.

Qwen 2 and 2.5 have biases on query, key and value, Qwen 3 norms of their heads. From Qwen 3.5 on,
three of four layers are gated delta nets, and attention is gated.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import Experts, FeedForward
from bitnet.families.dense import (
    RENAMED,
    WINDOW_CONFIG,
    ModelConfig,
    attention,
    dense,
    from_first,
    layer_kinds,
    model_of,
    sizes,
    usual_block,
)
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, SHARED_KEYS, experts
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    QKV,
    LlamaCppSupport,
    register,
    register_variant,
)
from bitnet.families.keys import (
    HARMLESS,
    Config,
    Keys,
    contradiction,
    neutral,
    reads,
    show,
    value_refusal,
)
from bitnet.families.linear import DELTA_CONFIG, DELTA_KEYS, decay_rates, delta_net
from bitnet.families.rope import rope_parameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.family import Parts

_CONFIG = WINDOW_CONFIG | reads("use_sliding_window max_window_layers")

register(
    title="Qwen 2 and 2.5",
    architecture="qwen2",
    config_keys={**_CONFIG, "attention_bias": HARMLESS},  # its biases are always there
    biases={"": QKV},
    translate=from_first,
    llama_cpp=LlamaCppSupport(only_whole_width=True),
    decoder=partial(dense, biased=True),
)
register(
    title="Qwen 3",
    architecture="qwen3",
    config_keys=_CONFIG,
    biases={"attention_bias": ATTENTION},
    translate=from_first,
    decoder=partial(dense, qk_norm="head"),
)


def _with_experts(keys: Keys) -> ModelConfig:
    # the experts of a token are together as wide as the plain network, if no key gives their width
    width = sizes(keys).ffn // max(keys.integer("expert_used_count"), 1)
    return dense(keys, qk_norm="head", mixture=experts(keys, width=width))


register(
    title="Qwen 3 with experts",
    architecture="qwen3moe",
    model_types=("qwen3_moe",),
    stated="head_dim",
    config_keys={
        **EXPERT_CONFIG,
        **reads("moe_intermediate_size"),
        "decoder_sparse_step": neutral(None, 1),
        "mlp_only_layers": neutral(None),
        "norm_topk_prob": neutral(True),
        "sliding_window": HARMLESS,  # config_json.CHANGES refuses a true use_sliding_window
    },
    gguf_keys=EXPERT_KEYS,
    biases={"attention_bias": ATTENTION},
    decoder=_with_experts,
)


def _qwen2_experts(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    used = max(keys.integer("expert_used_count"), 1)
    shared = keys.integer("expert_shared_feed_forward_length", model_sizes.ffn)
    mixture = experts(
        keys,
        width=model_sizes.ffn // used,
        routing={"renormalised": False},
        shared=shared,
        shared_gated=True,
    )
    return dense(keys, biased=True, mixture=mixture)


register(
    title="Qwen 1.5 and 2 with experts",
    architecture="qwen2moe",
    model_types=("qwen2_moe",),
    defaults={"norm_topk_prob": False},
    config_keys={
        **EXPERT_CONFIG,
        **reads("moe_intermediate_size shared_expert_intermediate_size"),
        "decoder_sparse_step": neutral(None, 1),
        "mlp_only_layers": neutral(None),
        "norm_topk_prob": neutral(False),
        "qkv_bias": neutral(None, True),
        "sliding_window": HARMLESS,  # config_json.CHANGES refuses a true use_sliding_window
    },
    gguf_keys=SHARED_KEYS,
    biases={"": QKV},
    llama_cpp=LlamaCppSupport(only_whole_width=True, required=("output.weight",), tied=False),
    decoder=_qwen2_experts,
)
_PERIOD = 4  # by default, the last of this many layers has full attention
_IS_LINEAR = {"linear_attention": True, "full_attention": False}


def _qwen35(keys: Keys) -> ModelConfig:
    """Gated delta nets and full attention, with a drafter if the file has its block."""
    model_sizes = sizes(keys)
    is_next = keys.architecture == "qwen3next"
    full = attention(keys, model_sizes.dim, qk_norm="head", gated=True)
    pairs = keys.integer("rope.dimension_count", full.head_dim) // 2
    sections = keys.value("rope.dimension_sections", _sections(pairs))
    if not isinstance(sections, list) or sections != _sections(pairs):
        why = f"only {_sections(pairs)}, which cover all {pairs} pairs, is computed"
        raise value_refusal(keys, "rope.dimension_sections", sections, why)
    # folders, and files of Qwen 3-Next, have the heads in transformers' order
    grouped = keys.config is not None or is_next
    linear = delta_net(keys, grouped=grouped, joined=is_next)
    network = (
        FeedForward(model_sizes.ffn)
        if keys.architecture == "qwen35"
        else _experts35(keys, model_sizes.ffn)
    )
    blocks = (
        usual_block(linear if is_linear else full, network, norms=RENAMED)
        for is_linear in _linear_layers(keys, model_sizes.layers)
    )
    model = model_of(keys, model_sizes, blocks)
    last_block = f"blk.{model.n_layers}."
    unshared = {f"{last_block}nextn.{name}.weight" for name in ("embed_tokens", "shared_head_head")}
    if len(model.left_out) != 1 or unshared & keys.weights.keys():
        return model  # a drafter is a single block that shares the model's embedding and head
    model = replace(model, left_out=())
    if f"{last_block}nextn.eh_proj.weight" not in keys.weights:
        return model  # the file was written without the drafter's block
    block = usual_block(full, network, norms=RENAMED)
    drafter = replace(model, blocks=(block,), first_block=model.n_layers, joined=True)
    return replace(model, drafter=drafter)


def _experts35(keys: Keys, width: int) -> Experts:
    """Experts with a shared one.

    If no keys give the widths, the shared one is *width* wide, and so are those of a token
    together.
    """
    return experts(
        keys,
        width=width // max(keys.integer("expert_used_count"), 1),
        shared=keys.integer("expert_shared_feed_forward_length", width),
        shared_gated=True,
    )


def _sections(pairs: int) -> list[int]:
    """Numbers of pairs that rotate by each of four coordinates, as ``rope.dimension_sections``.

    The first three take turns at the *pairs*, and the fourth has none.
    """
    return [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]


def _linear_layers(keys: Keys, layers: int) -> list[bool]:
    """True for each layer with linear attention."""
    recurrent = keys.value("attention.recurrent_layers", None)
    if recurrent is None:
        period = keys.integer("full_attention_interval", _PERIOD)
        if not period:
            name = keys.own_name("full_attention_interval")
            raise contradiction(keys, f"{name} is 0, expected at least 1")
        return [(layer + 1) % period != 0 for layer in range(layers)]
    if not isinstance(recurrent, list) or len(recurrent) != layers:
        problem = f"is {show(recurrent)}, expected {layers} entries"
        raise contradiction(keys, f"{keys.own_name('attention.recurrent_layers')} {problem}")
    return [bool(value) for value in recurrent]


def _qwen35_keys(config: Config) -> dict[str, Any]:
    is_linear = layer_kinds(config, config.get("layer_types"), _IS_LINEAR)
    if is_linear is None:
        period = config.get("full_attention_interval", _PERIOD)
        is_linear = [(layer + 1) % period != 0 for layer in range(config["num_hidden_layers"])]
    rope = rope_parameters(config)
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    return {
        "attention.recurrent_layers": is_linear,
        "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "rope.dimension_sections": _sections(int(config["head_dim"] * share) // 2),
    }


_QWEN35 = register(
    title="Qwen 3.5, 3.6 and 3.8, dense",
    architecture="qwen35",
    model_types=("qwen3_5", "qwen3_5_text"),
    config_keys={
        **DELTA_CONFIG,
        **reads("full_attention_interval layer_types partial_rotary_factor"),
        "attn_output_gate": neutral(None, True),
        "mlp_only_layers": neutral(None, []),
    },
    rope_parameters={
        "mrope_section": "of positions in images; those of a text are equal",
        "mrope_interleaved": "as `mrope_section`",
    },
    gguf_keys={
        **DELTA_KEYS,
        **reads("attention.recurrent_layers full_attention_interval nextn_predict_layers"),
        **reads("rope.dimension_sections"),
    },
    tensors={"post_attention_layernorm": "post_attention_norm"},
    values=lambda _config: {
        "ssm_a": decay_rates,
        "ssm_conv1d.weight": partial(np.squeeze, axis=1),
        "ssm_norm.weight": np.asarray,  # as it is: unlike the other norms, not stored minus one
    },
    biases={"attention_bias": ATTENTION},
    partial_rotation=True,
    norms_from_zero=True,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", *BIASES, "ssm_dt.bias"), needs=frozenset({"attention", "state"})
    ),
    translate=_qwen35_keys,
    decoder=_qwen35,
)
register_variant(
    _QWEN35,
    title="Qwen 3.5 and 3.6 with experts",
    architecture="qwen35moe",
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    config_keys=EXPERT_CONFIG | reads("moe_intermediate_size shared_expert_intermediate_size"),
    gguf_keys=SHARED_KEYS,
)


def _next_parts(config: Config) -> Parts:
    """Functions that split a matrix whose rows are grouped by key head.

    Each group has the rows of a query, a key, the values of its heads and their gates.
    """
    key_heads = config["linear_num_key_heads"]
    width = config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // key_heads * config["linear_value_head_dim"]
    ends = np.cumsum([width, width, values, values])

    def pieces(matrix: NDArray[Any]) -> list[NDArray[Any]]:
        """Rows of all queries, of all keys, of all values and of all gates."""
        by_head = matrix.reshape(key_heads, ends[-1], matrix.shape[-1])
        parts = np.split(by_head, ends[:-1], axis=1)
        return [part.reshape(-1, matrix.shape[-1]) for part in parts]

    def queries_to_values(matrix: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate(pieces(matrix)[:3])

    def gates(matrix: NDArray[Any]) -> NDArray[Any]:
        return pieces(matrix)[3]

    return {"qkvz.weight": {"attn_qkv.weight": queries_to_values, "attn_gate.weight": gates}}


def _next_keys(config: Config) -> dict[str, Any]:
    """Keys as of Qwen 3.5, without the sections: a position of Qwen 3-Next has one coordinate."""
    keys = _qwen35_keys(config)
    del keys["rope.dimension_sections"]
    return keys


# The inputs of linear attention are products with two matrices, whose rows are grouped by key head.
register_variant(
    _QWEN35,
    title="Qwen 3-Next",
    architecture="qwen3next",
    model_types=("qwen3_next",),
    defaults={"partial_rotary_factor": 0.25},
    config_keys={
        **EXPERT_CONFIG,
        **reads("moe_intermediate_size shared_expert_intermediate_size"),
        "decoder_sparse_step": neutral(None, 1),
        "norm_topk_prob": neutral(True),
    },
    gguf_keys=SHARED_KEYS,
    tensors={"linear_attn.in_proj_qkvz": "qkvz", "linear_attn.in_proj_ba": "ssm_ba"},
    parts=_next_parts,
    translate=_next_keys,
)
