"""Mistral and Mixtral: Llama with a window, and with experts; their GGUF files are Llama's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.experts import EXPERT_CONFIG, expert_keys
from bitnet.families.family import Family, register
from bitnet.families.rules import read
from bitnet.families.windows import everywhere

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 131072}
_CONFIG = {"sliding_window": read("positions a query attends to")}


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    return everywhere(config) | expert_keys(config, 8)


register(
    Family(
        title="Mistral",
        architecture="llama",
        in_gguf=False,
        model_types=("mistral",),
        activation="silu",
        defaults={**_DEFAULTS, "sliding_window": 4096, "rms_norm_eps": 1e-6},
        config_keys=_CONFIG,
        translate=everywhere,
    )
)
register(
    Family(
        title="Mixtral",
        architecture="llama",
        in_gguf=False,
        model_types=("mixtral",),
        activation="silu",
        defaults={**_DEFAULTS, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5},
        config_keys={**EXPERT_CONFIG, **_CONFIG},
        tensors={
            "block_sparse_moe.gate": "ffn_gate_inp",
            "block_sparse_moe.experts.w1": "ffn_gate_exps.weight",
            "block_sparse_moe.experts.w2": "ffn_down_exps.weight",
            "block_sparse_moe.experts.w3": "ffn_up_exps.weight",
        },
        translate=_translate,
    )
)
