"""OLMo 2: norms after attention and feed-forward, none before; norms over whole query and key."""

from __future__ import annotations

from functools import partial

from bitnet.families.dense import AFTER, dense
from bitnet.families.family import ATTENTION, Family, LlamaCppSupport, register
from bitnet.families.rules import neutral, read

register(
    Family(
        title="OLMo 2",
        architecture="olmo2",
        model_types=("olmo2",),
        activation="silu",
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
        config_keys={"attention_bias": read("biases around attention")},
        gguf_keys={"attention.sliding_window": neutral(0)},
        tensors={
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(tied=False, whole_width=True),
        decoder=partial(dense, norms=AFTER, qk_norm="whole"),
    )
)
