"""Encoders with norms before attention and network: ModernBERT, EuroBERT and NeoBERT."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.bert import both_ways, encoder
from bitnet.families.blocks import FeedForward
from bitnet.families.config_classes import CLASSIFIES, first_architecture
from bitnet.families.dense import (
    BEFORE,
    ModelConfig,
    attention,
    check_attention_factor,
    dense,
    is_fused,
    read_windows,
    rotate_windows,
    sizes,
    usual_block,
    window_pattern,
)
from bitnet.families.family import ATTENTION, LlamaCppSupport, register
from bitnet.families.fused_rows import order_by_head
from bitnet.families.heads import INNER, SCORES
from bitnet.families.keys import Config, Keys, Rule, neutral, reads, refusal
from bitnet.families.rope import refuse_unread, rope_parameters

if TYPE_CHECKING:
    from bitnet.families.family import Parts

_PERIOD = 3  # by default, the first of this many layers of ModernBERT has full attention
_NEOBERT_MULTIPLE = 8  # the width of NeoBERT's network is rounded up to a multiple of this
#: ``pooling_type`` of GGUF, by ``classifier_pooling`` of ``config.json``.
_POOLINGS = {"mean": 1, "cls": 2, "bos": 2}
_GLUS = Rule("`hidden_activation`", ("gelu", "silu"), is_read=True, gguf="hidden_activation")


def _modern_bert(keys: Keys) -> ModelConfig:
    """Encoder with windows in most layers, which have a RoPE of their own."""
    model_sizes = sizes(keys)
    usual = attention(keys, model_sizes.dim, fused=True)
    check_attention_factor(keys)
    # The default is llama.cpp's, whatever the base of the other layers is.
    rotate = rotate_windows(keys.number("rope.freq_base_swa", 10000.0))
    network = FeedForward(model_sizes.ffn, keys.value("hidden_activation", "gelu"), fused=True)
    window = keys.integer("attention.sliding_window", 0)
    # half of it on each side, and the position itself
    reach = window // 2 + 1 if window else 0
    blocks = []
    windows = read_windows(
        keys, model_sizes.layers, period=_PERIOD, window=reach, last=False, both_ways=True
    )
    for layer, own_window in enumerate(windows):
        # The first block reads the normed embeddings, and usually lacks a norm of its own.
        is_normed = layer > 0 or "blk.0.attn_norm.weight" in keys.weights
        attention_norms = ("attn_norm" if is_normed else "", "")
        norms = (attention_norms, BEFORE[1])
        mixer = rotate(layer, replace(usual, window=own_window))
        blocks.append(usual_block(mixer, network, norms=norms))
    return replace(
        encoder(keys, model_sizes, blocks, norm_biases=False, final_norm="output_norm"),
        text_rows=0,  # no token types
        pooling="mean",  # before a classifier, if no key says which
    )


def _classifier_pooling(config: Config, computed: str) -> dict[str, Any]:
    """The GGUF key of the pooling before a classifier; empty without a classifier.

    *computed* are the values of ``classifier_pooling`` that are computed, separated by spaces.
    """
    if not first_architecture(config).endswith(CLASSIFIES):
        return {}
    pooling = config["classifier_pooling"]
    if pooling not in computed.split():
        why = f"only {' or '.join(computed.split())} is computed"
        raise refusal("classifier_pooling", pooling, why)
    return {"classifier.pooling_type": _POOLINGS[pooling]}


def _modern_bert_keys(config: Config) -> dict[str, Any]:
    tables = rope_parameters(config)
    for kind, usual, own in (
        ("full_attention", "rope_theta", "global_rope_theta"),
        ("sliding_attention", "rope_local_base_freq", "local_rope_theta"),
    ):
        if (tables.get(kind) or {}).get("rope_theta") is None:
            refuse_unread(config, usual, own)
    window = config["local_attention"]
    pattern = window_pattern(config, window)
    if pattern is None:
        period = config["global_attn_every_n_layers"]
        pattern = [layer % period != 0 for layer in range(config["num_hidden_layers"])]
    return {
        **both_ways(config),
        **_classifier_pooling(config, "cls mean"),
        "attention.layer_norm_epsilon": config["norm_eps"],
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": pattern,
    }


register(
    title="ModernBERT",
    architecture="modern-bert",
    model_types=("modernbert",),
    activation="gelu",
    encodes=True,
    aliases={"global_rope_theta": "rope_theta", "local_rope_theta": "rope_local_base_freq"},
    defaults={
        "rope_theta": 160000.0,
        "rope_local_base_freq": 10000.0,
        "global_attn_every_n_layers": _PERIOD,
    },
    config_keys={
        **reads("classifier_pooling global_attn_every_n_layers layer_types local_attention"),
        **reads("norm_eps rope_local_base_freq"),
        "classifier_activation": neutral(None, "gelu"),
        "classifier_bias": neutral(None, False),
        "hidden_activation": _GLUS,
        "norm_bias": neutral(None, False),
    },
    gguf_keys={
        **reads("attention.layer_norm_epsilon rope.freq_base_swa"),
        "hidden_activation": _GLUS,
    },
    tensors={
        "attn_norm": "attn_norm",
        "attn.Wo": "attn_output",
        "attn.Wqkv": "attn_qkv",
        "mlp.Wi": "ffn_up",
        "mlp.Wo": "ffn_down",
        "mlp_norm": "ffn_norm",
    },
    unread=("decoder.", "head."),
    classifier=(("head.dense", INNER, "gelu"), ("classifier", SCORES, "identity")),
    classifier_norm="head.norm",
    layered_rope=True,
    llama_cpp=LlamaCppSupport(
        tensors=("cls.output.bias",), ignores=(), only_whole_width=True, gelu_tanh=True
    ),
    translate=_modern_bert_keys,
    decoder=_modern_bert,
)


def _eurobert(keys: Keys) -> ModelConfig:
    return dense(keys, fused=is_fused(keys), causal=False)


def _eurobert_keys(config: Config) -> dict[str, Any]:
    return both_ways(config) | _classifier_pooling(config, "bos mean")


register(
    title="EuroBERT",
    architecture="eurobert",
    encodes=True,
    config_keys=reads("classifier_pooling"),
    biases={"attention_bias": ATTENTION},
    unread=("lm_head.",),
    classifier=(("dense", INNER, "gelu"), ("classifier", SCORES, "identity")),
    llama_cpp=LlamaCppSupport(only_whole_width=True),
    translate=_eurobert_keys,
    decoder=_eurobert,
)


def _neobert(keys: Keys) -> ModelConfig:
    return dense(
        keys,
        fused=is_fused(keys),
        causal=False,
        ffn={"fused": True},
        model={"final_norm": "enc.output_norm"},
    )


def _neobert_keys(config: Config) -> dict[str, Any]:
    # SwiGLU has three matrices where a plain network has two: 2/3 of the width, rounded up.
    width = int(2 * config["intermediate_size"] / 3)
    return {
        **both_ways(config),
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "context_length": config["max_length"],
        "feed_forward_length": -(-width // _NEOBERT_MULTIPLE) * _NEOBERT_MULTIPLE,
    }


def _encoder_norm(_config: Config) -> Parts:
    """A function that renames the last norm: encoders have another name for it in GGUF."""
    return {"output_norm.weight": {"enc.output_norm.weight": lambda weight: weight}}


register(
    title="NeoBERT",
    architecture="neo-bert",
    model_types=("neobert",),
    classes=("NeoBERT", "NeoBERTLMHead"),
    encodes=True,
    aliases={"max_length": "max_position_embeddings"},
    defaults={"norm_eps": 1e-6, "rope_theta": 10000.0},
    config_keys={
        **reads("norm_eps"),
        "hidden_act": neutral(None, "swiglu", "SwiGLU"),
        "rms_norm": neutral(None, True),
        "rope": neutral(None, True),
    },
    tensors={
        "attention_norm": "attn_norm",
        "ffn.w12": "ffn_up",
        "ffn.w3": "ffn_down",
        "qkv": "attn_qkv",
        "wo": "attn_output",
    },
    unread=("decoder.",),
    classifier=(("dense", INNER, "tanh"), ("classifier", SCORES, "identity")),
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    orders=order_by_head,
    parts=_encoder_norm,
    llama_cpp=LlamaCppSupport(only_whole_width=True),
    translate=_neobert_keys,
    decoder=_neobert,
)
