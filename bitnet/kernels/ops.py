"""Operations that a model needs from a backend. ``reference.py`` defines what is correct.

Activations are float arrays with one row per token: ``(T, dim)``, or ``(T, heads, head_dim)``
inside attention.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from bitnet.kernels.program import Activation, Array

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.families.keys import RopeStyle
    from bitnet.families.networks import Routing
    from bitnet.kernels.kv_cache import Seen
    from bitnet.kernels.program import Program, Segment
    from bitnet.quants.weight import Weight

__all__ = ["Activation", "Array", "Ops", "Prepared"]

Prepared: TypeAlias = Any  # a weight in the form its backend wants; only that backend looks inside


class Ops(ABC):
    """A backend: the operations of a decoder.

    Attributes:
        name: what ``--version`` and reports call it.
    """

    name: str

    def expect(self, weights: Collection[Weight]) -> None:  # noqa: B027 - most have nothing to choose
        """Before a model's *weights* are prepared: a chance to choose their form by all of them.

        Raises:
            InferenceError: they cannot fit in memory in any form.
        """

    @abstractmethod
    def prepare(self, weight: Weight, *, looked_up: bool = False, expert: bool = False) -> Prepared:
        """*weight* unpacked, repacked or uploaded, once; what the other operations take.

        Args:
            weight: what to prepare.
            looked_up: mostly :meth:`embed` and others that take single rows will read it.
            expert: it is one of a mixture, of which a token reads few.

        Raises:
            Unsupported: the encoding has no kernel here.
            InvalidFormat: the weight's bytes are damaged.
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

        Args:
            x: only the first ``2 * pairs`` elements of a head are rotated, the others are kept.
            angles: float64, shape ``(T, pairs)``.
            style: which elements form a pair.
            scale: factor on the rotated elements.
        """

    @abstractmethod
    def attention(
        self,
        q: Array,
        seen: Seen,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        causal: bool = True,
        sinks: Prepared | None = None,
    ) -> Array:
        """Attention of the last T of S positions: ``(T, heads * head_dim)``.

        Args:
            q: ``(T, heads, head_dim)``.
            seen: of S positions; query t sees keys up to ``S - T + t``.
            scale: factor on the scores.
            window: how many positions back a query sees, itself included; 0: all.
            softcap: scores become ``softcap * tanh(scores / softcap)``; 0: they stay.
            causal: otherwise a query also sees keys behind it, as far as its window reaches.
            sinks: ``(heads,)``, scores of one more key of each head, whose value is zero.
        """

    @abstractmethod
    def convolve(
        self, x: Array, weight: Prepared, bias: Prepared | None, *, silu: bool, out_state: Array
    ) -> Array:
        """A causal convolution of each channel, ``(T, channels)``.

        Args:
            x: ``(T, channels)``.
            weight: ``(channels, width)`` in one row, the last of each for the position itself.
            bias: ``(channels,)``, or None.
            silu: the result is silu of it.
            out_state: the inputs before, ``(width - 1, channels)``; afterwards the last ones.
        """

    @abstractmethod
    def delta_rule(
        self,
        q: Array,
        k: Array,
        v: Array,
        alpha: Array,
        beta: Array,
        a: Prepared,
        dt: Prepared,
        *,
        grouped: bool,
        out_state: Array,
    ) -> Array:
        """The gated delta rule, position by position: ``(T, heads, value_dim)``.

        With *q* and *k* of length one, and for the matrix S of each head::

            S = S * exp(a * softplus(alpha + dt))
            S = S + outer(k, sigmoid(beta) * (v - S.T @ k))
            out = S.T @ q / sqrt(key_dim)

        Args:
            q: ``(T, key_heads, key_dim)``.
            k: as *q*.
            v: ``(T, heads, value_dim)``.
            alpha: ``(T, heads)``.
            beta: as *alpha*.
            a: ``(heads,)``.
            dt: as *a*.
            grouped: neighbouring heads share a key head; otherwise every key_heads-th head does.
            out_state: the matrices, ``(heads, key_dim, value_dim)``, which are updated.
        """

    @abstractmethod
    def selective_scan(
        self,
        x: Array,
        b: Array,
        c: Array,
        dt: Array,
        a: Prepared,
        bias: Prepared,
        skip: Prepared,
        *,
        out_state: Array,
    ) -> Array:
        """The scan of Mamba-2, position by position: ``(T, heads, head_dim)``.

        With ``step = softplus(dt + bias)`` and for the state S of each head::

            S = S * exp(a * step) + outer(b, step * x)
            out = S.T @ c + skip * x

        Args:
            x: ``(T, heads, head_dim)``.
            b: ``(T, groups, state_size)``; neighbouring heads share a group.
            c: as *b*.
            dt: ``(T, heads)``.
            a: ``(heads,)``.
            bias: as *a*.
            skip: as *a*.
            out_state: the states, ``(heads, state_size, head_dim)``, which are updated.
        """

    @abstractmethod
    def route(self, logits: Array, bias: Prepared | None, routing: Routing) -> tuple[Array, Array]:
        """Numbers of the experts of each token, best first, and their weights: ``(T, used)``.

        Args:
            logits: of the router, ``(T, experts)``.
            bias: added to the scores for the choice alone, ``(experts,)``.
            routing: the rule.
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
