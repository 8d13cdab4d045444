"""The usual decoder: every block is attention, then a feed-forward network.

A family calls :func:`dense` with what it does differently.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.blocks import Attention, Block, Branch, FeedForward, ModelConfig
from bitnet.families.rope import rope_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bitnet.families.keys import Keys
    from bitnet.families.networks import Experts

__all__ = [
    "AFTER",
    "AROUND",
    "BEFORE",
    "Sizes",
    "attention",
    "dense",
    "model_of",
    "per_layer",
    "read_windows",
    "sizes",
]

#: Names of the norms before and behind attention, and before and behind the feed-forward network.
BEFORE = (("attn_norm", ""), ("ffn_norm", ""))
AFTER = (("", "post_attention_norm"), ("", "post_ffw_norm"))
AROUND = (("attn_norm", "post_attention_norm"), ("ffn_norm", "post_ffw_norm"))

MAX_LAYERS = 4096  # keeps a damaged file from making us list billions of tensors


@dataclass(frozen=True)
class Sizes:
    """Sizes that every decoder has.

    Attributes:
        layers: blocks.
        dim: width of the residual stream.
        vocab_size: rows of the embedding.
        ffn: width inside the feed-forward network.
    """

    layers: int
    dim: int
    vocab_size: int
    ffn: int


def sizes(keys: Keys, *, ffn: int | None = None) -> Sizes:
    """Sizes of the model, with networks *ffn* wide or as the key has it.

    Raises:
        InvalidFormat: a key or the embedding is missing or impossible.
    """
    embedding = keys.weights.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise InvalidFormat(
            f"{keys.path.name} has no matrix token_embd.weight: it is not a whole model",
            hint="pass the model's file, not a vocabulary or an adapter",
        )
    layers = keys.integer("block_count")
    if layers > MAX_LAYERS:
        raise InvalidFormat(
            f"{keys.path.name}: {layers:,} layers, expected at most {MAX_LAYERS:,}",
            hint="the file is damaged; fetch it again",
        )
    dim = keys.integer("embedding_length")
    if ffn is None:
        has_experts = keys.value("expert_count", 0)  # it may have no other network
        ffn = keys.integer("feed_forward_length", *((0,) if has_experts else ()))
    return Sizes(layers, dim, embedding.shape[0], ffn)


def per_layer(keys: Keys, key: str, layers: int, default: Any = ...) -> tuple[int, ...]:
    """The integers of *key*, one for each of *layers*; a single one is that of all.

    Raises:
        InvalidFormat: they are missing, too few or too many, or not integers.
    """
    numbers = keys.value(key, *(() if default is ... else (default,)))
    if not isinstance(numbers, list):
        return (keys.integer(key, numbers),) * layers
    whole = all(isinstance(it, int) and not isinstance(it, bool) and it >= 0 for it in numbers)
    if not whole or len(numbers) != layers:
        raise InvalidFormat(
            f"{keys.path.name}: {key} does not have an integer for each of {layers:,} layers",
            hint="the file is damaged; fetch it again",
        )
    return tuple(numbers)


def attention(keys: Keys, dim: int, *, kv_heads: int | None = None, **more: Any) -> Attention:
    """Attention of a layer, with *more* fields, as all families read its keys.

    Args:
        keys: the model.
        dim: width of the residual stream.
        kv_heads: of this layer, where layers differ.
        more: fields of :class:`Attention`.

    Raises:
        Unsupported: values are not as wide as keys.
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
    return Attention(heads, kv_heads, head_dim, **(usual | more))


def dense(
    keys: Keys,
    *,
    norms: tuple[tuple[str, str], ...] = BEFORE,
    window: int = 0,
    period: int = 0,
    each: Callable[[int, Attention], Attention] = lambda _layer, attention: attention,
    residual_scale: float = 1.0,
    ffn: dict[str, Any] | None = None,
    network: Callable[[int, FeedForward], FeedForward | Experts] | None = None,
    **more: Any,
) -> ModelConfig:
    """ModelConfig of the usual blocks.

    Args:
        keys: the model.
        norms: names before and behind each branch.
        window: window of layers that have one, if no key gives it.
        period: the last layer of each *period* has full attention; 0: none.
        each: attention of a layer, from its number and the usual one.
        residual_scale: factor on the outputs of attention and feed-forward.
        ffn: fields of :class:`FeedForward`.
        network: that of a layer, or experts, from its number and the usual one; the usual one by
            default.
        more: fields of :class:`Attention`.
    """
    model_sizes = sizes(keys)
    causal = bool(keys.value("attention.causal", True))
    window = keys.integer("attention.sliding_window", window)
    if window and not causal:
        window = window // 2 + 1  # half of it on each side
    usual = attention(keys, model_sizes.dim, **more)
    usual_network = FeedForward(model_sizes.ffn, **(ffn or {}))
    (before, behind), (ffn_before, ffn_behind) = norms

    def block(layer: int, its_window: int) -> Block:
        mixer = each(layer, replace(usual, window=its_window))
        its_network = network(layer, usual_network) if network else usual_network
        return (
            Branch(before, (mixer,), behind, residual_scale),
            Branch(ffn_before, (its_network,), ffn_behind, residual_scale),
        )

    local = read_windows(keys, model_sizes.layers, period=period, window=window)
    blocks = (block(layer, its) for layer, its in enumerate(local))
    return replace(model_of(keys, model_sizes, blocks), causal=causal)


def model_of(keys: Keys, its: Sizes, blocks: Iterable[Block], **more: Any) -> ModelConfig:
    """Model of *blocks*, with what all families read in the same way, and *more* fields."""
    if "norm_eps" not in more:
        more["norm_eps"] = keys.number("attention.layer_norm_rms_epsilon")
    return ModelConfig(
        architecture=keys.architecture,
        dim=its.dim,
        vocab_size=its.vocab_size,
        context_length=keys.integer("context_length"),
        blocks=tuple(blocks),
        **more,
    )


def read_windows(keys: Keys, layers: int, *, period: int, window: int) -> tuple[int, ...]:
    """Window of each layer; by default the last layer of each *period* has none."""
    pattern = keys.value("attention.sliding_window_pattern", period)
    if isinstance(pattern, bool) or not isinstance(pattern, list | int):
        raise InvalidFormat(
            f"{keys.path.name}: attention.sliding_window_pattern is {pattern!r}, expected a "
            "number or one entry a layer",
            hint="the file is damaged; fetch it again",
        )
    if not isinstance(pattern, list):
        pattern = keys.integer("attention.sliding_window_pattern", period)
        pattern = [not pattern or (layer + 1) % pattern != 0 for layer in range(layers)]
    if len(pattern) != layers:
        raise InvalidFormat(
            f"{keys.path.name}: attention.sliding_window_pattern is for another number of layers: "
            f"{len(pattern):,}, expected {layers:,}",
            hint="the file is damaged; fetch it again",
        )
    return tuple(window if local else 0 for local in pattern)
