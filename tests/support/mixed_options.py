"""Options of families with experts or with states of fixed size, as Hypothesis strategies."""

from __future__ import annotations

from typing import Any

from dense_options import BOOL, FACTOR, RARELY, WINDOW, layer_types, optional
from hypothesis import strategies as st

#: Sizes of latent attention.
LATENT_WIDTHS = {
    "kv_lora_rank": st.sampled_from([16, 32, 40]),
    "q_lora_rank": st.sampled_from([None, 24, 32]),
    "qk_nope_head_dim": st.sampled_from([8, 16, 20]),
    "qk_rope_head_dim": st.sampled_from([4, 8, 16]),
    "v_head_dim": st.sampled_from([8, 12, 32]),
}


@st.composite
def experts(
    draw: st.DrawFn,
    count: str = "num_experts",
    used: str = "num_experts_per_tok",
    *,
    least: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """Under *count* the number of experts, *least* or more; under *used* those used for a token.

    *more* are further options.
    """
    total = draw(st.integers(least, 9))
    return {count: total, used: draw(st.integers(1, total))} | draw(optional(**more))


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    """Numbers of experts that are chosen by groups."""
    number = draw(st.integers(1, 4))
    size = draw(st.integers(2, 4))
    used = draw(st.integers(1, number))
    return {
        "n_group": number,
        "topk_group": used,
        "n_routed_experts": number * size,
        "num_experts_per_tok": draw(st.integers(1, used * size)),
    }


@st.composite
def delta_net(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Sizes of delta nets, and the kinds of *layers* layers."""
    kinds = st.sampled_from(["linear_attention", "linear_attention", "full_attention"])
    key_heads = draw(st.integers(1, 3))
    width = draw(st.sampled_from([8, 16, 24]))
    widths = {"linear_key_head_dim": width, "linear_value_head_dim": width}
    # llama.cpp does not load values of another width than keys: most draws have equal widths.
    if draw(st.integers(0, 2)) == 0:
        widths["linear_value_head_dim"] = draw(st.sampled_from([8, 16, 20]))
    own = {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * draw(st.integers(1, 3)),
        "linear_conv_kernel_dim": draw(st.integers(2, 5)),
    }
    types = st.lists(kinds, min_size=layers, max_size=layers)
    return own | widths | draw(optional(attention_bias=BOOL, layer_types=types))


def _short_convolutions(layers: int) -> st.SearchStrategy[dict[str, Any]]:
    """Options of LFM2."""
    kinds = st.sampled_from(["conv", "full_attention"])
    return st.builds(
        dict.__or__,
        st.fixed_dictionaries({"norm_eps": st.sampled_from([1e-6, 1e-5, 1e-3])}),
        optional(
            block_auto_adjust_ff_dim=st.booleans(),
            block_ffn_dim_multiplier=st.sampled_from([None, 1.0, 1.3]),
            block_multiple_of=st.sampled_from([1, 32]),
            conv_L_cache=st.integers(2, 5),
            conv_bias=BOOL,
            full_attn_idxs=st.lists(st.integers(0, layers), max_size=layers),
            layer_types=st.lists(kinds, min_size=layers, max_size=layers),
        ),
    )


@st.composite
def _falcon_h1(draw: st.DrawFn, _layers: int) -> dict[str, Any]:
    """Options of Falcon H1, whose layers have a state and attention."""
    heads, groups = draw(st.sampled_from([(2, 1), (4, 2), (6, 3)]))
    own = {
        "mamba_d_ssm": heads * draw(st.sampled_from([4, 8, 20])),
        "mamba_n_heads": heads,
        "mamba_n_groups": groups,
        "mamba_d_state": draw(st.sampled_from([8, 12, 32])),
        "mamba_d_conv": draw(st.integers(2, 5)),
    }
    factor = st.sampled_from([0.3, 1.0, 2.0])
    single = (
        "attention_in_multiplier",
        "attention_out_multiplier",
        "embedding_multiplier",
        "key_multiplier",
        "lm_head_multiplier",
        "ssm_in_multiplier",
        "ssm_out_multiplier",
    )
    return own | draw(
        optional(
            attention_bias=BOOL,
            mamba_conv_bias=BOOL,
            mamba_norm_before_gate=BOOL,
            mamba_proj_bias=BOOL,
            mamba_rms_norm=BOOL,
            mlp_bias=BOOL,
            mlp_multipliers=st.lists(factor, min_size=2, max_size=2),
            projectors_bias=BOOL,
            ssm_multipliers=st.lists(factor, min_size=5, max_size=5),
            **dict.fromkeys(single, factor),
        )
    )


@st.composite
def _granite_hybrid(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Options of Granite 4, whose layers have a state or attention."""
    kinds = st.sampled_from(["linear_attention", "full_attention"])
    heads, groups = draw(st.sampled_from([(2, 1), (4, 2), (8, 2)]))
    own = {
        "layer_types": draw(st.lists(kinds, min_size=layers, max_size=layers)),
        "mamba_n_heads": heads,
        "mamba_n_groups": groups,
        "mamba_d_state": draw(st.sampled_from([8, 12, 32])),
        "mamba_d_conv": draw(st.integers(2, 5)),
        "num_local_experts": draw(st.sampled_from([0, 0, 4])),
        "shared_intermediate_size": draw(st.sampled_from([48, 64])),
    }
    factors = ("attention", "embedding", "residual")
    return own | draw(
        optional(
            attention_bias=BOOL,
            mamba_conv_bias=st.sampled_from([True, True, False]),
            mamba_proj_bias=st.sampled_from([False, False, True]),
            position_embedding_type=st.sampled_from([None, "rope"]),
            logits_scaling=FACTOR,
            **{f"{name}_multiplier": FACTOR for name in factors},
        )
    )


@st.composite
def _nemotron_h(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Options of Nemotron H, whose layers have a state, attention or a network."""
    head_groups = draw(st.integers(1, 3))
    network = draw(st.sampled_from(["mlp", "moe"]))
    kinds = st.sampled_from(["linear_attention", "linear_attention", "full_attention", network])
    mixture = draw(groups()) | {
        "moe_intermediate_size": draw(st.sampled_from([32, 48])),
        "moe_shared_expert_intermediate_size": draw(st.sampled_from([32, 40])),
    }
    own = (mixture if network == "moe" else {}) | {
        "layers_block_type": draw(st.lists(kinds, min_size=layers, max_size=layers)),
        "mamba_num_heads": head_groups * draw(st.integers(1, 2)),
        "mamba_head_dim": draw(st.sampled_from([4, 8, 20])),
        "n_groups": head_groups,
        "ssm_state_size": draw(st.sampled_from([8, 12, 32])),
        "conv_kernel": draw(st.integers(2, 5)),
        "time_step_min": 1e-30,  # no limit in effect: transformers limits prompts only
        "layer_norm_epsilon": draw(st.sampled_from([1e-6, 1e-5, 1e-3])),
    }
    return own | draw(
        optional(
            attention_bias=BOOL,
            mlp_bias=RARELY,
            moe_latent_size=st.sampled_from([None, 16, 24]),
            norm_topk_prob=BOOL,
            routed_scaling_factor=st.sampled_from([1.0, 2.5]),
            use_bias=BOOL,
            use_conv_bias=BOOL,
            mamba_proj_bias=BOOL,
        )
    )


def latent(**more: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Latent attention, with experts by groups."""
    return st.builds(
        lambda groups, own, more: groups | own | more,
        groups(),
        st.fixed_dictionaries(
            {**LATENT_WIDTHS, "moe_intermediate_size": st.sampled_from([32, 48])}
        ),
        optional(
            attention_bias=RARELY,
            n_shared_experts=st.integers(1, 2),
            norm_topk_prob=BOOL,
            rope_interleave=st.sampled_from([True, True, True, False]),
            routed_scaling_factor=st.sampled_from([1.0, 2.5]),
            **more,
        ),
    )


EXPERTS = {
    "DeepseekV3": lambda layers: latent(
        first_k_dense_replace=st.integers(0, layers), num_mtp_layers=st.integers(0, 1)
    ),
    "Glm4MoeLite": lambda layers: latent(
        mlp_layer_types=st.integers(0, layers).map(
            lambda first: ["dense"] * first + ["sparse"] * (layers - first)
        ),
    ),
    "Ernie4_5_Moe": lambda layers: st.builds(
        dict.__or__,
        st.integers(2, 8).flatmap(
            lambda count: st.fixed_dictionaries(
                {"moe_num_experts": st.just(count), "moe_k": st.integers(1, count)}
            )
        ),
        optional(
            moe_intermediate_size=st.sampled_from([32, 48]),
            moe_layer_interval=st.sampled_from([1, 1, 1, 2]),
            moe_layer_start_index=st.integers(0, layers),
            moe_layer_end_index=st.sampled_from([-1, -1, layers - 1, 0]),
            moe_num_shared_experts=st.integers(0, 2),
            use_bias=RARELY,
        ),
    ),
    "Glm4Moe": lambda layers: st.builds(
        dict.__or__,
        groups(),
        optional(
            attention_bias=BOOL,
            first_k_dense_replace=st.integers(0, layers),
            moe_intermediate_size=st.sampled_from([32, 48]),
            n_shared_experts=st.integers(1, 2),
            norm_topk_prob=BOOL,
            routed_scaling_factor=st.sampled_from([1.0, 2.5]),
            use_qk_norm=BOOL,
        ),
    ),
    "GptOss": lambda layers: experts(
        "num_local_experts",
        attention_bias=BOOL,
        sliding_window=st.sampled_from([4, 11, 64]),
        layer_types=layer_types(layers),
        swiglu_limit=st.sampled_from([7.0, 7.0, 7.0, 5.0]),
    ),
    "GraniteMoe": lambda _layers: experts(
        "num_local_experts",
        attention_bias=BOOL,
        attention_multiplier=FACTOR,
        embedding_multiplier=FACTOR,
        residual_multiplier=FACTOR,
        logits_scaling=FACTOR,
    ),
    "GraniteMoeShared": lambda _layers: experts(
        "num_local_experts",
        residual_multiplier=FACTOR,
        shared_intermediate_size=st.sampled_from([0, 32, 48]),
    ),
    "Mixtral": lambda _layers: experts("num_local_experts", sliding_window=WINDOW),
    "Olmoe": lambda _layers: experts(
        attention_bias=BOOL, norm_topk_prob=RARELY, clip_qkv=st.sampled_from([None, None, 0.5])
    ),
    "Qwen3Moe": lambda _layers: st.builds(
        lambda own, norm: own | {"norm_topk_prob": not norm},
        experts(
            attention_bias=BOOL,
            moe_intermediate_size=st.sampled_from([32, 64]),
            decoder_sparse_step=st.sampled_from([1, 1, 2]),
            use_sliding_window=RARELY,
        ),
        RARELY,
    ),
    "Qwen3_5Moe": lambda layers: st.builds(
        dict.__or__,
        delta_net(layers),
        experts(
            moe_intermediate_size=st.sampled_from([32, 64]),
            shared_expert_intermediate_size=st.sampled_from([32, 48]),
        ),
    ),
}
STATES = {
    "Lfm2Moe": lambda layers: st.builds(
        dict.__or__,
        experts(
            conv_L_cache=st.integers(2, 5),
            conv_bias=BOOL,
            moe_intermediate_size=st.sampled_from([32, 48]),
            norm_topk_prob=st.sampled_from([True, True, True, False]),
            num_dense_layers=st.integers(0, layers),
            routed_scaling_factor=st.sampled_from([1.0, 1.0, 1.0, 2.5]),
            use_expert_bias=st.sampled_from([True, True, True, False]),
        ),
        st.fixed_dictionaries(
            {
                "layer_types": st.lists(
                    st.sampled_from(["conv", "full_attention"]), min_size=layers, max_size=layers
                ),
                "norm_eps": st.sampled_from([1e-6, 1e-5, 1e-3]),
            }
        ),
    ),
    "FalconH1": _falcon_h1,
    "GraniteMoeHybrid": _granite_hybrid,
    "Lfm2": _short_convolutions,
    "NemotronH": _nemotron_h,
    "Qwen3_5": delta_net,
}
