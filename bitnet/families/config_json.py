"""Read ``config.json`` by the table of its family: check every key, then map it to GGUF keys.

Keys have the meaning that transformers gives them. A key that transformers reads is read here, or
must have a value without effect; below ``rope_parameters`` and ``quantization_config`` every key
must be known. Other keys, which transformers ignores for this family, are ignored, unless their
name suggests a different computation (:data:`CHANGES`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.config_classes import (
    CLASSIFIES,
    check_classes,
    first_architecture,
    writes_text,
)
from bitnet.families.config_defaults import (
    THETA_IN_TABLES,
    list_defaults,
    with_defaults,
    with_usual_names,
)
from bitnet.families.config_values import ReadConfig, check_values, list_sizes
from bitnet.families.experts import expert_count
from bitnet.families.family import (
    Family,
    Parts,
    Values,
    architecture_refusal,
    families,
    of_model_type,
)
from bitnet.families.keys import (
    BECOMES,
    COMPARE,
    HARMLESS,
    Config,
    Rule,
    check,
    neutral,
    read,
    reads,
    refusal,
    split_ignored,
)
from bitnet.families.outer_models import text_keys
from bitnet.families.rope import (
    FORMULAS,
    OF_FAMILIES,
    PARAMETERS,
    Scaling,
    Tables,
    base_above_zero,
    refuse_unread,
    rope_parameters,
    rope_table,
    with_rope_type,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

#: Read for every family.
READ: dict[str, Rule] = {
    **reads("num_hidden_layers hidden_size intermediate_size num_attention_heads head_dim"),
    **reads("num_key_value_heads max_position_embeddings rms_norm_eps tie_word_embeddings"),
    **reads("rope_parameters rope_theta quantization_config is_causal"),
    "vocab_size": read("must be the rows of the embedding"),
    "rope_scaling": read("former name of `rope_parameters`"),
    "architectures": read(
        "must be a model that generates text, computes embeddings or scores labels"
    ),
    "auto_map": read("custom code is not run: it must name this family's class"),
}
_NOTHING = neutral(None, False, 0)
_ONE = neutral(None, 1.0)
#: Keys that change the computation in some family, and the values with which they change nothing.
CHANGES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "attention_bias", "mlp_bias", "use_bias", "qkv_bias", "attention_out_bias",
            "use_bidirectional_attention", "is_encoder_decoder", "add_cross_attention",
            "tie_encoder_decoder", "use_qk_norm", "qk_layernorm", "qk_norm", "use_sliding_window",
            "alibi", "use_alibi", "parallel_attn", "use_parallel_residual", "use_mrope",
            "rope_interleaved", "scale_embedding", "attn_temperature_tuning", "use_cla",
            "attention_sink", "use_attention_sinks", "attn_output_gate", "gated_attention",
            "multi_query", "new_decoder_architecture", "apply_residual_connection_post_layernorm",
            "use_rms_norm", "use_double_wide_mlp", "attention_k_eq_v", "per_layer_config",
        ),
        _NOTHING,
    ),
    **dict.fromkeys(
        (
            "attn_logit_softcapping", "final_logit_softcapping", "logit_softcapping",
            "query_pre_attn_scalar", "clip_qkv", "attention_chunk_size", "num_experts",
            "num_local_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
            "num_nextn_predict_layers", "llama_4_scaling_beta", "kv_lora_rank", "q_lora_rank",
            "num_kv_shared_layers", "hidden_size_per_layer_input", "no_rope_layer_interval",
            "sliding_window", "rope_local_base_freq", "mamba_d_state", "ssm_state_size",
            "conv_kernel", "mrope_section", "pruned_heads", "compression_config", "quantization",
            "cross_attention_layers", "sparsity_config", "activation_sparsity_pattern",
            "rotary_dim", "floor_scale", "attn_scale", "sliding_window_pattern",
        ),
        _NOTHING,
    ),
    **dict.fromkeys(
        (
            "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling",
            "logit_scale", "scale_emb", "scale_depth", "rotary_pct", "partial_rotary_factor",
        ),
        _ONE,
    ),
}  # fmt: skip
#: Of ``quantization_config``: ternary weights of BitNet.
QUANTIZATION: dict[str, Rule] = {
    "quant_method": neutral("bitnet"),
    **reads("linear_class quantization_mode modules_to_not_convert use_rms_norm"),
    "rms_norm_eps": read("must be the model's own"),
}
#: Of ``quantization_config``: blocks of MXFP4 (gpt-oss).
MXFP4: dict[str, Rule] = {
    "quant_method": neutral("mxfp4"),
    "modules_to_not_convert": HARMLESS,
    "dequantize": HARMLESS,
}
_BELOW = "quantization_config."
# A file without one of these is refused, unless transformers' class has a default for it.
_REQUIRED = ("hidden_size", "num_attention_heads", "max_position_embeddings")
_OF_ROPE = {"rope_theta", "rope_local_base_freq", "partial_rotary_factor"}
_EVERYWHERE = {"rope_type", "type", "rope_theta"}  # parameters of every kind of scaling
_EPS_OF_NORMS = 1e-6  # transformers' default if quantization_config does not give one
# GGUF's keys of floats, which a ``config.json`` may have as integers.
_FLOATS = (
    *("attention.scale", "embedding_scale", "residual_scale", "logit_scale"),
    *("expert_weights_scale", "final_logit_softcapping"),
)
# Lists of layers, and the entries that a family without such lists allows (1: the layer has RoPE).
_PLAIN_LAYERS: dict[str, set[Any]] = {"layer_types": {"full_attention"}, "no_rope_layers": {1}}


@dataclass(frozen=True)
class Description:
    """Content of a ``config.json`` in GGUF's terms."""

    family: Family  # the family whose table was used
    metadata: dict[str, Any]  # GGUF keys, including the architecture prefix
    freq_factors: dict[str, NDArray[Any]]  # frequency factors, as the tensors that GGUF has
    tied: bool  # the head shares its matrix with the embedding
    headless: bool  # the model computes embeddings, without a head
    classifies: bool  # the model scores labels of texts
    biases: frozenset[str]  # names of matrices that have biases, without their blocks
    vocab_size: int | None  # rows the embedding must have; ``None``: not specified
    # the next four are as in :class:`Family`, for this ``config.json``
    values: Values
    orders: Values
    parts: Parts
    factors: Mapping[str, float]
    quantization: Config  # ``quantization_config``, empty without ternary weights
    ignored: Config  # keys ignored on the user's request, with their values
    own_names: Mapping[str, str]  # keys of the file by those of GGUF, for messages
    config: Config  # the keys of the text model, with defaults and without ignored keys
    sizes: str  # the sizes that the file states, for messages

    def value(self, key: str) -> Any:
        """The family's own *key*, such as ``block_count``; ``None`` if there is none."""
        return self.metadata.get(f"{self.metadata['general.architecture']}.{key}")


def describe(outer: Config, *, model: str, ignore: Collection[str] = ()) -> Description:
    """Description of the language model in *outer*, a ``config.json``; keys must be supported.

    In a multimodal model its ``text_config`` counts. Keys to *ignore* are named with or without the
    tables that contain them. Errors name *model*.
    """
    try:
        config, quantization, ignored = _without_ignored(outer, ignore)
        return _describe(config, quantization, ignored)
    except (InvalidFormat, Unsupported) as error:
        raise type(error)(f"{model}: {error.message}", hint=error.hint) from None
    except KeyError as error:
        raise InvalidFormat(
            f"{model}: config.json has no {error.args[0]}, and transformers has no default for it",
            hint=COMPARE,
        ) from error
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InvalidFormat(f"{model}: config.json is wrong: {error}", hint=COMPARE) from error


def _describe(config: Config, quantization: Config, ignored: Config) -> Description:
    """Description of the text model whose keys are *config*, by the table of its family."""
    kind = config.get("model_type")
    class_name = first_architecture(config)
    family = of_model_type(kind, class_name, config) if isinstance(kind, str) else None
    if family is None:
        supported = (name for family in families() for name in family.model_types)
        raise architecture_refusal(str(kind or ""), supported, key="model_type")
    left_out = {key for key in family.nullable if config.get(key) is None}
    config = {key: value for key, value in config.items() if key not in left_out}
    rules = {**READ, **family.config_rules}
    config = with_usual_names(config, str(kind))
    check_values(config, {name for name, rule in rules.items() if rule.is_read})
    stated = config
    config = {**family.defaults, **config}
    config |= {name: config[alias] for alias, name in family.aliases.items() if alias in config}
    config = with_defaults(config, str(kind))
    _check_names(config, stated, family)
    for alias, name in family.aliases.items():
        if name not in config and alias in config:
            config[name] = config[alias]  # the default of the class has the other name
    own_names = {key: key for key in stated}
    own_names |= {name: alias for alias, name in family.aliases.items() if alias in stated}
    usual_nulls = {key for key, value in list_defaults(str(kind)).items() if value is None}
    read_config = ReadConfig(config, own_names, usual_nulls=usual_nulls)
    try:
        return _describe_for(
            read_config, stated, family, quantization or family.quantization, ignored
        )
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise read_config.wrong_value(error) from error


def _describe_for(
    config: ReadConfig, stated: Config, family: Family, quantization: Config, ignored: Config
) -> Description:
    """Description for *family* of *config*: the keys *stated* in the file, and defaults."""
    class_name = first_architecture(config)
    _check(config, family)
    if family.transposed_experts and quantization.get("quant_method") == "mxfp4":
        check(quantization, MXFP4, below=_BELOW)
        quantization = {}  # the names of the tensors tell which are MXFP4
    _check_quantization(quantization, config)
    keys = _translate(config, family)
    rope_keys, freq_factors = _rope(config, keys, family)
    keys = rope_keys | keys | _both_ways(config, keys)
    _check_complete(keys)
    biases = (part for key, part in family.biases.items() if not key or config.get(key))
    name = keys.pop("architecture", family.architecture)
    return Description(
        family=family,
        metadata={"general.architecture": name} | {f"{name}.{key}": v for key, v in keys.items()},
        freq_factors=freq_factors,
        tied=bool(config.get("tie_word_embeddings")),
        headless=family.encodes or not writes_text(config),
        classifies=class_name.endswith(CLASSIFIES),
        biases=frozenset().union(*biases),
        vocab_size=config.get("vocab_size"),
        values=family.values(config),
        orders=family.orders(config),
        parts=family.parts(config),
        factors=family.factors(config),
        quantization=quantization,
        ignored=ignored,
        own_names={f"{name}.{key}": own for key, own in _own_names(stated, family).items()},
        config=dict(config),
        sizes=list_sizes(stated),
    )


def _check_names(config: Config, stated: Config, family: Family) -> None:
    """Refuse a *stated* key in whose place the class reads another name, by default.

    Families compare keys of RoPE themselves, as tables have precedence over both names.
    """
    for alias, name in family.aliases.items():
        is_read = alias in stated or name not in stated or name in _OF_ROPE
        if not is_read and alias in config:
            refuse_unread(config, name, alias)


def _own_names(stated: Config, family: Family) -> dict[str, str]:
    """Names of keys in the file, which *stated* them, by the GGUF key that each becomes."""
    aliases = {name: alias for alias, name in family.aliases.items() if alias in stated}
    names = (*READ, *family.config_rules)
    return {
        BECOMES[name]: aliases.get(name, name)
        for name in names
        if name in BECOMES and (name in stated or name in aliases)
    }


def _without_ignored(
    outer: Config, ignore: Collection[str]
) -> tuple[dict[str, Any], Config, dict[str, Any]]:
    """Keys of the text model, its ``quantization_config``, and the keys ignored in both."""
    merged = text_keys(outer)
    merged.pop("text_config", None)
    config, ignored = split_ignored(merged, ignore)
    quantization = config.get("quantization_config") or {}
    if not isinstance(quantization, dict):
        raise refusal("quantization_config", quantization, "a table is expected")
    return config, quantization, ignored


def _translate(config: Config, family: Family) -> dict[str, Any]:
    """GGUF keys of *config*, without those of the position embedding."""
    keys = {
        rule.gguf: float(config[key]) if rule.gguf in _FLOATS else config[key]
        for key, rule in {**READ, **family.config_keys}.items()
        if rule.gguf and config.get(key) is not None
    }
    keys |= {"expert_count": expert_count(config)} | family.translate(config)
    if keys["expert_count"]:
        return keys
    return {key: value for key, value in keys.items() if not key.startswith("expert_")}


def _check(config: ReadConfig, family: Family) -> None:
    """Refuse a *config* with a missing key, or with a value that *family* does not compute."""
    rope = rope_parameters(config)
    if family.layered_rope:
        rope |= config.get("rope_parameters") or {}
    # a required key may be in the RoPE table, or in one of its tables for kinds of layers
    tables = config, rope, *(nested for nested in rope.values() if isinstance(nested, dict))
    for key in (*_REQUIRED, *family.stated.split()):
        if not any(key in table for table in tables):
            raise KeyError(key)
    rules = CHANGES | dict(family.config_rules)
    defaults = {**list_defaults(str(config.get("model_type"))), **family.defaults}
    for key in ("hidden_act", "hidden_activation"):
        allowed = rules.get(key) or neutral(None, family.activation)
        if not allowed.allows(config.get(key)):
            why = f"{family.title} is computed with {family.activation!r}"
            raise refusal(config.own_name(key), config[key], why)
    check_classes(config, family)
    for key, value in config.items():
        if key in READ:
            continue
        rule = rules.get(key)
        if key in _PLAIN_LAYERS and rule is None:
            if value is not None and not set(value) <= _PLAIN_LAYERS[key]:
                raise refusal(config.own_name(key), value)
        # an empty value counts as null
        elif rule is not None and not rule.allows(None if value in ([], {}, "") else value):
            # Without the key, transformers' default would count, which may be refused as well.
            is_ignorable = key not in defaults or rule.allows(defaults[key])
            own_name = config.own_name(key)
            raise refusal(own_name, value, rule=rule, is_ignorable=is_ignorable)


def _check_complete(keys: Config) -> None:
    """A TypeError for a null among GGUF *keys*, which would count as a missing key later."""
    for key, value in keys.items():
        if value is None or (isinstance(value, list) and None in value):
            raise TypeError(f"{key} is null")


def _both_ways(config: Config, keys: Config) -> dict[str, Any]:
    """The GGUF key of bidirectional attention if ``is_causal`` is false, else an empty dict."""
    value = config.get("is_causal")
    if value is None or value is True:
        return {}
    if value is not False or keys.get("attention.sliding_window"):
        why = "bidirectional attention is supported without windows only"
        raise refusal("is_causal", value, why)
    return {"attention.causal": False}


def _check_quantization(quantization: Config, config: Config) -> None:
    """Refuse a table *quantization* of *config* that does not describe BitNet's ternary weights."""
    check(quantization, QUANTIZATION, below=_BELOW)
    eps = quantization.get("rms_norm_eps", _EPS_OF_NORMS)
    if quantization.get("use_rms_norm") and eps != config["rms_norm_eps"]:
        why = f"only the model's own, {config['rms_norm_eps']}, is computed"
        raise refusal(f"{_BELOW}rms_norm_eps", eps, why)
    unconverted = quantization.get("modules_to_not_convert")
    are_texts = isinstance(unconverted, list) and all(isinstance(name, str) for name in unconverted)
    if unconverted is not None and not are_texts:
        raise InvalidFormat(
            f"config.json: {_BELOW}modules_to_not_convert is {unconverted!r:.80}, expected a list "
            "of texts",
            hint=COMPARE,
        )
    linear = quantization.get("linear_class", "bitlinear")
    mode = quantization.get("quantization_mode", "offline")
    if linear not in ("bitlinear", "autobitlinear") or mode not in ("online", "offline"):
        raise InvalidFormat(
            f"config.json: {_BELOW}linear_class is {linear!r:.80}, and quantization_mode "
            f"{mode!r:.80}",
            hint=COMPARE,
        )


def _rope(config: Config, keys: Config, family: Family) -> Tables:
    """GGUF keys and tensors of the position embedding; *keys* are the model's other GGUF keys."""
    if not family.rotates:
        for key in ("rope_parameters", "rope_scaling"):
            if config.get(key):
                raise refusal(key, config[key], f"{family.title} does not rotate positions")
        return {}, {}
    head_dim = keys.get("rope.dimension_count", keys.get("attention.key_length"))
    with_width = {**config, "head_dim": head_dim}
    if family.layered_rope:  # transformers reads this key only if all layers have one RoPE
        with_width.pop("original_max_position_embeddings", None)
    table = rope_table(config)
    try:
        return _rope_tables(with_width, family, table)
    except KeyError as error:
        raise InvalidFormat(f"config.json: {table} has no {error.args[0]}", hint=COMPARE) from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InvalidFormat(
            f"config.json: {table} describes no position embedding: {error}", hint=COMPARE
        ) from error


def _rope_tables(config: Config, family: Family, table: str) -> Tables:
    """GGUF keys and tensors of the position embedding; messages name its *table* in *config*."""
    parameters: Config = rope_parameters(config)
    window_keys: dict[str, Any] = {}
    if family.layered_rope:
        parameters, window_keys = _split_by_attention(config, family)
        if table == "rope_parameters" and not config.get("rope_scaling"):
            table = "rope_parameters.full_attention"
    parameters = {
        key: value for key, value in with_rope_type(parameters).items() if value is not None
    }
    if family.layered_rope and parameters.get("rope_theta", config.get("rope_theta")) is None:
        raise KeyError("rope_theta")
    kind = parameters.get("rope_type") or "default"
    if kind not in PARAMETERS or kind in {*OF_FAMILIES} - {*family.rope_scalings}:
        raise refusal(f"{table}.rope_type", kind, f"known are {', '.join(PARAMETERS)}")
    if family.layered_rope and parameters.get("truncate") is False:  # transformers ignores it here
        raise refusal("rope_parameters.full_attention.truncate", False)
    dims = _rotary_dims(config, parameters, family, table)
    names = {*_EVERYWHERE, *PARAMETERS[kind], *family.rope_parameters, "partial_rotary_factor"}
    unknown = {key: value for key, value in parameters.items() if key not in names}
    check(unknown, {}, below=f"{table}.")
    base = base_above_zero(parameters.get("rope_theta"), config.get("rope_theta"))
    scaled, tensors = FORMULAS[kind](Scaling(config, parameters, base, dims))
    if family.has_freq_factors:
        tensors = {"rope_freqs.weight": np.ones(dims // 2, dtype=np.float32)} | tensors
    return {"rope.freq_base": base, "rope.dimension_count": dims, **window_keys, **scaled}, tensors


def _split_by_attention(config: Config, family: Family) -> tuple[Config, dict[str, Any]]:
    """RoPE parameters of layers with full attention, and GGUF keys for those with windows."""
    scaling = config.get("rope_scaling")
    if scaling and not family.layered_scaling:
        why = "it is ignored in models of this class; `rope_parameters` is read"
        raise refusal("rope_scaling", scaling, why)
    nested = config.get("rope_parameters") or {}
    full = with_rope_type(nested.get("full_attention") or {})
    full |= with_rope_type(scaling or {})
    local = with_rope_type(nested.get("sliding_attention") or {})
    unknown_tables = nested.keys() - {"full_attention", "sliding_attention"}
    if unknown_tables:
        name = min(unknown_tables)
        raise refusal(f"rope_parameters.{name}", nested[name])
    key = "rope_parameters.sliding_attention"
    if (local.get("rope_type") or "default") != "default":
        raise refusal(key, local, "layers with a window support RoPE without scaling only")
    unread = {
        name: value
        for name, value in local.items()
        if name not in _EVERYWHERE
        and value is not None
        and not (name == "partial_rotary_factor" and family.partial_rotation)
    }
    check(unread, {}, below=f"{key}.")
    stated = config.get("rope_theta")
    are_whole = None not in (full.get("rope_theta"), local.get("rope_theta"))
    # For a type outside of THETA_IN_TABLES, every value is allowed.
    is_allowed = stated in (None, THETA_IN_TABLES.get(config.get("model_type", ""), stated))
    if not (are_whole or is_allowed):
        why = "in models of this class, not all layers read it: `rope_parameters` is read"
        raise refusal("rope_theta", stated, why)
    candidates = (
        local.get("rope_theta"),
        config.get("rope_local_base_freq"),
        config.get("rope_theta"),
    )
    if all(base is None for base in candidates):
        raise KeyError("sliding_attention.rope_theta")
    return full, {"rope.freq_base_swa": base_above_zero(*candidates)}


def _rotary_dims(config: Config, parameters: Config, family: Family, table: str) -> int:
    """Number of rotary dimensions of a head; *parameters* are those of *table* in *config*."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial is None or partial == 1.0 or parameters.get("rope_type") == "proportional":
        return int(head_dim)
    if not family.partial_rotation:
        why = "models of this family apply RoPE to whole heads"
        key = "partial_rotary_factor"
        raise refusal(f"{table}.{key}" if key in parameters else key, partial, why)
    return int(head_dim * partial)
