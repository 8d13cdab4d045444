"""Models of transformers with states or convolutions, by class and what differs from a tiny one."""

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
DELTA_NET = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}
FALCON_H1 = {
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mlp_multipliers": [0.7, 1.4],
    "key_multiplier": 0.4,
    "attention_in_multiplier": 1.7,
    "attention_out_multiplier": 0.6,
    "ssm_in_multiplier": 0.8,
    "ssm_out_multiplier": 1.3,
    "ssm_multipliers": [0.5, 1.5, 2.0, 0.7, 1.2],
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.3,
}
KIMI_LINEAR = {
    "kv_lora_rank": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "moe_intermediate_size": 48,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "num_local_experts": 6,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-6,
    "v_head_dim": 16,
}
LING3 = {
    "first_k_dense_replace": 1,
    "head_dim": 16,
    "kv_lora_rank": 32,
    "layer_group_size": 2,
    "moe_intermediate_size": 48,
    "n_group": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "topk_group": 2,
    "v_head_dim": 24,
}
JAMBA = {
    "attn_layer_offset": 1,
    "attn_layer_period": 3,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "mamba_d_state": 8,
    "mamba_dt_rank": 6,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 5,
}
OLMO_HYBRID = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_key_head_dim": 16,
    # As wide as keys: transformers 5.24 saves a folder's convolutions in three equal parts.
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
}
NO_ROPE = {"rope_theta": None, "rope_type": "default"}
GRANITE_HYBRID = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "num_local_experts": 0,
    "shared_intermediate_size": 96,
    "attention_multiplier": 0.1,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 5.0,
}
NEMOTRON_H = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "head_dim": 32,
    "time_step_min": 1e-30,  # no limit in effect, as in training; transformers limits prompts only
}
NEMOTRON_H_EXPERTS = {
    **NEMOTRON_H,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}
STATES = {
    "kimi-linear": ("KimiLinear", KIMI_LINEAR),
    "ling3": ("BailingHybrid", LING3),
    "ling3-latent-queries": (
        "BailingHybrid",
        {
            **LING3,
            "kda_lower_bound": -2.0,
            "layer_group_size": 3,
            "n_group": 1,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "q_lora_rank": 24,
            "short_conv_kernel_size": 3,
            "topk_group": 1,
        },
    ),
    "mamba": ("Mamba", {"state_size": 8, "time_step_rank": 6}),
    "mamba-biases": (
        "Mamba",
        {"conv_kernel": 3, "expand": 3, "time_step_rank": "auto", "use_bias": True},
    ),
    "falcon-mamba": ("FalconMamba", {"mixer_rms_eps": 1e-2, "state_size": 8}),
    "jamba": ("Jamba", JAMBA),
    "jamba-dense": ("Jamba", {**JAMBA, "num_experts": 1, "num_experts_per_tok": 1}),
    "olmo-hybrid": ("OlmoHybrid", {**OLMO_HYBRID, "rope_parameters": NO_ROPE}),
    "olmo-hybrid-rope": (
        "OlmoHybrid",
        {**OLMO_HYBRID, "attention_bias": True, "linear_allow_neg_eigval": False},
    ),
    "mamba2": (
        "Mamba2",
        {"expand": 2, "head_dim": 16, "n_groups": 2, "num_heads": 8, "state_size": 16},
    ),
    "qwen3-next": (
        "Qwen3Next",
        {
            **DELTA_NET,
            **EXPERTS,
            "head_dim": 32,
            "moe_intermediate_size": 48,
            "num_hidden_layers": 5,
            "shared_expert_intermediate_size": 40,
        },
    ),
    "qwen3.5": ("Qwen3_5", {"num_hidden_layers": 5, "head_dim": 32, **DELTA_NET}),
    "qwen3.5-biases": (
        "Qwen3_5",
        {
            "num_hidden_layers": 2,
            "head_dim": 16,
            "attention_bias": True,
            "layer_types": ["full_attention", "linear_attention"],
            "rope_parameters": {"rope_theta": 1e5, "partial_rotary_factor": 0.5},
            **DELTA_NET,
        },
    ),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"]}),
    "lfm2-biases": (
        "Lfm2",
        {
            "full_attn_idxs": [1],
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_word_embeddings": False,
            "block_auto_adjust_ff_dim": False,
            "norm_eps": 1e-3,
        },
    ),
    "qwen3.5moe": (
        "Qwen3_5Moe",
        {
            "num_hidden_layers": 5,
            "head_dim": 32,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 40,
            **EXPERTS,
            **DELTA_NET,
        },
    ),
    "lfm2moe": (
        "Lfm2Moe",
        {
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "moe_intermediate_size": 48,
            **EXPERTS,
        },
    ),
    "falcon-h1": ("FalconH1", FALCON_H1),
    "falcon-h1-tied-biases": (
        "FalconH1",
        {
            **FALCON_H1,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mamba_proj_bias": True,
            "mlp_bias": True,
            "projectors_bias": True,
        },
    ),
    "falcon-h1-norm": (
        "FalconH1",
        {**FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "falcon-h1-norm-first": ("FalconH1", {**FALCON_H1, "mamba_rms_norm": True}),
    "granitehybrid": ("GraniteMoeHybrid", GRANITE_HYBRID),
    "granitehybrid-rope": (
        "GraniteMoeHybrid",
        {**GRANITE_HYBRID, "position_embedding_type": "rope", "attention_bias": True},
    ),
    "granitehybrid-experts": (
        "GraniteMoeHybrid",
        {**GRANITE_HYBRID, "num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "nemotron-h": ("NemotronH", NEMOTRON_H),
    "nemotron-h-experts": ("NemotronH", NEMOTRON_H_EXPERTS),
    "nemotron-h-latent-experts": (
        "NemotronH",
        {**NEMOTRON_H_EXPERTS, "moe_latent_size": 24, "mlp_bias": True, "norm_topk_prob": False},
    ),
    "nemotron-h-biases": (
        "NemotronH",
        {**NEMOTRON_H, "use_bias": True, "mlp_bias": True, "use_conv_bias": False},
    ),
}
