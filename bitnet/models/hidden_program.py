"""The forward pass of a configuration as a program.

Registers: ``x`` the residual stream, ``h`` the input of attention or feed-forward and, at its end,
its output; ``q k v`` queries, keys and values, ``mixed`` the attention output; ``gate up act``
inside the feed-forward network. ``qkv`` and ``gate_up`` hold fused projections, ``n`` the input of
a single product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.kernels.instructions import (
    Add,
    Attend,
    Embed,
    Gate,
    Linear,
    Mark,
    Norm,
    Rotate,
    Select,
    Split,
    Temper,
)
from bitnet.kernels.program import Instruction, Program

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from bitnet.models.config import TransformerConfig

__all__ = ["hidden_program"]


def hidden_program(config: TransformerConfig, tensors: Container[str]) -> Program:
    """Program from tokens to the normalized hidden state that the head reads.

    Args:
        config: configuration of the transformer.
        tensors: names of the model's tensors; parts without tensors are left out.
    """
    heads, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    widths = {"x": config.dim, "h": config.dim, "q": heads, "k": kv, "v": kv, "mixed": heads}
    widths |= {"gate": config.ffn_dim, "up": config.ffn_dim, "act": config.ffn_dim}
    if config.fused:
        widths |= {"qkv": heads + 2 * kv, "gate_up": 2 * config.ffn_dim}
    if config.input_norms:
        widths |= {"n": config.dim}
    return Program(
        tuple(_Writer(config, tensors).instructions()),
        widths,
        head_dim=config.head_dim,
        eps=config.norm_eps,
        result="x",
    )


class _Writer:
    def __init__(self, config: TransformerConfig, tensors: Container[str]) -> None:
        self._config = config
        self._tensors = tensors

    def instructions(self) -> Iterator[Instruction]:
        yield Embed("x", "token_embd.weight", self._config.embedding_scale)
        yield Mark("embed", "x")
        for layer in range(self._config.n_layers):
            yield from self._attention(layer, f"blk.{layer}")
            yield from self._feed_forward(layer, f"blk.{layer}")
            yield Mark(f"l_out-{layer}", "x")
        yield Norm("x", "x", "output_norm.weight")
        yield Mark("result_norm", "x")

    def _attention(self, layer: int, block: str) -> Iterator[Instruction]:
        config = self._config
        window = config.windows[layer]
        local = bool(window) and config.local_rope is not None
        rotation = config.local_rope if local and config.local_rope else config.rope
        source = "h" if config.pre_norms else "x"
        if config.pre_norms:
            yield Norm("h", "x", f"{block}.attn_norm.weight")
        yield Mark(f"attn_norm-{layer}", source)
        if config.fused:
            yield from self._linear(("qkv",), source, (f"{block}.attn_qkv",))
            yield Split(("q", "k", "v"), "qkv")
        else:
            yield from self._linear(
                ("q", "k", "v"), source, [f"{block}.attn_{part}" for part in "qkv"]
            )
        yield from self._norm("q", f"{block}.attn_q_norm")
        yield from self._norm("k", f"{block}.attn_k_norm")
        if not config.rotated or config.rotated[layer]:
            yield Rotate("q", rotation)
            yield Rotate("k", rotation)
        if config.temperature:
            yield Temper("q", config.temperature, config.temperature_length)
        for part in "qkv":
            yield Mark(f"{part.upper()}cur-{layer}", part)
        yield Attend(
            "mixed",
            "q",
            "k",
            "v",
            layer,
            scale=config.attention_scale,
            window=window,
            softcap=config.attention_softcap,
            causal=config.causal,
        )
        yield Mark(f"kqv_out-{layer}", "mixed")
        if layer == config.n_layers - 1:  # the other rows are not read from here on
            yield Select(("x", "mixed"))
        yield from self._norm("mixed", f"{block}.attn_sub_norm")
        yield from self._linear(("h",), "mixed", (f"{block}.attn_output",))
        if config.post_norms:
            yield Norm("h", "h", f"{block}.post_attention_norm.weight")
        yield Mark(f"attn_out-{layer}", "h")
        yield Add("x", "h")

    def _feed_forward(self, layer: int, block: str) -> Iterator[Instruction]:
        config = self._config
        source = "h" if config.pre_norms else "x"
        if config.pre_norms:
            yield Norm("h", "x", f"{block}.{config.ffn_norm}.weight")
        yield Mark(f"ffn_norm-{layer}", source)
        if config.fused:
            yield from self._linear(("gate_up",), source, (f"{block}.ffn_up",))
            yield Split(("gate", "up"), "gate_up")
        elif config.gated:
            names = (f"{block}.ffn_gate", f"{block}.ffn_up")
            yield from self._linear(("gate", "up"), source, names)
        else:
            yield from self._linear(("up",), source, (f"{block}.ffn_up",))
        if config.gated:
            yield Mark(f"ffn_gate-{layer}", "gate")
        yield Mark(f"ffn_up-{layer}", "up")
        yield Gate("act", "gate" if config.gated else "up", "up", config.activation)
        yield Mark(f"ffn_act-{layer}", "act")
        yield from self._norm("act", f"{block}.ffn_sub_norm")
        yield from self._linear(("h",), "act", (f"{block}.ffn_down",))
        if config.post_norms:
            yield Norm("h", "h", f"{block}.post_ffw_norm.weight")
        yield Mark(f"ffn_out-{layer}", "h")
        yield Add("x", "h")

    def _linear(
        self, outs: tuple[str, ...], x: str, names: Sequence[str]
    ) -> Iterator[Norm | Linear]:
        """Products of *x*: fused, or each with its own norm of *x*."""
        if not self._config.input_norms:
            yield self._products(outs, x, names)
            return
        for out, name in zip(outs, names, strict=True):
            # The input of a block's first products is as wide as the stream and read several times.
            source = "n" if x in ("x", "h") else x
            yield Norm(source, x, f"{name}_norm_in.weight")
            yield self._products((out,), source, (name,))

    def _products(self, outs: tuple[str, ...], x: str, names: Sequence[str]) -> Linear:
        biases = (f"{name}.bias" for name in names)
        return Linear(
            outs,
            x,
            tuple(f"{name}.weight" for name in names),
            tuple(bias if bias in self._tensors else "" for bias in biases),
        )

    def _norm(self, register: str, name: str) -> Iterator[Norm]:
        """Norm in place, where the family has one."""
        weight = f"{name}.weight"
        if weight in self._tensors:
            yield Norm(register, register, weight)
