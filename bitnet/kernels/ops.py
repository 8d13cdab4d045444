"""Operations that a model needs from a backend, and the pass that instructions run on.

``reference.py`` defines which results of operations are correct.

Activations are float arrays with one row per token: ``(T, dim)``, or ``(T, heads, head_dim)``
inside attention.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.families.keys import RopeStyle
    from bitnet.families.mixers import Activation, Routing
    from bitnet.families.rope import Rope
    from bitnet.kernels.kv_cache import KVCache, Seen
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.program import Program, Register, Segment
    from bitnet.quants.weight import Weight

Prepared: TypeAlias = Any  # a weight in the form its backend wants; only that backend looks inside


@dataclass(frozen=True)
class Scores:
    """The scores of queries and keys, whose softmax weights the values."""

    scale: float  # factor on products of the two
    # query t sees keys up to ``S - T + t``, as many back as the window, itself included; 0: all
    window: int = 0
    softcap: float = 0.0  # if there is one, scores become ``softcap * tanh(scores / softcap)``
    causal: bool = True  # if not, a query also sees keys behind it, as far as its window reaches
    # ``(heads,)``, scores of one more key of each head, whose value is zero
    sinks: Prepared | None = None


class Ops(ABC):
    """A backend: the operations of a decoder."""

    name: str  # what ``--version`` and reports call it

    def expect(self, weights: Collection[Weight]) -> None:  # noqa: B027 - most have nothing to choose
        """Choose the form of a model's *weights* by all of them, before they are prepared."""

    @abstractmethod
    def prepare(self, weight: Weight, *, looked_up: bool = False, expert: bool = False) -> Prepared:
        """Prepare *weight* once, in the layout that the other operations expect.

        It is *looked_up* if mostly :meth:`embed` and others that take single rows will read
        it, an *expert* if it is one of a mixture, of which a token reads few.
        """

    def reads(self, prepared: Prepared) -> list[NDArray[np.uint8]]:  # noqa: ARG002
        """Bytes of mapped files that operations on *prepared* read; none where it is a copy."""
        return []

    @abstractmethod
    def compile(
        self, program: Program, weights: Mapping[str, Prepared]
    ) -> Callable[[Sequence[Segment]], Array]:
        """*program* over *weights* as a function from a batch to the rows of its outputs.

        A backend may run it in any way that gives the bits of its own operations one by one.
        """

    @abstractmethod
    def counters(self) -> Mapping[str, int]:
        """Number of calls of each kernel since the process began, counted in the kernel.

        Names are ``operation/instruction set``, with the encoding in between where there is one.
        """

    @abstractmethod
    def embed(self, table: Prepared, tokens: Sequence[int]) -> Array:
        """Rows *tokens* of the ``(vocabulary, dim)`` *table*: ``(T, dim)``."""

    @abstractmethod
    def linear(self, x: Array, weight: Prepared, bias: Prepared | None = None) -> Array:
        """``x @ weight.T + bias``: ``(T, inputs)`` to ``(T, outputs)``.

        Ternary weights of a BitNet (``rounds_input``) round *x* to int8 per token first (W1.58A8):
        with ``s = 127 / max(|x|, 1e-5)`` and ``q = clip(round_half_even(x * s), -128, 127)`` the
        result is ``sum(code * q) / s * scale``, whichever encoding holds them;
        where blocks of a row have scales of their own, their integer sums are scaled and added in
        float64, first to last, before the division. Backends agree bit for bit.
        """

    @abstractmethod
    def rms_norm(self, x: Array, weight: Prepared, eps: float) -> Array:
        """``x / sqrt(mean(x * x) + eps) * weight`` over the last axis."""

    @abstractmethod
    def rope(self, x: Array, angles: Array, *, style: RopeStyle, scale: float = 1.0) -> Array:
        """*x*, shape ``(T, heads, head_dim)``, rotated pair by pair.

        Only the first ``2 * pairs`` elements of a head are rotated, by *angles*, float64
        ``(T, pairs)``, and multiplied with *scale*; the others are kept.
        """

    @abstractmethod
    def attention(self, q: Array, seen: Seen, by: Scores) -> Array:
        """Attention of the last T of S positions, *q*, ``(T, heads, head_dim)``, over those *seen*.

        The result is ``(T, heads * head_dim)``.
        """

    @abstractmethod
    def convolve(
        self, x: Array, weight: Prepared, bias: Prepared | None, *, silu: bool, out_state: Array
    ) -> Array:
        """A causal convolution of each channel, ``(T, channels)``.

        *weight* has ``(channels, width)`` in one row, the last of each for the position
        itself. *out_state* holds the inputs before, ``(width - 1, channels)``, and
        afterwards the last ones.
        """

    @abstractmethod
    def delta_rule(
        self, rows: Sequence[Array], a: Prepared, dt: Prepared, *, grouped: bool, out_state: Array
    ) -> Array:
        """The gated delta rule, position by position: ``(T, heads, value_dim)``.

        *rows* are q and k, ``(T, key_heads, key_dim)``, v, ``(T, heads, value_dim)``, alpha and
        beta, ``(T, heads)``. With q and k of length one, *a* and *dt* of ``(heads,)``, and for the
        matrix S of each head, in *out_state*, ``(heads, key_dim, value_dim)``::

            S = S * exp(a * softplus(alpha + dt))
            S = S + outer(k, sigmoid(beta) * (v - S.T @ k))
            out = S.T @ q / sqrt(key_dim)

        Heads that share a key head are neighbours (*grouped*); otherwise every key_heads-th does.
        """

    @abstractmethod
    def selective_scan(
        self, rows: Sequence[Array], vectors: Sequence[Prepared], *, out_state: Array
    ) -> Array:
        """The scan of Mamba-2, position by position: ``(T, heads, head_dim)``.

        *rows* are x, ``(T, heads, head_dim)``, b and c, ``(T, groups, state_size)``, of which
        neighbouring heads share a group, and dt, ``(T, heads)``; *vectors* are a, bias and skip,
        ``(heads,)``. With ``step = softplus(dt + bias)`` and for the state S of each head, in
        *out_state*, ``(heads, state_size, head_dim)``::

            S = S * exp(a * step) + outer(b, step * x)
            out = S.T @ c + skip * x
        """

    @abstractmethod
    def route(self, logits: Array, bias: Prepared | None, routing: Routing) -> tuple[Array, Array]:
        """Numbers of the experts of each token, best first, and their weights: ``(T, used)``.

        *bias*, ``(experts,)``, is added to the scores for the choice alone.
        """

    @abstractmethod
    def gate(self, gate: Array, up: Array, activation: Activation) -> Array:
        """``activation(gate) * up``; two forms clamp both.

        With ``g = min(gate, 7)`` and ``u = clamp(up, -7, 7)``::

            silu_clamped: silu(g) * u
            swiglu_oai:   g * sigmoid(1.702 * g) * (u + 1)
        """

    @abstractmethod
    def softcap(self, x: Array, cap: float) -> Array:
        """``cap * tanh(x / cap)``."""


class Pass:
    """One run of a program over *segments*."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Prepared],
        ops: Ops,
        segments: Sequence[Segment],
    ) -> None:
        """A run whose registers are empty."""
        self.program = program
        self.weights = weights
        self.ops = ops
        self.segments = segments
        self.registers: dict[Register, Array] = {}  # their values, ``(T, width)`` each
        self._angles: dict[int, tuple[Array, float]] = {}
        self._selected = False
        for segment in segments:
            segment.cache.begin()

    def finish(self) -> Array:
        """The result; the caches now hold the segments' tokens."""
        for segment in self.segments:
            segment.cache.advance(len(segment.tokens))
        return self.registers[self.program.result]

    def select(self) -> list[int]:
        """Numbers of the requested rows, which are all rows from now on."""
        requested: list[int] = []
        at = 0
        for segment in self.segments:
            at += len(segment.tokens)
            requested.extend(range(at - segment.rows, at))
        self._selected = True
        self._angles = {}
        return requested

    def positions(self) -> Iterator[int]:
        """The position of every row."""
        for segment in self.segments:
            yield from self._positions(segment)

    def _positions(self, segment: Segment) -> range:
        stop = segment.cache.length + len(segment.tokens)
        return range(stop - self._count(segment), stop)

    def _count(self, segment: Segment) -> int:
        """Number of rows of *segment*."""
        return segment.rows if self._selected else len(segment.tokens)

    def heads(self, register: Register, head_dim: int) -> Array:
        """Value of *register* head by head, ``(T, heads, head_dim)``."""
        x = self.registers[register]
        return x.reshape(len(x), -1, head_dim)

    def rows(self) -> Iterator[tuple[slice, KVCache]]:
        """Rows of each segment, and its cache."""
        end = 0
        for segment in self.segments:
            end += self._count(segment)
            yield slice(end - self._count(segment), end), segment.cache

    def states(
        self, number: int, shape: tuple[int, ...], *, first: bool = False
    ) -> Iterator[tuple[slice, Array]]:
        """Rows of each segment, and the last or the *first* numbers of its state *number*."""
        size = math.prod(shape)
        for rows, cache in self.rows():
            state = cache.state(number)
            yield rows, (state[:size] if first else state[-size:]).reshape(shape)

    def angles(self, rotation: Rope) -> tuple[Array, float]:
        """Angles of every row, ``(T, pairs)``, and the factor; the same array within a pass."""
        angles = self._angles.get(id(rotation))
        if angles is None:
            parts = [np.empty((0, len(rotation.frequencies(1)[0])))]
            scale = rotation.frequencies(1)[1]
            for segment in self.segments:
                positions, reach = self._positions(segment), segment.cache.reach
                by_regime = groupby(positions, lambda at, r=reach: rotation.regime(max(r, at + 1)))  # type: ignore[misc]
                for _, group in by_regime:
                    rows = np.array(list(group), dtype=np.float64)
                    frequencies, scale = rotation.frequencies(max(reach, int(rows[-1]) + 1))
                    parts.append(rows[:, None] * frequencies)
            angles = self._angles[id(rotation)] = (np.concatenate(parts), scale)
        return angles
