"""Kinds of models that no family reads, by the names of GGUF and of transformers."""

from __future__ import annotations

_KINDS = {
    "an encoder and a decoder, which are not run together": "t5 t5encoder mt5 umt5 bart mbart "
    "pegasus marian led longt5 m2m_100 blenderbot bigbird_pegasus",
    "a diffusion language model, which does not write token by token": "dream llada llada_moe rnd1",
    "a recurrent model (RWKV), whose state is not computed": "rwkv rwkv6 rwkv6qwen2 rwkv7 arwkv7",
    "a state space model of the first Mamba, whose scan is not computed": "mamba jamba",
    "attention to chosen positions (sparse attention), which is not computed": "deepseek32 "
    "deepseek_v32 glm_dsa glm_moe_dsa",
    "a block that drafts tokens for another model": "eagle3 dflash gemma4_assistant",
    "a model of images": "clip siglip vit",
    "a model of sound": "whisper wav2vec2 wavtokenizer_dec qwen3tts pockettts",
}
_BY_NAME = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def kind_of(architecture: str) -> str:
    """Kind of a model of *architecture*, in words; empty if it is not known."""
    return _BY_NAME.get(architecture.replace("-", "_"), "")
