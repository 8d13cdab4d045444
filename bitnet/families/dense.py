"""The usual decoder, whose blocks are attention and a feed-forward network, and its windows.

A family calls :func:`dense` with its differences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.blocks import Attention, Block, Branch, Experts, FeedForward, Mixer, State
from bitnet.families.blocks import ModelConfig as ModelConfig  # for the families
from bitnet.families.keys import (
    Config,
    Keys,
    contradiction,
    reads,
    show,
    value_refusal,
    wrong_config,
)
from bitnet.families.rope import Rope, rope_from, without_scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Names of the norms before and behind attention, and before and behind the feed-forward network;
#: an empty name means that the norm is missing.
BEFORE = (("attn_norm", ""), ("ffn_norm", ""))
AFTER = (("", "post_attention_norm"), ("", "post_ffw_norm"))
AROUND = (("attn_norm", "post_attention_norm"), ("ffn_norm", "post_ffw_norm"))
# As BEFORE, in families whose second norm has the name that a norm behind attention has elsewhere.
RENAMED = (("attn_norm", ""), ("post_attention_norm", ""))

#: Rules for the keys of windows in ``config.json``.
WINDOW_CONFIG = reads("layer_types sliding_window")
_KINDS = {"sliding_attention": True, "full_attention": False}  # True: the layer has a window

Kind = TypeVar("Kind")

MAX_LAYERS = 4096  # a damaged file may state billions, and all their tensors would be listed


@dataclass(frozen=True)
class Sizes:
    """Sizes that every decoder has."""

    layers: int  # blocks
    dim: int  # width of the residual stream
    vocab_size: int  # rows of the embedding
    ffn: int  # width inside the feed-forward network


def sizes(keys: Keys, *, ffn: int | None = None) -> Sizes:
    """Sizes of the model.

    *ffn* is the width inside its feed-forward networks, by default ``feed_forward_length``. A file
    without a matrix of token embeddings is an InvalidFormat.
    """
    embedding = keys.weights.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        # a message about a folder has the tensor's usual name in folders
        name = "token_embd.weight" if keys.config is None else "embed_tokens.weight"
        raise InvalidFormat(
            f"{keys.path.name} has no matrix {name}: it is not a whole model",
            hint="pass the model's file, not a vocabulary or an adapter",
        )
    layers = layer_count(keys)
    dim = keys.integer("embedding_length")
    if ffn is None:
        has_experts = keys.value("expert_count", 0)  # then all layers may lack a plain network
        ffn = keys.integer("feed_forward_length", 0 if has_experts else ...)
    return Sizes(layers, dim, embedding.shape[0], ffn)


def layer_count(keys: Keys) -> int:
    """Number of layers; an InvalidFormat if it is above :data:`MAX_LAYERS`."""
    layers = keys.integer("block_count")
    if layers > MAX_LAYERS:
        raise contradiction(keys, f"{layers:,} layers, expected at most {MAX_LAYERS:,}")
    return layers


def per_layer(keys: Keys, key: str, layers: int, default: Any = ...) -> tuple[int, ...]:
    """The integers of *key*, one for each of *layers*; a single integer counts for all."""
    numbers = keys.value(key, default)
    if not isinstance(numbers, list):
        return (keys.integer(key, numbers),) * layers
    whole = all(
        isinstance(number, int) and not isinstance(number, bool) and number >= 0
        for number in numbers
    )
    if not whole or len(numbers) != layers:
        problem = f"does not have an integer for each of {layers:,} layers"
        raise contradiction(keys, f"{keys.own_name(key)} {problem}")
    return tuple(numbers)


def attention(keys: Keys, dim: int, *, kv_heads: int | None = None, **overrides: Any) -> Attention:
    """Attention of a layer, from the keys that all families have.

    *dim* is the width of the residual stream, *kv_heads* the layer's number of key heads if layers
    differ. *overrides* are fields of :class:`Attention` that replace those from the keys.
    """
    heads = keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", dim // max(heads, 1))
    value_dim = keys.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise Unsupported(
            f"{keys.path.name}: heads of {head_dim} with values of {value_dim}: only values "
            "as wide as keys are computed",
            hint="choose another model",
        )
    if kv_heads is None:
        kv_heads = keys.integer("attention.head_count_kv", heads)
    usual: dict[str, Any] = {"rope": rope_from(keys, head_dim), "scale": max(head_dim, 1) ** -0.5}
    return Attention(heads, kv_heads, head_dim, **(usual | overrides))


def is_fused(keys: Keys) -> bool:
    """True if query, key and value are one matrix, which llama.cpp reads in every family."""
    return "blk.0.attn_qkv.weight" in keys.weights


def check_parts(keys: Keys, *parts: str, key: str, is_expected: bool | None = None) -> None:
    """Refuse a folder whose layers have the tensors *parts* against the *key* of its config.json.

    *is_expected* says if the class has them by that key; None: if the key is true. A GGUF file has
    no such key, and its tensors alone decide.
    """
    if keys.config is None:
        return
    stated = keys.text_config.get(key)
    expected = bool(stated) if is_expected is None else is_expected
    for layer, part in product(range(keys.integer("block_count")), parts):
        name = f"blk.{layer}.{part}.weight"
        if expected != (name in keys.weights):
            there = f"no {part}.weight" if expected else keys.own_names.get(name, name)
            problem = f"layer {layer} has {there}, against {key} = {show(stated)}"
            raise contradiction(keys, problem)


def dense_as_stored(keys: Keys, **overrides: Any) -> ModelConfig:
    """ModelConfig of the usual blocks; query, key and value are one matrix if the file has it.

    *overrides* is as for :func:`dense`.
    """
    return dense(keys, fused=is_fused(keys), **overrides)


def dense(
    keys: Keys,
    *,
    norms: tuple[tuple[str, str], ...] = BEFORE,
    window: int = 0,
    period: int = 0,
    causal: bool = True,
    each: Callable[[int, Attention], Attention] = lambda _layer, attention: attention,
    residual_scale: float = 1.0,
    ffn: dict[str, Any] | None = None,
    mixture: Experts | None = None,
    model: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> ModelConfig:
    """ModelConfig of the usual blocks.

    *window*, *period* and *causal* are defaults for keys that the model may lack: the last layer of
    each *period* has full attention (0: none has), the others have the *window*.

    *norms* are the names of the norms before and behind each branch. *each* returns the attention
    of a layer, from its number and the usual one. *ffn* has fields of :class:`FeedForward`, *model*
    of :class:`ModelConfig`, *overrides* of :class:`Attention`. With a *mixture*, only the first
    ``leading_dense_block_count`` layers have a plain network.
    """
    model_sizes = sizes(keys)
    both_ways = not causal  # of the family, whatever the model's own key says
    causal = keys.flag("attention.causal", causal)
    window = keys.integer("attention.sliding_window", window)
    if window and not causal:
        window = window // 2 + 1  # half of it on each side, and the position itself
    usual = attention(keys, model_sizes.dim, **overrides)
    network = FeedForward(model_sizes.ffn, **(ffn or {}))
    dense_layers = keys.integer("leading_dense_block_count", 0) if mixture else model_sizes.layers
    blocks = (
        usual_block(
            each(layer, replace(usual, window=layer_window)),
            mixture if mixture and layer >= dense_layers else network,
            norms=norms,
            scale=residual_scale,
        )
        for layer, layer_window in enumerate(
            read_windows(
                keys, model_sizes.layers, period=period, window=window, both_ways=both_ways
            )
        )
    )
    return model_of(keys, model_sizes, blocks, causal=causal, **(model or {}))


def usual_block(
    mixer: Mixer, network: Mixer, *, norms: tuple[tuple[str, str], ...] = BEFORE, scale: float = 1.0
) -> Block:
    """Block of attention or another *mixer* of positions, then a *network*.

    *norms* are as for :func:`dense`, and the result of each branch is multiplied by *scale*.
    """
    (before, behind), (network_before, network_behind) = norms
    return (
        Branch(before, (mixer,), behind, scale),
        Branch(network_before, (network,), network_behind, scale),
    )


def model_of(
    keys: Keys, model_sizes: Sizes, blocks: Iterable[Block], **overrides: Any
) -> ModelConfig:
    """Model of *blocks*, with the fields that all families read alike.

    *overrides* are further fields of :class:`ModelConfig`. The last blocks are left out if they
    only draft tokens (``nextn_predict_layers``).
    """
    if "norm_eps" not in overrides:
        overrides["norm_eps"] = keys.number("attention.layer_norm_rms_epsilon")
    overrides.setdefault("causal", keys.flag("attention.causal", True))
    layers = max(model_sizes.layers - keys.integer("nextn_predict_layers", 0), 0)
    overrides["left_out"] = (
        *overrides.get("left_out", ()),
        *(f"blk.{layer}." for layer in range(layers, model_sizes.layers)),
    )
    model = ModelConfig(
        architecture=keys.architecture,
        dim=model_sizes.dim,
        vocab_size=model_sizes.vocab_size,
        context_length=keys.integer("context_length"),
        blocks=tuple(blocks)[:layers],
        **overrides,
    )
    if not model.causal and any(isinstance(cache, State) for cache in model.caches):
        why = "states look back only"
        raise value_refusal(keys, "attention.causal", False, why)
    return model


def rotate_windows(
    base: float | None = None, *, scaled: bool = False
) -> Callable[[int, Attention], Attention]:
    """For :func:`dense`: layers with windows have a RoPE of their own.

    Its base is *base*, or that of the other layers. It is not scaled, unless *scaled* is true: then
    its scaling is that of the other layers.
    """

    def local(rope: Rope) -> Rope:
        theta = rope.theta if base is None else base
        return replace(rope, theta=theta) if scaled else without_scaling(rope, theta=theta)

    return rotate_windows_by(local)


def rotate_windows_by(local: Callable[[Rope], Rope]) -> Callable[[int, Attention], Attention]:
    """For :func:`dense`: layers with windows have the RoPE that *local* makes of the usual one."""
    local = cache(local)  # layers with one usual RoPE share the local one, too

    def each(_layer: int, usual: Attention) -> Attention:
        return replace(usual, rope=local(usual.rope)) if usual.window and usual.rope else usual

    return each


def rotate_windows_only(_layer: int, usual: Attention) -> Attention:
    """For :func:`dense`: only layers with windows have RoPE."""
    return usual if usual.window else replace(usual, rope=None)


def rotate_but_last(period: int) -> Callable[[int, Attention], Attention]:
    """For :func:`dense`: all layers but the last of each *period* have RoPE."""

    def each(layer: int, usual: Attention) -> Attention:
        return usual if (layer + 1) % period else replace(usual, rope=None)

    return each


def local_base(keys: Keys) -> float:
    """Base of the RoPE of layers with windows, by default that of the other layers."""
    return keys.number("rope.freq_base_swa", keys.number("rope.freq_base", 10000.0))


def check_local_base(keys: Keys, base: float) -> None:
    """Refuse a RoPE base of layers with windows that is not *base*, the one of the other layers."""
    key = "rope.freq_base_swa"
    if (local := keys.number(key, base)) != base:
        why = f"only that of the other layers, {base:g}, is computed"
        raise value_refusal(keys, key, local, why)


def check_attention_factor(keys: Keys) -> None:
    """Refuse a GGUF file with a factor on rotated queries and keys.

    Families whose layers with windows are not scaled call it: llama.cpp would multiply by the
    factor in these layers, too.
    """
    key = "rope.scaling.attn_factor"
    factor = keys.number(key, 1.0)
    if keys.config is None and factor != 1:
        why = "llama.cpp multiplies by it in layers with windows, too"
        raise value_refusal(keys, key, factor, why)


def _check_file_with_windows(keys: Keys, *, both_ways: bool) -> None:
    """Refuse keys of a GGUF file that llama.cpp reads in another way in layers with windows.

    *both_ways* is true for families whose windows are on both sides.
    """
    key = "attention.causal"
    if not both_ways and keys.value(key, True) is False:
        why = "bidirectional attention is supported without windows only"
        raise value_refusal(keys, key, False, why, is_ignorable=False)
    key = "rope.scaling.factor"
    factor = keys.number(key, 1.0)
    if keys.value("rope.scaling.type", None) == "none" and factor not in (0, 1):
        why = "with the type none, llama.cpp scales layers with windows by it in some families"
        raise value_refusal(keys, key, factor, why)


def read_windows(
    keys: Keys,
    layers: int,
    *,
    period: int,
    window: int,
    last: bool = True,
    both_ways: bool = False,
) -> tuple[int, ...]:
    """Window of each layer, 0 for full attention.

    Without a key, one layer in each *period* has full attention: the *last*, or else the first.
    With a *period* of 0, all layers have the *window*. *both_ways* is true for families whose
    windows are on both sides.
    """
    key = "attention.sliding_window_pattern"
    pattern = keys.value(key, period)
    if isinstance(pattern, bool) or not isinstance(pattern, list | int):
        problem = f"is {show(pattern)}, expected a number or one entry a layer"
        raise contradiction(keys, f"{keys.own_name(key)} {problem}")
    if not isinstance(pattern, list):
        pattern = keys.integer(key, period)
        shift = 1 if last else 0
        pattern = [not pattern or (layer + shift) % pattern != 0 for layer in range(layers)]
    if len(pattern) != layers:
        problem = f"another number of layers: {len(pattern):,}, expected {layers:,}"
        raise contradiction(keys, f"{keys.own_name(key)} is for {problem}")
    windows = tuple(window if local else 0 for local in pattern)
    if any(windows) and keys.config is None:
        _check_file_with_windows(keys, both_ways=both_ways)
    return windows


def everywhere(config: Config) -> dict[str, Any]:
    """GGUF key of windows: all layers have the ``sliding_window`` (Mistral, Phi-3)."""
    return {"attention.sliding_window": _window(config)}


def from_first(config: Config) -> dict[str, Any]:
    """GGUF keys of windows, by ``layer_types`` or from layer ``max_window_layers`` on (Qwen)."""
    window = _window(config) if config.get("use_sliding_window") else 0
    pattern = window_pattern(config, window)
    if pattern is None:
        first = config["max_window_layers"] if window else 0
        pattern = [bool(window) and layer >= first for layer in range(config["num_hidden_layers"])]
    return {
        "attention.sliding_window": window,
        **({"attention.sliding_window_pattern": pattern} if window else {}),
    }


def alternating(default_period: int, key: str = "") -> Callable[[Config], dict[str, Any]]:
    """A function that makes the GGUF keys of windows from a ``config.json`` (Gemma).

    Layers have windows by ``layer_types``. Without it, all have one but the last of every
    *default_period* layers, or of the number at *key*.
    """

    def keys(config: Config) -> dict[str, Any]:
        window = _window(config)
        period = config.get(key) or default_period
        pattern = window_pattern(config, window)
        if pattern is None:
            pattern = [(layer + 1) % period != 0 for layer in range(config["num_hidden_layers"])]
        check_window(pattern, window)
        return {"attention.sliding_window": window, "attention.sliding_window_pattern": pattern}

    return keys


def _window(config: Config) -> int:
    """``sliding_window`` of a ``config.json``, 0 if it is null."""
    window: int | None = config["sliding_window"]
    return window or 0


def window_pattern(config: Config, window: int) -> list[bool] | None:
    """For each layer, True if it has a window by ``layer_types``; None if *config* lacks these."""
    pattern = layer_kinds(config, config.get("layer_types"), _KINDS)
    check_window(pattern, window)
    return pattern


def check_window(pattern: list[bool] | None, window: int) -> None:
    """Refuse a *pattern* with layers that have a window if the *window* of a folder is 0."""
    if pattern and any(pattern) and not window:
        raise wrong_config("layers with a window (layer_types), and no sliding_window")


def layer_kinds(config: Config, kinds: Any, meanings: Mapping[str, Kind]) -> list[Kind] | None:
    """For each layer, the value of *meanings* for its kind in *kinds*; None if *kinds* is None."""
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != config["num_hidden_layers"]:
        raise wrong_config(
            f"num_hidden_layers is {config['num_hidden_layers']}, and the list of the layers "
            f"(layer_types) has {len(kinds) if isinstance(kinds, list) else 'no'} entries"
        )
    unknown = [kind for kind in kinds if kind not in meanings]
    if unknown:
        raise wrong_config(f"a layer of the kind {unknown[0]!r:.80} in layer_types")
    return [meanings[kind] for kind in kinds]
