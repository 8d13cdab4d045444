"""A model on disk, as its family reads it, and the rules for its keys.

A key is *read*, *neutral* for certain values, or harmless with any value. Others are refused with
their name, their value and a way to continue nevertheless. In a GGUF file, every key of the
architecture must be known.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.base.invocation import shell_quote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

RopeStyle = Literal["interleaved", "half"]
Config: TypeAlias = Mapping[str, Any]  # a ``config.json``


#: Hint of errors about a folder. To fetch it again may not help: it may have been published so.
COMPARE = "compare the folder's files with those that the model's author publishes"
_CONFIG = "config.json"
_IGNORE_HINT = "choose another model, or, to compute as if the key were not there: --ignore-key {}"
_LARGEST = 2**32 - 1  # GGUF's integers of models are unsigned, of 32 bits
# Keys that may be one number for all layers or an array with one for each, as llama.cpp b11434
# reads them (``get_key_or_arr``).
_OF_LAYERS = {
    *("attention.head_count", "attention.head_count_kv"),
    *("expert_feed_forward_length", "expert_used_count", "feed_forward_length"),
}
# Third-party conversions of BitNet use other prefixes for their keys.
_PREFIXES_OF_BITNET = ("bitnet-b1.58", "bitnet", "llama")


@dataclass(frozen=True, eq=False)
class Keys:
    """A model on disk, as its family reads it: keys under GGUF's names, and tensors."""

    path: Path  # the file or folder
    architecture: str  # GGUF's ``general.architecture``
    metadata: Mapping[str, Any]  # GGUF keys; arrays are ``Array`` or lists
    weights: Mapping[str, Any]  # tensors by GGUF name, in file order
    # pairing of rotary dimensions: neighbours (``interleaved``), or element i and element i + half
    # (``half``)
    rope_style: RopeStyle
    # ``config.json`` as it is, if the container is a folder: for messages, and for what is not the
    # text model's
    config: Config | None = None
    # the keys of its text model as the family reads them: with defaults, without ignored keys
    text_config: Config = field(default_factory=dict)
    # the folder's own names of keys and tensors, by GGUF's; empty if the container is a file
    own_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes that the architecture's own keys may have."""
        spellings = _PREFIXES_OF_BITNET if self.architecture.startswith("bitnet") else ()
        return (self.architecture, *(name for name in spellings if name != self.architecture))

    def value(self, key: str, default: Any = ...) -> Any:
        """The architecture's own *key*, such as ``attention.head_count``; arrays as lists.

        A missing key is an InvalidFormat, unless there is a *default*.
        """
        for prefix in self.prefixes:
            value = self.metadata.get(f"{prefix}.{key}")
            if value is not None:
                return value if isinstance(value, str | int | float) else list(value)
        if default is not ...:
            return default
        raise InvalidFormat(
            f"{self.path.name}: the key {self.own_name(key)} is missing",
            hint="the file was converted incompletely; choose another conversion"
            if self.config is None
            else COMPARE,
        )

    def own_name(self, key: str) -> str:
        """Name of the architecture's own *key* in the container, for messages.

        In a folder, that is the key of ``config.json`` from which it is made.
        """
        if self.config is None:
            return f"{self.architecture}.{key}"
        name = self.own_names.get(f"{self.architecture}.{key}") or name_in_config(key, self.config)
        return f"{name} in {_CONFIG}"

    def integer(self, key: str, default: Any = ...) -> int:
        """The integer *key*, from 0 to 2**32 - 1; one for all layers if the file has one for each.

        Layers with different integers are Unsupported.
        """
        value = self.value(key, default)
        if isinstance(value, list) and key in _OF_LAYERS:
            value = self._common_value(key, value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            raise self._wrong_value(key, value, f"an integer from 0 to {_LARGEST:,}")
        return value

    def number(self, key: str, default: Any = ...) -> float:
        """The finite number *key*."""
        value = self.value(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= sys.float_info.max:  # also false for NaN
            raise self._wrong_value(key, value, "a finite number")
        return float(value)

    def factor(self, key: str, default: Any = ...) -> float:
        """The number *key*, or 0 if it is negative: llama.cpp then computes as without it."""
        return max(self.number(key, default), 0.0)

    def flag(self, key: str, default: Any = ...) -> bool:
        """The value of *key*, which must be true or false."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self._wrong_value(key, value, "true or false")
        return value

    def numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """The tensor *name* of this *shape*, dequantized; None if it does not exist."""
        raise NotImplementedError  # the checkpoint, a subclass, decodes tensors

    def row_count(self, name: str, default: int) -> int:
        """Rows of the matrix *name*, or *default* if it is missing.

        A tensor without dimensions is an InvalidFormat.
        """
        tensor = self.weights.get(name)
        if tensor is None:
            return default
        if not tensor.shape:
            own_name = self.own_names.get(name, name)
            raise contradiction(self, f"{own_name} is a single number, expected a matrix")
        rows: int = tensor.shape[0]
        return rows

    def tensor_name(self, name: str, usual_name: Callable[[str], str]) -> str:
        """The container's own name of the tensor that is GGUF's *name*, for messages.

        For a tensor that a folder lacks, it is the name of the same tensor in another layer, with
        the number of this layer. If no layer has it, *usual_name* makes a name from GGUF's.
        """
        if name in self.own_names or self.config is None:
            return self.own_names.get(name, name)
        block, _, suffix = name.removeprefix("blk.").partition(".")
        for sibling, own in self.own_names.items():
            number, _, part = sibling.removeprefix("blk.").partition(".")
            if part == suffix and sibling.startswith("blk.") and own.count(f".{number}.") == 1:
                return own.replace(f".{number}.", f".{block}.")
        if not name.startswith("blk."):
            return usual_name(name)
        return f"{usual_name(suffix)} of layer {block}"

    def _common_value(self, key: str, values: list[Any]) -> Any:
        """The one value that *values*, those of *key* in each layer, must all have."""
        layers = self.integer("block_count")
        if len(values) != layers:
            problem = f"has {len(values):,} entries, expected one for each of {layers:,} layers"
            raise contradiction(self, f"{self.own_name(key)} {problem}")
        if any(value != values[0] for value in values):
            label = f"{self.path.name}: {self.own_name(key)}"
            raise Unsupported(
                f"{label} differs between layers, which is not computed for this architecture",
                hint="choose another model",
            )
        return values[0] if values else 0

    def _wrong_value(self, key: str, value: Any, expected: str) -> InvalidFormat:
        name = self.own_name(key)
        return contradiction(self, f"the key {name} is {show(value)}, expected {expected}")


@dataclass(frozen=True)
class Rule:
    """Rule for one key."""

    note: str  # meaning of the key, for the documentation
    # accepted values, without effect unless *is_read*; ``None``: any value is accepted
    values: tuple[Any, ...] | None = None
    is_read: bool = False  # the computation follows it
    gguf: str = ""  # GGUF key that a key of ``config.json`` becomes unchanged

    def allows(self, value: Any) -> bool:
        """True if the model can be run exactly with *value*."""
        return self.values is None or any(_same(value, expected) for expected in self.values)

    def __str__(self) -> str:
        if self.is_read:
            return "read"
        if self.values is None:
            return "changes nothing"
        return "neutral when " + " or ".join(f"`{show(value)}`" for value in self.values)


HARMLESS = Rule("does not change what is computed")


def read(note: str) -> Rule:
    """Rule for a key that the computation follows."""
    return Rule(note, is_read=True)


def reads(names: str) -> dict[str, Rule]:
    """Rules for the keys *names*, separated by blanks, which the computation follows."""
    rules = {}
    for name in names.split():
        gguf = BECOMES.get(name, "")
        note = f"`{gguf}`" if gguf else ""
        rules[name] = Rule(note, is_read=True, gguf=gguf)
    return rules


def neutral(*values: Any, note: str = "") -> Rule:
    """Rule for a key without effect at one of *values*; other values are refused."""
    return Rule(note, values)


def check(
    config: Mapping[str, Any], rules: Mapping[str, Rule], *, model: str = _CONFIG, below: str = ""
) -> None:
    """Refuse the first key of *config* that the *rules* do not allow.

    In the message, the name of the key begins with *below*, which is the table it is in and a dot.
    """
    for key, value in config.items():
        rule = rules.get(key)
        if rule is None or not rule.allows(value):
            raise refusal(f"{below}{key}", value, rule=rule, model=model)


def refusal(
    key: str,
    value: Any,
    why: str = "",
    *,
    rule: Rule | None = None,
    model: str = _CONFIG,
    is_ignorable: bool = True,
) -> Unsupported:
    """Error for a key of *model* that changes the result in an unsupported way.

    The message gives the values that *rule* allows, or else *why* the value is refused. The hint
    names the option that leaves the key out, if that *is_ignorable*.
    """
    if rule is not None and rule.values is not None:
        why = f"only {' or '.join(show(value) for value in rule.values)} is computed"
    return Unsupported(
        f"{model}: {key} = {show(value)}: "
        f"{why or 'not a key that is known to leave the result alone'}",
        hint=_IGNORE_HINT.format(shell_quote(key)) if is_ignorable else "choose another model",
    )


def value_refusal(
    keys: Keys, key: str, value: Any, why: str, *, is_ignorable: bool = True
) -> Unsupported:
    """Error for the architecture's own *key*, whose *value* a family does not compute.

    *is_ignorable* is as in :func:`refusal`, and false for a key that the family requires. It does
    not count in a folder, where several keys of ``config.json`` may make up *key*.
    """
    label = keys.path.name
    if keys.config is None:
        return refusal(keys.own_name(key), value, why, model=label, is_ignorable=is_ignorable)
    return Unsupported(
        f"{label}: {keys.own_name(key)}, {show(value)}: {why}", hint="choose another model"
    )


def contradiction(keys: Keys, problem: str) -> InvalidFormat:
    """Error for keys or tensors that contradict each other."""
    hint = "the file is damaged; fetch it again" if keys.config is None else COMPARE
    return InvalidFormat(f"{keys.path.name}: {problem}", hint=hint)


def wrong_config(problem: str) -> InvalidFormat:
    """Error for values of ``config.json`` that do not fit together; *problem* names their keys.

    Functions that read a ``config.json`` raise it for what they check themselves. Any other
    exception in them is blamed on the last value that they read.
    """
    return InvalidFormat(f"{_CONFIG}: {problem}", hint=COMPARE)


def find_stated(config: Config, *names: str) -> Any:
    """The value of the first of *names* that *config* states; None if all are missing or null.

    An empty list is a value: the classes of transformers refuse one where layers are expected.
    """
    return next((config[name] for name in names if config.get(name) is not None), None)


def without(keys: Mapping[str, Any], ignored: Iterable[str], *, prefix: str = "") -> dict[str, Any]:
    """*keys* without the *ignored* keys, which are named with or without their table.

    In ``config.json``, *prefix* is the name of the table that *keys* are in, with a dot. In GGUF,
    the table is the architecture, and each of *keys* begins with it.
    """
    names = frozenset(ignored)
    return {
        key: value
        for key, value in keys.items()
        if not names & {key, f"{prefix}{key}", key.partition(".")[2] or key}
    }


def split_ignored(
    table: Any, ignored: Iterable[str], *, prefix: str = ""
) -> tuple[Any, dict[str, Any]]:
    """*table* without the *ignored* keys at every depth, and the ignored keys with their values.

    *ignored* and *prefix* are as in :func:`without`. The ignored keys are returned with the names
    of the tables that contain them. A *table* that is not a dict is returned as it is.
    """
    if not isinstance(table, dict):
        return table, {}
    remaining = without(table, ignored, prefix=prefix)
    left_out = {f"{prefix}{key}": table[key] for key in table.keys() - remaining.keys()}
    for key, value in remaining.items():
        remaining[key], below = split_ignored(value, ignored, prefix=f"{prefix}{key}.")
        left_out |= below
    return remaining, left_out


@dataclass(frozen=True)
class IgnoredKeys:
    """Keys to leave out of the files of a folder, and those that were left out."""

    names: Collection[str] = ()
    # values of the keys that were left out, by key behind the *prefix* of its file
    left_out: dict[str, Any] = field(default_factory=dict)

    def without(self, table: dict[str, Any], *, prefix: str = "") -> dict[str, Any]:
        """*table* without the keys to ignore, which are added to *left_out* with the *prefix*."""
        remaining, left_out = split_ignored(table, self.names, prefix=prefix)
        self.left_out.update(left_out)
        kept: dict[str, Any] = remaining
        return kept


def _same(value: Any, expected: Any) -> bool:
    """True if both are equal, where neither a flag nor null equals a number."""
    if isinstance(value, bool) or isinstance(expected, bool) or value is None or expected is None:
        return value is expected
    return bool(value == expected)


def show(value: Any) -> str:
    """*value* for a message: constants as in JSON, strings in quotes, cut to 80 characters."""
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = f'"{value}"'
    else:
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


#: GGUF keys whose value is that of a key of ``config.json``, by that key.
BECOMES = {
    "attention_multiplier": "attention.scale",
    "conv_L_cache": "shortconv.l_cache",
    "conv_kernel": "ssm.conv_kernel",
    "embedding_multiplier": "embedding_scale",
    "final_logit_softcapping": "final_logit_softcapping",
    "first_k_dense_replace": "leading_dense_block_count",
    "head_dim": "attention.key_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "kv_lora_rank": "attention.kv_lora_rank",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "logit_scale": "logit_scale",
    "logits_scaling": "logit_scale",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_num_heads": "ssm.time_step_rank",
    "max_position_embeddings": "context_length",
    "moe_intermediate_size": "expert_feed_forward_length",
    "moe_k": "expert_used_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_num_shared_experts": "expert_shared_count",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_group": "expert_group_count",
    "n_groups": "ssm.group_count",
    "n_shared_experts": "expert_shared_count",
    "norm_topk_prob": "expert_weights_norm",
    "num_attention_heads": "attention.head_count",
    "num_dense_layers": "leading_dense_block_count",
    "num_experts_per_tok": "expert_used_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "qk_rope_head_dim": "rope.dimension_count",
    "residual_multiplier": "residual_scale",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "routed_scaling_factor": "expert_weights_scale",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "ssm_state_size": "ssm.state_size",
    "top_k_experts": "expert_used_count",
    "topk_group": "expert_group_used_count",
    "v_head_dim": "attention.value_length_mla",
}

# Keys of ``config.json`` that other GGUF keys are computed from. A message names the first of them
# that the file has.
_COMPUTED_FROM = {
    "attention.head_count_kv": "num_key_value_heads layer_types layers_block_type",
    "attention.recurrent_layers": "layer_types full_attention_interval",
    "attention.rope_pattern": "layer_rope_theta",
    "attention.scale": "query_pre_attn_scalar attention_multiplier head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "layer_types sliding_window_pattern",
    "embedding_scale": "embedding_multiplier scale_emb scale_embedding",
    "expert_count": "num_experts num_local_experts n_routed_experts moe_num_experts",
    "feed_forward_length": "intermediate_size block_ff_dim n_inner hidden_size",
    "logit_scale": "logits_scaling logit_scale dim_model_base",
    "residual_scale": "residual_multiplier scale_depth",
    "rope.dimension_count": "partial_rotary_factor head_dim hidden_size",
    "rope.freq_base": "rope_theta rope_parameters rope_scaling",
    "rope.freq_base_swa": "rope_local_base_freq rope_parameters rope_scaling",
}


def name_in_config(key: str, config: Config) -> str:
    """The key of *config*, a ``config.json``, from which GGUF's *key* is made.

    In the *config* of an outer model, it may be below ``text_config``. If *config* has none of the
    keys that *key* can be made from, the first of them is returned.
    """
    inner = config.get("text_config")
    tables = (config, inner) if isinstance(inner, Mapping) else (config,)
    if key.startswith("rope.") and key not in _COMPUTED_FROM:
        names = ["rope_scaling", "rope_parameters"]
    else:
        names = _COMPUTED_FROM.get(key, "").split()
    names += [name for name, gguf in BECOMES.items() if gguf == key]
    for name in names:
        if any(name in table for table in tables):
            return name
    return names[0] if names else key.rpartition(".")[2]


_OFF = neutral(0, False, note="not computed")
#: Rules for the GGUF keys of every family.
COMMON: dict[str, Rule] = {
    **reads("block_count embedding_length feed_forward_length context_length attention.head_count"),
    **reads("attention.head_count_kv attention.key_length attention.layer_norm_rms_epsilon"),
    **reads("attention.sliding_window attention.sliding_window_pattern rope.dimension_count"),
    **reads("rope.freq_base rope.scale_linear rope.scaling.type rope.scaling.factor"),
    **reads("rope.scaling.original_context_length rope.scaling.attn_factor"),
    "vocab_size": HARMLESS,
    "attention.value_length": read("must be the width of a head"),
    "attention.layer_norm_epsilon": HARMLESS,
    "attention.scale": read(
        "on scores; except in Gemma and Granite one over the root of a head's width"
    ),
    "attention.causal": Rule("causal or bidirectional attention", (True, False), is_read=True),
    "rope.scaling.yarn_beta_fast": neutral(32.0),
    "rope.scaling.yarn_beta_slow": neutral(1.0),
    "rope.scaling.yarn_ext_factor": neutral(1.0, -1.0),
    "rope.scaling.yarn_attn_factor": neutral(1.0),
    "rope.scaling.finetuned": HARMLESS,
    "pooling_type": Rule(
        "0 (no vectors), 1 mean, 2 first, 3 last, 4 a classifier", (0, 1, 2, 3, 4), is_read=True
    ),
    "tensor_data_layout": neutral("Meta AI original pth"),
    "use_parallel_residual": neutral(False),
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale"), neutral(1.0, 0)),
    **dict.fromkeys(
        (
            *("attention.max_alibi_bias", "attention.clamp_kqv", "attention.shared_kv_layers"),
            *("attention.temperature_scale", "rope.scaling.yarn_log_multiplier"),
            *("rope.scaling.alpha", "attn_logit_softcapping", "final_logit_softcapping"),
            *("expert_count", "expert_used_count", "expert_shared_count"),
            *("expert_feed_forward_length", "leading_dense_block_count"),
            *("nextn_predict_layers", "embedding_length_per_layer_input"),
        ),
        _OFF,
    ),
}
