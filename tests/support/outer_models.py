"""Tiny multimodal models of transformers: configurations of the text model and of its encoders."""

from hf_models import TINY

# Keys of the configurations of encoders, and of some text models.
IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
SOUNDS = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_mel_bins": 8,
}
WHISPER_SOUNDS = {
    "d_model": 32,
    "encoder_ffn_dim": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "num_mel_bins": 8,
    "max_source_positions": 16,
}
SAM_IMAGES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 8,
    "output_channels": 32,
    "mlp_dim": 32,
    "global_attn_indexes": [0],
}
HYBRID = {
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
QWEN_IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 8,
}
GEMMA_4 = {
    "head_dim": 16,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
}
#: Keys of Gemma 3n's text.
GEMMA_3N = {
    **TINY,
    "head_dim": 16,
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 90,
    "laurel_rank": 8,
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0],
}
GEMMA_IMAGES = {
    name: size for name, size in IMAGES.items() if name not in ("image_size", "patch_size")
} | {"num_key_value_heads": 2, "head_dim": 16}
RESAMPLER = {
    "hidden_size": 64,
    "resampler_n_latents": 2,
    "resampler_depth": 1,
    "resampler_n_heads": 2,
    "num_key_value_heads": 1,
    "resampler_head_dim": 16,
}


def _images(kind="", **more):
    """A ``vision_config`` of the type *kind*, by default without one."""
    own = {"model_type": kind} if kind else {}
    return {"vision_config": own | IMAGES | more}


def _text(kind, **more):
    """A ``text_config`` of the type *kind*."""
    return {"model_type": kind, **TINY, **more}


_LLAMA = _text("llama")
_MISTRAL = _text("mistral", sliding_window=None)
_QWEN2 = _text("qwen2")
_QWEN3 = _text("qwen3", head_dim=16)
_SIGLIP = _images("siglip_vision_model")
_CLIP = _images("clip_vision_model")
_PIXTRAL = _images("pixtral", head_dim=16)
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_GEMMA_3 = (_text("gemma3_text", head_dim=16), _SIGLIP | {"mm_tokens_per_image": 4})
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_LFM2_IMAGES = {name: size for name, size in IMAGES.items() if name != "image_size"}

#: Keys of ``text_config`` and of the model around it, by its type.
OUTER_MODELS = {
    "audioflamingo3": (_QWEN2, {"audio_config": SOUNDS | {"max_source_positions": 16}}),
    "cohere2_vision": (_text("cohere2", sliding_window=6), _SIGLIP),
    "deepseek_vl": (_LLAMA, _SIGLIP),
    "gemma3": _GEMMA_3,
    "gemma4": (
        _text("gemma4_text", **GEMMA_4),
        {"audio_config": None, "vision_config": GEMMA_IMAGES},
    ),
    "gemma4_unified": (_text("gemma4_unified_text", **GEMMA_4), {"audio_config": None}),
    "glmasr": (_LLAMA, {"audio_config": SOUNDS | {"max_position_embeddings": 16}}),
    "got_ocr2": (_QWEN2, {"vision_config": SAM_IMAGES}),
    "idefics2": (_MISTRAL, _images() | {"perceiver_config": RESAMPLER}),
    "idefics3": (_LLAMA, _images("idefics3_vision")),
    "internvl": (
        _QWEN2,
        _images("internvl_vision", image_size=[16, 16], patch_size=[8, 8]),
    ),
    "lfm2_vl": (
        _text("lfm2", layer_types=["conv", "full_attention", "conv"]),
        {"vision_config": {"model_type": "siglip2_vision_model", **_LFM2_IMAGES, "num_patches": 4}},
    ),
    "lighton_ocr": (_QWEN3, _PIXTRAL),
    "llava": (_LLAMA, _CLIP),
    "llava_next": (_MISTRAL, _CLIP),
    "llava_next_video": (_LLAMA, _CLIP),
    "llava_onevision": (_QWEN2, _SIGLIP),
    "minicpmv4_6": (_text("qwen3_5_text", **HYBRID), _images()),
    "mistral3": (_MISTRAL, _PIXTRAL),
    "pp_chart2table": (_QWEN2, {"vision_config": SAM_IMAGES}),
    "qwen2_5_vl": (
        _text("qwen2_5_vl_text", rope_parameters=_MROPE),
        {"vision_config": QWEN_IMAGES | {"out_hidden_size": 64}},
    ),
    "qwen2_vl": (
        _text("qwen2_vl_text", rope_parameters=_MROPE),
        {"vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 64}},
    ),
    "qwen2_audio": (_QWEN2, {"audio_config": WHISPER_SOUNDS}),
    "qwen3_5": (_text("qwen3_5_text", **HYBRID), {"vision_config": QWEN_IMAGES}),
    "qwen3_5_moe": (
        _text("qwen3_5_moe_text", **HYBRID, **_EXPERTS),
        {"vision_config": QWEN_IMAGES},
    ),
    "qwen3_asr": (_QWEN3, {"audio_config": WHISPER_SOUNDS | {"output_dim": 64}}),
    "qwen3_vl": (
        _text("qwen3_vl_text", head_dim=16, rope_parameters=_MROPE),
        {"vision_config": QWEN_IMAGES | {"deepstack_visual_indexes": [0]}},
    ),
    "qwen3_vl_moe": (
        _text(
            "qwen3_vl_moe_text",
            head_dim=16,
            moe_intermediate_size=48,
            num_experts=6,
            num_experts_per_tok=2,
            rope_parameters=_MROPE,
        ),
        {"vision_config": QWEN_IMAGES | {"deepstack_visual_indexes": [0]}},
    ),
    "shieldgemma2": _GEMMA_3,
    "smolvlm": (_LLAMA, _images("smolvlm_vision")),
    "video_llama_3": (_QWEN2, _images()),
    "video_llava": (_LLAMA, _CLIP),
    "vipllava": (_LLAMA, _CLIP | {"vision_feature_layers": [-1]}),
    "voxtral": (_LLAMA, {"audio_config": SOUNDS | {"max_source_positions": 16}}),
}
