"""Kinds of the values in ``config.json``: each value is checked before it is used.

transformers 5 refuses an integer written as ``2.0``, a flag written as ``1``, and ``null`` if the
type in its class does not allow it. These checks refuse the same, by the name of the key. Sizes
have bounds, so that a wrong number cannot make a loop or an allocation huge.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.families.dense import MAX_LAYERS
from bitnet.families.keys import COMPARE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from bitnet.families.keys import Config

MAX_WIDTH = 2**24  # rows or columns of a matrix, far above those of every published model
MAX_POSITIONS = 2**31 - 1  # positions, and also tokens of a vocabulary
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_TABLES = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True)
class Kind:
    """A kind of value."""

    expected: str  # its description, for messages
    fits: Callable[[Any], bool]  # true for a value of this kind other than null
    may_be_null: bool = False

    def accepts(self, value: Any) -> bool:
        """True if *value* is of this kind."""
        return self.may_be_null if value is None else self.fits(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """True if *value* is a number that a double can store."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # also false for NaN


def _is_float32(value: Any) -> bool:
    """True if *value* is a number that a float32 can store, as factors on tensors are."""
    return is_finite(value) and abs(value) <= _LARGEST_FLOAT32


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _integer(least: int, most: int, *, may_be_null: bool = False) -> Kind:
    """Integers from *least* to *most*, both included."""

    def fits(value: Any) -> bool:
        return _is_integer(value) and least <= value <= most

    return Kind(f"an integer from {least:,} to {most:,}", fits, may_be_null)


def _number(
    condition: str = "", *, least: float = -sys.float_info.max, above: bool = False
) -> Kind:
    """Finite numbers *above* the *least*, or not below it; *condition* says which in messages."""

    def fits(value: Any) -> bool:
        return is_finite(value) and (value > least if above else value >= least)

    return Kind(f"a finite number{condition}", fits)


def _list_of(what: str, fits: Callable[[Any], bool], most: int = MAX_LAYERS) -> Kind:
    """Lists of at most *most* entries that *fits* accepts, called *what* in messages; or null."""

    def are_all(values: Any) -> bool:
        return isinstance(values, list) and len(values) <= most and all(map(fits, values))

    return Kind(f"a list of at most {most:,} {what}", are_all, may_be_null=True)


def _or_null(kind: Kind) -> Kind:
    """Values of *kind*, or null."""
    return Kind(f"{kind.expected}, or null", kind.fits, may_be_null=True)


def _are_shapes(value: Any) -> bool:
    """True for Gemma 4's ``per_layer_config``: tables of sizes, by the number of the layer."""
    return isinstance(value, dict) and all(
        number.isdecimal() and isinstance(shape, dict) and all(map(_SIZE.accepts, shape.values()))
        for number, shape in value.items()
    )


def _are_kinds(value: Any) -> bool:
    """True for GPT-Neo's ``attention_types``: lists of names, each with a number of repeats."""
    return isinstance(value, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], list)
        and len(pair[0]) <= MAX_LAYERS
        and all(map(_is_text, pair[0]))
        and _is_integer(pair[1])
        and 0 <= pair[1] <= MAX_LAYERS
        for pair in value
    )


def _are_widths(value: Any) -> bool:
    """True for a width of all layers, or a list with the width of each."""
    is_list = isinstance(value, list) and len(value) <= MAX_LAYERS
    return all(map(_COUNT.accepts, value)) if is_list else _COUNT.accepts(value)


_SIZE = _integer(1, MAX_WIDTH)
_COUNT = _integer(0, MAX_WIDTH)
_POSITIVE = _number(" above 0", least=0.0, above=True)
_NOT_NEGATIVE = _number(" of at least 0", least=0.0)
_FLAG = Kind("true or false", lambda value: isinstance(value, bool), may_be_null=True)
_FACTOR = Kind("a number that a float32 can store", _is_float32)
_NUMBERS = _list_of("numbers that a float32 can store", _is_float32, MAX_WIDTH)
_INTEGERS = _list_of("integers of at least 0", _COUNT.accepts)
_FLAGS = _list_of(
    "integers of at least 0, or true or false",
    lambda value: isinstance(value, bool) or _COUNT.accepts(value),
)
_LIMITS = _list_of("numbers or nulls", lambda value: value is None or _is_float32(value))
_TEXTS = _list_of("texts", _is_text)
_TABLE = Kind("an object", lambda value: isinstance(value, dict), may_be_null=True)
_SHARE = Kind("a number above 0, at most 1", lambda value: is_finite(value) and 0 < value <= 1)


def _of(kind: Kind, names: str) -> dict[str, Kind]:
    """The *kind* for each of *names*, which are separated by blanks."""
    return dict.fromkeys(names.split(), kind)


#: Kinds of the values of all keys that some family reads, by key.
KINDS: dict[str, Kind] = {
    **_of(
        _integer(1, MAX_LAYERS),
        "num_hidden_layers num_layers n_layer n_layers H_cycles L_cycles num_layers_per_stack "
        "num_loops",
    ),
    **_of(
        _integer(1, MAX_POSITIONS),
        "max_position_embeddings max_seq_len max_sequence_length model_max_length n_positions "
        "original_max_position_embeddings seq_length local_attention max_length "
        "max_trained_positions",
    ),
    "vocab_size": _integer(1, MAX_POSITIONS, may_be_null=True),
    **_of(
        _SIZE,
        "attention_head_dim block_multiple_of conv_L_cache conv_kernel hidden_size kv_lora_rank "
        "linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads "
        "linear_value_head_dim mamba_d_conv mamba_d_state mamba_expand mamba_head_dim "
        "linear_head_dim linear_num_heads "
        "mamba_n_groups mamba_n_heads mamba_num_heads n_groups no_rope_layer_interval "
        "num_attention_heads qk_nope_head_dim qk_rope_head_dim ssm_state_size "
        "v_head_dim full_attention_interval block_ff_dim n_embd n_head dim "
        "hidden_dim n_heads ffn_dim n_embed d_model rotary_dim "
        "kv_channels num_query_groups expand global_attn_every_n_layers moe_topk num_heads "
        "moe_top_k prefix_dense_sliding_window_pattern state_size window_size attn_layer_period "
        "expert_layer_period layer_group_size short_conv_kernel_size "
        "ffn_dim_divisor max_context_length model_dim n_shared_head "
        "num_transformer_layers",
    ),
    **_of(
        _COUNT,
        "type_vocab_size attn_layer_offset expert_layer_offset "
        "first_k_dense_replace pad_token_id max_window_layers moe_k moe_layer_start_index "
        "moe_num_shared_experts n_shared_experts num_dense_layers "
        "num_shared_experts moe_shared_expert_intermediate_size shared_expert_intermediate_size",
    ),
    **_of(
        _or_null(_COUNT),
        "global_head_dim head_dim hidden_size_per_layer_input mamba_d_ssm "
        "moe_intermediate_size moe_latent_size moe_num_experts n_routed_experts num_experts "
        "num_experts_per_tok num_global_key_value_heads num_key_value_heads num_kv_shared_layers "
        "num_local_experts num_nextn_predict_layers q_lora_rank shared_intermediate_size "
        "top_k_experts n_inner word_embed_proj_dim ffn_hidden_size "
        "num_ln_in_parallel_attn multi_query_group_num padded_vocab_size "
        "moe_every_n_layers num_expert_group num_experts_per_token prefix_dense_intermediate_size",
    ),
    **_of(_or_null(_SIZE), "dim_model_base n_group topk_group"),
    "intermediate_size": Kind(
        f"{_COUNT.expected}, one for each layer, or null", _are_widths, may_be_null=True
    ),
    "altup_active_idx": _COUNT,
    "altup_num_inputs": _SIZE,
    "moe_layer_end_index": _integer(-1, MAX_LAYERS),
    "sliding_window": _integer(1, MAX_POSITIONS, may_be_null=True),
    **_of(
        _NOT_NEGATIVE,
        "layer_norm_eps layer_norm_epsilon layernorm_epsilon mixer_rms_eps norm_eps norm_epsilon "
        "rms_norm_eps",
    ),
    **_of(
        _FACTOR,
        "attention_in_multiplier attention_multiplier attention_out_multiplier "
        "embedding_multiplier key_multiplier lm_head_multiplier logit_scale residual_multiplier "
        "moe_routed_scaling_factor route_scale router_scaling_factor routed_scaling_factor "
        "embedding_scale kda_lower_bound scale_emb "
        "embeddings_scale mup_embeddings_scale mup_output_alpha mup_width_scale width_scale "
        "ssm_in_multiplier ssm_out_multiplier",
    ),
    **_of(_POSITIVE, "initializer_range logits_scaling query_pre_attn_scalar rope_ratio"),
    "block_ffn_dim_multiplier": _or_null(_POSITIVE),
    "scale_depth": _or_null(_FACTOR),
    **_of(_or_null(_NOT_NEGATIVE), "attn_logit_softcapping final_logit_softcapping"),
    **_of(
        _or_null(_POSITIVE),
        "global_rope_theta local_rope_theta rope_freq_constant rope_local_base_freq rope_theta "
        "rotary_emb_base",
    ),
    **_of(_or_null(_SHARE), "partial_rotary_factor rotary_pct"),
    **_of(
        _FLAG,
        "attention_bias attention_k_eq_v attention_out_bias block_auto_adjust_ff_dim conv_bias "
        "enable_moe_block is_causal mamba_conv_bias mamba_norm_before_gate mamba_proj_bias "
        "mlp_bias norm_topk_prob prefix_lm projectors_bias tie_embedding tie_word_embeddings "
        "skip_loop_final_norm use_bias use_bidirectional_attention use_conv_bias "
        "use_double_wide_mlp use_qk_norm "
        "use_sliding_window use_parallel_residual use_qkv_bias qk_layernorm alibi bias "
        "multi_query new_decoder_architecture parallel_attn lm_head_bias "
        "add_bias_linear add_qkv_bias multi_query_attention mup_enabled qkv_bias scale_embedding "
        "linear_allow_neg_eigval mlp_fc1_bias mlp_fc2_bias moe_renormalize qkv_proj_bias "
        "use_post_norm scale_qk_dot_by_d share_input_output_layers",
    ),
    **_of(_TEXTS, "architectures layers_block_type lora_adaptations mlp_layer_types"),
    "layer_types": Kind(  # an empty list does not count as null: transformers refuses it
        f"a list of 1 to {MAX_LAYERS:,} texts",
        lambda value: _TEXTS.fits(value) and len(value) > 0,
        may_be_null=True,
    ),
    **_of(
        _NUMBERS,
        "activation_sparsity_pattern layer_rope_theta mlp_multipliers ssm_multipliers",
    ),
    **_of(_LIMITS, "expert_swiglu_limit_list share_expert_swiglu_limit_list"),
    **_of(_INTEGERS, "full_attn_idxs num_attention_heads_per_layer num_query_heads"),
    "no_rope_layers": _FLAGS,
    **_of(_TABLE, "attn_config linear_attn_config rope_parameters rope_scaling"),
    **_of(
        Kind("a text", _is_text),
        "activation activation_fn_name activation_function afn classifier_pooling "
        "expert_selection_fn hidden_activation shared_expert_combination_strategy",
    ),
    "topk_method": Kind("a text", _is_text, may_be_null=True),
    "attention_types": Kind("lists of kinds and their number", _are_kinds, may_be_null=True),
    "auto_map": Kind("an object or a text", lambda value: isinstance(value, dict | str), True),
    "hybrid_override_pattern": Kind(
        "a letter for each layer",
        lambda value: _is_text(value) and len(value) <= MAX_LAYERS,
        may_be_null=True,
    ),
    **_of(
        Kind('an integer or "auto"', lambda value: value == "auto" or _SIZE.accepts(value)),
        "mamba_d_head mamba_dt_rank time_step_rank",
    ),
    "per_layer_config": Kind("sizes of heads by numbers of layers", _are_shapes, may_be_null=True),
    "position_embedding_type": Kind("a text", _is_text, may_be_null=True),
    "quantization_config": Kind(
        "an object or a text", lambda value: isinstance(value, dict | str), may_be_null=True
    ),
    "ffn_multipliers": _list_of("numbers above 0", _POSITIVE.accepts),
    "num_kv_heads": Kind(
        "an integer of at least 0, a list of one for each layer, or null",
        lambda value: _COUNT.accepts(value) or (isinstance(value, list) and _INTEGERS.fits(value)),
        may_be_null=True,
    ),
    "sliding_window_pattern": Kind(
        "an integer or a text", lambda value: _is_text(value) or _COUNT.accepts(value), True
    ),
}
# Keys whose values are integers: they accept 1 but not 0.5, while other numbers accept both and
# flags accept neither.
_SIZES = {key for key, kind in KINDS.items() if kind.fits(1) and not kind.fits(0.5)}
# Kinds of the values in tables of ``config.json`` that a family reads, by the key of the table.
_KINDS_IN_TABLES: dict[str, dict[str, Kind]] = {
    "linear_attn_config": {
        **_of(_SIZE, "head_dim num_heads short_conv_kernel_size"),
        **_of(replace(_INTEGERS, may_be_null=False), "full_attn_layers kda_layers"),
    },
}
#: Kinds of the values below ``rope_parameters``; a null there counts as a missing key.
ROPE_KINDS: dict[str, Kind] = {
    **_of(
        _POSITIVE,
        "alpha attention_factor beta_fast beta_slow factor high_freq_factor long_mscale "
        "low_freq_factor rope_theta short_mscale",
    ),
    **_of(_number(), "llama_4_scaling_beta mscale mscale_all_dim"),
    **_of(_integer(1, MAX_POSITIONS), "max_position_embeddings original_max_position_embeddings"),
    "partial_rotary_factor": _SHARE,
    **_of(_list_of("numbers above 0", _POSITIVE.accepts, MAX_WIDTH), "long_factor short_factor"),
    **_of(_FLAG, "mrope_interleaved truncate"),
    **_of(_TABLE, "full_attention sliding_attention"),
    "mrope_section": _INTEGERS,
    **_of(Kind("a text", _is_text), "rope_type type"),
}


def check_values(config: Config, read: set[str]) -> None:
    """Refuse a value of the wrong kind, among the keys *read* of *config* and in its tables."""
    for key in sorted(read & config.keys()):
        _check_value(key, config[key], KINDS[key])
    for name in sorted(read & _KINDS_IN_TABLES.keys()):
        table = config.get(name) or {}
        for key in sorted(table.keys() & _KINDS_IN_TABLES[name].keys()):
            _check_value(f"{name}.{key}", table[key], _KINDS_IN_TABLES[name][key])
    for name in _TABLES:
        for key, value, kind in _rope_values(config.get(name), name):
            _check_value(key, value, kind)


class ReadConfig(dict[str, Any]):
    """A ``config.json`` that records which of its keys are read, so that an error can name one.

    *own_names* are the file's names of keys, by the names under which they are read, and
    *usual_nulls* the keys that are null by default, which a family must be able to read.
    """

    def __init__(
        self, config: Config, own_names: Mapping[str, str], *, usual_nulls: Collection[str]
    ) -> None:
        super().__init__(config)
        self._own_names = own_names
        self._usual_nulls = usual_nulls
        self._read: list[str] = []

    def __getitem__(self, key: str) -> Any:
        """Value of *key*, which is recorded if the file has it."""
        value = super().__getitem__(key)
        if key in self._own_names:
            self._read.append(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Value of *key*, or *default*."""
        if key not in self:
            return default
        return self[key]

    def own_name(self, key: str) -> str:
        """Name of *key* in the file; *key* itself if the file does not have it."""
        return self._own_names.get(key, key)

    def wrong_value(self, error: Exception) -> InvalidFormat:
        """Error for the value that ended a computation with *error*.

        It names the last value read that is null and is not null by default. If there is none,
        it names the last that is null, or else the last value read.
        """
        if not self._read:
            return InvalidFormat(f"config.json: {error}", hint=COMPARE)
        values = dict(self)
        nulls = [key for key in self._read if values[key] is None]
        unusual_nulls = [key for key in nulls if key not in self._usual_nulls]
        key = (unusual_nulls or nulls or self._read)[-1]
        problem = f"{self._own_names[key]} is {show_value(values[key])}"
        return InvalidFormat(
            f"config.json: {problem}, from which {values['model_type']} cannot be computed",
            hint=COMPARE,
        )


def list_sizes(config: Config) -> str:
    """Text for messages: the sizes that *config*, a ``config.json``, states."""
    inner = config.get("text_config")
    values = {**config, **inner} if isinstance(inner, dict) else config
    sizes = [
        f"{key} = {show_value(value)}"
        for key, value in values.items()
        if key in _SIZES and (value is None or _is_integer(value))
    ]
    return f"config.json says {', '.join(sizes) or 'no sizes'}"


def _rope_values(table: Any, name: str) -> Iterator[tuple[str, Any, Kind]]:
    """Names, values and kinds of the entries of a RoPE *table*, and of the tables in it."""
    for key, value in (table or {}).items():
        if isinstance(value, dict):
            yield from _rope_values(value, f"{name}.{key}")
        elif value is not None and key in ROPE_KINDS:
            yield f"{name}.{key}", value, ROPE_KINDS[key]


def _check_value(key: str, value: Any, kind: Kind) -> None:
    """Refuse a *value* that is not of the *kind* of its *key*."""
    if not kind.accepts(value):
        raise InvalidFormat(
            f"config.json: {key} is {show_value(value)}, expected {kind.expected}", hint=COMPARE
        )


def show_value(value: Any) -> str:
    """*value* for a message: constants as in JSON, cut to 80 characters."""
    if _is_integer(value) and abs(value) >= 10**30:
        return "an integer of more than 30 digits"  # str() fails from 4,301 digits on
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
