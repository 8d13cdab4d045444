"""OLMo 2 and 3: norms after attention and feed-forward, none before; whole queries and keys normed.

OLMo 3 has windows in three of four layers, which rotate without scaling; its GGUF files are
OLMo 2's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.dense import AFTER, attention, dense, sizes
from bitnet.families.family import ATTENTION, Family, LlamaCppSupport, register
from bitnet.families.rope import rope_from
from bitnet.families.rules import neutral, read, refusal
from bitnet.families.windows import alternating

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_COMMON: dict[str, Any] = {
    "architecture": "olmo2",
    "activation": "silu",
    "tensors": _NORMS,
    "biases": {"attention_bias": ATTENTION},
}


def _decoder(keys: Keys) -> ModelConfig:
    rope = rope_from(keys, attention(keys, sizes(keys).dim).head_dim)
    theta = keys.number("rope.freq_base_swa", rope.theta)
    if theta != rope.theta:
        raise refusal(
            "rope.freq_base_swa",
            theta,
            model=keys.path.name,
            kind="OLMo 3",
            why=f"only that of the other layers, {rope.theta:g}, is computed",
        )
    local = replace(rope, scaling="none", attention_factor=1.0, freq_factors=None)
    return dense(
        keys,
        norms=AFTER,
        period=4,
        qk_norm="whole",
        each=lambda _layer, usual: replace(usual, rope=local) if usual.window else usual,
    )


register(
    Family(
        **_COMMON,
        title="OLMo 2",
        model_types=("olmo2",),
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
        config_keys={"attention_bias": read("biases around attention")},
        gguf_keys={"rope.freq_base_swa": read("must be `rope.freq_base`")},
        llama_cpp=LlamaCppSupport(ignores=(), tied=False, whole_width=True),
        decoder=_decoder,
    )
)
register(
    Family(
        **_COMMON,
        title="OLMo 3",
        in_gguf=False,
        model_types=("olmo3",),
        defaults={
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 2048,
            "sliding_window": 4096,
            "rope_theta": 500000.0,
            "rope_local_base_freq": 500000.0,
        },
        config_keys={
            "attention_bias": read("biases around attention"),
            "layer_types": read("which layers have a window"),
            "rope_local_base_freq": neutral(None, 500000.0),
            "sliding_window": read("positions a query attends to"),
        },
        layered_rope=True,
        translate=alternating(4),
    )
)
