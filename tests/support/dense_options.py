"""Options of dense families, as Hypothesis strategies of the number of layers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

CAPS = st.one_of(st.none(), st.sampled_from([2.0, 30.0]))
BOOL = st.booleans()
RARELY = st.sampled_from([False, False, False, True])
FACTOR = st.sampled_from([0.2, 1.0, 3.0])
WINDOW = st.sampled_from([None, 5, 64])


def optional(**options: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Dictionaries in which each of *options* may be missing."""
    return st.fixed_dictionaries({}, optional=options)


def layer_types(layers: int) -> st.SearchStrategy[list[str]]:
    """Layers with and without a window in any order."""
    kinds = st.sampled_from(["sliding_attention", "full_attention"])
    return st.lists(kinds, min_size=layers, max_size=layers)


def _gemma(layers: int, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Options of Gemma 2 and 3, and of VaultGemma."""
    return st.builds(
        dict.__or__,
        st.fixed_dictionaries({"sliding_window": st.sampled_from([4, 11, 64])}),
        optional(
            query_pre_attn_scalar=st.sampled_from([16, 24, 32]),
            layer_types=layer_types(layers),
            attention_bias=st.booleans(),
            **more,
        ),
    )


@st.composite
def _gemma4(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Options of Gemma 4, dense or with experts."""
    shared = st.sampled_from([0, 0, *range(layers)])
    count = draw(st.integers(2, 8))
    experts = {
        "enable_moe_block": True,
        "moe_intermediate_size": draw(st.sampled_from([32, 48])),
        "num_experts": count,
        "top_k_experts": draw(st.integers(1, count)),
    }
    return draw(st.sampled_from([{}, experts])) | draw(
        st.fixed_dictionaries(
            {
                "sliding_window": st.sampled_from([4, 11, 64]),
                "global_head_dim": st.sampled_from([16, 32, 64]),
                "hidden_size_per_layer_input": st.sampled_from([0, 8, 32]),
                "vocab_size_per_layer_input": st.just(96),
            },
            optional={
                "attention_bias": st.sampled_from([False, False, True]),
                "attention_k_eq_v": BOOL,
                "final_logit_softcapping": CAPS,
                "layer_types": layer_types(layers),
                "num_global_key_value_heads": st.sampled_from([None, 1, 2]),
                "num_kv_shared_layers": shared,
                "use_bidirectional_attention": st.sampled_from([None, None, "vision", "all"]),
                "use_double_wide_mlp": BOOL,
            },
        )
    )


@st.composite
def _gemma3n(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Options of Gemma 3n; *layers* is 2 or more."""
    streams = draw(st.integers(2, 5))
    shares = st.sampled_from([0.0, 0.0, 0.3, 0.5, 0.95])
    return draw(
        st.fixed_dictionaries(
            {
                "activation_sparsity_pattern": st.lists(shares, min_size=layers, max_size=layers),
                "altup_active_idx": st.integers(0, streams - 1),
                "altup_num_inputs": st.just(streams),
                "hidden_size_per_layer_input": st.sampled_from([8, 32]),
                "laurel_rank": st.sampled_from([4, 16]),
                # Both kinds in turn: a layer that shares keys needs one of its kind before.
                "layer_types": st.just(
                    [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)]
                ),
                "num_kv_shared_layers": st.integers(0, layers - 2),
                "sliding_window": st.sampled_from([4, 11, 64]),
                "vocab_size_per_layer_input": st.sampled_from([96, 96, 60]),
            },
            optional={
                "altup_correct_scale": st.sampled_from([True, True, True, False]),
                "attention_bias": st.sampled_from([False, False, True]),
                "final_logit_softcapping": st.sampled_from([2.0, 30.0]),
            },
        )
    )


def _qwen(layers: int, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Options of Qwen 2 and 3, of which the layers from a number on may have a window."""
    return optional(
        use_sliding_window=st.booleans(),
        sliding_window=st.sampled_from([5, 64]),
        max_window_layers=st.integers(0, layers),
        **more,
    )


EPSILON = st.sampled_from([1e-6, 1e-5, 1e-3])


@st.composite
def _falcon(draw: st.DrawFn, _layers: int) -> dict[str, Any]:
    """Options of both decoder architectures of Falcon."""
    is_new = draw(BOOL)
    return draw(
        optional(
            alibi=RARELY,
            bias=BOOL,
            ffn_hidden_size=st.sampled_from([None, 48, 96]),
            layer_norm_epsilon=EPSILON,
            multi_query=BOOL,
            num_ln_in_parallel_attn=st.sampled_from([None, 1, 2] if is_new else [None]),
            parallel_attn=st.just(True) if is_new else BOOL,
        )
    ) | {"new_decoder_architecture": is_new, **({"num_kv_heads": 2} if is_new else {})}


def _gptj(_layers: int) -> st.SearchStrategy[dict[str, Any]]:
    """Options of GPT-J and CodeGen."""
    return st.builds(
        dict.__or__,
        st.fixed_dictionaries({"rotary_dim": st.sampled_from([8, 12, 16])}),
        optional(
            activation_function=st.sampled_from(["gelu_new", "gelu_new", "gelu"]),
            layer_norm_epsilon=EPSILON,
            n_inner=st.sampled_from([None, 48, 96]),
        ),
    )


@st.composite
def _gpt_neo(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Options of GPT-Neo, whose layers attend to everything or to a window."""
    kinds = draw(st.lists(st.sampled_from(["global", "local"]), min_size=layers, max_size=layers))
    return {"attention_types": [[kinds, 1]]} | draw(
        optional(
            activation_function=st.sampled_from(["gelu_new", "gelu_new", "gelu", "relu"]),
            intermediate_size=st.sampled_from([None, 48, 96]),
            layer_norm_epsilon=EPSILON,
            window_size=st.sampled_from([4, 11, 256]),
        )
    )


def _granite(_layers: int, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Options of Granite and families with its multipliers."""
    return optional(
        attention_bias=BOOL,
        mlp_bias=BOOL,
        attention_multiplier=FACTOR,
        embedding_multiplier=FACTOR,
        residual_multiplier=FACTOR,
        logits_scaling=FACTOR,
        **more,
    )


def _windows(layers: int, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Options of families of which some layers have a window."""
    return st.builds(
        dict.__or__,
        st.fixed_dictionaries({"sliding_window": st.sampled_from([4, 11, 64])}),
        optional(layer_types=layer_types(layers), **more),
    )


DENSE = {
    "Apertus": lambda _layers: optional(attention_bias=BOOL),
    "Arcee": lambda _layers: optional(attention_bias=BOOL, mlp_bias=BOOL),
    "BitNet": lambda _layers: optional(attention_bias=BOOL),
    "Cohere2": lambda layers: st.builds(
        dict.__or__,
        st.fixed_dictionaries(
            {
                "sliding_window": st.sampled_from([4, 11, 64]),
                "layer_norm_eps": st.sampled_from([1e-6, 1e-5, 1e-3]),
                "logit_scale": st.sampled_from([0.0625, 0.25, 2.0]),
            }
        ),
        optional(
            attention_bias=BOOL,
            layer_types=layer_types(layers),
            sliding_window_pattern=st.integers(2, 4),
        ),
    ),
    "BioGpt": lambda _layers: optional(
        hidden_act=st.sampled_from(["gelu", "gelu", "relu", "gelu_new"]),
        layer_norm_eps=EPSILON,
        scale_embedding=BOOL,
    ),
    "CodeGen": _gptj,
    "Cwm": _windows,
    "Bloom": lambda _layers: optional(layer_norm_epsilon=EPSILON),
    "Cohere": lambda _layers: optional(
        attention_bias=BOOL, layer_norm_eps=EPSILON, logit_scale=FACTOR, use_qk_norm=BOOL
    ),
    "Falcon": _falcon,
    "Glm": lambda _layers: optional(attention_bias=BOOL),
    "GPTJ": _gptj,
    "GPTNeoX": lambda _layers: optional(
        attention_bias=st.sampled_from([True, True, False]),
        layer_norm_eps=EPSILON,
        use_parallel_residual=BOOL,
    ),
    "Mpt": lambda _layers: st.builds(
        dict.__or__,
        st.fixed_dictionaries(
            {
                "attn_config": optional(
                    alibi_bias_max=st.sampled_from([8, 8, 8, 16]),
                    clip_qkv=st.sampled_from([None, 0.5, 2.0]),
                    softmax_scale=st.sampled_from([None, None, 0.3]),
                )
            }
        ),
        optional(layer_norm_epsilon=EPSILON),
    ),
    "Nemotron": lambda _layers: optional(attention_bias=BOOL, mlp_bias=BOOL, norm_eps=EPSILON),
    "Olmo": lambda _layers: optional(attention_bias=BOOL, clip_qkv=st.sampled_from([None, 0.5])),
    "Phi": lambda _layers: optional(layer_norm_eps=EPSILON, qk_layernorm=RARELY),
    "StableLm": lambda _layers: optional(
        layer_norm_eps=EPSILON,
        qk_layernorm=BOOL,
        use_parallel_residual=BOOL,
        use_qkv_bias=BOOL,
    ),
    "Starcoder2": lambda _layers: optional(
        norm_epsilon=EPSILON, sliding_window=WINDOW, use_bias=st.sampled_from([True, True, False])
    ),
    "Ernie4_5": lambda _layers: optional(use_bias=BOOL),
    "Exaone4": lambda layers: optional(
        sliding_window=WINDOW,
        sliding_window_pattern=st.integers(1, 4),
        layer_types=layer_types(layers),
    ),
    "Gemma": lambda _layers: optional(attention_bias=BOOL),
    "Gemma2": lambda layers: _gemma(
        layers, attn_logit_softcapping=CAPS, final_logit_softcapping=CAPS
    ),
    "Gemma3": lambda layers: _gemma(
        layers,
        final_logit_softcapping=CAPS,
        use_bidirectional_attention=st.sampled_from([False, False, False, True]),
    ),
    "Gemma3n": _gemma3n,
    "Gemma4": _gemma4,
    "Glm4": lambda _layers: optional(attention_bias=BOOL),
    "GPTBigCode": lambda _layers: optional(
        layer_norm_epsilon=st.sampled_from([1e-6, 1e-5, 1e-3]),
        multi_query=st.sampled_from([True, True, False]),
        n_inner=st.sampled_from([None, 48, 96]),
        scale_attn_weights=st.sampled_from([True, True, True, False]),
    ),
    "GPT2": lambda _layers: optional(
        activation_function=st.sampled_from(["gelu_new", "gelu_pytorch_tanh", "gelu", "relu"]),
        layer_norm_epsilon=st.sampled_from([1e-6, 1e-5, 1e-3]),
        n_inner=st.sampled_from([None, 48, 96]),
        reorder_and_upcast_attn=BOOL,
        scale_attn_by_inverse_layer_idx=RARELY,
        scale_attn_weights=st.sampled_from([True, True, True, False]),
    ),
    "GPTNeo": _gpt_neo,
    "Granite": _granite,
    "GraniteSWA": lambda layers: st.builds(dict.__or__, _granite(layers), _windows(layers)),
    "HyperCLOVAX": lambda layers: _granite(layers, use_post_norm=BOOL),
    "Jais2": lambda _layers: optional(
        attention_bias=BOOL, layer_norm_eps=EPSILON, mlp_bias=st.sampled_from([True, True, False])
    ),
    "Helium": lambda _layers: optional(attention_bias=BOOL, mlp_bias=BOOL),
    "HunYuanDenseV1": lambda _layers: optional(attention_bias=BOOL),
    "Llama": lambda _layers: optional(attention_bias=BOOL, mlp_bias=BOOL),
    "MiniCPM": lambda _layers: st.fixed_dictionaries(
        {
            "scale_emb": st.sampled_from([1, 12]),
            "scale_depth": st.sampled_from([1.4, 1]),
            "dim_model_base": st.sampled_from([8, 16]),
        }
    ),
    "Ministral": _windows,
    "NanoChat": lambda _layers: optional(attention_bias=RARELY, final_logit_softcapping=CAPS),
    "OpenAIGPT": lambda _layers: optional(
        afn=st.sampled_from(["gelu", "gelu", "relu", "silu"]), layer_norm_epsilon=EPSILON
    ),
    "OPT": lambda _layers: optional(
        activation_function=st.sampled_from(["relu", "relu", "gelu"]),
        do_layer_norm_before=st.sampled_from([True, True, False]),
        enable_bias=st.sampled_from([True, True, False]),
        ffn_dim=st.sampled_from([48, 96]),
        layer_norm_elementwise_affine=st.sampled_from([True, True, False]),
        word_embed_proj_dim=st.sampled_from([None, None, 32]),
        _remove_final_layer_norm=RARELY,
    ),
    "Persimmon": lambda _layers: optional(layer_norm_eps=EPSILON, qk_layernorm=BOOL),
    "VaultGemma": lambda layers: _gemma(
        layers, attn_logit_softcapping=CAPS, final_logit_softcapping=CAPS
    ),
    "Ministral3": lambda _layers: optional(sliding_window=WINDOW),
    "Mistral": lambda _layers: st.fixed_dictionaries({"sliding_window": WINDOW}),
    "Olmo2": lambda _layers: optional(attention_bias=BOOL),
    "Olmo3": lambda layers: st.builds(
        dict.__or__,
        st.fixed_dictionaries({"sliding_window": st.sampled_from([4, 11, 64])}),
        optional(attention_bias=BOOL, layer_types=layer_types(layers)),
    ),
    "Phi3": lambda _layers: optional(sliding_window=WINDOW),
    "Qwen2": _qwen,
    "Qwen3": lambda layers: _qwen(layers, attention_bias=BOOL),
    "SeedOss": lambda _layers: optional(
        attention_bias=BOOL, attention_out_bias=BOOL, mlp_bias=BOOL
    ),
    "SmolLM3": lambda layers: optional(
        attention_bias=BOOL,
        mlp_bias=BOOL,
        no_rope_layer_interval=st.sampled_from([2, 4]),
        no_rope_layers=st.lists(st.integers(0, 1), min_size=layers, max_size=layers),
        use_sliding_window=st.booleans(),
        sliding_window=WINDOW,
    ),
}
