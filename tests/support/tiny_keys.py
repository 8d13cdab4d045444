"""Names and GGUF keys of the tiny models of every family."""

import math

VOCAB = 64
DIM = 256
LAYERS = 2
KEYS = {
    "block_count": LAYERS,
    "embedding_length": DIM,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 0,
}
FAMILIES = (
    "apertus",
    "arcee",
    "baichuan",
    "bitnet",
    "bitnet-b1.58",
    "biogpt",
    "bloom",
    "chatglm",
    "codeshell",
    "cohere2",
    "command-r",
    "ernie4_5",
    "exaone",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "glm4",
    "gpt2",
    "gpt_neo",
    "gpt_refact",
    "gptj",
    "gptneox",
    "granite",
    "helium",
    "hrm_text",
    "hunyuan-dense",
    "hunyuan_vl",
    "hyperclovax",
    "internlm2",
    "jais",
    "jais2",
    "llama",
    "maincoder",
    "minicpm",
    "mistral3",
    "mpt",
    "nanbeige",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo2",
    "openai-gpt",
    "opt",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "persimmon",
    "phi2",
    "phi3",
    "plamo",
    "plamo3",
    "qwen",
    "qwen2",
    "qwen2vl",
    "qwen3",
    "qwen3vl",
    "refact",
    "seed_oss",
    "smollm3",
    "spark2_5",
    "stablelm",
    "starcoder",
    "starcoder2",
    "vaultgemma",
    "xverse",
)

#: Families whose norms subtract means.
LAYER_NORMS = (
    *("bloom", "codeshell", "cohere2", "command-r", "falcon", "gpt2", "gptj", "gptneox", "mpt"),
    *(
        "biogpt",
        "cohere2moe",
        "dbrx",
        "gpt_neo",
        "gpt_refact",
        "jais",
        "jais2",
        "openai-gpt",
        "persimmon",
    ),
    *("nemotron", "olmo", "opt", "orion", "phi2", "stablelm", "starcoder", "starcoder2"),
)
#: Encoders: families that compute vectors of texts, and have no output head.
ENCODERS = (
    *("bert", "eurobert", "gte", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert"),
    *("mpnet", "nomic-bert", "nomic-bert-moe"),
)
#: Encoders that may have segment embeddings: of the first or the second text of a pair.
TEXT_TYPES = ("bert", "gte", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe")
#: Decoders that compute vectors of texts: their attention is not causal.
EMBEDDERS = ("gemma-embedding", "llama-embed")
#: Families whose networks have no gate.
UNGATED = (
    *("arcee", "bloom", "codeshell", "falcon", "gpt2", "gptj", "gptneox", "mpt", "nemotron"),
    *("apertus", "biogpt", "gpt_neo", "jais2", "nanochat", "openai-gpt", "persimmon"),
    *("opt", "phi2", "starcoder", "starcoder2"),
)
#: Families whose layers differ in shape.
LAYERED = (
    *(
        "axk1",
        "deepseek2",
        "gemma3n",
        "gemma4",
        "granite_swa",
        "laguna",
        "minicpm3",
        "mistral4",
        "openelm",
    ),
    "youtu",
)
#: Families with states of fixed size in some of their layers.
HYBRIDS = (
    *("falcon-h1", "granitehybrid", "lfm2", "lfm2moe", "lfm3"),
    *(
        "bailingmoe3",
        "jamba",
        "kimi-linear",
        "mamba",
        "mamba2",
        "nemotron_h",
        "nemotron_h_moe",
        "olmo_hybrid",
        "qwen35",
    ),
)
#: Families whose feed-forward networks are experts.
MIXTURES = {
    "bailingmoe2": {
        "expert_count": 8,
        "expert_gating_func": 2,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "leading_dense_block_count": 1,
        "rope.dimension_count": 32,
    },
    "ernie4_5-moe": {
        "expert_shared_feed_forward_length": 256,
        "interleave_moe_layer_step": 1,
        "leading_dense_block_count": 1,
    },
    "glm4moe": {
        "expert_gating_func": 2,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "rope.dimension_count": 32,
    },
    "gpt-oss": {"attention.sliding_window": 4},
    "granitemoe": {
        "residual_scale": 0.7,
        "logit_scale": 1.5,
        "attention.scale": 0.1,
        "expert_shared_feed_forward_length": 256,
    },
    "maple": {
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": [True, False],
        "rope.dimension_count": 32,
        "swiglu_clamp_exp": [7.0, 7.0],
    },
    "afmoe": {
        "attention.sliding_window": 4,
        "block_count": 5,
        "expert_gating_func": 2,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "leading_dense_block_count": 1,
    },
    "arctic": {},
    "aria_text": {"expert_shared_feed_forward_length": 256},
    "flex_olmo": {"expert_weights_norm": True},
    "flint": {
        "attention.sliding_window": 4,
        "attention.sliding_window_pattern": [True, False],
        "expert_shared_feed_forward_length": 256,
        "expert_weights_norm": True,
    },
    "cohere2moe": {
        "attention.sliding_window": 4,
        "attention.layer_norm_rms_epsilon": None,  # as if missing, in place of that in KEYS
        "expert_gating_func": 2,
        "expert_shared_count": 2,
        "leading_dense_block_count": 1,
        "logit_scale": 0.5,
    },
    "deepseek2-ocr": {"expert_shared_count": 2, "leading_dense_block_count": 1}
    | {"attention.head_count_kv": 4},
    "exaone-moe": {
        "attention.sliding_window": 4,
        "expert_gating_func": 2,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "leading_dense_block_count": 1,
    },
    "grok": {},
    "hy_v3": {
        "expert_shared_feed_forward_length": 512,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
    },
    "bailingmoe": {"expert_shared_count": 1, "expert_weights_norm": True}
    | {"rope.dimension_count": 64},
    "deepseek": {"expert_shared_count": 2, "leading_dense_block_count": 1},
    "dots1": {
        "expert_shared_count": 1,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "leading_dense_block_count": 1,
    },
    "hunyuan-moe": {"expert_shared_feed_forward_length": 256},
    "qwen3vlmoe": {},
    "dbrx": {"attention.clamp_kqv": 0.5},
    "mellum": {"attention.sliding_window": 4},
    "minimax-m2": {"expert_gating_func": 2, "rope.dimension_count": 32},
    "olmoe": {},
    "phimoe": {},
    "qwen2moe": {"expert_shared_feed_forward_length": 256},
    "qwen3next": {"expert_shared_feed_forward_length": 256},
    "qwen35moe": {"expert_shared_feed_forward_length": 256},
    "qwen3moe": {},
    "smallthinker": {"attention.sliding_window": 4096, "expert_gating_func": 2},
}
#: Keys of latent attention.
LATENT = {
    "attention.head_count_kv": 1,
    "attention.key_length": 256 + 32,
    "attention.key_length_mla": 256 + 32,
    "attention.kv_lora_rank": 256,
    "attention.q_lora_rank": 256,
    "attention.value_length": 256,
    "attention.value_length_mla": 64,
    "expert_gating_func": 2,
    "expert_group_count": 3,
    "expert_group_used_count": 2,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.8,
    "leading_dense_block_count": 1,
    "rope.dimension_count": 32,
}
EXPERTS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 256}
MAMBA2 = {
    "ssm.conv_kernel": 4,
    "ssm.group_count": 2,
    "ssm.inner_size": 512,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 8,
}
LAGUNA = EXPERTS | {
    "attention.head_count": [8, 4],
    "attention.head_count_kv": [2, 2],
    "attention.key_length": 64,
    "attention.sliding_window": 4,
    "attention.sliding_window_pattern": [False, True],
    "attention.value_length": 64,
    "expert_gating_func": 2,
    "expert_shared_feed_forward_length": 256,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "leading_dense_block_count": 1,
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 64,
    "rope.freq_base_swa": 5000.0,
}
KIMI_LINEAR = {
    "attention.q_lora_rank": 0,
    "expert_gating_func": 2,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "kda.head_dim": 32,
    "leading_dense_block_count": 1,
    "ssm.conv_kernel": 4,
}
HRM = {
    "block_count": 4,
    "embedding_scale": 2.0,
    "hrm.h_cycles": 2,
    "hrm.l_cycles": 1,
    "hrm.layers_per_stack": 1,
}
MAMBA1 = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 512,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 256,
}
OLMO_HYBRID = {
    "ssm.conv_kernel": 4,
    "ssm.group_count": 4,
    "ssm.inner_size": 256,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 4,
}
DELTA_NET = {
    "full_attention_interval": 2,
    "rope.dimension_count": 16,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 2,
    "ssm.inner_size": 4 * 64,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 4,
}


def _gemma4(more):
    """Keys of layers with and without a window in turn; the last two share keys and values."""
    layers = more.get("block_count", 4)
    return {
        "attention.head_count_kv": [2, 1] * (layers // 2),
        "attention.key_length": 128,
        "attention.key_length_swa": 64,
        "attention.value_length": 128,
        "attention.value_length_swa": 64,
        "attention.shared_kv_layers": 2,
        "attention.sliding_window": 4,
        "attention.sliding_window_pattern": [True, False] * (layers // 2),
        "block_count": layers,
        "embedding_length_per_layer_input": 256,
        "feed_forward_length": [512] * (layers - 2) + [768] * 2,
        "final_logit_softcapping": 20.0,
        "rope.dimension_count_swa": 64,
        "rope.freq_base": 1e6,
    }


def _gemma3n(more):
    """Keys of layers of which some lower their gates by llama.cpp's standard deviation.

    It divides the sum of squares by one less than the width, and has this factor in ten layers.
    """
    layers = more.get("block_count", 4)
    width = 1024
    scale = 1.6448533535003662 * (width / (width - 1)) ** 0.5
    return {
        "activation_sparsity_scale": [scale] * min(layers, 10) + [-math.inf] * max(layers - 10, 0),
        "altup.active_idx": 0,
        "altup.num_inputs": 4,
        "attention.key_length": 64,
        "attention.shared_kv_layers": max(layers - 20, 0),
        "attention.sliding_window": 4,
        "attention.sliding_window_pattern": [layer % 5 != 4 for layer in range(layers)],
        "attention.value_length": 64,
        "block_count": layers,
        "embedding_length_per_layer_input": 256,
        "feed_forward_length": [width] * layers,
        "rope.freq_base": 1e6,
    }


def metadata(architecture, **more):
    """Metadata of the tiny model of *architecture*; *more* are keys below its name that differ."""
    # The right side of ``|`` wins: ``X | keys`` adds defaults, ``keys |= X | more`` sets values.
    keys = KEYS | more
    if architecture in ("qwen35", "qwen35moe", "qwen3next"):
        keys = DELTA_NET | keys
    if architecture in ("falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe"):
        keys = MAMBA2 | keys
    if architecture in ("nemotron_h", "nemotron_h_moe"):  # a state, attention and a network in turn
        keys |= {"block_count": more.get("block_count", 3)}
        kinds = [layer % 3 for layer in range(keys["block_count"])]
        keys["attention.head_count_kv"] = [2 * (kind == 1) for kind in kinds]
        keys["feed_forward_length"] = [512 * (kind == 2) for kind in kinds]
    if architecture == "nemotron_h_moe":
        keys |= EXPERTS | {"expert_shared_feed_forward_length": 256, "moe_latent_size": 256}
        keys |= {"expert_weights_norm": True, "expert_weights_scale": 2.5} | more
    if architecture in ("jamba", "mamba"):
        keys = MAMBA1 | keys
    if architecture == "olmo_hybrid":
        keys = OLMO_HYBRID | keys
    if architecture in ("granitehybrid", "jamba", "lfm2", "lfm2moe", "lfm3", "olmo_hybrid"):
        kv_heads = [2 * (layer % 2) for layer in range(keys["block_count"])]
        keys["attention.head_count_kv"] = kv_heads
    if architecture == "nanbeige":
        keys = {"num_loops": 2} | keys
    if architecture == "hrm_text":
        layers = more.get("block_count", HRM["block_count"])
        keys = HRM | {"hrm.h_cycles": layers // 2} | keys | {"block_count": layers}
    if architecture in ("lfm2", "lfm2moe", "lfm3"):
        keys["shortconv.l_cache"] = 3
    if architecture == "lfm2moe":
        keys |= EXPERTS | {"expert_gating_func": 2, "leading_dense_block_count": 1}
    if architecture in MIXTURES:
        keys |= EXPERTS | {"feed_forward_length": 256} | MIXTURES[architecture] | more
    if architecture == "gemma4":
        keys = KEYS | _gemma4(more) | more
    if architecture == "gemma3n":
        keys = KEYS | _gemma3n({"block_count": 5} | more) | more
    if architecture in ("axk1", "deepseek2", "mistral4"):
        keys = KEYS | EXPERTS | LATENT | more
    if architecture in ("minicpm3", "youtu"):
        latent = {key: value for key, value in LATENT.items() if key.startswith(("att", "rope"))}
        keys = KEYS | latent | more
    if architecture == "spark2_5":
        keys |= {"attention.sliding_window": 4}
        keys |= {"rope.dimension_count": 32, "rope.dimension_count_swa": 64} | more
        layers = range(keys["block_count"])
        keys = {"attention.sliding_window_pattern": [layer % 2 == 0 for layer in layers]} | keys
        keys = {"rope.freq_base_swa": 5000.0} | keys
    if architecture == "kimi-linear":
        keys |= EXPERTS | LATENT | KIMI_LINEAR | more
        keys["attention.head_count_kv"] = [layer % 2 for layer in range(keys["block_count"])]
    if architecture == "bailingmoe3":
        keys |= EXPERTS | LATENT | {"kda.gate_lower_bound": -5.0, "kda.head_dim": 32}
        keys |= {"ssm.conv_kernel": 4} | more
        keys["attention.head_count_kv"] = [layer % 2 for layer in range(keys["block_count"])]
    if architecture == "laguna":
        keys |= LAGUNA | more
    if architecture == "vaultgemma":
        keys = {"attention.scale": 0.1} | keys
    if architecture == "mistral4":  # queries grow within the context
        keys |= {"attention.temperature_length": 8, "attention.temperature_scale": 0.3} | more
    if architecture in ENCODERS:
        keys |= {"attention.head_count_kv": 4, "attention.causal": False} | more
    if architecture == "llama-embed":
        keys = {"attention.causal": False} | keys
    if architecture == "modern-bert":
        keys = {"rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0} | keys
        keys["attention.sliding_window"] = more.get("attention.sliding_window", 8)
    if architecture == "nomic-bert-moe":
        keys |= {"expert_count": 6, "expert_used_count": 2, "moe_every_n_layers": 2} | more
    if architecture in (*LAYER_NORMS, *ENCODERS):
        keys = {"attention.layer_norm_epsilon": 1e-5} | keys
    if architecture == "granite_swa":
        keys |= {"attention.sliding_window": 4, "attention.sliding_window_pattern": [False, True]}
        keys |= {"embedding_scale": 2.0, "residual_scale": 0.7, "logit_scale": 1.5} | more
    if architecture == "openelm":
        keys |= {
            "attention.head_count": [8, 4],
            "attention.head_count_kv": [2, 1],
            "attention.key_length": 64,
            "attention.value_length": 64,
            "feed_forward_length": [512, 256],
        } | more
    if architecture in ("hunyuan_vl", "paddleocr", "qwen2vl", "qwen3vl", "qwen3vlmoe"):
        keys = {"rope.dimension_sections": [11, 11, 10, 0]} | keys
    if architecture == "chatglm":
        keys = {"rope.dimension_count": 32} | keys
    if architecture in ("mpt", "jais"):
        keys = {"attention.max_alibi_bias": 8.0} | keys
    if architecture == "gptneox":
        keys = {"use_parallel_residual": True} | keys
    if architecture in ("cohere2", "command-r"):
        keys = {"logit_scale": 0.5} | keys
    if architecture in ("minicpm", "minicpm3"):
        scales = {"embedding_scale": 2.0, "residual_scale": 0.7, "logit_scale": 1.5}
        keys = scales | keys
    if architecture in ("cohere2", "gemma2", "gemma3") and "attention.sliding_window" not in more:
        keys["attention.sliding_window"] = 4
    if architecture == "mistral3":  # queries grow within the context
        own_keys = {"attention.temperature_scale": 0.3, "rope.scaling.original_context_length": 8}
        keys = own_keys | keys
    own = {f"{architecture}.{key}": value for key, value in keys.items()}
    if architecture == "apertus":  # these have no prefix
        layers = keys["block_count"]
        own |= {"xielu.alpha_n": [0.7] * layers, "xielu.alpha_p": [0.6] * layers}
        own |= {"xielu.beta": [0.5] * layers, "xielu.eps": [-1e-6] * layers}
    return {"general.architecture": architecture} | own
