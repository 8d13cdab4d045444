"""Gemma 4: two widths of heads, shared keys and values, inputs of layers by token, or experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat
from bitnet.families.blocks import Attention, Branch, LayerInput, Sum
from bitnet.families.dense import (
    WINDOW_CONFIG,
    alternating,
    attention,
    model_of,
    per_layer,
    read_windows,
    sizes,
)
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, expert_keys, experts
from bitnet.families.family import ATTENTION, Family, LlamaCppSupport, register
from bitnet.families.gemma import NORMS
from bitnet.families.keys import HARMLESS, contradiction, neutral, read
from bitnet.families.mixers import FeedForward

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys
    from bitnet.families.mixers import Activation

_PERIOD = 6
_SCALE = "layer_output_scale"  # of all layers or of none
_ACTIVATION: Activation = "gelu_tanh"
_FULL_ROPE = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
_LOCAL_ROPE = {"rope_type": "default", "rope_theta": 1e4}


def _decoder(keys: Keys) -> ModelConfig:
    its = sizes(keys, ffn=0)
    widths = per_layer(keys, "feed_forward_length", its.layers)
    attentions = _attentions(keys, its.layers, its.dim)
    width = keys.integer("embedding_length_per_layer_input", 0)
    added = (Branch("", (LayerInput(width, _ACTIVATION),), "post_norm"),) if width else ()

    def network(layer: int, ffn: int) -> Branch:
        usual = FeedForward(ffn, _ACTIVATION)
        if f"blk.{layer}.ffn_gate_inp.weight" not in keys.weights:
            return Branch("ffn_norm", (usual,), "post_ffw_norm")
        mixture = experts(keys, activation=_ACTIVATION, normed=True)
        first = Branch("ffn_norm", (usual,), "post_ffw_norm_1")
        second = Branch("pre_ffw_norm_2", (mixture,), "post_ffw_norm_2")
        return Branch("", (Sum((first, second)),), "post_ffw_norm")

    blocks = (
        (Branch("attn_norm", (mixer,), "post_attention_norm"), network(layer, ffn), *added)
        for layer, (mixer, ffn) in enumerate(zip(attentions, widths, strict=True))
    )
    return model_of(
        keys,
        its,
        blocks,
        embedding_scale=math.sqrt(its.dim),
        final_softcap=keys.number("final_logit_softcapping", 0.0),
        bare_norms=("ffn_gate_inp.scale",),
        output_scale=_SCALE if any(f".{_SCALE}." in name for name in keys.weights) else "",
        left_out=tuple(
            f"blk.{layer}.{name}."
            for layer, mixer in enumerate(attentions)
            if mixer.shared_cache is not None
            for name in ("attn_k", "attn_v", "attn_k_norm")
        ),
    )


def _attentions(keys: Keys, layers: int, dim: int) -> list[Attention]:
    """Attention of every layer; the last ones read the cache of the last of their kind before."""
    windows = read_windows(
        keys, layers, period=_PERIOD, window=keys.integer("attention.sliding_window")
    )
    kv_heads = per_layer(keys, "attention.head_count_kv", layers)
    full = attention(keys, dim, kv_heads=1, scale=1.0, qk_norm="head", value_norm=True)
    if full.rope is None or full.rope.freq_factors is None:
        raise InvalidFormat(
            f"{keys.path.name}: rope_freqs.weight is missing, factors of layers without a window",
            hint="the file was converted incompletely; choose another conversion",
        )
    head_dim = keys.integer("attention.key_length_swa", full.head_dim)
    if keys.integer("attention.value_length_swa", head_dim) != head_dim:
        raise contradiction(
            keys, f"attention.value_length_swa is not {head_dim}, the width of keys"
        )
    # Layers with a window have frequencies of their own, without scaling.
    local = replace(
        full,
        head_dim=head_dim,
        rope=replace(
            full.rope,
            dims=keys.integer("rope.dimension_count_swa", full.rope.dims),
            theta=keys.number("rope.freq_base_swa", 10000.0),
            scaling="none",
            attention_factor=1.0,
            freq_factors=None,
        ),
    )
    own = layers - keys.integer("attention.shared_kv_layers", 0)
    made: list[Attention] = []
    for layer, window in enumerate(windows):
        if layer < own:
            mixer = replace(local if window else full, window=window, kv_heads=kv_heads[layer])
            as_values = not window and _has_no_values(keys, layer)
            made.append(replace(mixer, keys_as_values=as_values))
            continue
        before = [at for at in range(own) if made[at].window == window]
        if not before:
            problem = "shares keys and values, and no layer before has any of its kind"
            raise contradiction(keys, f"layer {layer} {problem}")
        made.append(replace(made[before[-1]], shared_cache=before[-1]))
    return made


def _has_no_values(keys: Keys, layer: int) -> bool:
    """True if the values of *layer*, which has full attention, are its keys."""
    if keys.config is None:
        return f"blk.{layer}.attn_v.weight" not in keys.weights
    text = keys.config.get("text_config") or keys.config
    return bool(text.get("attention_k_eq_v"))


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, kv_heads = config["num_hidden_layers"], config["num_key_value_heads"]
    keys = alternating(_PERIOD)(config)
    pattern = [*keys["attention.sliding_window_pattern"][:-1], False]  # whatever the last is
    head_dim, full_kv_heads = _full_heads(config, pattern)
    keys |= {
        "attention.sliding_window_pattern": pattern,
        "attention.key_length": head_dim,
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"] or 0,
    }
    if config.get("enable_moe_block"):
        own = {"num_experts_per_tok": config["top_k_experts"]}
        keys |= expert_keys({**config, **own}, 0, "moe_intermediate_size")
    if full_kv_heads != kv_heads:
        keys["attention.head_count_kv"] = [kv_heads if it else full_kv_heads for it in pattern]
    if config.get("use_double_wide_mlp"):
        own, width = layers - config["num_kv_shared_layers"], config["intermediate_size"]
        keys["feed_forward_length"] = [width * (1 + (at >= own)) for at in range(layers)]
    if config.get("final_logit_softcapping") is not None:
        keys["final_logit_softcapping"] = float(config["final_logit_softcapping"])
    return keys


def _full_heads(config: Mapping[str, Any], pattern: list[bool]) -> tuple[int, int]:
    """Width of the heads and number of key heads of layers with full attention."""
    usual = config["head_dim"], config["num_key_value_heads"]
    layers = config.get("per_layer_config")
    if layers is None:
        kv_heads = config.get("num_global_key_value_heads")
        own = kv_heads if config.get("attention_k_eq_v") and kv_heads is not None else usual[1]
        return config.get("global_head_dim", 512), own
    names = ("head_dim", "num_key_value_heads")
    strange = {name for its in layers.values() for name in its if name not in names}
    shapes: dict[bool, set[tuple[int, int]]] = {True: {usual}, False: set()}
    for layer, is_local in enumerate(pattern):
        its = layers.get(str(layer), {})
        shapes[is_local].add((its.get(names[0], usual[0]), its.get(names[1], usual[1])))
    if strange or len(shapes[True]) > 1 or len(shapes[False]) > 1:
        raise ValueError("per_layer_config with more than one shape of heads of a kind of layer")
    (full,) = shapes[False]
    return full


register(
    Family(
        title="Gemma 4",
        architecture="gemma4",
        model_types=("gemma4", "gemma4_text"),
        activation="gelu_pytorch_tanh",
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "sliding_window": 512,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": _FULL_ROPE,
                "sliding_attention": _LOCAL_ROPE,
            },
            "hidden_size_per_layer_input": 256,
            "num_kv_shared_layers": 0,
        },
        config_keys={
            **EXPERT_CONFIG,
            **WINDOW_CONFIG,
            "attention_k_eq_v": read("values of full attention are the keys"),
            "enable_moe_block": read("every layer has experts beside its network"),
            "final_logit_softcapping": read("soft cap on logits"),
            "global_head_dim": read("width of a head with full attention"),
            "hidden_act": HARMLESS,  # hidden_activation counts
            "hidden_size_per_layer_input": read("width of what a token adds in each layer"),
            "layer_types": read("which layers have a window; the last one has none"),
            "num_global_key_value_heads": read("key heads of full attention, with its keys alone"),
            "num_kv_shared_layers": read("layers at the end that read the keys of one before"),
            "per_layer_config": read("width and key heads of full attention"),
            "top_k_experts": read("experts of a token"),
            "use_bidirectional_attention": neutral(
                None, "vision", note="text attends to what is before it"
            ),
            "use_double_wide_mlp": read("networks of layers with shared keys are twice as wide"),
            "vocab_size_per_layer_input": read("must be the rows of the embedding"),
        },
        gguf_keys={
            **EXPERT_KEYS,
            "attention.head_count_kv": read("key and value heads, of all layers or of each"),
            "attention.key_length_swa": read("width of a head of layers with a window"),
            "attention.scale": read("ignored; scores are not scaled"),
            "attention.shared_kv_layers": read(
                "layers at the end that read the keys of one before"
            ),
            "attention.value_length_swa": read("must be the width of a head"),
            "embedding_length_per_layer_input": read("width of what a token adds in each layer"),
            "feed_forward_length": read("width of the network, of all layers or of each"),
            "final_logit_softcapping": read("soft cap on logits"),
            "rope.dimension_count_swa": read("rotary dimensions of layers with a window"),
            "rope.freq_base_swa": read("RoPE base of layers with a window"),
        },
        tensors=NORMS
        | {
            "layer_scalar": f"{_SCALE}.weight",
            "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj",
            "post_per_layer_input_norm": "post_norm",
            "post_feedforward_layernorm_1": "post_ffw_norm_1",
            "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
            "post_feedforward_layernorm_2": "post_ffw_norm_2",
            "router.proj": "ffn_gate_inp",
            "router.scale": "ffn_gate_inp.scale",
            "router.per_expert_scale": "ffn_down_exps.scale",
            "experts.gate_up_proj": "ffn_gate_up_exps.weight",
            "experts.down_proj": "ffn_down_exps.weight",
        },
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", "rope_freqs.weight"),
            needs=frozenset({"window"}),
            ignores=("attention.scale",),
        ),
        layered_rope=True,
        has_freq_factors=True,
        translate=_translate,
        decoder=_decoder,
    )
)
