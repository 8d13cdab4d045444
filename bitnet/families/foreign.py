"""Descriptions of unsupported kinds of models, for error messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["sentence_about", "what_it_is"]

_EXPERTS = "a mixture of experts"
_STATE = "a model with state-space or recurrent layers"
_LATENT = "a model with latent attention"
_BY_NAME = (
    (re.compile(r"deepseek[-_]?v?(2|32|4)|minicpm3|kimi"), _LATENT),
    (re.compile(r"moe|mixtral|dbrx|grok|deepseek|llama4|arctic|minimax"), _EXPERTS),
    (re.compile(r"mamba|rwkv|jamba|qwen3[-_]?next|bamba"), _STATE),
    (re.compile(r"bert|t5enc|embed"), "an encoder for embeddings"),
    (re.compile(r"^t5|bart|whisper"), "an encoder and a decoder"),
    (re.compile(r"gemma-?3n|openelm|deci"), "a model whose layers differ in shape"),
    (re.compile(r"clip|vit|vision|siglip|mmproj"), "a model of images"),
)
_BY_TENSOR = (
    (re.compile(r"_exps\.|\.experts\.|ffn_gate_inp|block_sparse_moe"), _EXPERTS),
    (re.compile(r"\bssm_|\.mamba\.|\.mixer\.|time_mix"), _STATE),
    (re.compile(r"lora_[ab]\b|\.lora_", re.IGNORECASE), "an adapter (LoRA), not a whole model"),
    (re.compile(r"^(v|mm)\.|vision"), "a multimodal model with images"),
    (re.compile(r"attn_sinks|self_attn\.sinks"), "a model with attention sinks"),
    (re.compile(r"cross_attn|encoder\."), "a model with an encoder"),
    (re.compile(r"^cls\.|^score\.|classifier"), "a classifier"),
)  # fmt: skip


def sentence_about(name: str) -> str:
    """A sentence that describes the architecture *name*; empty if the name says nothing."""
    found = next((text for pattern, text in _BY_NAME if pattern.search(name.lower())), "")
    return f". {name} is {found}" if found else ""


def what_it_is(tensors: Iterable[str]) -> str:
    """The kind of model that contains one of *tensors*; empty if they say nothing."""
    names = list(tensors)
    for pattern, text in _BY_TENSOR:
        if any(pattern.search(name) for name in names):
            return text
    return ""
