"""The architecture of BitNet b1.58 2B-4T for training: latent weights behind ternary ones.

Every linear layer of a block computes what the runtime computes: activations become int8 with one
scale per token, weights -1, 0 or +1 with one scale per matrix (W1.58A8). Gradients pass both
roundings as if they were not there (straight-through).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Shape", "TinyBitNet", "ternary"]

MIN_VOCABULARY = 258  # a token for each byte, and those of begin and end
MAX_VOCABULARY = 65_536  # ids of a text are uint16


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; the names are those of ``config.json``.

    Raises:
        ValueError: there is no model of these sizes.
    """

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 256
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; it must be a finite number above 0")
        if not MIN_VOCABULARY <= self.vocab_size <= MAX_VOCABULARY:
            raise ValueError(
                f"vocab_size is {self.vocab_size}; it must be {MIN_VOCABULARY} to {MAX_VOCABULARY}"
            )
        heads = self.num_attention_heads
        if self.hidden_size % (2 * heads):
            raise ValueError(
                f"hidden_size is {self.hidden_size}; it must be a multiple of {2 * heads}, so that "
                f"each of {heads} heads has a whole number of pairs"
            )
        if heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads is {self.num_key_value_heads}; it must divide the {heads} "
                "attention heads"
            )

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden_size // self.num_attention_heads


def ternary(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes -1, 0, +1 of *weight* as floats, and the scale that multiplies them, a 0-d tensor."""
    scale = weight.float().abs().mean().clamp_min(1e-5)
    return (weight / scale).round().clamp(-1, 1), scale


class _Ternary(torch.autograd.Function):
    """``x @ w.T`` for matrices that read the same *x*, with *x* and the matrices rounded.

    Products are in *dtype*: integers up to 128 and ternary codes are exact in bfloat16. Backward,
    gradients pass the rounding unchanged.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        pairs = [ternary(weight) for weight in weights]
        codes = torch.cat([code.to(dtype) for code, _ in pairs])  # (rows of all matrices, inputs)
        # One scale per token: the activation of the largest size becomes 127 or -127.
        step = x.abs().amax(-1, keepdim=True).clamp_min_(1e-5).div_(127)
        q = (x / step).round_().clamp_(-128, 127).to(dtype)
        ctx.save_for_backward(q, step, *(scale for _, scale in pairs), codes)
        sums = functional.linear(q, codes).split([len(weight) for weight in weights], -1)
        return tuple(part * (step * scale) for part, (_, scale) in zip(sums, pairs, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, step, *scales, codes = ctx.saved_tensors
        grad = torch.cat([part.to(q.dtype) for part in grads], -1).flatten(0, -2)  # (tokens, rows)
        sizes = [part.shape[-1] for part in grads]
        scaled = torch.cat([c * s for c, s in zip(codes.split(sizes), scales, strict=True)])
        dx = (grad @ scaled.to(q.dtype)).view(q.shape).float()
        dw = (grad.T @ (q * step).to(q.dtype).flatten(0, -2)).float()
        return dx, None, *dw.split(sizes)


class BitLinear(nn.Module):
    """Ternary matrices that read the same input."""

    def __init__(self, inputs: int, *outputs: int, std: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(rows, inputs) * std) for rows in outputs
        )

    def forward(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The products, float32, one per matrix."""
        result: tuple[Tensor, ...] = _Ternary.apply(x, dtype, *self.weights)
        return result


class Block(nn.Module):
    """Attention and feed-forward network, with norms before them and inside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        dim = shape.hidden_size
        ffn = shape.intermediate_size
        kv = shape.num_key_value_heads * shape.head_dim
        # As in GPT-2, what is added to the residual stream begins smaller in deeper models.
        small = 0.03 / (2 * shape.num_hidden_layers) ** 0.5
        self.attn_norm = _norm(dim)
        self.attn_sub_norm = _norm(dim)
        self.ffn_norm = _norm(dim)
        self.ffn_sub_norm = _norm(ffn)
        self.qkv = BitLinear(dim, dim, kv, kv, std=0.03)
        self.o = BitLinear(dim, dim, std=small)
        self.gate_up = BitLinear(dim, ffn, ffn, std=0.03)
        self.down = BitLinear(ffn, dim, std=small)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, drop: float, dtype: torch.dtype
    ) -> Tensor:
        """*x*, shape ``(B, T, hidden)``, after this block.

        Args:
            x: residual stream, float32.
            cos: cosines of the rotations, shape ``(T, head_dim / 2)``.
            sin: sines, likewise.
            drop: share of each branch's result that training drops.
            dtype: of matrix products.
        """
        x = x + functional.dropout(self.attention(x, cos, sin, dtype), drop, self.training)
        return x + functional.dropout(self.ffn(x, dtype), drop, self.training)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
        """Attention output, which is added to *x*."""
        shape, (batch, length, dim) = self.shape, x.shape
        parts = self.qkv(self.norm(x, self.attn_norm), dtype)
        q, k, v = (p.view(batch, length, -1, shape.head_dim).transpose(1, 2) for p in parts)
        q, k = _rotate(q, cos, sin).to(dtype), _rotate(k, cos, sin).to(dtype)
        group_size = shape.num_attention_heads // shape.num_key_value_heads
        k, v = k.repeat_interleave(group_size, 1), v.to(dtype).repeat_interleave(group_size, 1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).reshape(batch, length, dim).float()
        return self.o(self.norm(out, self.attn_sub_norm), dtype)[0]

    def ffn(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Feed-forward output, which is added to *x*."""
        gate, up = self.gate_up(self.norm(x, self.ffn_norm), dtype)
        hidden = functional.relu(gate).square() * up
        return self.down(self.norm(hidden, self.ffn_sub_norm), dtype)[0]

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm."""
        return functional.rms_norm(x, weight.shape, weight, self.shape.rms_norm_eps)


class TinyBitNet(nn.Module):
    """The whole model; the head is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocab_size, shape.hidden_size) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_hidden_layers))
        self.output_norm = _norm(shape.hidden_size)
        # Rotary positions: pair i of P turns by theta ** (-i / P) radians per position.
        pairs = torch.arange(shape.head_dim // 2, dtype=torch.float64) / (shape.head_dim // 2)
        angles = torch.outer(
            torch.arange(shape.max_position_embeddings, dtype=torch.float64),
            shape.rope_theta**-pairs,
        )
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids: Tensor, drop: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Logits, float32, shape ``(B, T, vocab)``, of *ids*, shape ``(B, T)``.

        Args:
            ids: tokens, the begin token first.
            drop: share of the embedding and of each branch's result that training drops.
            dtype: of matrix products; bfloat16 is faster, float32 is what the runtime computes.
        """
        shape = self.shape
        cos = self.cos[: ids.shape[1]]
        sin = self.sin[: ids.shape[1]]
        x = functional.dropout(functional.embedding(ids, self.embedding), drop, self.training)
        for block in self.blocks:
            x = block(x, cos, sin, drop, dtype)
        x = functional.rms_norm(x, self.output_norm.shape, self.output_norm, shape.rms_norm_eps)
        return functional.linear(x.to(dtype), self.embedding.to(dtype)).float()


def _norm(size: int) -> nn.Parameter:
    """The weight of an RMS norm, which begins with ones."""
    return nn.Parameter(torch.ones(size))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads rotated by position, each element of the first half with that of the second half."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
