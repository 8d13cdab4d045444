"""Ling and Ring 2: groups of experts by sigmoids, one matrix of query, key and value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.families.dense import dense
from bitnet.families.experts import (
    EXPERT_KEYS,
    GROUPED_KEYS,
    experts,
    group_routing,
    in_layers,
    without_drafting_blocks,
)
from bitnet.families.family import Family, LlamaCppSupport, register
from bitnet.families.rules import read

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    network = experts(keys, width=0, routing=group_routing(keys, renormalised=False))
    one = keys.integer("expert_shared_feed_forward_length", 0) or network.width
    network = replace(network, shared=one * keys.integer("expert_shared_count"))
    first = keys.integer("leading_dense_block_count", 0)
    model = dense(keys, qk_norm="head", fused=True, network=in_layers(network, first=first))
    return without_drafting_blocks(keys, model)


register(
    Family(
        title="Ling and Ring 2",
        architecture="bailingmoe2",
        model_types=(),
        activation="silu",
        gguf_keys={
            **EXPERT_KEYS,
            **GROUPED_KEYS,
            "expert_shared_feed_forward_length": read("width of each network beside the experts"),
        },
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", "exp_probs_b.bias"), tied=False, whole_width=True
        ),
        decoder=_decoder,
    )
)
