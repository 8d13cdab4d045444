"""Tensors that a decoder reads, and its instructions as they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bitnet.kernels.instructions import Add, Center, Hadamard, Linear, Mark, Norm
from bitnet.kernels.program import Instruction, Register

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping

    from bitnet.families.blocks import ModelConfig

__all__ = ["Layout", "ProgramBuilder"]


@dataclass(frozen=True)
class Layout:
    """Tensors of a decoder, by GGUF name.

    Attributes:
        required: shapes of those it must have.
        optional: shapes of those it may have.
        vectors: names of matrices that are used number by number, not in products.
        tables: names of matrices of which only single rows are read.
        products: names of the matrices in products of a block.
        scales: factors on matrices, where they are not one.
        left_out: beginnings of the names of tensors that are not read.
    """

    required: Mapping[str, tuple[int, ...]]
    optional: Mapping[str, tuple[int, ...]]
    scales: Mapping[str, float]
    vectors: Container[str]
    tables: Collection[str]
    products: Container[str]
    left_out: tuple[str, ...]


@dataclass
class ProgramBuilder:
    """Instructions of a decoder, and the tensors that they read, as they are added.

    Attributes:
        decoder: its blocks.
        tensors: names of the model's tensors; optional ones that it lacks are left out.
    """

    decoder: ModelConfig
    tensors: Container[str]
    instructions: list[Instruction] = field(default_factory=list)
    required: dict[str, tuple[int, ...]] = field(default_factory=dict)
    optional: dict[str, tuple[int, ...]] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    vectors: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    products: set[str] = field(default_factory=set)
    _block: str = ""  # beginning of the names of its tensors
    _layer: int = 0

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

    def _norm(
        self, x: Register, name: str, width: int = 0, *, parts: int = 0, out: str = ""
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
        self._do(Norm(register, x, weight, self.decoder.norm_eps, parts or 1))
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
