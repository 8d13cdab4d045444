"""Tensors that a decoder reads, and its instructions as they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bitnet.families.blocks import FeedForward, Routing
from bitnet.kernels.instructions import Add, Center, Gate, Hadamard, Linear, Norm, Split
from bitnet.kernels.mixer_instructions import Combine, ExpertLinear, Route
from bitnet.kernels.program import Instruction, Mark, Register

if TYPE_CHECKING:
    from collections.abc import Container

    from bitnet.families.blocks import Experts, ModelConfig


@dataclass
class Layout:
    """Tensors that a decoder reads, by GGUF name, and its instructions, as they are added."""

    decoder: ModelConfig  # its blocks
    # names of the model's tensors; optional ones that it lacks are left out
    tensors: Container[str]
    instructions: list[Instruction] = field(default_factory=list)
    required: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes it must have
    optional: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes it may have
    scales: dict[str, float] = field(default_factory=dict)  # factors on matrices, if not one
    vectors: set[str] = field(default_factory=set)  # matrices that are used number by number
    tables: set[str] = field(default_factory=set)  # matrices of which only single rows are read
    products: set[str] = field(default_factory=set)  # matrices in products of a block
    _block: str = ""  # beginning of the names of its tensors
    _layer: int = 0
    _early: tuple[Register, ...] = ()  # logits of a block's routers that read its input
    _later: tuple[Register, ...] = ()  # registers that are read behind a mixer
    _scale: float = 1.0  # factor on the result of a mixer

    def _linear(
        self,
        outs: tuple[Register, ...],
        x: Register,
        names: tuple[str, ...],
        *,
        biased: bool = False,
        scale: float = 1.0,
    ) -> None:
        """Products of *x*: together, or each with its own norm of *x*."""
        names = tuple(self._block + name for name in names)
        for out, name in zip(outs, names, strict=True):
            self.required[f"{name}.weight"] = (out.width, x.width)
            (self.required if biased else self.optional)[f"{name}.bias"] = (out.width,)
            # llama.cpp's converter stores BitNet's scale as a tensor of its own.
            self.optional[f"{name}.scale"] = (1,)
            if scale != 1:
                for part in ("weight", "bias", "weight.lora_b"):
                    self.scales[f"{name}.{part}"] = scale
        if not self.decoder.input_norms:
            self._products(outs, x, names)
            return
        for out, name in zip(outs, names, strict=True):
            # The input of a block's first products is as wide as the stream and read several times.
            source = Register("n", x.width) if x.name in ("x", "h") else x
            self._norm(x, f"{name.removeprefix(self._block)}_norm_in", out=source.name)
            self._products((out,), source, (name,))

    def _transform(self, out: Register, x: Register, weight: str, *, inverse: bool = False) -> bool:
        """True if *weight* is in a rotated basis: *out* is *x* in it, or comes back from it."""
        basis = self.decoder.basis
        if basis is None or weight not in (basis.embeddings if inverse else basis.weights):
            return False
        self._do(Hadamard(out, x, basis.signs_of(x.width), basis.block, inverse))
        return True

    def _products(self, outs: tuple[Register, ...], x: Register, names: tuple[str, ...]) -> None:
        basis = self.decoder.basis
        rotated = {f"{name}.weight" in basis.weights for name in names} if basis else {False}
        if len(rotated) > 1:
            for out, name in zip(outs, names, strict=True):
                self._products((out,), x, (name,))
            return
        turned = Register("turned", x.width)
        x = turned if self._transform(turned, x, f"{names[0]}.weight") else x
        biases = [f"{name}.bias" for name in names]
        there = tuple(bias if bias in self.tensors else "" for bias in biases)
        self._do(Linear(outs, x, tuple(f"{name}.weight" for name in names), there))
        for out, name in zip(outs, names, strict=True):
            self._adapt(out, x, f"{name}.weight")

    def _adapt(self, out: Register, x: Register, weight: str) -> None:
        """``out += B (A x)`` with the factors of an adapter of *weight*, if it has one."""
        self.products.add(weight)
        if (rank := self.decoder.adapted.get(weight)) is None:
            return
        a, b = f"{weight}.lora_a", f"{weight}.lora_b"
        self.required.update({a: (rank, x.width), b: (out.width, rank)})
        low, high = Register(f"low_{rank}", rank), Register(f"high_{out.width}", out.width)
        self._do(Linear((low,), x, (a,), ("",)))  # (T, rank)
        self._do(Linear((high,), low, (b,), ("",)))
        self._do(Add(out, high))

    def _by_head(self, out: Register, x: Register, every: Register, name: str) -> None:
        """Products of each head of *x* with a matrix of its own; *every* numbers the heads."""
        heads, weight = every.width, f"{self._block}{name}.weight"
        self.required[weight] = (heads, out.width // heads, x.width // heads)
        self.optional[f"{self._block}{name}.scale"] = (heads,)
        self._do(ExpertLinear((out,), x, every, (weight,), ("",), apart=True))

    def _experts(self, its: Experts, h: Register, out: Register) -> None:
        used = its.routing.used
        chosen, weights = self._route(its, h)  # (T, K), twice
        stream, width = h, its.latent or self.decoder.dim
        if its.latent:
            h = Register("latent", width)
            self._linear((h,), stream, ("ffn_latent_down",))
        gate, up, act = (Register(name, used * its.width) for name in ("gate", "up", "act"))
        if its.fused:
            both = Register("gate_up", 2 * used * its.width)  # (T, K 2 F)
            self._expert_linear((both,), h, chosen, ("ffn_gate_up_exps",), its)
            self._do(Split((gate, up), both, used))
        elif its.gated:
            names = ("ffn_gate_exps", "ffn_up_exps")
            self._expert_linear((gate, up), h, chosen, names, its)  # (T, K F), twice
        else:
            self._expert_linear((up,), h, chosen, ("ffn_up_exps",), its)
        self._do(Gate(act, gate if its.gated else up, up, its.activation))
        down = Register("expert_out", used * width)  # (T, K dim)
        self._expert_linear((down,), act, chosen, ("ffn_down_exps",), its, scale=self._scale)
        mixed = Register("moe", self.decoder.dim) if its.shared else out
        combined = Register("latent", width) if its.latent else mixed
        self._do(Combine(combined, down, weights))  # (T, dim)
        self._mark("ffn_moe_out", combined)
        if its.latent:
            self._linear((mixed,), combined, ("ffn_latent_up",))
        if its.shared:
            self._add_shared_expert(its, stream, out)
            self._do(Add(out, mixed))

    def _route(self, its: Experts, h: Register) -> tuple[Register, Register]:
        rule = its.routing
        (logits,) = self._early if its.early else (self._router(its, h),)
        bias = self._vector("exp_probs_b.bias", (rule.count,)) if rule.corrected else ""
        chosen, weights = Register("chosen", rule.used), Register("weights", rule.used)
        self._do(Route(chosen, weights, logits, bias, rule))
        self._mark("ffn_moe_topk", chosen)
        last = "_softmax" if rule.gating == "softmax_chosen" else ""
        last = "_scaled" if rule.scale != 1 else "_norm" if rule.renormalised else last
        self._mark(f"ffn_moe_weights{last}", weights)
        return chosen, weights

    def _router(self, its: Experts, h: Register) -> Register:
        logits = Register("logits", its.routing.count)
        if its.normed:
            h = self._norm(Register("x", self.decoder.dim), "ffn_gate_inp.scale", out="normed")
            self._mark("ffn_gate_normed", h)
            self.scales[f"{self._block}ffn_gate_inp.weight"] = self.decoder.dim**-0.5
        self._linear((logits,), h, ("ffn_gate_inp",), biased=its.biased)  # (T, experts)
        self._mark("ffn_moe_logits", logits)
        return logits

    def _add_shared_expert(self, its: Experts, h: Register, out: Register) -> None:
        logit, only, weight = (Register(name, 1) for name in ("share", "chosen", "weights"))
        if its.shared_gated:
            self._linear((logit,), h, ("ffn_gate_inp_shexp",))
        y = Register("shared", self.decoder.dim) if its.shared_gated else out
        network = FeedForward(its.shared, its.activation, its.gated)
        self._feed_forward(network, h, y, end="_shexp")
        if its.shared_gated:  # one of one expert: its weight is the sigmoid of the logit
            self._do(Route(only, weight, logit, "", Routing(1, 1, "sigmoid", renormalised=False)))
            self._do(Combine(out, y, weight))
        self._mark("ffn_shexp", out)

    def _expert_linear(
        self,
        outs: tuple[Register, ...],
        x: Register,
        experts: Register,
        names: tuple[str, ...],
        its: Experts,
        *,
        scale: float = 1.0,
    ) -> None:
        """Products of *x*, or of a part of it for each of the *experts*."""
        count, used = its.routing.count, its.routing.used
        apart = x.name == "act"
        biases = []
        for out, name in zip(outs, names, strict=True):
            name, rows = f"{self._block}{name}", out.width // used
            columns = x.width // used if apart else x.width
            self.required[f"{name}.weight"] = (count, rows, columns)
            self.optional[f"{name}.scale"] = (count,)
            if scale != 1:
                self.scales[f"{name}.weight"] = self.scales[f"{name}.bias"] = scale
            biases.append(f"{name}.bias" if its.biased else "")
            if its.biased:
                self.required[biases[-1]] = (count, rows)
                self.vectors.add(biases[-1])
        weights = tuple(f"{self._block}{name}.weight" for name in names)
        self._do(ExpertLinear(outs, x, experts, weights, tuple(biases), apart))

    def _feed_forward(self, its: FeedForward, h: Register, out: Register, end: str = "") -> None:
        gate, up, act = (Register(name, its.width) for name in ("gate", "up", "act"))  # (T, F)
        if its.fused:
            both = Register("gate_up", 2 * its.width)  # (T, 2 F)
            self._linear((both,), h, (f"ffn_up{end}",))
            self._do(Split((gate, up), both))
        elif its.gated:
            self._linear((gate, up), h, (f"ffn_gate{end}", f"ffn_up{end}"))
        else:
            self._linear((up,), h, (f"ffn_up{end}",))
        if its.gated:
            self._mark("ffn_gate", gate)
        self._mark("ffn_up", up)
        self._do(Gate(act, gate if its.gated else up, up, its.activation))
        self._mark("ffn_act", act)
        if its.sub_norm:
            self._norm(act, "ffn_sub_norm")
            self._mark(f"ffn_sub_norm{end}", act)
        self._linear((out,), act, (f"ffn_down{end}",), scale=self._scale)  # (T, dim)

    def _norm(
        self,
        x: Register,
        name: str,
        width: int = 0,
        *,
        parts: int = 0,
        out: str = "",
        eps: float | None = None,
    ) -> Register:
        """Norm of *x* in groups of *width*, by default one, to *out*, by default itself.

        With *parts* each of them is a group with a weight of its own, a row of a matrix.
        """
        weight = f"{self._block}{name}{'' if name in self.decoder.bare_norms else '.weight'}"
        self.required[weight] = (width or x.width,)
        if parts:
            self.required[weight] = (parts, x.width // parts)
            self.vectors.add(weight)
        register = Register(out or x.name, x.width)
        if self.decoder.centered_norms:
            self._do(Center(register, x))
            x = register
        eps = self.decoder.norm_eps if eps is None else eps
        self._do(Norm(register, x, weight, eps, parts or 1))
        return register

    def _vector(self, name: str, shape: tuple[int, ...]) -> str:
        """Whole name of a tensor that is not the matrix of a product."""
        whole = f"{self._block}{name}"
        self.required[whole] = shape
        self.vectors.add(whole)
        return whole

    def _mark(self, name: str, register: Register) -> None:
        self._do(Mark(f"{name}-{self._layer}", register))

    def _do(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)
