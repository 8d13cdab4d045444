"""Configuration of a decoder: the data in which families differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bitnet.errors import InvalidFormat, Unsupported
from bitnet.families.rope import Rope, rope_from
from bitnet.families.rules import refusal
from bitnet.formats.checkpoint import has_input_norms
from bitnet.formats.sentence_transformers import POOLINGS

if TYPE_CHECKING:
    from bitnet.families.family import Family
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Activation

__all__ = ["Pooling", "TransformerConfig", "config_of"]

Pooling = Literal["none", "mean", "cls", "last"]

MAX_SCALE = 200.0  # of scores: those of the longest queries and keys stay within float32
CAPS = 1e-3, 1e3  # soft caps; a larger one takes digits from what it caps
MAX_LAYERS = 4096  # keeps a damaged file from making us list billions of tensors


@dataclass(frozen=True, eq=False)
class TransformerConfig:
    """A decoder-only transformer.

    Attributes:
        architecture: GGUF's name for the family.
        n_layers: number of blocks.
        dim: width of the residual stream.
        n_heads: query heads.
        n_kv_heads: key and value heads; each serves ``n_heads / n_kv_heads`` query heads.
        head_dim: width of a head.
        ffn_dim: width inside the feed-forward network.
        vocab_size: rows of the token embedding.
        context_length: positions the model was trained for.
        norm_eps: epsilon of every RMS norm.
        rope: position embedding of layers with full attention.
        attention_scale: factor on attention scores, at most 200.
        windows: per layer, positions a query attends to, to each side with itself; 0: all.
        local_rope: position embedding of layers with a window, where it differs (Gemma 3).
        activation: activation function of the gate.
        gated: the feed-forward network is a GLU; if not, the activation is on ``up`` (Arcee).
        attention_softcap: soft cap on attention scores, 0.001 to 1,000; 0: none.
        final_softcap: soft cap on logits, 0.001 to 1,000; 0: none.
        embedding_scale: factor on embeddings.
        fused: query, key and value in one matrix, gate and up in another (Phi-3).
        ffn_norm: name of the norm before the feed-forward network.
        qkv_bias: biases the family must have; others may still have them.
        qk_norm: RMS norms on each query and key head.
        wide_qk_norm: one RMS norm on the whole query and one on the whole key (OLMo 2).
        pre_norms: RMS norms before attention and feed-forward.
        rotated: per layer, true if RoPE is applied; empty: to all layers.
        residual_scale: factor on the outputs of attention and feed-forward (Granite).
        logit_scale: factor on logits (Granite).
        temperature: growth of the query scale with the position (Ministral 3); 0: none.
        temperature_length: positions between two steps of that growth.
        sub_norms: RMS norms before the output projections (BitNet).
        post_norms: RMS norms after attention and feed-forward (Gemma).
        causal: positions attend only to those before them.
        pooling: how hidden states are pooled to an embedding; ``none``: it generates text.
        input_norms: each projection of a block has an RMS norm on its input (BitNet embeddings).
    """

    architecture: str
    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope: Rope
    attention_scale: float
    windows: tuple[int, ...]
    local_rope: Rope | None = None
    activation: Activation = "silu"
    gated: bool = True
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    embedding_scale: float = 1.0
    fused: bool = False
    ffn_norm: str = "ffn_norm"
    qkv_bias: bool = False
    qk_norm: bool = False
    wide_qk_norm: bool = False
    pre_norms: bool = True
    rotated: tuple[bool, ...] = ()
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    temperature: float = 0.0
    temperature_length: int = 1
    sub_norms: bool = False
    post_norms: bool = False
    input_norms: bool = False
    causal: bool = True
    pooling: Pooling = "none"

    @property
    def writes(self) -> bool:
        """True if the model generates text; otherwise it computes embeddings."""
        return self.causal and self.pooling == "none"

    def regime(self, reach: int) -> tuple[int, ...]:
        """Key of the RoPE frequencies for a prompt; prompts with equal keys can share a cache."""
        ropes = (self.rope, self.local_rope) if self.local_rope else (self.rope,)
        return tuple(rope.regime(reach) for rope in ropes)

    def __post_init__(self) -> None:
        for holds, said in (
            (min(self.n_layers, self.dim, self.ffn_dim, self.head_dim) >= 1, "a size below 1"),
            (self.vocab_size >= 1 and self.context_length >= 1, "no vocabulary or no context"),
            (self.n_heads >= 1 and self.n_kv_heads >= 1, "no heads"),
            (not self.n_heads % max(self.n_kv_heads, 1), "key heads that do not divide the heads"),
            (len(self.windows) == self.n_layers, "windows for another number of layers"),
            (4 <= self.rope.dims <= self.head_dim, "rotary dimensions outside of 4..head width"),
            (not self.rope.dims % 2, "an odd number of rotary dimensions"),
            (self.rope.theta > 1, "a rope_theta of at most 1"),
            (self.rope.original_context >= 2, "an original context below 2"),
            (self.temperature_length >= 1, "queries that grow after no positions"),
            (abs(self.attention_scale) <= MAX_SCALE, f"scores times more than {MAX_SCALE:g}"),
            (
                all(
                    not cap or CAPS[0] <= cap <= CAPS[1]
                    for cap in (self.attention_softcap, self.final_softcap)
                ),
                f"a soft cap outside of {CAPS[0]:g} to {CAPS[1]:,g}",
            ),
        ):
            if not holds:
                raise InvalidFormat(
                    f"{self.architecture}: the keys make no transformer: {said} "
                    f"({self.n_layers} layers of width {self.dim}, {self.n_heads} heads of "
                    f"{self.head_dim}, {self.n_kv_heads} key heads, {self.rope.dims} rotated)",
                    hint="the file is damaged; fetch it again",
                )


def config_of(checkpoint: Checkpoint, family: Family) -> TransformerConfig:
    """Configuration of *checkpoint* from its keys and its family's fields.

    Raises:
        Unsupported: a key has a value that is not supported.
        InvalidFormat: a key or the embedding is missing.
    """
    block = dict(family.block)
    window, period = block.pop("window", 0), block.pop("period", 0)
    fields = _base(checkpoint, default_window=window, period=period) | block
    fields |= family.configure(checkpoint, fields)
    if not family.gguf_keys.get("attention.scale"):
        _check_scale(checkpoint, family, fields["attention_scale"])
    return TransformerConfig(**fields)


def _check_scale(checkpoint: Checkpoint, family: Family, usual: float) -> None:
    """Refuse an unusual attention scale or width of values that no member of the family has."""
    found = checkpoint.number("attention.scale", usual)
    if found and abs(found - usual) > 1e-4 * usual:
        raise refusal(
            f"{checkpoint.architecture}.attention.scale",
            found,
            model=checkpoint.path.name,
            kind=family.title,
            why=f"only {usual:g}, one over the root of the head's width, is computed",
        )


def _base(checkpoint: Checkpoint, *, default_window: int, period: int) -> dict[str, Any]:
    """The fields that every family reads in the same way.

    Args:
        checkpoint: the model.
        default_window: window of layers that have one, if no key gives it.
        period: one in *period* layers has full attention; 0: none.
    """
    embedding = checkpoint.weights.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise InvalidFormat(
            f"{checkpoint.path.name} has no matrix token_embd.weight: it is not a whole model",
            hint="pass the model's file, not a vocabulary or an adapter",
        )
    layers = checkpoint.integer("block_count")
    if layers > MAX_LAYERS:
        raise InvalidFormat(
            f"{checkpoint.path.name}: {layers:,} layers, expected at most {MAX_LAYERS:,}",
            hint="the file is damaged; fetch it again",
        )
    dim = checkpoint.integer("embedding_length")
    heads = checkpoint.integer("attention.head_count")
    head_dim = checkpoint.integer("attention.key_length", dim // max(heads, 1))
    window = checkpoint.integer("attention.sliding_window", default_window)
    causal = bool(checkpoint.value("attention.causal", True))
    if window and not causal:
        window = window // 2 + 1  # half of it on each side
    value_dim = checkpoint.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise Unsupported(
            f"{checkpoint.path.name}: heads of {head_dim} with values of {value_dim}: only values "
            "as wide as keys are computed",
            hint="choose another model",
        )
    return {
        "architecture": checkpoint.architecture,
        "n_layers": layers,
        "dim": dim,
        "n_heads": heads,
        "n_kv_heads": checkpoint.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "ffn_dim": checkpoint.integer("feed_forward_length"),
        "vocab_size": embedding.shape[0],
        "context_length": checkpoint.integer("context_length"),
        "norm_eps": checkpoint.number("attention.layer_norm_rms_epsilon"),
        "rope": rope_from(checkpoint, head_dim),
        "attention_scale": max(head_dim, 1) ** -0.5,
        "windows": _windows(checkpoint, layers, period=period, window=window),
        "causal": causal,
        "pooling": POOLINGS[checkpoint.integer("pooling_type", 0)],
        "input_norms": has_input_norms(checkpoint.weights),
    }


def _windows(checkpoint: Checkpoint, layers: int, *, period: int, window: int) -> tuple[int, ...]:
    """Window of each layer; by default the last layer of each *period* has none."""
    pattern = checkpoint.value("attention.sliding_window_pattern", period)
    if isinstance(pattern, bool) or not isinstance(pattern, list | int):
        raise InvalidFormat(
            f"{checkpoint.path.name}: attention.sliding_window_pattern is {pattern!r}, expected a "
            "number or one entry a layer",
            hint="the file is damaged; fetch it again",
        )
    if not isinstance(pattern, list):
        pattern = checkpoint.integer("attention.sliding_window_pattern", period)
        pattern = [not pattern or (layer + 1) % pattern != 0 for layer in range(layers)]
    return tuple(window if local else 0 for local in pattern)
