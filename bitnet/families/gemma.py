"""Gemma: GeGLU and scaled embeddings.

Gemma 1 has norms before attention and network only. Gemma 2 to 4 have them on both sides, and
windows: Gemma 2 in every second layer, with soft caps; Gemma 3 and 4 in five of six layers, which
have other RoPE frequencies. Gemma 4 has two widths of heads, shared keys and values, an embedding
of each token for each layer, or experts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat
from bitnet.families.blocks import Attention, Branch, FeedForward, LayerInput, Sum
from bitnet.families.config_classes import first_architecture
from bitnet.families.dense import (
    AROUND,
    WINDOW_CONFIG,
    ModelConfig,
    alternating,
    attention,
    check_attention_factor,
    dense,
    model_of,
    per_layer,
    read_windows,
    rotate_windows,
    sizes,
)
from bitnet.families.experts import EXPERT_KEYS, expert_count, experts
from bitnet.families.family import ATTENTION, BIASES, LlamaCppSupport, register, register_variant
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
from bitnet.families.rope import without_scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.families.blocks import Activation

_ACTIVATION: Activation = "gelu_tanh"
_CONFIG = {
    **WINDOW_CONFIG,
    **reads("final_logit_softcapping query_pre_attn_scalar"),
    "hidden_act": HARMLESS,  # hidden_activation counts
}
_SCALE = read("on scores, from `query_pre_attn_scalar` of a folder; ignored in a GGUF file")
_NORMS = {"post_attention_layernorm": "post_attention_norm"}


def _gemma(keys: Keys, **overrides: Any) -> ModelConfig:
    model = dense(keys, ffn={"activation": _ACTIVATION}, **overrides)
    return replace(model, embedding_scale=math.sqrt(model.dim))


register(
    title="Gemma 1",
    architecture="gemma",
    activation="gelu_pytorch_tanh",
    defaults={"tie_word_embeddings": True},
    config_keys={
        # Released files may say "gelu", which is meant to be the tanh form, as in transformers.
        "hidden_act": neutral(None, "gelu_pytorch_tanh", "gelu", note="tanh form either way"),
        "hidden_activation": HARMLESS,
    },
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(tensors=BIASES),
    norms_from_zero=True,
    decoder=_gemma,
)


def _caps(config: Config) -> dict[str, Any]:
    """GGUF keys of the soft caps and of the factor on scores."""
    keys = {
        name: float(config.get(name) or 0.0)
        for name in ("attn_logit_softcapping", "final_logit_softcapping")
    }
    return keys | {"attention.scale": config["query_pre_attn_scalar"] ** -0.5}


def _score_scale(keys: Keys, layers_of_27b: int) -> float:
    """Factor on attention scores, by default one over the root of the width of a head.

    In the 27B models, which are known by their *layers_of_27b*, the default takes the model's width
    over the number of heads for that width. A GGUF file's own key is dropped when the file is
    opened, as llama.cpp does not read it; a folder states the factor.
    """
    model_sizes = sizes(keys)
    usual = attention(keys, model_sizes.dim)
    is_27b = model_sizes.layers == layers_of_27b and usual.heads
    scale = (model_sizes.dim / usual.heads) ** -0.5 if is_27b else usual.scale
    return keys.number("attention.scale", scale)


def _gemma2(keys: Keys) -> ModelConfig:
    # the defaults, for files without the keys, are those of llama.cpp
    model = _gemma(
        keys,
        norms=AROUND,
        window=4096,
        period=2,
        scale=_score_scale(keys, layers_of_27b=46),
        softcap=keys.number("attn_logit_softcapping", 50.0),
    )
    return replace(model, final_softcap=keys.number("final_logit_softcapping", 30.0))


register(
    title="Gemma 2",
    architecture="gemma2",
    activation="gelu_pytorch_tanh",
    defaults={"tie_word_embeddings": True},
    config_keys={
        **_CONFIG,
        **reads("attn_logit_softcapping"),
        "sliding_window_pattern": neutral(None, 2),
    },
    gguf_keys={
        "attention.scale": _SCALE,
        **reads("attn_logit_softcapping final_logit_softcapping"),
    },
    tensors=_NORMS,
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(
        tensors=BIASES,
        ignores=("attention.scale",),
        wide_scale_layers=46,
        broken_by_zero=(
            "attention.sliding_window",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        ),
    ),
    norms_from_zero=True,
    translate=lambda config: alternating(2)(config) | _caps(config),
    decoder=_gemma2,
)


def _vaultgemma(keys: Keys) -> ModelConfig:
    model = _gemma(
        keys,
        period=2,
        scale=keys.number("attention.scale"),
        softcap=keys.number("attn_logit_softcapping", 0.0),
    )
    return replace(model, final_softcap=keys.number("final_logit_softcapping", 0.0))


def _vaultgemma_keys(config: Config) -> dict[str, Any]:
    return alternating(2)(config) | _caps(config)


# Gemma 2 with norms before attention and network only.
register(
    title="VaultGemma",
    architecture="vaultgemma",
    activation="gelu_pytorch_tanh",
    defaults={"tie_word_embeddings": True},
    config_keys={
        **_CONFIG,
        **reads("attn_logit_softcapping"),
    },
    gguf_keys=reads("attention.scale attn_logit_softcapping final_logit_softcapping"),
    biases={"attention_bias": ATTENTION},
    norms_from_zero=True,
    llama_cpp=None,
    translate=_vaultgemma_keys,
    decoder=_vaultgemma,
)


def _gemma3(keys: Keys, *, causal: bool = True) -> ModelConfig:
    check_attention_factor(keys)
    model = _gemma(
        keys,
        causal=causal,
        norms=AROUND,
        period=6,
        qk_norm="head",
        scale=_score_scale(keys, layers_of_27b=62),
        # Layers with a window keep Gemma 2's frequencies, without scaling.
        each=rotate_windows(keys.number("rope.freq_base_swa", 10000.0)),
    )
    return replace(model, final_softcap=keys.number("final_logit_softcapping", 0.0))


def _gemma3_keys(config: Config) -> dict[str, Any]:
    both_ways: dict[str, Any] = {}
    if config.get("use_bidirectional_attention"):
        both_ways["attention.causal"] = False
        if first_architecture(config).endswith("Model"):
            # a model without a head has another architecture
            both_ways["architecture"] = _EMBEDDING
    return alternating(6, "sliding_window_pattern")(config) | _caps(config) | both_ways


_EMBEDDING = "gemma-embedding"
_GEMMA3_SUPPORT = LlamaCppSupport(ignores=("attention.scale",), wide_scale_layers=62)
_GEMMA3 = register(
    title="Gemma 3",
    architecture="gemma3",
    model_types=("gemma3", "gemma3_text"),
    activation="gelu_pytorch_tanh",
    # Published files leave out most keys that are not sizes.
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "max_position_embeddings": 131072,
    },
    config_keys=_CONFIG
    | reads("use_bidirectional_attention rope_local_base_freq sliding_window_pattern"),
    gguf_keys={"attention.scale": _SCALE, **reads("final_logit_softcapping rope.freq_base_swa")},
    tensors=_NORMS,
    biases={"attention_bias": ATTENTION},
    llama_cpp=_GEMMA3_SUPPORT,
    norms_from_zero=True,
    layered_rope=True,
    layered_scaling=True,
    translate=_gemma3_keys,
    decoder=_gemma3,
)
# Its folders are Gemma 3's; attention is bidirectional in its files.
register_variant(
    _GEMMA3,
    title="EmbeddingGemma",
    architecture=_EMBEDDING,
    model_types=(),
    headless=True,
    llama_cpp=replace(_GEMMA3_SUPPORT, both_ways=True, projections=True),
    decoder=partial(_gemma3, causal=False),
)


_PERIOD = 6  # by default, the last of this many layers has full attention
_OUTPUT_SCALE = "layer_output_scale"  # a factor on the stream behind a block; all have it or none


def _gemma4(keys: Keys) -> ModelConfig:
    """Blocks of attention, a network or a sum with experts, and an input for each layer."""
    model_sizes = sizes(keys, ffn=0)
    widths = per_layer(keys, "feed_forward_length", model_sizes.layers)
    attentions = _attentions(keys, model_sizes.layers, model_sizes.dim)
    width = keys.integer("embedding_length_per_layer_input", 0)
    input_branches = (Branch("", (LayerInput(width, _ACTIVATION),), "post_norm"),) if width else ()

    def network(layer: int, ffn: int) -> Branch:
        plain = FeedForward(ffn, _ACTIVATION)
        if f"blk.{layer}.ffn_gate_inp.weight" not in keys.weights:
            return Branch("ffn_norm", (plain,), "post_ffw_norm")
        mixture = experts(keys, activation=_ACTIVATION, normed=True)
        first = Branch("ffn_norm", (plain,), "post_ffw_norm_1")
        second = Branch("pre_ffw_norm_2", (mixture,), "post_ffw_norm_2")
        return Branch("", (Sum((first, second)),), "post_ffw_norm")

    has_output_scale = any(f".{_OUTPUT_SCALE}." in name for name in keys.weights)
    blocks = (
        (Branch("attn_norm", (mixer,), "post_attention_norm"), network(layer, ffn), *input_branches)
        for layer, (mixer, ffn) in enumerate(zip(attentions, widths, strict=True))
    )
    return model_of(
        keys,
        model_sizes,
        blocks,
        embedding_scale=math.sqrt(model_sizes.dim),
        final_softcap=keys.number("final_logit_softcapping", 30.0),
        unsuffixed_norms=("ffn_gate_inp.scale",),
        output_scale=_OUTPUT_SCALE if has_output_scale else "",
        left_out=tuple(
            f"blk.{layer}.{name}."
            for layer, mixer in enumerate(attentions)
            if mixer.shared_cache is not None
            for name in ("attn_k", "attn_v", "attn_k_norm")
        ),
    )


def _attentions(keys: Keys, layers: int, dim: int) -> list[Attention]:
    """Attention of every layer; the last layers share caches, see :func:`read_last_caches`."""
    windows = read_windows(
        keys, layers, period=_PERIOD, window=keys.integer("attention.sliding_window")
    )
    kv_heads = per_layer(keys, "attention.head_count_kv", layers)
    # the number of key heads is replaced below by that of each layer
    full = attention(keys, dim, kv_heads=1, scale=1.0, qk_norm="head", value_norm=True)
    if full.rope is None or full.rope.freq_factors is None:
        raise InvalidFormat(
            f"{keys.path.name}: rope_freqs.weight is missing, factors of layers without a window",
            hint="the file was converted incompletely; choose another conversion",
        )
    head_dim = keys.integer("attention.key_length_swa", full.head_dim)
    if keys.integer("attention.value_length_swa", head_dim) != head_dim:
        raise contradiction(
            keys,
            f"{keys.own_name('attention.value_length_swa')} is not {head_dim}, the width of keys",
        )
    # Layers with a window have frequencies of their own, without scaling.
    check_attention_factor(keys)
    local = replace(
        full,
        head_dim=head_dim,
        rope=without_scaling(
            full.rope,
            dims=keys.integer("rope.dimension_count_swa", full.rope.dims),
            theta=keys.number("rope.freq_base_swa", 10000.0),
        ),
    )

    def attention_of(layer: int, window: int) -> Attention:
        mixer = replace(local if window else full, window=window, kv_heads=kv_heads[layer])
        as_values = not window and _has_no_values(keys, layer)
        return replace(mixer, keys_as_values=as_values)

    shared = keys.integer("attention.shared_kv_layers", 0)
    return read_last_caches(keys, attention_of, windows, own_caches=layers - shared)


def read_last_caches(
    keys: Keys,
    attention_of: Callable[[int, int], Attention],
    windows: Sequence[int],
    *,
    own_caches: int,
) -> list[Attention]:
    """Attention of every layer; the first *own_caches* layers have caches of their own.

    Each later layer reads the cache of the last of these that has the same window. *windows* are
    those of all layers; *attention_of* returns the attention of a layer from its number and window.
    """
    attentions: list[Attention] = []
    for layer, window in enumerate(windows):
        if layer < own_caches:
            attentions.append(attention_of(layer, window))
            continue
        sources = [at for at in range(max(own_caches, 0)) if attentions[at].window == window]
        if not sources:
            problem = "shares keys and values, and no layer before has any of its kind"
            raise contradiction(keys, f"layer {layer} {problem}")
        # Each of the first layers has one cache, whose number is the layer's.
        attentions.append(replace(attentions[sources[-1]], shared_cache=sources[-1]))
    return attentions


def _has_no_values(keys: Keys, layer: int) -> bool:
    """True if *layer*, which has full attention, uses its keys as values."""
    if keys.config is None:
        return f"blk.{layer}.attn_v.weight" not in keys.weights
    return bool(keys.text_config.get("attention_k_eq_v"))


def _gemma4_keys(config: Config) -> dict[str, Any]:
    """GGUF keys; those that end with ``_swa`` are of layers with a window."""
    layers = config["num_hidden_layers"]
    kv_heads = config["num_key_value_heads"]
    keys = alternating(_PERIOD)(config)
    # The last layer has full attention, whatever the list says, as in transformers.
    pattern = [*keys["attention.sliding_window_pattern"][:-1], False]
    head_dim, full_kv_heads = _full_heads(config, pattern)
    keys |= {
        "attention.sliding_window_pattern": pattern,
        "attention.key_length": head_dim,
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        # the classes of Gemma 4 Unified have no such embeddings, and no key for them
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
        # Without the key, llama.cpp caps logits at 30.
        "final_logit_softcapping": float(config.get("final_logit_softcapping") or 0.0),
    }
    if config.get("enable_moe_block"):
        if not expert_count(config):
            raise wrong_config("enable_moe_block, and no num_experts")
    else:
        keys["expert_count"] = 0
    if full_kv_heads != kv_heads:
        keys["attention.head_count_kv"] = [
            kv_heads if is_local else full_kv_heads for is_local in pattern
        ]
    if config.get("use_double_wide_mlp"):
        first_shared = layers - config["num_kv_shared_layers"]
        width = config["intermediate_size"]
        keys["feed_forward_length"] = [
            width if layer < first_shared else 2 * width for layer in range(layers)
        ]
    return keys


def _full_heads(config: Config, pattern: list[bool]) -> tuple[int, int]:
    """Width of the heads and number of key heads of layers with full attention."""
    usual = config["head_dim"], config["num_key_value_heads"]
    layer_configs = config.get("per_layer_config")
    if layer_configs is None:
        kv_heads = config.get("num_global_key_value_heads")
        own = kv_heads if config.get("attention_k_eq_v") and kv_heads is not None else usual[1]
        head_dim = config.get("global_head_dim", 512)  # transformers' default
        if head_dim is None:
            raise wrong_config("global_head_dim is null, and per_layer_config is missing")
        return head_dim, own
    names = ("head_dim", "num_key_value_heads")
    unknown = {
        name
        for layer_config in layer_configs.values()
        for name in layer_config
        if name not in names
    }
    # transformers writes numbers of layers with leading zeros: "05" in a model of 30 layers
    by_layer = {int(number): own for number, own in layer_configs.items()}
    # by True for layers with a window, whose shape must be the usual one
    shapes: dict[bool, set[tuple[int, int]]] = {True: {usual}, False: set()}
    for layer, is_local in enumerate(pattern):
        layer_config = by_layer.get(layer, {})
        shapes[is_local].add(
            (layer_config.get(names[0], usual[0]), layer_config.get(names[1], usual[1]))
        )
    if unknown or len(shapes[True]) > 1 or len(shapes[False]) > 1:
        raise wrong_config("per_layer_config with more than one shape of heads of a kind of layer")
    (full,) = shapes[False]
    return full


register(
    title="Gemma 4",
    architecture="gemma4",
    model_types=("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
    activation="gelu_pytorch_tanh",
    stated="rope_theta",
    defaults={"tie_word_embeddings": True},
    config_keys={
        **WINDOW_CONFIG,
        **reads("attention_k_eq_v enable_moe_block final_logit_softcapping global_head_dim"),
        **reads("hidden_size_per_layer_input moe_intermediate_size num_experts"),
        **reads("num_global_key_value_heads num_kv_shared_layers num_local_experts"),
        **reads("per_layer_config top_k_experts use_double_wide_mlp"),
        "vocab_size_per_layer_input": Rule("tensors have the rows of the embedding"),
        "hidden_act": HARMLESS,  # hidden_activation counts
        "num_experts_per_tok": HARMLESS,  # `top_k_experts` counts
        "use_bidirectional_attention": neutral(
            None, "vision", note="text attends to what is before it"
        ),
    },
    gguf_keys={
        **EXPERT_KEYS,
        **reads("attention.key_length_swa attention.shared_kv_layers"),
        **reads("attention.value_length_swa embedding_length_per_layer_input"),
        **reads("final_logit_softcapping rope.dimension_count_swa rope.freq_base_swa"),
        "attention.scale": Rule("ignored; scores are not scaled"),
    },
    tensors=_NORMS,
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "rope_freqs.weight"),
        needs=frozenset({"window"}),
        ignores=("attention.scale",),
    ),
    layered_rope=True,
    has_freq_factors=True,
    translate=_gemma4_keys,
    decoder=_gemma4,
)
