"""Multimodal models that generate the same text as the text model inside them.

The text model is the ``text_config`` of a ``config.json``; the parts for images and sounds are left
out. A ``model_type`` that is not in :data:`SAME_TEXT` is refused: some of the others scale the
logits, or let positions of a prompt attend to later ones. ``tests/models/test_outer_models.py``
compares those in the table with transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.keys import Config

_NOTHING: dict[str, Any] = {}
#: Types that generate what their text model does, each with the keys of it that they override.
SAME_TEXT: dict[str, Mapping[str, Any]] = {
    "audioflamingo3": _NOTHING,
    "cohere2_vision": {"logit_scale": 1.0},  # its logits are not scaled, unlike its text model's
    "deepseek_vl": _NOTHING,
    "gemma3": _NOTHING,
    "gemma3n": _NOTHING,
    "gemma4": _NOTHING,
    "gemma4_unified": _NOTHING,
    "glmasr": _NOTHING,
    "got_ocr2": _NOTHING,
    "idefics2": _NOTHING,
    "idefics3": _NOTHING,
    "internvl": _NOTHING,
    "lfm2_vl": _NOTHING,
    "lighton_ocr": _NOTHING,
    "llava": _NOTHING,
    "llava_next": _NOTHING,
    "llava_next_video": _NOTHING,
    "llava_onevision": _NOTHING,
    "minicpmv4_6": _NOTHING,
    "mistral3": _NOTHING,
    "pp_chart2table": _NOTHING,
    "qwen2_5_vl": _NOTHING,
    "qwen2_audio": _NOTHING,
    "qwen2_vl": _NOTHING,
    "qwen3_5": _NOTHING,
    "qwen3_5_moe": _NOTHING,
    "qwen3_asr": _NOTHING,
    "qwen3_vl": _NOTHING,
    "qwen3_vl_moe": _NOTHING,
    "shieldgemma2": _NOTHING,
    "smolvlm": _NOTHING,
    "video_llama_3": _NOTHING,
    "video_llava": _NOTHING,
    "vipllava": _NOTHING,
    "voxtral": _NOTHING,
}
#: Types that are known to generate other text, and why.
_OTHER_TEXT = {
    "paligemma": "its prompt attends in both directions, which is not computed",
    "aya_vision": "versions of transformers differ: 4.51 scales its logits as its text model does, "
    "4.57 and later do not",
}
# Keys next to ``text_config`` that count for the text model, too, unless it states them itself.
_OF_THE_WHOLE = ("architectures", "auto_map", "quantization_config", "quantization")
_HINT = "choose a model that was made for text alone"


def text_keys(outer: Config) -> dict[str, Any]:
    """The keys of the text model in *outer*, a whole ``config.json``.

    Raises:
        Unsupported: a model around it would write something else, or is not known.
    """
    inner = outer.get("text_config")
    kind = str(outer.get("model_type"))
    reason = _OTHER_TEXT.get(kind)
    if reason is None and isinstance(inner, dict) and kind not in SAME_TEXT:
        reason = "it is not known to write what its text model alone would write"
    if reason is not None:
        raise Unsupported(f"config.json: model_type {kind[:80]!r}: {reason}", hint=_HINT)
    if not isinstance(inner, dict):
        return dict(outer)
    merged: dict[str, Any] = {name: outer[name] for name in _OF_THE_WHOLE if name in outer}
    merged |= inner
    # Older folders name the type once, such as qwen2_vl; other outer types are then refused as
    # unknown.
    merged.setdefault("model_type", kind)
    if "architectures" in outer:  # names the class that runs; the inner one may name another
        merged["architectures"] = outer["architectures"]
    if isinstance(outer.get("tie_word_embeddings"), bool):
        merged["tie_word_embeddings"] = outer["tie_word_embeddings"]  # as in transformers 5
    return {**merged, **SAME_TEXT[kind]}
