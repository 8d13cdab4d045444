"""Check GGUF metadata by the table of its family: every key of the architecture must be known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.rules import HARMLESS, Rule, check, neutral, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bitnet.families.family import Family

__all__ = ["COMMON", "check_keys", "find_zero"]

_OFF = neutral(0, False, note="not computed")
#: For every family.
COMMON: dict[str, Rule] = {
    "block_count": read("layers"),
    "embedding_length": read("width of the residual stream"),
    "feed_forward_length": read("width inside the feed-forward network"),
    "context_length": read("positions the model was trained for"),
    "vocab_size": HARMLESS,
    "attention.head_count": read("query heads"),
    "attention.head_count_kv": read("key and value heads"),
    "attention.key_length": read("width of a head"),
    "attention.value_length": read("must be the width of a head"),
    "attention.layer_norm_rms_epsilon": read("epsilon of every norm"),
    "attention.layer_norm_epsilon": HARMLESS,
    "attention.scale": read(
        "on scores; beside Gemma and Granite only one over the root of the width"
    ),
    "attention.sliding_window": read("positions a query attends to; 0: all"),
    "attention.sliding_window_pattern": read("which layers have a window"),
    "attention.causal": Rule("causal or bidirectional attention", (True, False), is_read=True),
    "attention.max_alibi_bias": _OFF,
    "attention.clamp_kqv": _OFF,
    "attention.shared_kv_layers": _OFF,
    "attention.temperature_scale": _OFF,
    "rope.dimension_count": read("rotary dimensions of a head"),
    "rope.freq_base": read("base of the RoPE frequencies"),
    "rope.scale_linear": read("name of `rope.scaling.factor` in 2023"),
    "rope.scaling.type": read("`none`, `linear`, `yarn`, `longrope`, `dynamic`"),
    "rope.scaling.factor": read("factor of context extension; `linear` without a type"),
    "rope.scaling.original_context_length": read("context before"),
    "rope.scaling.attn_factor": read("on rotated queries and keys, besides that of `yarn`"),
    "rope.scaling.yarn_beta_fast": neutral(32.0, note="of `yarn`"),
    "rope.scaling.yarn_beta_slow": neutral(1.0, note="of `yarn`"),
    "rope.scaling.yarn_ext_factor": neutral(1.0, -1.0),
    "rope.scaling.yarn_attn_factor": neutral(1.0),
    "rope.scaling.yarn_log_multiplier": _OFF,
    "rope.scaling.finetuned": HARMLESS,
    "rope.scaling.alpha": _OFF,
    "pooling_type": Rule(
        "how vectors are pooled: 0 (no vectors), 1 mean, 2 first, 3 last",
        (0, 1, 2, 3),
        is_read=True,
    ),
    "tensor_data_layout": neutral("Meta AI original pth"),
    "use_parallel_residual": neutral(False),
    "attn_logit_softcapping": _OFF,
    "final_logit_softcapping": _OFF,
    "logit_scale": neutral(1.0, 0),
    "residual_scale": neutral(1.0, 0),
    "embedding_scale": neutral(1.0, 0),
    **dict.fromkeys(
        (
            "expert_count",
            "expert_used_count",
            "expert_shared_count",
            "expert_feed_forward_length",
            "leading_dense_block_count",
            "nextn_predict_layers",
            "embedding_length_per_layer_input",
        ),
        _OFF,
    ),
}


def check_keys(
    metadata: Mapping[str, Any], family: Family, *, prefixes: Iterable[str], model: str
) -> None:
    """Refuse keys that change the result in an unsupported way.

    Args:
        metadata: of a GGUF file.
        family: the family whose table applies.
        prefixes: prefixes of the architecture's keys.
        model: name of the file in errors.

    Raises:
        Unsupported: names the first such key.
    """
    rules = COMMON | dict(family.gguf_keys)
    for prefix in prefixes:
        own = {
            key.removeprefix(f"{prefix}."): value
            for key, value in metadata.items()
            if key.startswith(f"{prefix}.")
        }
        check(own, rules, model=model, kind=family.title, below=f"{prefix}.")


def find_zero(metadata: Mapping[str, Any], family: Family) -> str:
    """The first key that is 0 and with which llama.cpp then computes nothing; empty if none is.

    Args:
        metadata: of a GGUF file, without the keys that llama.cpp ignores.
        family: the family of its architecture.
    """
    names = family.llama_cpp.nonzero if family.llama_cpp is not None else ()
    keys = (f"{family.architecture}.{name}" for name in names)
    return next((key for key in keys if metadata.get(key, 1) == 0), "")
