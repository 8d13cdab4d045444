"""Options of other families with experts, states or latent attention, as Hypothesis strategies."""

from __future__ import annotations

from typing import Any

from dense_options import BIAS, RARELY, layer_types, optional
from hypothesis import strategies as st
from mixed_options import delta_net, experts, groups, latent

EXPERT_WIDTH = st.sampled_from([32, 48])
SCALE = st.sampled_from([1.0, 2.5])


def _together(*options: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """The union of what each of *options* draws; a later one has the last word."""

    def union(drawn: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        return {key: value for part in drawn for key, value in part.items()}

    return st.tuples(*options).map(union)


def _grouped(layers: int, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    return _together(
        groups(),
        optional(
            moe_intermediate_size=EXPERT_WIDTH,
            n_shared_experts=st.integers(1, 2),
            norm_topk_prob=BIAS,
            routed_scaling_factor=SCALE,
            **more,
        ),
    )


@st.composite
def _top_of(draw: st.DrawFn, count: str, used: str, **more: Any) -> dict[str, Any]:
    number = draw(st.integers(2, 8))
    return {count: number, used: draw(st.integers(1, number))} | draw(optional(**more))


@st.composite
def _jamba(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    period = draw(st.integers(1, layers))
    expert_period = draw(st.integers(1, 2))
    return {
        "attn_layer_period": period,
        "attn_layer_offset": draw(st.integers(0, period - 1)),
        "expert_layer_period": expert_period,
        "expert_layer_offset": draw(st.integers(0, expert_period - 1)),
        "mamba_d_conv": draw(st.integers(2, 5)),
        "mamba_d_state": draw(st.sampled_from([4, 8, 16])),
        "mamba_dt_rank": draw(st.sampled_from(["auto", 4, 6])),
        "use_mamba_kernels": False,
    } | draw(
        _together(
            experts(),
            optional(
                mamba_conv_bias=st.sampled_from([True, True, False]),
                mamba_expand=st.sampled_from([1, 2]),
                mamba_proj_bias=BIAS,
            ),
        )
    )


def _mamba(_layers: int, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    return optional(
        conv_kernel=st.integers(2, 5),
        expand=st.sampled_from([1, 2, 3]),
        layer_norm_epsilon=st.sampled_from([1e-6, 1e-5, 1e-3]),
        state_size=st.sampled_from([4, 8, 16]),
        time_step_rank=st.sampled_from(["auto", 4, 6]),
        use_bias=BIAS,
        use_conv_bias=st.sampled_from([True, True, False]),
        **more,
    )


@st.composite
def _mamba2(draw: st.DrawFn, _layers: int) -> dict[str, Any]:
    head_groups = draw(st.integers(1, 3))
    heads = head_groups * draw(st.integers(1, 3))
    head_dim = draw(st.sampled_from([8, 16]))
    width = heads * head_dim
    return {
        "conv_kernel": draw(st.integers(2, 5)),
        "expand": 2,
        "head_dim": head_dim,
        "hidden_size": width // 2,
        "n_groups": head_groups,
        "num_heads": heads,
        "state_size": draw(st.sampled_from([8, 12, 32])),
    } | draw(
        optional(
            layer_norm_epsilon=st.sampled_from([1e-6, 1e-5, 1e-3]),
            use_bias=BIAS,
            use_conv_bias=st.sampled_from([True, True, False]),
        )
    )


@st.composite
def _olmo_hybrid(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    kinds = st.sampled_from(["linear_attention", "linear_attention", "full_attention"])
    heads = draw(st.integers(1, 3))
    return {
        "layer_types": draw(st.lists(kinds, min_size=layers, max_size=layers)),
        "linear_conv_kernel_dim": draw(st.integers(2, 5)),
        "linear_key_head_dim": draw(st.sampled_from([8, 16])),
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads * draw(st.integers(1, 2)),
        "linear_value_head_dim": draw(st.sampled_from([8, 16, 32])),
    } | draw(optional(attention_bias=BIAS, linear_allow_neg_eigval=BIAS))


OTHER_MIXTURES = {
    "Afmoe": lambda layers: _together(
        experts(
            moe_intermediate_size=EXPERT_WIDTH,
            mup_enabled=BIAS,
            num_shared_experts=st.integers(1, 2),
            route_scale=SCALE,
        ),
        st.fixed_dictionaries(
            {
                "layer_types": layer_types(layers),
                "num_dense_layers": st.integers(0, layers),
                "sliding_window": st.sampled_from([4, 11, 64]),
            }
        ),
    ),
    "DeepseekV2": lambda layers: latent(layers, first_k_dense_replace=st.integers(0, layers)),
    "Dots1": lambda layers: _grouped(
        layers, attention_bias=BIAS, first_k_dense_replace=st.integers(0, layers)
    ),
    "ExaoneMoe": lambda layers: _together(
        experts(
            moe_intermediate_size=EXPERT_WIDTH,
            norm_topk_prob=BIAS,
            num_shared_experts=st.integers(1, 2),
            routed_scaling_factor=SCALE,
        ),
        st.fixed_dictionaries(
            {
                "first_k_dense_replace": st.integers(0, layers),
                "layer_types": layer_types(layers),
                "sliding_window": st.sampled_from([4, 11, 64]),
            }
        ),
    ),
    "FalconMamba": lambda layers: _mamba(layers, mixer_rms_eps=st.sampled_from([1e-6, 1e-2])),
    "FlexOlmo": lambda _layers: experts(attention_bias=BIAS, norm_topk_prob=BIAS),
    "HunYuanMoEV1": lambda _layers: _top_of("num_experts", "moe_topk", attention_bias=BIAS),
    "Jamba": _jamba,
    "Mamba": _mamba,
    "Mamba2": _mamba2,
    "MiniMaxM2": lambda _layers: _top_of("num_local_experts", "num_experts_per_tok"),
    "OlmoHybrid": _olmo_hybrid,
    "Phimoe": lambda _layers: _together(
        st.fixed_dictionaries({"num_local_experts": st.integers(2, 8)}),
        optional(attention_bias=BIAS, lm_head_bias=BIAS, sliding_window=st.sampled_from([None, 5])),
    ),
    "Qwen2Moe": lambda layers: experts(
        decoder_sparse_step=st.sampled_from([1, 1, 2]),
        max_window_layers=st.integers(0, layers),
        mlp_only_layers=st.lists(st.integers(0, layers - 1), max_size=2),
        moe_intermediate_size=EXPERT_WIDTH,
        norm_topk_prob=BIAS,
        qkv_bias=BIAS,
        shared_expert_intermediate_size=st.sampled_from([32, 40]),
        sliding_window=st.sampled_from([5, 64]),
        use_sliding_window=RARELY,
    ),
    "Qwen3Next": lambda layers: _together(
        delta_net(layers),
        experts(
            decoder_sparse_step=st.sampled_from([1, 1, 2]),
            moe_intermediate_size=EXPERT_WIDTH,
            norm_topk_prob=BIAS,
            shared_expert_intermediate_size=st.sampled_from([32, 48]),
        ),
    ),
    "SolarOpen": lambda layers: _grouped(layers, attention_bias=BIAS),
}
