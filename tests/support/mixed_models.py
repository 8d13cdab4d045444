"""Models of transformers with experts, by class and what differs from a tiny one."""

from dense_models import GEMMA4
from hf_models import LONGROPE
from state_models import EXPERTS, STATES

LAGUNA = {
    "head_dim": 16,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "moe_intermediate_size": 48,
    "moe_routed_scaling_factor": 2.5,
    "num_attention_heads_per_layer": [4, 8, 6],
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "default",
            "rope_theta": 5e5,
            "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 1.0,
        },
    },
    "shared_expert_intermediate_size": 40,
    "sliding_window": 6,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
PHIMOE = {**EXPERTS, "num_experts": None, "num_local_experts": 6}
GROUPED = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
}
SWA = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 5.0,
    "layer_rope_theta": [10000.0, 0, 10000.0],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "sliding_window": 6,
}
COHERE2_MOE = {
    "head_dim": 16,
    "num_experts": 6,
    "num_hidden_layers": 6,
    "num_shared_experts": 2,
    "prefix_dense_intermediate_size": 80,
    "sliding_window": 6,
}
#: Models with experts, and those with states.
MIXED = {
    **STATES,
    "dots1": ("Dots1", GROUPED | {"first_k_dense_replace": 1, "norm_topk_prob": True}),
    "exaone-moe": (
        "ExaoneMoe",
        {**EXPERTS, "moe_intermediate_size": 48, "num_hidden_layers": 5, "sliding_window": 6},
    ),
    "hy-v3": (
        "HYV3",
        {**EXPERTS, "head_dim": 32, "moe_intermediate_size": 48, "num_shared_experts": 2},
    ),
    "cohere2-moe": ("Cohere2Moe", {**COHERE2_MOE, "mlp_layer_types": ["dense", *["sparse"] * 5]}),
    "cohere2-moe-sigmoid": (
        "Cohere2Moe",
        {**COHERE2_MOE, "expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-4},
    ),
    "minimax-m2": (
        "MiniMaxM2",
        {"head_dim": 32, "num_local_experts": 6, "num_experts_per_tok": 2, "rotary_dim": 16},
    ),
    "mellum": (
        "Mellum",
        {
            **EXPERTS,
            "head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "moe_intermediate_size": 48,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": 20000.0}
                for kind in ("full_attention", "sliding_attention")
            },
            "sliding_window": 6,
        },
    ),
    "hunyuan-moe": ("HunYuanMoEV1", {"head_dim": 16, "moe_topk": 2, "num_experts": 6}),
    "flex-olmo": ("FlexOlmo", EXPERTS),
    "flint": (
        "Flint",
        {**EXPERTS, "head_dim": 32, "moe_intermediate_size": 48, "num_hidden_layers": 5}
        | {"shared_expert_intermediate_size": 40, "sliding_window": 6},
    ),
    "aria-text": (
        "AriaText",
        {"moe_num_experts": 6, "moe_num_shared_experts": 2, "moe_topk": 2},
    ),
    "deepseek2": (
        "DeepseekV2",
        {**GROUPED, **LATENT, "first_k_dense_replace": 1, "n_shared_experts": 2},
    ),
    "sarvam-mla": ("SarvamMLA", {**GROUPED, **LATENT, "n_group": 2}),
    "sarvam-moe": ("SarvamMoE", {**GROUPED, "head_dim": 16}),
    "solar-open": ("SolarOpen", {**GROUPED, "head_dim": 32}),
    "afmoe": (
        "Afmoe",
        {
            **EXPERTS,
            "head_dim": 16,
            "moe_intermediate_size": 48,
            "num_dense_layers": 1,
            "num_hidden_layers": 5,
            "num_shared_experts": 1,
            "route_scale": 2.5,
            "sliding_window": 6,
            "mup_enabled": True,
        },
    ),
    "lfm3": ("Lfm3", {"head_dim": 16, "num_hidden_layers": 6, "sliding_window": 6}),
    "axk1": ("AXK1", {**GROUPED, **LATENT, "n_group": 2, "q_lora_rank": 24, "topk_group": 1}),
    "granite-swa": ("GraniteSWA", SWA),
    "granitemoe-swa": (
        "GraniteMoeSWA",
        {**SWA, "num_experts_per_tok": 2, "num_local_experts": 6, "shared_intermediate_size": 40},
    ),
    "laguna": ("Laguna", LAGUNA),
    "laguna-gates-of-numbers": (
        "Laguna",
        {**LAGUNA, "gating": "per-element", "attention_bias": True},
    ),
    "phimoe": ("Phimoe", PHIMOE),
    "phimoe-published": (
        "Phimoe",
        {
            **PHIMOE,
            "attention_bias": True,
            "lm_head_bias": True,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                **LONGROPE,
                "short_mscale": 1.2,
                "long_mscale": 1.2,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            **EXPERTS,
            "moe_intermediate_size": 48,
            "norm_topk_prob": False,
            "shared_expert_intermediate_size": 40,
        },
    ),
    "gemma4-26b-a4b": (
        "Gemma4",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 48,
        },
    ),
    "qwen3moe": (
        "Qwen3Moe",
        {"head_dim": 32, "moe_intermediate_size": 48, "norm_topk_prob": True, **EXPERTS},
    ),
    "ernie4.5-moe": (
        "Ernie4_5_Moe",
        {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 48},
    ),
    "ernie4.5-moe-without-shared": (
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_intermediate_size": 48,
            "moe_num_shared_experts": 0,
            "moe_layer_start_index": 2,
        },
    ),
    "glm4moe": (
        "Glm4Moe",
        {
            "head_dim": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
        },
    ),
    "glm4moe-plain": (
        "Glm4Moe",
        {
            "head_dim": 16,
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
            "first_k_dense_replace": 2,
        },
    ),
    "deepseek3": (
        "DeepseekV3",
        {
            **LATENT,
            "q_lora_rank": 40,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 48,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 0.7,
                "mscale_all_dim": 0.7,
            },
        },
    ),
    "glm4.7-flash": (
        "Glm4MoeLite",
        {
            **LATENT,
            "q_lora_rank": None,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "rms_norm_eps": 1e-6,
        },
    ),
    "glm4.7-flash-biases": (
        "Glm4MoeLite",
        {
            **LATENT,
            "q_lora_rank": 24,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "rms_norm_eps": 1e-6,
            "attention_bias": True,
            "mlp_layer_types": ["dense", "dense", "sparse"],
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 32}),
    "olmoe": ("Olmoe", {"norm_topk_prob": False, **EXPERTS, "num_experts_per_tok": 3}),
    "gpt-oss": (
        "GptOss",
        {"head_dim": 32, "sliding_window": 6, "num_local_experts": 6, "num_experts_per_tok": 3},
    ),
    "gpt-oss-without-biases": (
        "GptOss",
        {
            "head_dim": 16,
            "attention_bias": False,
            "sliding_window": 5,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "granitemoe": (
        "GraniteMoe",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
        },
    ),
    "granitemoe-shared": (
        "GraniteMoeShared",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "attention_bias": True,
            "residual_multiplier": 0.4,
            "shared_intermediate_size": 40,
        },
    ),
}
