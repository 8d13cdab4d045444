"""Gemma 3n: several residual streams (AltUp), learned residuals (LAuReL), sparse networks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import Attention, Branch, FeedForward, LayerInput, LowRank
from bitnet.families.dense import (
    WINDOW_CONFIG,
    ModelConfig,
    alternating,
    attention,
    check_attention_factor,
    model_of,
    per_layer,
    read_windows,
    rotate_windows,
    sizes,
)
from bitnet.families.family import ATTENTION, LlamaCppSupport, register
from bitnet.families.gemma import read_last_caches
from bitnet.families.keys import (
    HARMLESS,
    Config,
    Keys,
    Rule,
    contradiction,
    neutral,
    read,
    reads,
    wrong_config,
)
from bitnet.families.streams import Streams

if TYPE_CHECKING:
    from bitnet.families.blocks import Activation

_ACTIVATION: Activation = "gelu_tanh"
_PERIOD = 5  # by default, the last of this many layers has full attention
_STREAM_SCALE = math.sqrt(0.5)  # factor on the stream after attention and the learned residual
_SPARSE_LAYERS = 10  # number of sparse layers, the first ones, if no key says which are sparse
_SHARE = 0.95  # share of zeros inside the network of a sparse layer
_OWN_CACHES = 20  # layers with keys and values of their own, if no key says how many
_RANK = 64  # of the learned residuals, if their tensor is missing: GGUF does not have a key for it
_INPUT_WIDTH = 256  # of the vector of each token for a layer, if no key says it
_LEFT_OUT = ("attn_k", "attn_v", "attn_k_norm")  # of layers that read the caches of others


def _gemma3n(keys: Keys) -> ModelConfig:
    """Blocks of attention, a learned residual, a network and an input for each layer."""
    model_sizes = sizes(keys, ffn=0)
    layers = model_sizes.layers
    widths = per_layer(keys, "feed_forward_length", layers)
    windows = read_windows(
        keys, layers, period=_PERIOD, window=keys.integer("attention.sliding_window")
    )
    usual = attention(keys, model_sizes.dim, scale=1.0, qk_norm="head", value_norm=True)
    check_attention_factor(keys)
    rotate = rotate_windows(keys.number("rope.freq_base_swa", 10000.0))
    shared = keys.integer("attention.shared_kv_layers", max(layers - _OWN_CACHES, 0))

    def attention_of(layer: int, window: int) -> Attention:
        return rotate(layer, replace(usual, window=window))

    attentions = read_last_caches(keys, attention_of, windows, own_caches=layers - shared)
    # The error about a missing tensor comes later, with all others that are missing.
    residual = LowRank(keys.row_count("blk.0.laurel_l.weight", _RANK))
    added = LayerInput(
        keys.integer("embedding_length_per_layer_input", _INPUT_WIDTH),
        _ACTIVATION,
        rows=keys.row_count("per_layer_token_embd.weight", model_sizes.vocab_size),
    )
    blocks = (
        (
            Branch("attn_norm", (mixer,), "post_attention_norm"),
            Branch("attn_norm", (residual,), parallel=True, stream_scale=_STREAM_SCALE),
            Branch("ffn_norm", (FeedForward(width, _ACTIVATION, cutoff=cutoff),), "post_ffw_norm"),
            Branch("", (added,), "post_norm", beside=True),
        )
        for mixer, width, cutoff in zip(attentions, widths, _cutoffs(keys, layers), strict=True)
    )
    return model_of(
        keys,
        model_sizes,
        blocks,
        embedding_scale=math.sqrt(model_sizes.dim),
        final_softcap=keys.number("final_logit_softcapping", 30.0),
        streams=Streams(keys.integer("altup.num_inputs", 4), keys.integer("altup.active_idx", 0)),
        left_out=tuple(
            f"blk.{layer}.{name}."
            for layer, mixer in enumerate(attentions)
            if mixer.shared_cache is not None
            for name in _LEFT_OUT
        ),
    )


def _cutoffs(keys: Keys, layers: int) -> list[float | None]:
    """For each layer, the ``cutoff`` of its :class:`FeedForward`."""
    key = "activation_sparsity_scale"
    # llama.cpp, which does not read the key, lowers the gates of the first layers of every model.
    sparse = min(_SPARSE_LAYERS, layers)
    # a cutoff of minus infinity lowers nothing: the network is not sparse
    usual = [_deviations(_SHARE)] * sparse + [-math.inf] * (layers - sparse)
    scales = keys.value(key, usual)
    is_list = isinstance(scales, list) and len(scales) == layers
    if not is_list or not all(isinstance(scale, float) for scale in scales):
        problem = f"does not have a number for each of {layers:,} layers"
        raise contradiction(keys, f"{keys.own_name(key)} {problem}")
    for scale in scales:
        if math.isnan(scale) or scale == math.inf:
            raise contradiction(keys, f"{keys.own_name(key)} has the entry {scale}")
    return [None if scale == -math.inf else scale for scale in scales]


def _deviations(share: float) -> float:
    """The quantile of a normal distribution for *share*, in standard deviations above the mean.

    The share is rounded to float32, as in transformers.
    """
    from statistics import NormalDist  # imported here: other models do not need it

    rounded = float(np.float32(share))
    return NormalDist().inv_cdf(rounded) if rounded > 0 else -math.inf


def _usual_shares(layers: int) -> list[float]:
    """Share of zeros in each layer if a ``config.json`` does not say it, as in transformers."""
    sparse = _SPARSE_LAYERS if layers > _SPARSE_LAYERS else 0
    return [_SHARE] * sparse + [0.0] * (layers - sparse)


def _keys(config: Config) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    shares = config.get("activation_sparsity_pattern")
    if shares is None:
        shares = _usual_shares(layers)
    if not isinstance(shares, list) or len(shares) != layers:
        raise wrong_config(
            f"activation_sparsity_pattern does not have a number for each of {layers} layers"
        )
    if not all(0 <= share < 1 for share in shares):
        raise wrong_config("activation_sparsity_pattern has a share outside of 0 to 1")
    if not 0 <= config["altup_active_idx"] < config["altup_num_inputs"]:
        raise wrong_config("altup_active_idx is not one of the altup_num_inputs streams")
    return alternating(_PERIOD)(config) | {
        "activation_sparsity_scale": [_deviations(share) for share in shares],
        "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"] or 0,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
    }


register(
    title="Gemma 3n, its text",
    architecture="gemma3n",
    model_types=("gemma3n", "gemma3n_text"),
    activation="gelu_pytorch_tanh",
    defaults={
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    config_keys={
        **WINDOW_CONFIG,
        **reads("final_logit_softcapping hidden_size_per_layer_input num_kv_shared_layers"),
        **reads("rope_local_base_freq"),
        "activation_sparsity_pattern": read("for each layer, the share of zeros in its network"),
        "altup_active_idx": read("number of the stream that blocks read"),
        "altup_coef_clip": HARMLESS,  # in training alone
        "altup_correct_scale": neutral(True),
        "altup_num_inputs": read("streams"),
        "hidden_act": HARMLESS,  # hidden_activation counts
        "laurel_rank": HARMLESS,  # the tensors say it
        "vocab_size_per_layer_input": HARMLESS,  # the table says it
    },
    gguf_keys={
        **reads("attention.shared_kv_layers embedding_length_per_layer_input"),
        **reads("final_logit_softcapping rope.freq_base_swa"),
        "activation_sparsity_scale": read("standard deviations by which gates are lowered"),
        "altup.active_idx": read("number of the stream that blocks read"),
        "altup.num_inputs": read("streams"),
        "attention.scale": Rule("ignored; scores are not scaled"),
    },
    tensors={
        "post_attention_layernorm": "post_attention_norm",
        "altup.correct_output_scale": "altup_correct_scale.weight",
        "altup.correction_coefs": "altup_correct_coef",
        "altup.modality_router": "altup_router",
        "altup.prediction_coefs": "altup_predict_coef",
        "altup.router_norm": "altup_router_norm",
        "laurel.linear_left": "laurel_l",
        "laurel.linear_right": "laurel_r",
        "laurel.post_laurel_norm": "laurel_post_norm",
    },
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight",),
        needs=frozenset({"window"}),
        ignores=("attention.scale",),
        broken_by_zero=("attention.sliding_window",),
    ),
    layered_rope=True,
    layered_scaling=True,
    translate=_keys,
    decoder=_gemma3n,
)
