"""The instructions of a program, and the definition of each.

``run`` computes an instruction in NumPy, one expression per formula, and in the type of its
registers; this defines what it means. The compiled module reads its fields by their names
(``native/kernels/graph/instructions.cpp``). Those of layers with a state and of experts are in
``mixer_instructions.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from bitnet.kernels.activations import ACTIVATIONS, sigmoid, softmax
from bitnet.kernels.program import NAMES_WEIGHT, equal_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.blocks import Activation, KeysValues
    from bitnet.families.rope import Rope
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.program import Pass, Register


_LIMIT = 7  # of clamped gates and ups: swiglu_limit of gpt-oss, swiglu_clamp_exp of Maple


@dataclass(frozen=True)
class Embed:
    """``out = table[tokens] * scale``.

    If *rows* is above 0, the table has rows for so many tokens only, and the others take row 0.
    """

    out: Register
    table: str = field(metadata=NAMES_WEIGHT)
    scale: float
    rows: int = 0

    def run(self, on: Pass) -> None:
        tokens = [token for segment in on.segments for token in segment.tokens]
        if self.rows:
            tokens = [token if token < self.rows else 0 for token in tokens]
        rows = on.ops.embed(on.weights[self.table], tokens)
        on.registers[self.out] = rows if self.scale == 1.0 else rows * rows.dtype.type(self.scale)


@dataclass(frozen=True)
class Lookup:
    """``out`` = a row of *table* for each token, by its position or by its text.

    Tokens of the first text take row 0, those of the second row 1, or the last row if the table has
    only one.
    """

    out: Register
    table: str = field(metadata=NAMES_WEIGHT)
    by: Literal["position", "text"]
    rows: int

    def run(self, on: Pass) -> None:
        numbers: list[int] = []
        for segment, positions in zip(on.segments, on.positions(), strict=True):
            if self.by == "position":
                numbers.extend(positions)
            else:
                numbers.extend(min(segment.text_of(at), self.rows - 1) for at in positions)
        on.registers[self.out] = on.ops.embed(on.weights[self.table], numbers)


@dataclass(frozen=True)
class Center:
    """``out = x - mean(x)`` in groups of *width* columns; 0 means one group."""

    out: Register
    x: Register
    width: int = 0

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        groups = equal_parts(x, x.shape[1] // (self.width or x.shape[1]))
        mean = groups.mean(axis=-1, keepdims=True, dtype=np.float64)
        on.registers[self.out] = (groups - mean.astype(x.dtype)).reshape(x.shape)


@dataclass(frozen=True)
class Clamp:
    """``out`` = *x*, clamped between ``-limit`` and *limit*."""

    out: Register
    x: Register
    limit: float

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        on.registers[self.out] = np.clip(x, -x.dtype.type(self.limit), x.dtype.type(self.limit))


@dataclass(frozen=True)
class Xielu:
    """The activation xIELU (arXiv:2411.13010) of *x*, with the parameters of a layer.

    It is ``above * x * x + beta * x`` for *x* above 0, and ``below * (exp(min(x, eps)) - 1 - x) +
    beta * x`` for the others.
    """

    out: Register
    x: Register
    above: float
    below: float
    beta: float
    eps: float

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        above, below, beta, eps = (
            x.dtype.type(parameter) for parameter in (self.above, self.below, self.beta, self.eps)
        )
        curved = np.where(x > 0, above * x * x, below * (np.expm1(np.minimum(x, eps)) - x))
        on.registers[self.out] = curved + beta * x


@dataclass(frozen=True)
class Norm:
    """``out`` = RMS norm of *x* in groups as wide as the *weight*.

    The weight consists of *parts* vectors of equal width, and groups take them in turn: group i is
    multiplied by vector ``i % parts``. Without a weight, groups are *width* wide and only
    normalized. A *bias* of the weight's size is added.
    """

    out: Register
    x: Register
    weight: str = field(metadata=NAMES_WEIGHT)
    eps: float
    parts: int = 1
    width: int = 0
    bias: str = field(default="", metadata=NAMES_WEIGHT)

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        weight = on.weights[self.weight] if self.weight else np.ones(self.width, dtype=x.dtype)
        groups = x.reshape(-1, self.parts, weight.size // self.parts)
        mean = np.mean(groups * groups, axis=-1, keepdims=True)
        normed = groups / np.sqrt(mean + x.dtype.type(self.eps)) * weight.reshape(self.parts, -1)
        if self.bias:
            normed = normed + on.weights[self.bias].reshape(self.parts, -1)
        on.registers[self.out] = normed.reshape(x.shape)


@dataclass(frozen=True)
class Linear:
    """``outs[i] = x @ weights[i].T + biases[i]``; an empty name means no bias."""

    outs: tuple[Register, ...]
    x: Register
    weights: tuple[str, ...] = field(metadata=NAMES_WEIGHT)
    biases: tuple[str, ...] = field(metadata=NAMES_WEIGHT)

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        for out, weight, bias in zip(self.outs, self.weights, self.biases, strict=True):
            on.registers[out] = on.ops.linear(
                x, on.weights[weight], on.weights[bias] if bias else None
            )


@dataclass(frozen=True)
class Take:
    """``out`` = the hidden states that come with the tokens of a pass."""

    out: Register

    def run(self, on: Pass) -> None:
        hidden = [segment.hidden for segment in on.segments if segment.hidden is not None]
        on.registers[self.out] = np.concatenate(hidden)


@dataclass(frozen=True)
class Join:
    """``out`` = the columns of *parts*, one after the other, in each of *groups* equal groups.

    *out* is not the register of any part.
    """

    out: Register
    parts: tuple[Register, ...]
    groups: int = 1

    def run(self, on: Pass) -> None:
        parts = [on.registers[part] for part in self.parts]
        joined = np.concatenate([equal_parts(part, self.groups) for part in parts], axis=2)
        on.registers[self.out] = joined.reshape(len(joined), self.out.width)


@dataclass(frozen=True)
class Split:
    """*outs* are neighbouring columns of *x*, or of each of its *groups* equal groups."""

    outs: tuple[Register, ...]
    x: Register
    groups: int = 1

    def run(self, on: Pass) -> None:
        at = 0
        x = on.registers[self.x]
        parts = equal_parts(x, self.groups)
        for out in self.outs:
            width = out.width // self.groups
            on.registers[out] = parts[..., at : at + width].reshape(len(x), out.width)
            at += width


@dataclass(frozen=True)
class Transpose:
    """*out* has the heads of *x*, ``(rows, columns, D)``, as ``(columns, rows, D)``."""

    out: Register
    x: Register
    rows: int
    columns: int

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        heads = x.reshape(len(x), self.rows, self.columns, -1)
        on.registers[self.out] = heads.swapaxes(1, 2).reshape(x.shape)


@dataclass(frozen=True)
class Rotate:
    """``out`` = *x* with the first dimensions of each head rotated by its position, in pairs."""

    out: Register
    x: Register
    rotation: Rope
    head_dim: int

    def run(self, on: Pass) -> None:
        x = on.heads(self.x, self.head_dim)
        angles, scale = on.angles(self.rotation)  # (T, pairs)
        cos = (np.cos(angles) * scale).astype(x.dtype)[:, None, :]  # (T, 1, pairs)
        sin = (np.sin(angles) * scale).astype(x.dtype)[:, None, :]
        pairs = angles.shape[1]
        first = slice(0, pairs)
        second = slice(pairs, 2 * pairs)
        if self.rotation.style == "interleaved":
            first = slice(0, 2 * pairs, 2)
            second = slice(1, 2 * pairs, 2)
        rotated = x.copy()
        rotated[..., first] = x[..., first] * cos - x[..., second] * sin
        rotated[..., second] = x[..., second] * cos + x[..., first] * sin
        on.registers[self.out] = rotated.reshape(on.registers[self.x].shape)


@dataclass(frozen=True)
class Temper:
    """``out = x * (1 + scale * log(1 + position // length))``.

    So the factor is 1 in the first *length* positions, and grows every *length* positions.
    """

    out: Register
    x: Register
    scale: float
    length: int

    def factor(self, position: int) -> float:
        """Factor on the row at *position*."""
        return 1.0 + self.scale * math.log(1 + position // self.length)

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        factors = [self.factor(position) for part in on.positions() for position in part]
        on.registers[self.out] = x * np.array(factors, dtype=x.dtype)[:, None]


@dataclass(frozen=True)
class Attend:
    """*out* is the attention of queries *q* over cache *cache*, after *k* and *v* are stored in it.

    Without *k* and *v*, queries attend to what an earlier instruction of the pass stored. A query
    sees keys up to its own position, or, unless *causal*, later ones, too; with a window, only
    those less than ``window`` positions away. With a *softcap*, scores become ``softcap *
    tanh(scores / softcap)``. A score loses its head's slope, one of *slopes*, for each position
    between query and key. *sinks* names the scores of one more key per head, whose value is zero.
    *distances* names biases of scores by the distance of key and query, ``(heads, 2 * reach + 1)``;
    keys farther than reach have the bias of those at that distance.
    """

    out: Register
    q: Register
    k: Register | None
    v: Register | None
    cache: int
    kind: KeysValues
    scale: float
    softcap: float
    causal: bool = True
    sinks: str = field(default="", metadata=NAMES_WEIGHT)
    slopes: NDArray[np.float32] | None = field(default=None, compare=False)
    distances: str = field(default="", metadata=NAMES_WEIGHT)

    def run(self, on: Pass) -> None:
        q = on.heads(self.q, self.kind.head_dim)
        rows_to_cache = [
            on.heads(register, self.kind.head_dim)
            for register in (self.k, self.v)
            if register is not None
        ]
        sinks = on.weights[self.sinks] if self.sinks else None
        distances = on.weights[self.distances] if self.distances else None
        results = []
        for (rows, cache), segment in zip(on.rows(), on.segments, strict=True):
            if rows_to_cache:
                keys_and_values = cache.append(
                    self.cache, *(register[rows] for register in rows_to_cache)
                )
            elif segment.rows:  # after Select: only requested rows have queries
                keys_and_values = cache.view(self.cache, len(segment.tokens))
            else:
                continue
            results.append(self.attend(q[rows], *keys_and_values, sinks, distances))
        # Without outputs there are no queries: q has no rows, and neither has the result.
        on.registers[self.out] = np.concatenate(results) if results else on.registers[self.q]

    def attend(
        self,
        q: Array,
        keys: Array,
        values: Array,
        sinks: Array | None = None,
        distances: Array | None = None,
    ) -> Array:
        """Attention of the last T of S positions, ``(T, heads, D)``, as ``(T, heads * D)``.

        *keys* and *values* are ``(kv_heads, S, D)``, *sinks* ``(heads,)``, *distances* ``(heads,
        2 * reach + 1)``.
        """
        t, heads, head_dim = q.shape
        keys, values = (array.astype(q.dtype, copy=False) for array in (keys, values))
        kv_heads, s, _ = keys.shape
        # Query heads that share a key head are neighbours.
        group = heads // kv_heads
        q = q.reshape(t, kv_heads, group, head_dim).transpose(1, 2, 0, 3)  # (KV, G, T, D)
        transposed = keys[:, None].transpose(0, 1, 3, 2)
        scores = (q * q.dtype.type(self.scale)) @ transposed  # (KV, G, T, S)
        if self.softcap:
            cap = q.dtype.type(self.softcap)
            scores = np.tanh(scores / cap) * cap
        distance = np.arange(s - t, s)[:, None] - np.arange(s)[None, :]  # (T, S)
        if self.slopes is not None:
            slopes = self.slopes.astype(q.dtype).reshape(kv_heads, group, 1, 1)
            scores = scores - slopes * abs(distance).astype(q.dtype)
        if distances is not None:
            reach = distances.size // heads // 2
            by_head = distances.reshape(kv_heads, group, 2 * reach + 1).astype(q.dtype, copy=False)
            scores = scores + by_head[..., np.clip(-distance, -reach, reach) + reach]
        hidden = distance < 0 if self.causal else np.zeros_like(distance, dtype=bool)
        if self.kind.window:
            hidden |= abs(distance) >= self.kind.window
        scores[..., hidden] = -np.inf
        if sinks is not None:
            sink = np.broadcast_to(sinks.reshape(kv_heads, group, 1, 1), (*scores.shape[:3], 1))
            scores = np.concatenate([scores, sink.astype(q.dtype, copy=False)], axis=-1)
        weights = softmax(scores)[..., :s]
        with np.errstate(invalid="ignore"):
            mixed = weights @ values[:, None]  # (KV, G, T, D)
        # A value that is not finite spoils the results of queries that see it, and not those of
        # the others, whose weight of 0 times NaN or infinity is NaN.
        if not np.isfinite(mixed).all():
            is_spoilt = ~np.isfinite(np.abs(values).max(axis=-1))  # (KV, S)
            sees_spoilt = (is_spoilt[:, None] & ~hidden).any(axis=-1)  # (KV, T)
            clean = weights @ np.where(is_spoilt[..., None], q.dtype.type(0), values)[:, None]
            mixed = np.where(sees_spoilt[:, None, :, None], mixed, clean)
        return mixed.transpose(2, 0, 1, 3).reshape(t, heads * head_dim)


@dataclass(frozen=True)
class Gate:
    """``out = activation(gate) * up``; *gate* and *up* may be one register, but not that of *out*.

    Without *up*, *out* is the activation alone. A narrower *gate* has one number for each group of
    columns.

    Two activations clamp *gate* and *up*. With ``g = min(gate, 7)`` and ``u = clamp(up, -7, 7)``::

        silu_clamped: silu(g) * u
        swiglu_oai:   g * sigmoid(1.702 * g) * (u + 1)
    """

    out: Register
    gate: Register
    up: Register | None
    activation: Activation

    def run(self, on: Pass) -> None:
        gate = on.registers[self.gate]
        up = np.ones_like(gate) if self.up is None else on.registers[self.up]
        if self.gate.width < self.out.width:
            gate = np.repeat(gate, self.out.width // self.gate.width, axis=1)
        if self.activation in ("silu_clamped", "swiglu_oai"):
            gate = np.minimum(gate, _LIMIT)
            up = np.clip(up, -_LIMIT, _LIMIT)
        if self.activation == "swiglu_oai":
            on.registers[self.out] = gate * sigmoid(gate * gate.dtype.type(1.702)) * (up + 1)
        else:
            on.registers[self.out] = ACTIVATIONS[self.activation](gate) * up


@dataclass(frozen=True, eq=False)
class Hadamard:
    """``out = H(signs * x)``, or its *inverse*, ``signs * H(x)``.

    H is the Walsh-Hadamard transform of each *block* neighbouring columns in natural order, divided
    by ``sqrt(block)``.
    """

    out: Register
    x: Register
    signs: NDArray[np.float32]
    block: int
    inverse: bool = False

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        signs = self.signs.astype(x.dtype)
        y = (x if self.inverse else x * signs).reshape(-1, self.block)
        apart = 1
        while apart < self.block:
            pairs = y.reshape(len(y), -1, 2, apart)
            first = pairs[:, :, 0]
            second = pairs[:, :, 1]
            y = np.stack([first + second, first - second], axis=2).reshape(-1, self.block)
            apart *= 2
        y = (y * x.dtype.type(self.block**-0.5)).reshape(x.shape)
        on.registers[self.out] = y * signs if self.inverse else y


@dataclass(frozen=True)
class Add:
    """``out = x + y``."""

    out: Register
    x: Register
    y: Register

    def run(self, on: Pass) -> None:
        on.registers[self.out] = on.registers[self.x] + on.registers[self.y]


@dataclass(frozen=True)
class Scale:
    """``out = x * weight``; the weight is one number, or one for each column."""

    out: Register
    x: Register
    weight: str = field(metadata=NAMES_WEIGHT)

    def run(self, on: Pass) -> None:
        on.registers[self.out] = on.registers[self.x] * on.weights[self.weight]


@dataclass(frozen=True)
class Select:
    """Keep only the requested rows of *registers*; they are the rows of the pass from here on."""

    registers: tuple[Register, ...]

    def run(self, on: Pass) -> None:
        rows = on.select()
        on.registers = {register: on.registers[register][rows] for register in self.registers}


#: Instructions whose *out* may be the register of *x*: they read nothing that they have replaced.
IN_PLACE = (Add, Center, Clamp, Hadamard, Norm, Rotate, Scale, Temper, Xielu)
#: Instructions that compute all rows together: they begin when all rows of earlier instructions are
#: computed, and later ones begin when all of theirs are.
WHOLE = (Attend, Linear, Select)
