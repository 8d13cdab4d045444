"""The decoder-only transformer every family is a configuration of.

    block:  x += post_norm(attention(attn_norm(x)));  x += post_norm(ffn(ffn_norm(x)))

Parts a family does not have are absent from its tensors. Shapes: T new tokens, H query heads, D
width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from bitnet.errors import InferenceError, UsageError
from bitnet.models.binding import bind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Array, Ops, Prepared
    from bitnet.models.config import TransformerConfig
    from bitnet.models.rope import Rope

__all__ = ["Cache", "Model"]


class Cache(Protocol):
    """Keys and values of the positions seen so far; ``runtime.kv_cache`` has the real one.

    Attributes:
        length: positions stored.
        capacity: positions there is room for.
    """

    length: int
    capacity: int

    def append(self, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Store ``(T, kv_heads, D)`` behind the positions of *layer*; all ``(kv_heads, S, D)``."""

    def advance(self, count: int) -> None:
        """Count *count* positions that every layer has appended."""


class Model:
    """A transformer bound to its weights and a backend.

    Attributes:
        config: what it is.
        ops: what computes it.
    """

    def __init__(self, checkpoint: Checkpoint, config: TransformerConfig, *, ops: Ops) -> None:
        """Bind the weights of *checkpoint*.

        Raises:
            InvalidFormat: tensors are missing, unexpected or of the wrong shape.
            Unsupported: *ops* has no kernel for an encoding.
        """
        self.config = config
        self.ops = ops
        self._weights = bind(checkpoint, config, ops)
        self._head = self._weights.get("output.weight", self._weights["token_embd.weight"])

    def forward(
        self, tokens: Sequence[int], cache: Cache, *, all_positions: bool = False
    ) -> NDArray[np.floating]:
        """Logits after *tokens*, which continue what *cache* holds; it holds them afterwards.

        Args:
            tokens: T token ids, at least one.
            cache: positions seen before.
            all_positions: logits after every one of *tokens*, not only after the last.

        Returns:
            ``(T, vocab_size)`` or ``(1, vocab_size)``.

        Raises:
            UsageError: no tokens, or an id outside the vocabulary.
            InferenceError: the cache has no room for them.
        """
        self._check(tokens, cache)
        config, ops, weights = self.config, self.ops, self._weights
        x = ops.embed(weights["token_embd.weight"], tokens)  # (T, dim)
        if config.embedding_scale != 1.0:
            x = x * x.dtype.type(config.embedding_scale)
        rotation = self._rotation(config.rope, len(tokens), cache)
        local = rotation
        if config.local_rope is not None:
            local = self._rotation(config.local_rope, len(tokens), cache)
        for layer in range(config.n_layers):
            angles = local if config.windows[layer] else rotation
            x = x + self._attention(layer, x, angles, cache)
            x = x + self._feed_forward(layer, x)
        cache.advance(len(tokens))
        if not all_positions:
            x = x[-1:]
        x = ops.rms_norm(x, weights["output_norm.weight"], config.norm_eps)
        logits = ops.linear(x, self._head, weights.get("output.bias"))
        if config.final_softcap:
            logits = ops.softcap(logits, config.final_softcap)
        return logits

    def _check(self, tokens: Sequence[int], cache: Cache) -> None:
        if not len(tokens):
            raise UsageError("there are no tokens to run the model on", hint="pass some text")
        size = self.config.vocab_size
        outside = next((token for token in tokens if not 0 <= token < size), None)
        if outside is not None:
            raise UsageError(
                f"token id {outside} is outside the model's vocabulary of {size:,}",
                hint="use the model's own tokenizer",
            )
        if cache.length + len(tokens) > cache.capacity:
            raise InferenceError(
                f"{cache.length + len(tokens):,} positions, the context holds {cache.capacity:,}",
                hint="shorten the prompt or raise the context size",
            )

    def _rotation(self, rope: Rope, count: int, cache: Cache) -> tuple[Array, float]:
        frequencies, scale = rope.frequencies(cache.capacity)
        positions = np.arange(cache.length, cache.length + count, dtype=np.float64)
        return positions[:, None] * frequencies, scale  # (T, pairs)

    def _linear(self, x: Array, name: str) -> Array:
        return self.ops.linear(x, self._weights[f"{name}.weight"], self._bias(name))

    def _bias(self, name: str) -> Prepared | None:
        return self._weights.get(f"{name}.bias")

    def _norm(self, x: Array, name: str) -> Array:
        """*x* normed by the weight *name*, as it is where the family has no such norm."""
        weight = self._weights.get(f"{name}.weight")
        return x if weight is None else self.ops.rms_norm(x, weight, self.config.norm_eps)

    def _attention(
        self, layer: int, x: Array, rotation: tuple[Array, float], cache: Cache
    ) -> Array:
        config, ops, block = self.config, self.ops, f"blk.{layer}"
        style = config.rope.style
        angles, scale = rotation
        q, k, v = self._queries_keys_values(self._norm(x, f"{block}.attn_norm"), block)
        q = ops.rope(self._norm(q, f"{block}.attn_q_norm"), angles, style=style, scale=scale)
        k = ops.rope(self._norm(k, f"{block}.attn_k_norm"), angles, style=style, scale=scale)
        keys, values = cache.append(layer, k, v)  # (KV, S, D)
        mixed = ops.attention(
            q,
            keys,
            values,
            scale=config.attention_scale,
            window=config.windows[layer],
            softcap=config.attention_softcap,
        )  # (T, H * D)
        out = self._linear(self._norm(mixed, f"{block}.attn_sub_norm"), f"{block}.attn_output")
        return self._norm(out, f"{block}.post_attention_norm")

    def _queries_keys_values(self, x: Array, block: str) -> tuple[Array, Array, Array]:
        config = self.config
        heads, kv_heads, head_dim = config.n_heads, config.n_kv_heads, config.head_dim
        if config.fused:
            cuts = (heads * head_dim, (heads + kv_heads) * head_dim)
            q, k, v = np.split(self._linear(x, f"{block}.attn_qkv"), cuts, axis=1)
        else:
            q, k, v = (self._linear(x, f"{block}.attn_{part}") for part in "qkv")
        q = q.reshape(-1, heads, head_dim)  # (T, H, D)
        return q, k.reshape(-1, kv_heads, head_dim), v.reshape(-1, kv_heads, head_dim)

    def _feed_forward(self, layer: int, x: Array) -> Array:
        config, block = self.config, f"blk.{layer}"
        x = self._norm(x, f"{block}.ffn_norm")
        if config.fused:
            gate, up = np.split(self._linear(x, f"{block}.ffn_up"), 2, axis=1)
        else:
            gate, up = self._linear(x, f"{block}.ffn_gate"), self._linear(x, f"{block}.ffn_up")
        hidden = self.ops.gate(gate, up, config.activation)  # (T, ffn_dim)
        out = self._linear(self._norm(hidden, f"{block}.ffn_sub_norm"), f"{block}.ffn_down")
        return self._norm(out, f"{block}.post_ffw_norm")
