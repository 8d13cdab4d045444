"""The text models of vision-language models: Qwen-VL, Hunyuan-VL and PaddleOCR-VL.

A position has several coordinates (M-RoPE), which are equal in a text, so the rotation is the usual
one. The encoder of images is left out of a folder, and is a separate file next to a GGUF file.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from bitnet.families.dense import ModelConfig, dense_as_stored, sizes
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, experts
from bitnet.families.family import ATTENTION, BIASES, QKV, LlamaCppSupport, register
from bitnet.families.keys import HARMLESS, Config, Keys, neutral, read, reads, refusal
from bitnet.families.rope import rope_parameters

# Rules for the GGUF keys of these families that have no effect on text.
_SECTIONS = {
    # Numbers of pairs that rotate by each coordinate; in a text all coordinates are equal. The
    # slowest pairs may be in none of the sections: they rotate as in transformers, and llama.cpp
    # does not rotate them.
    "rope.dimension_sections": HARMLESS,
    "n_deepstack_layers": HARMLESS,  # number of layers that images are added to
}


_ROPE_OF_IMAGES = {
    "mrope_section": "of positions in images; those of a text are equal",
    "mrope_interleaved": "as `mrope_section`",
}


def _qwen_vl_keys(config: Config) -> dict[str, Any]:
    """The GGUF key of the sections, which llama.cpp requires; they have no effect on text."""
    kinds = config.get("layer_types") or []
    if "sliding_attention" in kinds:
        raise refusal("layer_types", kinds, "in GGUF, no layer has a window")
    rope = rope_parameters(config)
    sections = rope.get("mrope_section")
    if sections is None:
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        sections = [width // 4, width // 4, 0]
    return {"rope.dimension_sections": [*map(int, sections), 0]}


def _qwen3_experts(keys: Keys) -> ModelConfig:
    # the experts of a token are together as wide as the plain network, if no key gives their width
    width = sizes(keys).ffn // max(keys.integer("expert_used_count"), 1)
    return dense_as_stored(keys, qk_norm="head", mixture=experts(keys, width=width))


register(
    title="Qwen 2-VL and 2.5-VL, their text",
    architecture="qwen2vl",
    model_types=("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
    config_keys={
        "attention_bias": HARMLESS,  # its biases are always there
        "layer_types": read("no layer may have a window"),
        "sliding_window": HARMLESS,  # use_sliding_window must be false
        "use_sliding_window": neutral(None, False),
    },
    rope_parameters=_ROPE_OF_IMAGES,
    rope_scalings=("mrope",),
    biases={"": QKV},
    translate=_qwen_vl_keys,
    gguf_keys=_SECTIONS,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "output.bias", *BIASES),
        only_whole_width=True,
        always="does not read the epsilon of the norms, and takes 0 for it, in",
    ),
    decoder=dense_as_stored,
)
register(
    title="Qwen 3-VL, its text",
    architecture="qwen3vl",
    model_types=("qwen3_vl", "qwen3_vl_text"),
    config_keys={"layer_types": read("no layer may have a window")},
    rope_parameters=_ROPE_OF_IMAGES,
    rope_scalings=("mrope",),
    biases={"attention_bias": ATTENTION},
    translate=_qwen_vl_keys,
    gguf_keys=_SECTIONS,
    decoder=partial(dense_as_stored, qk_norm="head"),
)
register(
    title="Qwen 3-VL with experts, its text",
    architecture="qwen3vlmoe",
    model_types=("qwen3_vl_moe", "qwen3_vl_moe_text"),
    stated="head_dim",
    config_keys={
        **EXPERT_CONFIG,
        **reads("moe_intermediate_size"),
        "decoder_sparse_step": neutral(None, 1),
        "layer_types": read("no layer may have a window"),
        "mlp_only_layers": neutral(None),
        "norm_topk_prob": neutral(None, True),
        "sliding_window": neutral(None),
    },
    rope_parameters=_ROPE_OF_IMAGES,
    rope_scalings=("mrope",),
    biases={"attention_bias": ATTENTION},
    turned_experts=True,
    translate=_qwen_vl_keys,
    gguf_keys=_SECTIONS | EXPERT_KEYS,
    decoder=_qwen3_experts,
)
register(
    title="Hunyuan-VL, its text",
    architecture="hunyuan_vl",
    model_types=(),
    gguf_keys=_SECTIONS,
    decoder=partial(dense_as_stored, qk_norm="rotated"),
)
register(
    title="PaddleOCR-VL, its text",
    architecture="paddleocr",
    model_types=(),
    gguf_keys=_SECTIONS,
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES)),
    decoder=dense_as_stored,
)
