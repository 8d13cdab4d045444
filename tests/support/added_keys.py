"""Values of GGUF keys that change logits, and that the files of tiny models may lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import write_gguf
from edited_files import contents_of

from bitnet.families.family import of_gguf
from bitnet.families.keys import COMMON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bitnet.families.family import Family

_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
#: Keys of an architecture that are added together, with values that are not the defaults of an
#: engine. A key that has no effect without another one is beside it.
ADDED: tuple[dict[str, Any], ...] = (
    {"attention.causal": False},
    {"attention.clamp_kqv": 0.05},
    {"attention.layer_norm_epsilon": 0.1},
    {"attention.layer_norm_rms_epsilon": 0.1},
    {"attention.max_alibi_bias": 4.0},
    {"attention.output_scale": 0.3},
    {"attention.scale": 0.3},
    {"attention.sliding_window": 3},
    {"attention.sliding_window": 3, "attention.sliding_window_pattern": 2},
    {"attention.temperature_length": 4, "attention.temperature_scale": 0.2},
    {"attn_logit_softcapping": 0.5},
    {"embedding_scale": 3.0},
    {"expert_gating_func": 1},
    {"expert_gating_func": 2},
    {"expert_group_count": 3, "expert_group_used_count": 1},
    {"expert_group_count": 2, "expert_group_used_count": 1},
    {"expert_weights_norm": False},
    {"expert_weights_norm": True},
    {"expert_weights_scale": 1.7},
    {"final_logit_softcapping": 0.5},
    {"full_attention_interval": 1},
    {"hidden_activation": "gelu"},
    {"hidden_activation": "silu"},
    {"kda.gate_lower_bound": -1.0},
    {"logit_scale": 0.6},
    {"n_deepstack_layers": 1},
    {"residual_scale": 0.4},
    {"rope.dimension_count": 32},
    {"rope.dimension_count_swa": 32},
    {"rope.freq_base": 500.0},
    {"rope.freq_base_swa": 500.0},
    {"rope.scale_linear": 4.0},
    {"rope.scaling.alpha": 4.0},
    {"rope.scaling.attn_factor": 0.5},
    {"rope.scaling.factor": 4.0},
    {"rope.scaling.factor": 4.0, "rope.scaling.type": "linear"},
    {"rope.scaling.factor": 4.0, "rope.scaling.type": "none"},
    {"rope.scaling.finetuned": False},
    {"rope.scaling.finetuned": True},
    {"rope.scaling.original_context_length": 16},
    {"rope.scaling.yarn_log_multiplier": 0.07, **_YARN},
    {"router_logit_softcapping": 0.5},
    {"ssm.dt_b_c_rms": True},
    {"swiglu_clamp_exp": 0.05},
    {"swiglu_clamp_shexp": 0.05},
    {"use_parallel_residual": False},
    {"use_parallel_residual": True},
    {"vocab_size": 7},
    _YARN,
)


def added_keys(family: Family) -> list[dict[str, Any]]:
    """Those of :data:`ADDED` whose every key *family* knows."""
    known = COMMON.keys() | family.gguf_keys.keys()
    return [keys for keys in ADDED if keys.keys() <= known]


def with_keys_added(source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield names of keys that the family of the file *source* knows, and a copy with them.

    The copies are in *folder*. If the file has such a key, the copy has another value of it.
    """
    metadata, tensors = contents_of(source)
    architecture = metadata["general.architecture"]
    family = of_gguf(architecture)
    assert family is not None, "the tiny models are of known families"
    for number, keys in enumerate(added_keys(family)):
        own_keys = {f"{architecture}.{key}": value for key, value in keys.items()}
        yield (
            f"{', '.join(own_keys)}#{number}",
            write_gguf(folder / f"{number}.gguf", metadata | own_keys, tensors),
        )
