"""Qwen 2 and 2.5, with biases on query, key and value, and Qwen 3, with norms of their heads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bitnet.families.dense import WINDOW_CONFIG, dense, from_first, sizes
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_KEYS,
    EXPERT_TENSORS,
    expert_keys,
    experts,
)
from bitnet.families.family import ATTENTION, QKV, Family, LlamaCppSupport, register
from bitnet.families.keys import HARMLESS, neutral, read

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_DEFAULTS = {
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
}
_CONFIG = WINDOW_CONFIG | {
    "use_sliding_window": read("enables windows"),
    "max_window_layers": read("the first layer with a window"),
}

register(
    Family(
        title="Qwen 2 and 2.5",
        architecture="qwen2",
        model_types=("qwen2",),
        defaults=_DEFAULTS,
        config_keys={**_CONFIG, "attention_bias": HARMLESS},  # its biases are always there
        biases={"": QKV},
        translate=from_first,
        llama_cpp=LlamaCppSupport(whole_width=True),
        decoder=partial(dense, biased=True),
    )
)
register(
    Family(
        title="Qwen 3",
        architecture="qwen3",
        model_types=("qwen3",),
        defaults=_DEFAULTS | {"head_dim": 128},
        config_keys=_CONFIG,
        biases={"attention_bias": ATTENTION},
        translate=from_first,
        decoder=partial(dense, qk_norm="head"),
    )
)


def _with_experts(keys: Keys) -> ModelConfig:
    width = sizes(keys).ffn // max(keys.integer("expert_used_count"), 1)
    return dense(keys, qk_norm="head", mixture=experts(keys, width=width))


register(
    Family(
        title="Qwen 3 with experts",
        architecture="qwen3moe",
        model_types=("qwen3_moe",),
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 4,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
        },
        config_keys={
            **EXPERT_CONFIG,
            "decoder_sparse_step": neutral(None, 1),
            "mlp_only_layers": neutral(None),
            "norm_topk_prob": neutral(True),
            "sliding_window": HARMLESS,  # use_sliding_window must be false
        },
        gguf_keys=EXPERT_KEYS,
        tensors=EXPERT_TENSORS,
        biases={"attention_bias": ATTENTION},
        translate=lambda config: expert_keys(config, 128, "moe_intermediate_size"),
        decoder=_with_experts,
    )
)
