"""Command-R7B: attention and feed-forward beside each other, behind one norm that subtracts means.

Layers with a window rotate queries and keys; every fourth layer sees everything and does not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Branch, FeedForward
from bitnet.families.dense import attention, model_of, read_windows, sizes
from bitnet.families.family import ATTENTION, QKV, Family, LlamaCppSupport, register
from bitnet.families.rules import neutral, read, refusal
from bitnet.families.windows import alternating

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_PERIOD = 4


def _decoder(keys: Keys) -> ModelConfig:
    its = sizes(keys)
    usual, network = attention(keys, its.dim), FeedForward(its.ffn)
    base = usual.rope.theta if usual.rope else 0.0
    if keys.number("rope.freq_base_swa", base) != base:
        raise refusal(
            "rope.freq_base_swa",
            keys.number("rope.freq_base_swa"),
            model=keys.path.name,
            kind="Command-R7B",
            why=f"only rope.freq_base, {base:g}, is computed",
        )
    local = read_windows(
        keys, its.layers, period=_PERIOD, window=keys.integer("attention.sliding_window")
    )
    mixers = (
        replace(usual, window=window, rope=usual.rope if window else None) for window in local
    )
    blocks = ((Branch("attn_norm", (mixer, network)),) for mixer in mixers)
    return model_of(
        keys,
        its,
        blocks,
        norm_eps=keys.number("attention.layer_norm_epsilon"),
        centered_norms=True,
        logit_scale=keys.number("logit_scale"),
    )


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    if not config.get("sliding_window"):
        raise ValueError("sliding_window is missing, which says which layers rotate")
    return alternating(_PERIOD, "sliding_window_pattern")(config) | {
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "logit_scale": float(config["logit_scale"]),
    }


register(
    Family(
        title="Command-R7B",
        architecture="cohere2",
        model_types=("cohere2",),
        activation="silu",
        rope_style="interleaved",
        gguf_rope_style="interleaved",
        defaults={
            "layer_norm_eps": 1e-5,
            "logit_scale": 0.0625,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
        },
        config_keys={
            "attention_bias": read("biases around attention"),
            "layer_norm_eps": read("epsilon of every norm"),
            "layer_types": read("which layers have a window"),
            "logit_scale": read("on logits"),
            "rotary_pct": neutral(None, 1.0),
            "sliding_window": read("positions a query attends to"),
            "sliding_window_pattern": read("one layer in this many has none"),
        },
        gguf_keys={
            "attention.layer_norm_epsilon": read("epsilon of every norm"),
            "logit_scale": read("on logits"),
            "rope.freq_base_swa": read("must be `rope.freq_base`"),
        },
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(
            tensors=tuple(f"{part}.bias" for part in QKV),
            ignores=(),
            whole_width=True,
            needs=frozenset({"window"}),
        ),
        translate=_translate,
        decoder=_decoder,
    )
)
