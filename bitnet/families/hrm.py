"""HRM-Text: a low and a high stack of blocks, which run in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import FeedForward
from bitnet.families.dense import ModelConfig, attention, model_of, sizes, usual_block
from bitnet.families.family import ATTENTION, BIASES, MLP, QKV, LlamaCppSupport, register
from bitnet.families.fused_rows import equal_parts
from bitnet.families.keys import Config, Keys, contradiction, read, value_refusal, wrong_config
from bitnet.families.streams import Cycles

if TYPE_CHECKING:
    from bitnet.families.family import Parts


def _hrm(keys: Keys) -> ModelConfig:
    """All blocks in the order in which they run; later turns share tensors with the first."""
    model_sizes = sizes(keys)
    cycles = Cycles(keys.integer("hrm.layers_per_stack"), keys.integer("hrm.l_cycles"))
    high_turns = keys.integer("hrm.h_cycles")
    if min(cycles.layers, cycles.low_turns, high_turns) < 1:
        raise contradiction(keys, "a stack of no layers, or one that never runs")
    layers = model_sizes.layers
    if layers != high_turns * cycles.layers_of_cycle:
        turns = f"{high_turns:,} cycles of {cycles.low_turns:,} + 1 turns of {cycles.layers:,}"
        raise contradiction(keys, f"{layers:,} layers, expected those of {turns}")
    mixer = attention(keys, model_sizes.dim, own_gate="numbers")
    both_ways = keys.flag("hrm.prefix_lm", False)
    # When an answer grows beyond the original context, LongRoPE changes its frequencies, and all
    # positions run again.
    if both_ways and mixer.rope is not None and mixer.rope.long_freq_factors is not None:
        why = "an answer would be run again as a prompt, whose positions see each other"
        raise value_refusal(keys, "rope.scaling.type", "longrope", why)
    block = usual_block(mixer, FeedForward(model_sizes.ffn))
    scale = keys.number("embedding_scale", 1.0)
    if scale <= 0:  # llama.cpp does not scale by 0
        raise value_refusal(keys, "embedding_scale", scale, "only a factor above 0 is computed")
    return model_of(
        keys,
        model_sizes,
        [block] * layers,
        embedding_scale=scale,
        norm_weights=False,
        final_norm="",
        block_numbers=cycles.numbers(high_turns),
        cycles=cycles,
        prompt_both_ways=both_ways,
    )


def _keys(config: Config) -> dict[str, Any]:
    """GGUF keys; ``block_count`` counts the blocks of all turns."""
    scale = config.get("embedding_scale")
    if scale is None:
        scale = 1 / config["initializer_range"]
    stated_stack = config.get("num_layers_per_stack")
    # Older folders leave it out, and their num_hidden_layers is the size of a stack. Otherwise
    # num_hidden_layers counts the layers of all turns.
    stack = stated_stack or config["num_hidden_layers"]
    turns = config["H_cycles"] * (config["L_cycles"] + 1)
    if stated_stack and config["num_hidden_layers"] != stack * turns:
        raise wrong_config(
            f"num_hidden_layers is {config['num_hidden_layers']}, and {turns} turns of the "
            f"{stack} layers of a stack are {stack * turns}"
        )
    return {
        "attention.head_count_kv": config["num_attention_heads"],
        "block_count": stack * turns,
        "embedding_scale": float(scale),
        "hrm.h_cycles": config["H_cycles"],
        "hrm.l_cycles": config["L_cycles"],
        "hrm.layers_per_stack": stack,
        "hrm.prefix_lm": bool(config["prefix_lm"]),
    }


def _parts(_config: Config) -> Parts:
    """Functions that split the fused matrices of published folders.

    Folders that transformers writes have separate matrices.
    """
    return {
        **equal_parts("attn_gqkv", ("attn_gate", *QKV)),
        **equal_parts("ffn_gate_up", ("ffn_gate", "ffn_up")),
    }


_BOTH_WAYS = "the positions of a prompt see each other in both directions"

register(
    title="HRM-Text",
    architecture="hrm_text",
    nullable=("embedding_scale", "num_key_value_heads", "num_layers_per_stack", "rope_parameters"),
    config_keys={
        "H_cycles": read("turns of the high stack"),
        "L_cycles": read("turns of the low stack before each of them"),
        "embedding_scale": read("factor on embeddings"),
        "initializer_range": read("`embedding_scale` is 1 over it where a file has none"),
        "num_layers_per_stack": read("blocks of each stack"),
        "prefix_lm": read(_BOTH_WAYS),
    },
    gguf_keys={
        "embedding_scale": read("factor on embeddings"),
        "hrm.h_cycles": read("turns of the high stack"),
        "hrm.l_cycles": read("turns of the low stack before each of them"),
        "hrm.layers_per_stack": read("blocks of each stack"),
        "hrm.prefix_lm": read(_BOTH_WAYS),
    },
    stacks=("L_module", "H_module"),
    tensors={
        "self_attn.gate_proj": "attn_gate",
        "attn.gqkv_proj": "attn_gqkv",
        "attn.o_proj": "attn_output",
        "mlp.gate_up_proj": "ffn_gate_up",
    },
    parts=_parts,
    biases={"attention_bias": (*ATTENTION, "attn_gate"), "mlp_bias": MLP},
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES), ignores=()),
    translate=_keys,
    decoder=_hrm,
)
