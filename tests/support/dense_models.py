"""Dense models of transformers, by their class and what differs from a tiny one."""

from hf_models import GLM_OPTIONS, LONGROPE

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MINISTRAL3 = {
    "rope_type": "yarn",
    "type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 5,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 96,
}
GEMMA3N = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "head_dim": 16,
    "intermediate_size": [128, 128, 128, 160, 160, 160],
    "sliding_window": 5,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 96,
    "laurel_rank": 8,
    "activation_sparsity_pattern": [0.95, 0.3, 0.0, 0.9, 0.0, 0.5],
}
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 64}
MPT = {"d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 64}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
DENSE = {
    "apertus": ("Apertus", {"rope_parameters": LLAMA3}),
    "cwm": ("Cwm", {"head_dim": 16, "num_hidden_layers": 5, "sliding_window": 7}),
    "ministral": (
        "Ministral",
        {"head_dim": 32, "layer_types": ["full_attention", *["sliding_attention"] * 2]}
        | {"sliding_window": 7},
    ),
    "internlm3": ("InternLM3", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
    "iquestcoder": ("IQuestCoder", {"head_dim": 16, "mlp_bias": True}),
    "jais2": ("Jais2", {}),
    "hyperclovax": (
        "HyperCLOVAX",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
        },
    ),
    "hyperclovax-granite": ("HyperCLOVAX", {"residual_multiplier": 0.4, "use_post_norm": False}),
    "nanochat": ("NanoChat", {}),
    "persimmon": ("Persimmon", {}),
    "gpt1": ("OpenAIGPT", {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 64}),
    "gpt-neo": (
        "GPTNeo",
        {"attention_types": [[["global", "local", "local"], 1]], "num_layers": 3, "num_heads": 4}
        | {"window_size": 6},
    ),
    "biogpt": ("BioGpt", {}),
    "codegen": (
        "CodeGen",
        {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 64, "rotary_dim": 8},
    ),
    "vaultgemma": ("VaultGemma", {"head_dim": 16, "sliding_window": 6}),
    "youtu": ("Youtu", LATENT),
    "minicpm3": ("MiniCPM3", LATENT | {"scale_emb": 3.0, "dim_model_base": 16}),
    "gemma4-e2b": (
        "Gemma4",
        {
            **GEMMA4,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma4-31b": (
        "Gemma4",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
    ),
    "gemma4-other-ropes": (
        "Gemma4",
        {
            **GEMMA4,
            "layer_types": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "gemma3n": ("Gemma3n", GEMMA3N),
    "gemma3n-other-streams": (
        "Gemma3n",
        {
            **GEMMA3N,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "num_kv_shared_layers": 0,
            "vocab_size_per_layer_input": 50,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "gemma3n-usual-keys": (
        "Gemma3n",
        {
            **GEMMA3N,
            "activation_sparsity_pattern": None,
            "intermediate_size": 128,
            "layer_types": None,
            "num_hidden_layers": 12,
        },
    ),
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama-yarn-rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "mistral-head-dim": ("Mistral", {"head_dim": 32, "sliding_window": None}),
    "phi2": ("Phi", {"num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    "phi2-other-rotation": ("Phi", {"num_key_value_heads": 2, "partial_rotary_factor": 0.25}),
    "starcoder2": ("Starcoder2", {}),
    "starcoder2-window": ("Starcoder2", {"sliding_window": 7, "tie_word_embeddings": False}),
    "phi3": ("Phi3", {"sliding_window": 9}),
    "phi3-longrope": (
        "Phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "gemma2": ("Gemma2", {"head_dim": 32, "sliding_window": 5, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "Gemma3",
        {"head_dim": 32, "sliding_window": 5, "num_hidden_layers": 7, "query_pre_attn_scalar": 24},
    ),
    "gemma3-both-ways": (
        "Gemma3",
        {
            "head_dim": 32,
            "sliding_window": 9,
            "num_hidden_layers": 7,
            "use_bidirectional_attention": True,
        },
    ),
    "qwen2-both-ways": ("Qwen2", {"is_causal": False}),
    "gemma1": ("Gemma", {"head_dim": 32}),
    "olmo2": ("Olmo2", {}),
    "olmo2-biases": ("Olmo2", {"attention_bias": True}),
    "exaone4-windows": ("Exaone4", {"num_hidden_layers": 5, "sliding_window": 6}),
    "exaone4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "smollm3-biases": ("SmolLM3", {"num_hidden_layers": 4, "attention_bias": True}),
    "ernie4.5": ("Ernie4_5", {"head_dim": 16}),
    "ernie4.5-biases": ("Ernie4_5", {"head_dim": 32, "use_bias": True}),
    "helium": ("Helium", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.1,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
        },
    ),
    "granite-biases": ("Granite", {"residual_multiplier": 0.5, "attention_bias": True}),
    "arcee": ("Arcee", {}),
    "arcee-biases": ("Arcee", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
    "ministral3": ("Ministral3", {"head_dim": 32, "rope_parameters": MINISTRAL3}),
    "ministral3-window": (
        "Ministral3",
        {
            "head_dim": 16,
            "sliding_window": 5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "original_max_position_embeddings": 8,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    "seed-oss": ("SeedOss", {"head_dim": 32}),
    "seed-oss-other-biases": (
        "SeedOss",
        {"head_dim": 16, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    ),
    "olmo3": ("Olmo3", {"num_hidden_layers": 5, "sliding_window": 6}),
    "olmo3-yarn": (
        "Olmo3",
        {
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 16,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 32}),
    "hunyuan-alpha": (
        "HunYuanDenseV1",
        {
            "head_dim": 32,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "alpha": 1000.0,
                "factor": 1.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 0.0,
            },
        },
    ),
    "command-r7b": ("Cohere2", {"num_hidden_layers": 5, "sliding_window": 6, "logit_scale": 0.25}),
    "minicpm": ("MiniCPM", {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}),
    "glm": ("Glm", GLM_OPTIONS),
    "glm4": ("Glm4", {"head_dim": 32}),
    "gpt2": ("GPT2", GPT2),
    "gpt2-other-width": ("GPT2", GPT2 | {"n_inner": 96, "activation_function": "gelu_fast"}),
    "starcoder": ("GPTBigCode", GPT2),
    "starcoder-other-width": ("GPTBigCode", GPT2 | {"n_inner": 96}),
    "gptneox": ("GPTNeoX", {}),
    "gptneox-both-ways": ("GPTNeoX", {"is_causal": False}),
    "gptneox-in-turn": ("GPTNeoX", {"use_parallel_residual": False}),
    "bloom": ("Bloom", {"n_layer": 3, "n_head": 4, "hidden_size": 64}),
    "bloom-6-heads": ("Bloom", {"n_layer": 2, "n_head": 6, "hidden_size": 96}),
    "opt": ("OPT", {"ffn_dim": 96}),
    "stablelm": ("StableLm", {}),
    "stablelm-biases": ("StableLm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "nemotron": ("Nemotron", {}),
    "nemotron-biases": ("Nemotron", {"attention_bias": True, "mlp_bias": True}),
    "stablelm-2": ("StableLm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "stablelm-qk-norm": ("StableLm", {"qk_layernorm": True}),
    "command-r": ("Cohere", {"logit_scale": 0.25}),
    "command-r-plus": ("Cohere", {"logit_scale": 0.25, "use_qk_norm": True}),
    "falcon-7b": ("Falcon", {}),
    "falcon-40b": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-2": (
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-rw": (
        "Falcon",
        {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
    ),
    "falcon-beside-alibi": ("Falcon", {"alibi": True, "tie_word_embeddings": False}),
    "gptj": ("GPTJ", GPT2 | {"rotary_dim": 8}),
    "gptj-other-width": ("GPTJ", GPT2 | {"rotary_dim": 16, "n_inner": 96}),
    "mpt": ("Mpt", MPT),
    "mpt-6-heads": ("Mpt", MPT | {"n_heads": 6, "d_model": 96, "attn_config": {"clip_qkv": 0.5}}),
    "olmo": ("Olmo", {}),
    "glm4-without-biases": ("Glm4", {"head_dim": 16, "attention_bias": False}),
    "gemma3-linear-rope": (
        "Gemma3",
        {
            "head_dim": 32,
            "sliding_window": 5,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}
