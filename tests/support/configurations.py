"""Hypothesis strategies for the ``config.json`` of models of every family."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dense_options import CAPS, DENSE, WINDOW, optional
from hypothesis import strategies as st
from mixed_options import EXPERTS, STATES
from other_mixtures import OTHER_MIXTURES

__all__ = ["KINDS", "Case", "cases"]


@dataclass(frozen=True)
class Case:
    """A random model.

    Attributes:
        kind: prefix of its classes in transformers.
        options: arguments of its configuration.
        length: number of tokens of the prompt.
        seed: seed of its weights and of the prompt.
        changes: keys of config.json with other values than transformers wrote.
        without: keys that are removed from config.json.
        quantization: ``quantization_config`` of ternary weights.
    """

    kind: str
    options: dict[str, Any] = field(hash=False)
    length: int = 20
    seed: int = 0
    changes: dict[str, Any] = field(default_factory=dict, hash=False)
    without: tuple[str, ...] = ()
    quantization: dict[str, Any] | None = field(default=None, hash=False)


@st.composite
def cases(draw: st.DrawFn, kind: str) -> Case:
    """A case of *kind*."""
    quantization = draw(st.one_of(st.none(), _QUANTIZATION)) if kind in _TERNARY else None
    heads = draw(st.sampled_from([2, 4]))
    head_dim = draw(st.sampled_from([16, 32]))
    layers = draw(_LAYERS.get(kind, st.integers(1, 4)))
    context = draw(st.sampled_from([32, 64, 128]))
    own_width = draw(st.booleans()) and kind not in ("MiniCPM", "Olmoe")
    width = draw(st.sampled_from([48, 64])) if own_width else heads * head_dim
    if quantization is not None:
        heads, head_dim, width, layers = 4, 32, 128, min(layers, 2)
    options: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": width,
        "intermediate_size": draw(st.sampled_from([64, 96])) if quantization is None else 256,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([1, heads // 2, heads])),
        "max_position_embeddings": context,
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5, 1e-3])),
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind in _LATENT:
        options["num_key_value_heads"] = heads
    elif own_width or kind in _HEAD_DIM_NEEDED:
        options["head_dim"] = head_dim
    options |= draw(_OWN[kind](layers))
    # Mostly: llama.cpp ignores another scale, which would hide its other differences.
    if kind in ("Gemma2", "Gemma3") and draw(st.integers(0, 3)):
        options["query_pre_attn_scalar"] = head_dim
    rope = draw(rope_parameters(kind, context, head_dim // 2))
    if rope is not None and (kind not in _UNROTATED or draw(st.integers(0, 4)) == 0):
        options["rope_parameters"] = rope
    if draw(st.integers(0, 9)) == 0:
        options["hidden_act"] = draw(st.sampled_from(_ACTIVATIONS))
    if kind == "Youtu":  # transformers 5.24 clears that row of an embedding that is read
        options["pad_token_id"] = None
    # A changed folder is opened again by transformers, which has no MiniCPM; one with ternary
    # weights is not.
    can_change = quantization is None and kind != "MiniCPM"
    changes, without = draw(_spelling(options)) if can_change else ({}, ())
    length = draw(st.sampled_from([9, 20, 31]))
    seed = draw(st.integers(0, 99))
    return Case(kind, options, length, seed, changes, without, quantization)


def rope_parameters(kind: str, context: int, pairs: int) -> st.SearchStrategy[Any]:
    """``rope_parameters``, or ``None`` for the default of the family.

    *pairs* is half the width of a head, the number of its frequencies.
    """
    base = st.sampled_from([500.0, 1e4, 1e6])
    original = st.sampled_from([16, 24, context])
    factor = st.sampled_from([2.0, 4.0, 8.5])
    freq_factors = st.floats(1.0, 6.0, width=16)
    maybe = st.one_of(st.none(), st.sampled_from([0.5, 1.0, 1.7]))
    # Their order: default, linear, dynamic, yarn, llama3. The indices below count on it.
    kinds = [
        _rope("default", rope_theta=base),
        _rope("linear", rope_theta=base, factor=factor),
        _rope("dynamic", rope_theta=base, factor=factor),
        st.builds(
            dict.__or__,
            _rope(
                "yarn", rope_theta=base, factor=factor, original_max_position_embeddings=original
            ),
            optional(
                attention_factor=maybe,
                beta_fast=st.sampled_from([4, 32]),
                beta_slow=st.sampled_from([0.5, 1]),
                truncate=st.booleans(),
                mscale=st.sampled_from([0.7, 1.0]),
                mscale_all_dim=st.sampled_from([0.5, 1.0]),
            ),
        ),
        _rope(
            "llama3",
            rope_theta=base,
            factor=factor,
            low_freq_factor=st.just(1.0),
            high_freq_factor=st.sampled_from([2.0, 4.0]),
            original_max_position_embeddings=original,
        ),
    ]
    if kind in ("Phi3", "Llama", "MiniCPM"):
        lists = st.lists(freq_factors, min_size=pairs, max_size=pairs)
        longrope = _rope(
            "longrope",
            rope_theta=base,
            short_factor=lists,
            long_factor=lists,
            original_max_position_embeddings=st.sampled_from([16, 24]),
        )
        kinds.append(
            st.builds(dict.__or__, longrope, optional(attention_factor=maybe, factor=factor))
        )
    if kind in _LAYERED_ROPE:
        full = st.one_of(kinds[:2])
        if kind == "Gemma4":
            part = st.sampled_from([0.25, 0.4, 0.5, 1.0])
            own = _rope("proportional", rope_theta=base, partial_rotary_factor=part)
            more = _rope("proportional", rope_theta=base, factor=factor)
            full = st.one_of(own, own, own, more, *kinds[:2])
        if kind == "Olmo3":  # both types of layers with one base
            full = st.one_of(kinds[0], kinds[1], kinds[3])
            base = st.just(1e4)
            kinds[0] = _rope("default", rope_theta=base)
            full = st.builds(lambda rope: rope | {"rope_theta": 1e4}, full)
        layered = st.fixed_dictionaries({"full_attention": full, "sliding_attention": kinds[0]})
        return st.one_of(st.none(), layered)
    if kind in _LATENT:
        same = st.sampled_from([0.7, 1.0])
        yarn = _rope(
            "yarn", rope_theta=base, factor=factor, original_max_position_embeddings=original
        )
        kinds = [kinds[0], kinds[1], kinds[3]]
        kinds.append(
            st.builds(lambda rope, m: rope | {"mscale": m, "mscale_all_dim": m}, yarn, same)
        )
    if kind == "Ministral3":
        own = st.fixed_dictionaries(
            {
                "llama_4_scaling_beta": st.sampled_from([0.0, 0.1, 0.7]),
                "original_max_position_embeddings": st.sampled_from([4, 16, 24]),
            },
            optional={"max_position_embeddings": st.just(context)},
        )
        return st.one_of(st.none(), st.builds(dict.__or__, st.one_of(kinds), own))
    if kind == "HunYuanDenseV1":
        alpha = st.sampled_from([0.5, 8.0, 1000.0])
        kinds.append(_rope("dynamic", rope_theta=base, factor=st.just(1.0), alpha=alpha))
    if kind != "Phi3":
        part = st.sampled_from([0.5, 1.0])
        kinds.append(_rope("default", rope_theta=base, partial_rotary_factor=part))
    return st.one_of(st.none(), *kinds)


def _rope(kind: str, **parameters: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Dictionaries of the rope type *kind* with all *parameters*."""
    return st.fixed_dictionaries({"rope_type": st.just(kind), **parameters})


@st.composite
def _spelling(draw: st.DrawFn, options: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Changes to config.json and keys to leave out, which may change the configuration or not."""
    changes: dict[str, Any] = {}
    without: list[str] = []
    rope = options.get("rope_parameters")
    if rope and "full_attention" not in rope and draw(st.integers(0, 3)) == 0:  # keys until 2025
        scaling = dict(rope)
        changes["rope_theta"] = scaling.pop("rope_theta")
        name = draw(st.sampled_from(["rope_type", "type"]))
        scaling[name] = scaling.pop("rope_type")
        changes["rope_scaling"] = scaling if scaling[name] != "default" else None
        without.append("rope_parameters")
    if draw(st.integers(0, 2)) == 0:
        without += draw(st.lists(st.sampled_from(sorted(_DROPPED)), max_size=3))
    if draw(st.integers(0, 3)) == 0:
        # First the keys, with None for each; then a value of each, also of a rope_theta set above.
        changes |= draw(
            st.dictionaries(st.sampled_from(sorted(_OTHER_KEYS)), st.none(), max_size=2)
        )
        changes = {
            key: draw(_OTHER_KEYS[key]) if key in _OTHER_KEYS else v for key, v in changes.items()
        }
    return changes, tuple(sorted(set(without)))


_TERNARY = ("BitNet", "Llama")  # kinds of which models with ternary weights are published
# Kinds whose heads have widths of their own.
_LATENT = (
    *("AXK1", "BailingHybrid", "DeepseekV2", "DeepseekV3", "Glm4MoeLite", "KimiLinear", "MiniCPM3"),
    *("SarvamMLA", "Youtu"),
)
_HEAD_DIM_NEEDED = (
    *(
        "Afmoe",
        "Cohere2Moe",
        "Cwm",
        "Flint",
        "Gemma",
        "Gemma2",
        "Gemma3",
        "Gemma3n",
        "Gemma4",
        "Glm4",
        "Glm4Moe",
        "GptOss",
        "Helium",
        "HYV3",
        "HunYuanDenseV1",
        "Laguna",
        "Lfm3",
        "Mellum",
        "MiniMaxM2",
        "Ministral3",
        "NemotronH",
        "Qwen3",
        "Qwen3Moe",
        "Qwen3Next",
        "Qwen3_5",
        "Qwen3_5Moe",
        "SarvamMoE",
        "SeedOss",
        "SolarOpen",
        "VaultGemma",
    ),
)
_LAYERS = {
    "Gemma3": st.sampled_from([2, 7]),
    "GraniteMoeHybrid": st.integers(2, 5),
    "NemotronH": st.integers(2, 6),
    "OlmoHybrid": st.integers(2, 5),
    "Gemma3n": st.sampled_from([2, 3, 6]),
    "Gemma4": st.sampled_from([2, 4, 6, 7]),
    "Qwen3_5": st.integers(1, 6),
    "Qwen3_5Moe": st.integers(1, 6),
    "SmolLM3": st.integers(1, 9),
}
# Kinds with a table of rotary positions for each type of layer.
_LAYERED_ROPE = ("Gemma3", "Gemma3n", "Gemma4", "Laguna", "Lfm3", "Mellum", "Olmo3")
# Kinds without rotary positions, or with one rotation: what a table says of them is refused.
_UNROTATED = (
    *("BioGpt", "Bloom", "CodeGen", "FalconMamba", "GPT2", "GPTBigCode", "GPTJ", "GPTNeo", "Jamba"),
    *("KimiLinear", "Mamba", "Mamba2", "Mpt", "NemotronH", "OPT", "OpenAIGPT"),
)
_ACTIVATIONS = ["gelu", "relu", "relu2", "silu", "gelu_pytorch_tanh"]
# Values of modules_to_not_convert.
_KEPT = [
    ["lm_head"],
    [],
    ["lm_head", "mlp"],
    ["lm_head", r"model.layers.\d.self_attn"],
    ["model.layers.0", "lm_head"],
    ["lm_head", "o_proj", "down_proj"],
]
_QUANTIZATION = st.fixed_dictionaries(
    {"quant_method": st.just("bitnet")},
    optional={
        "linear_class": st.sampled_from(["autobitlinear", "bitlinear"]),
        "quantization_mode": st.sampled_from(["online", "offline"]),
        "modules_to_not_convert": st.one_of(st.none(), st.sampled_from(_KEPT)),
        "use_rms_norm": st.sampled_from([False, False, True]),
        "rms_norm_eps": st.just(1e-6),
    },
)
_OWN = DENSE | EXPERTS | STATES | OTHER_MIXTURES
KINDS = tuple(sorted(_OWN))

# Keys whose absence has a meaning.
_DROPPED = {
    "architectures",
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "layer_types",
    "max_position_embeddings",
    "mlp_bias",
    "num_key_value_heads",
    "query_pre_attn_scalar",
    "rms_norm_eps",
    "rope_parameters",
    "sliding_window",
    "tie_word_embeddings",
}
# Keys of other families, and of none, with values that they may have.
_NUMBER = st.sampled_from([None, 0, 1, 2])
_OTHER_KEYS = {
    "attention_dropout": st.just(0.1),
    "attn_logit_softcapping": CAPS,
    "clip_qkv": st.sampled_from([None, 0.5]),
    "embedding_multiplier": st.sampled_from([1.0, 2.0]),
    "final_logit_softcapping": CAPS,
    "head_dim": st.none(),
    "hidden_activation": st.sampled_from([None, *_ACTIVATIONS]),
    "is_causal": st.booleans(),
    "layer_types": st.none(),
    "logit_scale": st.sampled_from([1.0, 0.1]),
    "max_window_layers": st.integers(0, 3),
    "mlp_bias": st.booleans(),
    "no_rope_layer_interval": st.integers(2, 4),
    "num_experts_per_tok": _NUMBER,
    "num_key_value_heads": st.none(),
    "num_nextn_predict_layers": _NUMBER,
    "original_max_position_embeddings": st.sampled_from([8, 32]),
    "partial_rotary_factor": st.sampled_from([None, 0.5, 1.0]),
    "pretraining_tp": st.sampled_from([1, 2]),
    "qk_layernorm": st.booleans(),
    "rope_interleaved": st.booleans(),
    "rope_local_base_freq": st.sampled_from([None, 500.0]),
    "rope_theta": st.sampled_from([500.0, 1e4]),
    "scale_emb": st.sampled_from([1, 12]),
    "sliding_window": WINDOW,
    "sliding_window_pattern": st.sampled_from([2, 3]),
    "tie_word_embeddings": st.one_of(st.none(), st.booleans()),
    "use_bidirectional_attention": st.sampled_from([None, False, True]),
    "use_cache": st.just(False),
    "use_qk_norm": st.booleans(),
    "use_sliding_window": st.booleans(),
}
