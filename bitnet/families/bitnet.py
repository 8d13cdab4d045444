"""BitNet b1.58: norms before the output projections; GLU with squared ReLU since 2B-4T."""

from __future__ import annotations

from functools import partial

from bitnet.families.dense import dense
from bitnet.families.family import ATTENTION, Family, LlamaCppSupport, register
from bitnet.families.keys import neutral

register(
    Family(
        title="BitNet b1.58 2B-4T",
        architecture="bitnet-b1.58",
        gguf=("bitnet-25",),
        model_types=("bitnet",),
        activation="relu2",
        defaults={
            "rope_theta": 500000.0,
            "num_key_value_heads": 5,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 2048,
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        llama_cpp=None,
        biases={"attention_bias": ATTENTION},
        rounds_inputs=True,
        decoder=partial(dense, sub_norm=True, ffn={"sub_norm": True, "activation": "relu_squared"}),
    )
)
register(
    Family(
        title="BitNet b1.58 before 2B-4T",
        architecture="bitnet",
        model_types=(),
        classes=("BitnetForCausalLM",),  # 1bitLLM's models, whose model_type is llama
        quantization={
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "online",
        },
        defaults={"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
        config_keys={"input_bits": neutral(8), "weight_bits": neutral(1)},
        tensors={
            "self_attn.inner_attn_ln": "attn_sub_norm",
            "mlp.ffn_layernorm": "ffn_sub_norm",
        },
        llama_cpp=LlamaCppSupport(tensors=(), whole_width=True),
        gguf_keys={"attention.sliding_window": neutral(0)},
        rounds_inputs=True,
        decoder=partial(dense, sub_norm=True, ffn={"sub_norm": True}),
    )
)
