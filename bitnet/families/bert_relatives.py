"""Encoders with norms behind attention and network: Nomic-BERT, GTE and Jina's second and third.

Positions are rotations or, in Jina's second models, slopes of scores (ALiBi). The equations of
Nomic-BERT, GTE and Jina's third models are those of transformers 5.24. Those of Jina's second
models and of Nomic-BERT with experts are from llama.cpp's graphs and the code published with the
models.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.bert import (
    BERT,
    DENSE_CLASSIFIER,
    HEADS,
    POOLED_CLASSIFIER,
    both_ways,
    encoder,
    norms_behind,
    positions_behind_padding,
)
from bitnet.families.blocks import Block, BlockInput, Branch, FeedForward, Mixer
from bitnet.families.dense import ModelConfig, attention, is_fused, sizes
from bitnet.families.experts import EXPERT_KEYS, experts
from bitnet.families.family import ATTENTION, LlamaCppSupport, register, register_variant
from bitnet.families.fused_rows import equal_parts
from bitnet.families.keys import Config, Keys, neutral, read, reads, refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.family import Parts, Values

_EPS = reads("attention.layer_norm_epsilon")
_CONFIG = {
    **reads("layer_norm_eps"),
    "type_vocab_size": read("must be the number of rows of `token_types`"),
}
# Names of norms in transformers' modules; published folders have other names for them.
_OF_MODULES = {
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
}
_FUSED = ("attn_qkv", "attn_output")  # matrices of an attention with one for query, key and value
_LLAMA_CPP = LlamaCppSupport(tensors=(".bias",), only_whole_width=True, gelu_tanh=True)


def _rotary(keys: Keys, **network: Any) -> ModelConfig:
    """Encoder with RoPE; *network* are fields of its :class:`FeedForward`."""
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, fused=is_fused(keys))
    block = norms_behind(mixer, FeedForward(model_sizes.ffn, **network))
    return encoder(keys, model_sizes, [block] * model_sizes.layers)


def _nomic_experts(keys: Keys) -> ModelConfig:
    """Encoder with RoPE; ``moe_every_n_layers`` tells which layers have experts."""
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, fused=is_fused(keys))
    plain = FeedForward(model_sizes.ffn, "gelu", gated=False)
    scale = keys.number("expert_weights_scale", 0.0) or 1.0
    routing = {"renormalised": False, "scale": scale}
    mixture = experts(
        keys,
        width=model_sizes.ffn,
        routing=routing,
        activation="gelu",
        gated=False,
        sum_biased=any(name.endswith(".ffn_moe_out.bias") for name in keys.weights),
    )
    period = keys.integer("moe_every_n_layers", 0)

    def network(layer: int) -> Mixer:
        return mixture if period and layer % period == 1 else plain

    blocks = [norms_behind(mixer, network(layer)) for layer in range(model_sizes.layers)]
    return encoder(keys, model_sizes, blocks)


def _nomic_keys(config: Config) -> dict[str, Any]:
    """GGUF keys, with the architecture of models with experts if the file has them."""
    positions = config["max_position_embeddings"]
    trained = config.get("max_trained_positions") or positions
    keys = both_ways(config) | {"context_length": min(positions, trained)}
    period = config.get("moe_every_n_layers") or 0
    required = {
        "activation_function": "gelu" if period else "swiglu",
        "qkv_proj_bias": bool(period),
        "mlp_fc1_bias": bool(period),
        "mlp_fc2_bias": bool(period),
    }
    for key, value in required.items():
        if config.get(key, value) != value:
            kind = "with experts" if period else "without experts"
            raise refusal(key, config[key], f"only {value} is computed in a model {kind}")
    if not period:
        return keys
    return keys | {
        "architecture": "nomic-bert-moe",
        "expert_used_count": config["moe_top_k"],
        "moe_every_n_layers": period,
    }


def _nomic_orders(config: Config) -> Values:
    """Functions that separate the stacked matrices of all experts, and transpose those of down."""
    if not config.get("moe_every_n_layers"):
        return {}
    count = config["num_experts"]

    def separate(rows: NDArray[Any]) -> NDArray[Any]:
        return rows.reshape(count, -1, *rows.shape[1:])

    def turn_each(rows: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(separate(rows).swapaxes(1, 2))

    return {"ffn_up_exps.weight": separate, "ffn_down_exps.weight": turn_each}


_NOMIC = register(
    title="Nomic-BERT",
    architecture="nomic-bert",
    encodes=True,
    # Names of the published files, which transformers' class does not read.
    aliases={
        "layer_norm_epsilon": "layer_norm_eps",
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "n_positions": "max_position_embeddings",
        "rotary_emb_base": "rope_theta",
    },
    defaults={"rope_theta": 1000.0},
    config_keys={
        **_CONFIG,
        **reads("activation_function moe_every_n_layers moe_top_k num_experts"),
        "causal": neutral(None, False),
        "expert_choice_router": neutral(None, False),
        "ffn_div": neutral(None, 1),
        "max_trained_positions": read("positions beyond it need other frequencies"),
        "moe_normalize_expert_weights": neutral(None, False),
        "num_shared_experts": neutral(None, 0),
        "parallel_block": neutral(None, False),
        "prenorm": neutral(None, False),
        "rotary_emb_fraction": neutral(None, 1.0),
        "rotary_emb_interleaved": neutral(None, False),
        "rotary_emb_scale_base": neutral(None),
        "use_rms_norm": neutral(None, False),
    },
    gguf_keys=_EPS,
    tensors={
        **_OF_MODULES,
        "attn.Wqkv": "attn_qkv",
        "attn.out_proj": "attn_output",
        "mlp.fc11": "ffn_up",
        "mlp.fc12": "ffn_gate",
        "mlp.experts.bias": "ffn_moe_out.bias",
        "mlp.experts.mlp.w1": "ffn_up_exps.weight",
        "mlp.experts.mlp.w2": "ffn_down_exps.weight",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
        "mlp.router.layer": "ffn_gate_inp",
        "norm1": "attn_output_norm",
        "norm2": "layer_output_norm",
    },
    unread=HEADS,
    classifier=POOLED_CLASSIFIER,
    biases={
        "qkv_proj_bias": _FUSED,
        "mlp_fc1_bias": ("ffn_up",),
        "mlp_fc2_bias": ("ffn_down",),
        "moe_every_n_layers": ("ffn_moe_out",),
    },
    orders=_nomic_orders,
    llama_cpp=LlamaCppSupport(tensors=(".bias",), only_whole_width=True),
    translate=_nomic_keys,
    decoder=_rotary,
)
register_variant(
    _NOMIC,
    title="Nomic-BERT with experts",
    architecture="nomic-bert-moe",
    model_types=(),
    gguf_keys={**EXPERT_KEYS, **reads("expert_weights_scale moe_every_n_layers")},
    llama_cpp=replace(_LLAMA_CPP, lacks=("ffn_moe_out.bias",)),
    decoder=_nomic_experts,
)


def _up_first(_config: Config) -> Parts:
    """Functions that split a matrix with the rows of up first, then those of the gate."""
    return equal_parts("ffn_up_gate", ("ffn_up", "ffn_gate"))


register(
    title="GTE",
    architecture="gte",
    model_types=("gte", "new"),
    activation="gelu",
    encodes=True,
    defaults={"rope_theta": 160000.0},
    config_keys={
        **_CONFIG,
        "layer_norm_type": neutral(None, "layer_norm"),
        "logn_attention_clip1": neutral(None, False),
        "logn_attention_scale": neutral(None, False),
        "pack_qkv": neutral(None, True),
        "position_embedding_type": neutral(None, "rope"),
    },
    gguf_keys=_EPS,
    tensors={
        **_OF_MODULES,
        "attention.o_proj": "attn_output",
        "attention.qkv_proj": "attn_qkv",
        "attn_ln": "attn_output_norm",
        "mlp.up_gate_proj": "ffn_up_gate",
        "mlp_ln": "layer_output_norm",
    },
    unread=HEADS,
    classifier=POOLED_CLASSIFIER,
    parts=_up_first,
    biases={"": (*_FUSED, "ffn_down")},
    rope_scalings=("ntk",),
    llama_cpp=None,
    translate=both_ways,
    decoder=partial(_rotary, activation="gelu"),
)


_JINA3 = register(
    title="Jina embeddings v3",
    architecture="jina-bert-v3",
    model_types=("jina_embeddings_v3",),
    activation="gelu",
    encodes=True,
    defaults={"rope_theta": 20000.0},
    config_keys=_CONFIG,
    gguf_keys=_EPS,
    tensors={
        **_OF_MODULES,
        "mixer.Wqkv": "attn_qkv",
        "mixer.out_proj": "attn_output",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
        "norm1": "attn_output_norm",
        "norm2": "layer_output_norm",
    },
    unread=HEADS,
    classifier=DENSE_CLASSIFIER,
    biases={"": (*_FUSED, "ffn_up", "ffn_down")},
    llama_cpp=_LLAMA_CPP,
    translate=both_ways,
    decoder=partial(_rotary, activation="gelu", gated=False),
)

register_variant(
    _JINA3,
    title="Jina embeddings v3 with tasks",
    in_gguf=False,
    model_types=("xlm-roberta",),
    classes=("XLMRobertaLoRA", "XLMRobertaFlashConfig"),
    told_by={"position_embedding_type": "rotary"},
    aliases={"rotary_emb_base": "rope_theta"},
    config_keys={
        **reads("pad_token_id"),
        "lora_adaptations": read("tasks: `--lora FOLDER/TASK` runs the model with one of them"),
        "position_embedding_type": neutral("rotary"),
        "use_reg_tokens": neutral(None, False),
    },
    has_tasks=True,
    translate=positions_behind_padding,
)

_ALIBI = 8.0  # value of ``Attention.alibi``


def _jina2(keys: Keys) -> ModelConfig:
    """Encoder with ALiBi; its tensors tell which norms and gates it has."""
    model_sizes = sizes(keys)
    names = keys.weights
    mixer = attention(
        keys,
        model_sizes.dim,
        rope=None,
        alibi=_ALIBI,
        fused=is_fused(keys),
        qk_norm="whole" if "blk.0.attn_q_norm.weight" in names else "",
    )
    is_fused_glu = keys.row_count("blk.0.ffn_up.weight", 0) == 2 * model_sizes.ffn
    is_gated = is_fused_glu or "blk.0.ffn_gate.weight" in names
    network = FeedForward(model_sizes.ffn, "gelu", gated=is_gated, fused=is_fused_glu)
    block: Block = norms_behind(mixer, network)
    if "blk.0.attn_norm_2.weight" in names:  # a second residual, around attention and its norm
        again = Branch("", (BlockInput(),), parallel=True, stream_norm="attn_norm_2")
        block = (block[0], again, block[1])
    return encoder(
        keys, model_sizes, [block] * model_sizes.layers, biases=("attn_output", "ffn_down")
    )


def _gate_first(_config: Config) -> Parts:
    """A function that puts the rows of the gate first, as in GGUF, in a matrix of up and gate.

    The models for code have the rows of up first.
    """

    def swap(rows: NDArray[Any]) -> NDArray[Any]:
        up, gate = np.split(rows, 2)
        return np.concatenate([gate, up])

    return {"ffn_up_gate.weight": {"ffn_up.weight": swap}}


register_variant(
    BERT,
    title="Jina embeddings v2",
    architecture="jina-bert-v2",
    model_types=("jina_bert",),
    classes=("JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"),
    config_keys={
        "feed_forward_type": neutral("geglu"),
        "position_embedding_type": neutral("alibi"),
    },
    tensors={
        "attention.self.layer_norm_k": "attn_k_norm",
        "attention.self.layer_norm_q": "attn_q_norm",
        "layer_norm_1": "attn_norm_2",
        "layer_norm_2": "layer_output_norm",
        "mlp.down_layer": "ffn_down",
        "mlp.gated_layers": "ffn_up",
        "mlp.layernorm": "layer_output_norm",
        "mlp.up_gated_layer": "ffn_up_gate",
        "mlp.wo": "ffn_down",
    },
    parts=_gate_first,
    biases={"": (*ATTENTION, "ffn_down")},
    llama_cpp=_LLAMA_CPP,
    decoder=_jina2,
)
