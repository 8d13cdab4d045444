"""Instructions of a decoder as they are written, one value after the other, and their tensors.

Each method adds an instruction and returns its result, so that code which calls them reads like
the equations of a paper. A result is a register that holds nothing else;
:mod:`bitnet.models.registers` lets values share memory afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bitnet.kernels.instructions import (
    Add,
    Attend,
    Clamp,
    Gate,
    Hadamard,
    Join,
    Linear,
    Rotate,
    Scale,
    Split,
    Take,
    Temper,
    Transpose,
    Xielu,
)
from bitnet.kernels.mixer_instructions import (
    Blend,
    Combine,
    Convolve,
    Cutoff,
    DeltaRule,
    Enumerate,
    ExpertLinear,
    MatchMagnitude,
    Route,
    SelectiveScan,
)
from bitnet.models.writer import ValueWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.families.blocks import Activation, KeysValues, Routing
    from bitnet.families.rope import Rope
    from bitnet.kernels.program import Register


class Builder(ValueWriter):
    """Writes the program of a decoder."""

    # Products.

    def linear(
        self, x: Register, name: str, width: int, *, biased: bool = False, scale: float = 1.0
    ) -> Register:
        """Product of *x* with the matrix *name*, times *scale*: ``(T, width)``."""
        (y,) = self.linears(x, (name, width), biased=biased, scale=scale)
        return y

    def linears(
        self,
        x: Register,
        *names_and_widths: tuple[str, int],
        biased: bool = False,
        scale: float = 1.0,
    ) -> tuple[Register, ...]:
        """Products of *x* with several matrices; each is ``(T, width)``.

        If the model has input norms, each matrix reads *x* through a norm of its own. If *biased*,
        or if the configuration lists them, the matrices must have biases; otherwise they may.
        """
        names = [f"{self.block}{name}" for name, _ in names_and_widths]
        widths = [width for _, width in names_and_widths]
        for name, width in zip(names, widths, strict=True):
            self.layout.required[f"{name}.weight"] = (width, x.width)
            is_biased = biased or name.removeprefix(self.block) in self.decoder.biases
            biases = self.layout.required if is_biased else self.layout.optional
            biases[f"{name}.bias"] = (width,)
            # llama.cpp's converter stores BitNet's scale as a tensor of its own.
            self.layout.optional[f"{name}.scale"] = (1,)
            if scale != 1:
                for part in ("weight", "bias", "weight.lora_b"):
                    self.layout.scales[f"{name}.{part}"] = scale
        if not self.decoder.input_norms:
            return self._products(x, names, widths)
        products: list[Register] = []
        for name, width in zip(names, widths, strict=True):
            normed = self.norm(x, f"{name.removeprefix(self.block)}_norm_in")
            products += self._products(normed, [name], [width])
        return tuple(products)

    def _products(
        self, x: Register, names: Sequence[str], widths: Sequence[int]
    ) -> tuple[Register, ...]:
        """Products of *x*, in the basis that each matrix expects, with what an adapter adds."""
        in_basis = {self.is_in_basis(f"{name}.weight") for name in names}
        if len(in_basis) > 1:  # some read *x* itself, others *x* in the rotated basis
            apart = [
                self._products(x, [name], [width])
                for name, width in zip(names, widths, strict=True)
            ]
            return tuple(product for products in apart for product in products)
        if in_basis == {True}:
            x = self.to_basis(x)
        outs = tuple(self.value(width) for width in widths)
        biases = [f"{name}.bias" for name in names]
        present = tuple(bias if bias in self.tensors else "" for bias in biases)
        self.append(Linear(outs, x, tuple(f"{name}.weight" for name in names), present))
        return tuple(
            self._adapt(out, x, f"{name}.weight") for out, name in zip(outs, names, strict=True)
        )

    def _adapt(self, out: Register, x: Register, weight: str) -> Register:
        """``out + B (A x)`` with the factors of an adapter of *weight*, if it has one."""
        self.layout.products.add(weight)
        rank = self.decoder.adapted.get(weight)
        if rank is None:
            return out
        a = f"{weight}.lora_a"
        b = f"{weight}.lora_b"
        self.layout.required[a] = (rank, x.width)
        self.layout.required[b] = (out.width, rank)
        low = self.value(rank)
        high = self.value(out.width)
        self.append(Linear((low,), x, (a,), ("",)))  # (T, rank)
        self.append(Linear((high,), low, (b,), ("",)))
        return self.add(out, high)

    def by_head(self, x: Register, head_numbers: Register, name: str, width: int) -> Register:
        """Products of each head of *x* with a matrix of its own: ``(T, width)``.

        *head_numbers* are those of all heads, from :meth:`enumerate`.
        """
        heads = head_numbers.width
        weight = f"{self.block}{name}.weight"
        self.layout.required[weight] = (heads, width // heads, x.width // heads)
        self.layout.optional[f"{self.block}{name}.scale"] = (heads,)
        out = self.value(width)
        self.append(ExpertLinear((out,), x, head_numbers, (weight,), ("",), apart=True))
        return out

    def expert_linears(
        self,
        x: Register,
        experts: Register,
        names: Sequence[str],
        width: int,
        *,
        count: int,
        apart: bool = False,
        biased: bool = False,
        scale: float = 1.0,
    ) -> tuple[Register, ...]:
        """Products of *x* with the matrices *names* of each token's *experts*.

        Args:
            x: the input of all experts; if *apart*, one part for each of a token's experts.
            experts: numbers of a token's experts, ``(T, used)``.
            names: the matrices; each gives a result of ``(T, used * width)``.
            width: columns of the result of one expert.
            count: number of experts in all, of which a token uses some.
            apart: each expert of a token reads its own part of *x*, one after the other.
            biased: the experts have biases; otherwise they have none.
            scale: factor on the results.
        """
        used = experts.width
        columns = x.width // used if apart else x.width
        names = [f"{self.block}{name}" for name in names]
        biases = [f"{name}.bias" if biased else "" for name in names]
        for name in names:
            self.layout.required[f"{name}.weight"] = (count, width, columns)
            self.layout.optional[f"{name}.scale"] = (count,)
            if scale != 1:
                self.layout.scales[f"{name}.weight"] = scale
                self.layout.scales[f"{name}.bias"] = scale
            if biased:
                self.layout.required[f"{name}.bias"] = (count, width)
                self.layout.vectors.add(f"{name}.bias")
        weights = tuple(f"{name}.weight" for name in names)
        outs = tuple(self.value(used * width) for _ in names)
        self.append(ExpertLinear(outs, x, experts, weights, tuple(biases), apart))
        return outs

    # Rotated bases.

    def is_in_basis(self, weight: str) -> bool:
        """True if the matrix *weight* expects its input in the rotated basis."""
        basis = self.decoder.basis
        return basis is not None and weight in basis.weights

    def to_basis(self, x: Register) -> Register:
        """*x* in the basis of the model's rotated matrices."""
        return self._hadamard(x, inverse=False)

    def from_basis(self, x: Register) -> Register:
        """*x* back from that basis."""
        return self._hadamard(x, inverse=True)

    def _hadamard(self, x: Register, *, inverse: bool) -> Register:
        basis = self.decoder.basis
        assert basis is not None, "some matrices are in a basis"
        out = self.value(x.width)
        self.append(Hadamard(out, x, basis.signs_of(x.width), basis.block, inverse))
        return out

    # Operations on elements and columns.

    def add(self, x: Register, y: Register) -> Register:
        """``x + y``."""
        total = self.value(x.width)
        self.append(Add(total, x, y))
        return total

    def blend(self, x: Register, y: Register, x_share: float, y_share: float) -> Register:
        """``x_share * x + y_share * y``."""
        mixed = self.value(x.width)
        self.append(Blend(mixed, x, y, x_share, y_share))
        return mixed

    def multiply(self, x: Register, factor: float) -> Register:
        """*x* times *factor*."""
        return self.blend(x, x, factor / 2, factor / 2)

    def match_magnitude(self, x: Register, like: Register, eps: float) -> Register:
        """*x* scaled to the root mean square of *like*; its own mean square is at least *eps*."""
        out = self.value(x.width)
        self.append(MatchMagnitude(out, x, like, eps))
        return out

    def cut_off(self, x: Register, deviations: float) -> Register:
        """``max(0, x - (mean(x) + deviations * std(x)))``."""
        cut = self.value(x.width)
        self.append(Cutoff(cut, x, deviations))
        return cut

    def scale(self, x: Register, weight: str, width: int = 1) -> Register:
        """*x* times the number in the tensor *weight*, or its *width* numbers."""
        scaled = self.value(x.width)
        self.layout.required[weight] = (width,)
        self.append(Scale(scaled, x, weight))
        return scaled

    def gate(self, gate: Register, up: Register | None, activation: Activation) -> Register:
        """``activation(gate) * up``, or the activation alone.

        A narrower *gate* has a number for each group of columns.
        """
        out = self.value(gate.width if up is None else up.width)
        self.append(Gate(out, gate, up, activation))
        return out

    def clamp(self, x: Register, limit: float) -> Register:
        """*x*, at most *limit* above and below zero."""
        clamped = self.value(x.width)
        self.append(Clamp(clamped, x, limit))
        return clamped

    def xielu(
        self, x: Register, *, above: float, below: float, beta: float, eps: float
    ) -> Register:
        """The activation xIELU of *x*; see :class:`~bitnet.kernels.instructions.Xielu`."""
        out = self.value(x.width)
        self.append(Xielu(out, x, above, below, beta, eps))
        return out

    def split(self, x: Register, *widths: int, groups: int = 1) -> tuple[Register, ...]:
        """*x* split into neighbouring columns, as many as *widths* say.

        With *groups*, each of these equal parts of *x* is split: a result has its share of columns
        from every part.
        """
        parts = tuple(self.value(width) for width in widths)
        self.append(Split(parts, x, groups))
        return parts

    def join(self, *parts: Register, groups: int = 1) -> Register:
        """The columns of *parts*, one part after the other; the reverse of :meth:`split`."""
        whole = self.value(sum(part.width for part in parts))
        self.append(Join(whole, parts, groups))
        return whole

    def transpose(self, x: Register, rows: int, columns: int) -> Register:
        """Heads of *x*, ``(rows, columns, D)``, as ``(columns, rows, D)``."""
        out = self.value(x.width)
        self.append(Transpose(out, x, rows, columns))
        return out

    def take(self, width: int) -> Register:
        """The hidden states that a pass gets together with its tokens."""
        hidden = self.value(width)
        self.append(Take(hidden))
        return hidden

    def rotate(self, x: Register, rope: Rope, head_dim: int) -> Register:
        """*x* with its heads rotated by their positions."""
        rotated = self.value(x.width)
        self.append(Rotate(rotated, x, rope, head_dim))
        return rotated

    def temper(self, x: Register, growth: float, length: int) -> Register:
        """``x * (1 + growth * log(1 + position // length))``: queries grow with the position."""
        tempered = self.value(x.width)
        self.append(Temper(tempered, x, growth, length))
        return tempered

    # Mixtures.

    def route(self, logits: Register, rule: Routing, bias: str = "") -> tuple[Register, Register]:
        """Numbers of each token's experts and their weights, ``(T, used)`` each."""
        experts = self.value(rule.used)
        weights = self.value(rule.used)
        self.append(Route(experts, weights, logits, bias, rule))
        return experts, weights

    def enumerate(self, count: int) -> Register:
        """The numbers 0 to *count* - 1 for every token, as experts that all of them use."""
        every = self.value(count)
        self.append(Enumerate(every))
        return every

    def combine(self, x: Register, weights: Register, bias: str = "") -> Register:
        """Sum of the parts of *x*, each times one of the *weights*, and of the tensor *bias*."""
        total = self.value(x.width // weights.width)
        self.append(Combine(total, x, weights, bias))
        return total

    # What reads other positions.

    def attend(
        self,
        q: Register,
        k: Register | None,
        v: Register | None,
        *,
        cache: int,
        kind: KeysValues,
        scale: float,
        softcap: float = 0.0,
        sinks: str = "",
        slopes: Sequence[float] = (),
        distances: str = "",
    ) -> Register:
        """Values that the queries *q* read from *cache*, to which *k* and *v* are added first.

        *sinks* and *distances* are names of tensors, *slopes* are ALiBi's, one for each head;
        see :class:`~bitnet.kernels.instructions.Attend`.
        """
        mixed = self.value(q.width)
        causal = self.decoder.looks_back
        alibi_slopes = np.array(slopes, dtype=np.float32) if slopes else None
        self.append(
            Attend(
                mixed, q, k, v, cache, kind, scale, softcap, causal, sinks, alibi_slopes, distances
            )
        )
        return mixed

    def convolve(
        self,
        x: Register,
        name: str,
        kernel: int,
        *,
        cache: int,
        silu: bool = False,
        parts: Mapping[str, int] | None = None,
    ) -> Register:
        """Causal convolution of each column of *x* over *kernel* positions.

        With *parts*, widths by name, each part of the columns has its own tensor ``name_part``.
        """
        shapes: dict[str, tuple[int, ...]] = {name: (x.width, kernel)}
        if parts:  # their tensors have one more axis
            shapes = {f"{name}_{part}": (width, 1, kernel) for part, width in parts.items()}
        weights = tuple(self.vector(f"{whole}.weight", shape) for whole, shape in shapes.items())
        bias = f"{self.block}{name}.bias"
        self.layout.optional[bias] = (x.width,)
        mixed = self.value(x.width)
        self.append(Convolve(mixed, x, weights, bias if bias in self.tensors else "", cache, silu))
        return mixed

    def delta_rule(
        self,
        q: Register,
        k: Register,
        v: Register,
        *,
        alpha: Register,
        beta: Register,
        cache: int,
        key_heads: int,
        grouped: bool,
        strength: float = 1.0,
        floor: float = 0.0,
    ) -> Register:
        """Values that *q* reads from a matrix per head, into which *k* writes *v*.

        The arguments are those of :class:`~bitnet.kernels.mixer_instructions.DeltaRule`.
        """
        heads = beta.width
        # Files of Kimi delta attention (a decay for each row) store it with one more axis.
        a = self.vector("ssm_a", (heads,) if alpha.width == heads else (heads, 1))
        dt = self.vector("ssm_dt.bias", (alpha.width,))
        read = self.value(v.width)
        self.append(
            DeltaRule(read, q, k, v, alpha, beta, a, dt, cache, key_heads, grouped, strength, floor)
        )
        return read

    def selective_scan(
        self,
        x: Register,
        b: Register,
        c: Register,
        dt: Register,
        *,
        cache: int,
        groups: int,
        decays: int = 1,
    ) -> Register:
        """Values that *c* reads from a state per head, into which *b* writes *x*.

        If *decays* is 1, a state decays as a whole (Mamba-2). Otherwise it is the number of rows of
        a state, each of which has a decay, and *dt* includes its bias already (Mamba-1).
        """
        heads = dt.width
        a = self.vector("ssm_a", (heads, decays))
        # Files of Mamba 2 models store it with one more axis.
        skip = self.vector("ssm_d", (heads, 1) if decays == 1 else (heads,))
        bias = self.vector("ssm_dt.bias", (heads,)) if decays == 1 else ""
        read = self.value(x.width)
        self.append(SelectiveScan(read, x, b, c, dt, a, bias, skip, cache, groups))
        return read
