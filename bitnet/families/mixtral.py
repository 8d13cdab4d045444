"""Mixtral: Mistral with experts; its GGUF files are Llama's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.experts import EXPERT_CONFIG, expert_keys
from bitnet.families.family import Family, register
from bitnet.families.rules import read
from bitnet.families.windows import everywhere

if TYPE_CHECKING:
    from collections.abc import Mapping


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    return everywhere(config) | expert_keys(config, 8)


register(
    Family(
        title="Mixtral",
        architecture="llama",
        in_gguf=False,
        model_types=("mixtral",),
        activation="silu",
        defaults={
            "num_key_value_heads": 8,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
        },
        config_keys={**EXPERT_CONFIG, "sliding_window": read("positions a query attends to")},
        tensors={
            "block_sparse_moe.gate": "ffn_gate_inp",
            "block_sparse_moe.experts.w1": "ffn_gate_exps.weight",
            "block_sparse_moe.experts.w2": "ffn_down_exps.weight",
            "block_sparse_moe.experts.w3": "ffn_up_exps.weight",
        },
        translate=_translate,
    )
)
