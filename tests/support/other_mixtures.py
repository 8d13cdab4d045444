"""Options of other families with experts, states or latent attention, as Hypothesis strategies."""

from __future__ import annotations

from typing import Any

from dense_options import BOOL, RARELY, layer_types, optional
from hypothesis import strategies as st
from mixed_options import LATENT_WIDTHS, delta_net, experts, groups, latent

EXPERT_WIDTH = st.sampled_from([32, 48])
SCALE = st.sampled_from([1.0, 2.5])


def _together(*options: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """The union of the dictionaries that *options* draw; later ones override earlier ones."""

    def union(drawn: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        return {key: value for part in drawn for key, value in part.items()}

    return st.tuples(*options).map(union)


def _grouped(**more: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Options of experts that are chosen by groups."""
    return _together(
        groups(),
        optional(
            moe_intermediate_size=EXPERT_WIDTH,
            n_shared_experts=st.integers(1, 2),
            norm_topk_prob=BOOL,
            routed_scaling_factor=SCALE,
            **more,
        ),
    )


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
                mamba_proj_bias=BOOL,
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
        use_bias=BOOL,
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
            use_bias=BOOL,
            use_conv_bias=st.sampled_from([True, True, False]),
        )
    )


@st.composite
def _olmo_hybrid(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    # Transformers needs both kinds. Version 5.24 saves convolutions in three equal parts, hence as
    # many heads for values as for keys, of one width.
    others = st.sampled_from(["linear_attention", "full_attention"])
    both = ["linear_attention", "full_attention"]
    kinds = [*both, *draw(st.lists(others, min_size=layers - 2, max_size=layers - 2))]
    heads = draw(st.integers(1, 3))
    width = draw(st.sampled_from([8, 16]))
    return {
        "layer_types": draw(st.permutations(kinds)),
        "linear_conv_kernel_dim": draw(st.integers(2, 5)),
        "linear_key_head_dim": width,
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads,
        "linear_value_head_dim": width,
    } | draw(optional(attention_bias=BOOL, linear_allow_neg_eigval=BOOL))


@st.composite
def _groups_of_local(draw: st.DrawFn) -> dict[str, Any]:
    """Experts by groups, counted under ``num_local_experts``, as in Kimi Linear and Ling 3."""
    drawn = draw(groups())
    return drawn | {"num_local_experts": drawn.pop("n_routed_experts")}


def _linear_and_latent(layers: int, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Linear and latent attention and experts by groups, of Kimi Linear and of Ling 3."""
    return _together(
        _groups_of_local(),
        st.fixed_dictionaries({**LATENT_WIDTHS, "moe_intermediate_size": EXPERT_WIDTH}),
        optional(
            layer_types=st.lists(
                st.sampled_from(["linear_attention", "full_attention"]),
                min_size=layers,
                max_size=layers,
            ),
            mlp_layer_types=_mlp_types(layers),
            n_shared_experts=st.integers(1, 2),
            norm_topk_prob=BOOL,
            routed_scaling_factor=SCALE,
            **more,
        ),
    )


@st.composite
def _kimi_linear(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Options of Kimi Linear."""
    heads = draw(st.sampled_from([2, 4]))
    linear_heads = heads if draw(st.integers(0, 5)) else 3
    return {
        "linear_conv_kernel_dim": draw(st.integers(2, 5)),
        "linear_head_dim": draw(st.sampled_from([8, 16, 20])),
        "linear_num_heads": linear_heads,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    } | draw(_linear_and_latent(layers))


@st.composite
def _ling3(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Options of Ling 3."""
    return {
        "head_dim": draw(st.sampled_from([8, 16, 20])),
        "layer_group_size": draw(st.integers(1, layers)),
        "short_conv_kernel_size": draw(st.integers(2, 5)),
    } | draw(
        _linear_and_latent(
            layers,
            first_k_dense_replace=st.integers(0, layers),
            kda_lower_bound=st.sampled_from([-5.0, -2.0, -0.5]),
            kda_safe_gate=st.sampled_from([True, True, True, False]),
            num_mtp_layers=st.integers(0, 1),
        )
    )


def _mlp_types(layers: int) -> st.SearchStrategy[list[str]]:
    """Networks of layers, dense or of experts, in any order."""
    return st.lists(st.sampled_from(["dense", "sparse"]), min_size=layers, max_size=layers)


def _windows(layers: int) -> st.SearchStrategy[dict[str, Any]]:
    """Kinds of *layers* layers with and without a window, and its size."""
    return st.fixed_dictionaries(
        {"layer_types": layer_types(layers), "sliding_window": st.sampled_from([4, 11, 64])}
    )


OTHER_MIXTURES = {
    "AriaText": lambda _layers: experts(
        "moe_num_experts", "moe_topk", least=2, moe_num_shared_experts=st.integers(1, 2)
    ),
    "AXK1": lambda layers: _together(
        latent(), optional(mlp_layer_types=_mlp_types(layers), topk_group=st.integers(1, 2))
    ),
    "BailingHybrid": _ling3,
    "Cohere2Moe": lambda layers: _together(
        experts(
            attention_bias=BOOL,
            expert_selection_fn=st.sampled_from(["softmax", "sigmoid"]),
            layer_norm_eps=st.sampled_from([1e-6, 1e-5, 1e-3]),
            logit_scale=st.sampled_from([0.0625, 0.25, 2.0]),
            mlp_layer_types=_mlp_types(layers),
            norm_topk_prob=BOOL,
            num_shared_experts=st.integers(0, 2),
            prefix_dense_intermediate_size=st.sampled_from([48, 80]),
            shared_expert_combination_strategy=st.sampled_from(["average", "sum"]),
        ),
        _windows(layers),
    ),
    "Flint": lambda layers: _together(
        experts(
            attention_bias=BOOL,
            decoder_sparse_step=st.sampled_from([1, 1, 2]),
            moe_intermediate_size=EXPERT_WIDTH,
            norm_topk_prob=BOOL,
            shared_expert_intermediate_size=st.sampled_from([32, 40]),
        ),
        _windows(layers),
    ),
    "GraniteMoeSWA": lambda layers: _together(
        experts(
            "num_local_experts",
            least=2,
            attention_bias=BOOL,
            attention_multiplier=st.sampled_from([0.2, 1.0]),
            embedding_multiplier=st.sampled_from([1.0, 3.0]),
            logits_scaling=st.sampled_from([1.0, 3.0]),
            residual_multiplier=st.sampled_from([0.2, 1.0]),
            shared_intermediate_size=st.sampled_from([0, 40]),
        ),
        _windows(layers),
    ),
    "HYV3": lambda layers: experts(
        attention_bias=BOOL,
        mlp_layer_types=_mlp_types(layers),
        moe_intermediate_size=EXPERT_WIDTH,
        num_shared_experts=st.integers(1, 2),
        router_scaling_factor=SCALE,
    ),
    "KimiLinear": _kimi_linear,
    "Laguna": lambda layers: _together(
        experts(
            attention_bias=BOOL,
            gating=st.sampled_from([True, "per-head", "per-element"]),
            mlp_layer_types=_mlp_types(layers),
            moe_intermediate_size=EXPERT_WIDTH,
            moe_routed_scaling_factor=SCALE,
            shared_expert_intermediate_size=st.sampled_from([32, 40]),
        ),
        _windows(layers),
    ),
    "Lfm3": lambda layers: _together(
        optional(
            attention_bias=BOOL,
            conv_L_cache=st.integers(2, 7),
            conv_bias=BOOL,
            norm_eps=st.sampled_from([1e-6, 1e-5, 1e-3]),
            use_attention_gate=BOOL,
            use_sandwich_norm=BOOL,
        ),
        st.fixed_dictionaries(
            {
                "layer_types": st.lists(
                    st.sampled_from(["conv", "sliding_attention", "full_attention"]),
                    min_size=layers,
                    max_size=layers,
                ),
                "sliding_window": st.sampled_from([4, 11, 64]),
            }
        ),
    ),
    "Mellum": lambda layers: _together(
        experts(
            attention_bias=BOOL,
            mlp_layer_types=_mlp_types(layers),
            moe_intermediate_size=EXPERT_WIDTH,
            norm_topk_prob=BOOL,
        ),
        _windows(layers),
    ),
    "SarvamMLA": lambda layers: latent(first_k_dense_replace=st.integers(0, layers)),
    "SarvamMoE": lambda layers: _grouped(
        attention_bias=BOOL,
        first_k_dense_replace=st.integers(0, layers),
        use_qk_norm=st.sampled_from([True, True, False]),
    ),
    "MiniCPM3": lambda _layers: _together(
        st.fixed_dictionaries(LATENT_WIDTHS),
        optional(
            attention_bias=RARELY,
            dim_model_base=st.sampled_from([None, 8, 16]),
            mlp_bias=RARELY,
            scale_depth=st.sampled_from([None, 1.4, 1]),
            scale_emb=st.sampled_from([1, 12]),
            v_head_dim=st.none(),
        ),
    ),
    "Youtu": lambda _layers: _together(
        st.fixed_dictionaries(LATENT_WIDTHS),
        optional(attention_bias=RARELY, rope_interleave=st.sampled_from([True, True, False])),
    ),
    "Afmoe": lambda layers: _together(
        experts(
            moe_intermediate_size=EXPERT_WIDTH,
            mup_enabled=st.sampled_from([True, True, True, False]),
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
    "DeepseekV2": lambda layers: latent(first_k_dense_replace=st.integers(0, layers)),
    "Dots1": lambda layers: _grouped(
        attention_bias=BOOL, first_k_dense_replace=st.integers(0, layers)
    ),
    "ExaoneMoe": lambda layers: _together(
        experts(
            moe_intermediate_size=EXPERT_WIDTH,
            norm_topk_prob=BOOL,
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
    "FlexOlmo": lambda _layers: experts(attention_bias=BOOL, norm_topk_prob=BOOL),
    "HunYuanMoEV1": lambda _layers: experts(used="moe_topk", least=2, attention_bias=BOOL),
    "Jamba": _jamba,
    "Mamba": _mamba,
    "Mamba2": _mamba2,
    "MiniMaxM2": lambda _layers: experts("num_local_experts", least=2),
    "OlmoHybrid": _olmo_hybrid,
    "Phimoe": lambda _layers: _together(
        st.fixed_dictionaries({"num_local_experts": st.integers(2, 8)}),
        optional(attention_bias=BOOL, lm_head_bias=BOOL, sliding_window=st.sampled_from([None, 5])),
    ),
    "Qwen2Moe": lambda layers: experts(
        decoder_sparse_step=st.sampled_from([1, 1, 2]),
        max_window_layers=st.integers(0, layers),
        mlp_only_layers=st.lists(st.integers(0, layers - 1), max_size=2),
        moe_intermediate_size=EXPERT_WIDTH,
        norm_topk_prob=BOOL,
        qkv_bias=BOOL,
        shared_expert_intermediate_size=st.sampled_from([32, 40]),
        sliding_window=st.sampled_from([5, 64]),
        use_sliding_window=RARELY,
    ),
    "Qwen3Next": lambda layers: _together(
        delta_net(layers),
        experts(
            decoder_sparse_step=st.sampled_from([1, 1, 2]),
            moe_intermediate_size=EXPERT_WIDTH,
            norm_topk_prob=BOOL,
            shared_expert_intermediate_size=st.sampled_from([32, 48]),
        ),
    ),
    "SolarOpen": lambda _layers: _grouped(attention_bias=BOOL),
}
