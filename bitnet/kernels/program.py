"""A model's forward pass as data: instructions over named registers.

A register holds float rows, one per token of the batch: ``(T, width)``. Weights are named; the
tokens of all segments of a batch follow each other. ``instructions.py`` says what each instruction
means, with the operations of any backend; a backend may compile the list instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from bitnet.families.blocks import Activation, KeysValues, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.families.blocks import CacheKind
    from bitnet.families.keys import RopeStyle

__all__ = [
    "Activation",
    "Array",
    "Cache",
    "Instruction",
    "Program",
    "Register",
    "Rotation",
    "Seen",
    "Segment",
    "page_tables",
    "state_ranges",
]


Array: TypeAlias = "NDArray[np.floating[Any]]"


class Seen(NamedTuple):
    """Keys and values of the last S positions of a layer.

    Attributes:
        keys: ``(kv_heads, S, D)``.
        values: as *keys*.
        pages: the codes of both, as ``kernels/kv_codes.py`` has them, for the compiled module;
            ``None`` where a cache holds floats.
    """

    keys: Array
    values: Array
    pages: NDArray[np.int16] | None = None


class Cache(Protocol):
    """Keys and values of the positions seen so far; ``runtime.kv_cache`` has the real one.

    Attributes:
        length: positions stored.
        capacity: positions there is room for.
        reach: positions the prompt has; they decide how a context is stretched. A position behind
            them decides for itself.
    """

    length: int
    capacity: int
    reach: int

    def append(self, number: int, keys: Array, values: Array) -> Seen:
        """Store ``(T, kv_heads, D)`` behind the positions of cache *number*.

        Returns the last of all, at least those that the new ones see.
        """

    def view(self, number: int, count: int) -> Seen:
        """As :meth:`append` of *count* positions returned it in the same pass."""

    def pages(self, count: int) -> tuple[NDArray[np.uint64], ...] | None:
        """Addresses of its pages, room for *count* more positions made, for the compiled module.

        One array for each of :func:`page_tables`, 0 for pages that are not seen any more.
        ``None`` where they do not hold the codes of ``kernels/kv_codes.py``.
        """

    def begin(self) -> Array:
        """Begin a pass: the states of fixed size of all its layers, as :func:`state_ranges`."""

    def state(self, number: int) -> Array:
        """State of cache *number*, which the pass that has begun changes in place."""

    def advance(self, count: int) -> None:
        """Count *count* positions that every layer has appended."""


class Rotation(Protocol):
    """A rotary position embedding; ``families.rope`` has the real one."""

    @property
    def style(self) -> RopeStyle:
        """Pairing of rotary dimensions."""

    def regime(self, context: int) -> int:
        """Contexts with the same regime have the same frequencies."""

    def frequencies(self, context: int) -> tuple[NDArray[np.float64], float]:
        """Angle per position of each pair, and the factor on what is rotated."""


@dataclass(frozen=True)
class Segment:
    """Tokens of one sequence in a batch.

    Attributes:
        tokens: ids that continue what *cache* holds.
        cache: of this sequence; no two segments of a batch share one.
        outputs: the tokens whose hidden states are returned.
        hidden: of the tokens before *tokens*, ``(T, dim)``, for a program that takes them.
    """

    tokens: Sequence[int]
    cache: Cache
    outputs: Literal["none", "last", "all"] = "last"
    hidden: Array | None = None

    @property
    def rows(self) -> int:
        """Number of hidden states that are returned."""
        return {"none": 0, "last": 1, "all": len(self.tokens)}[self.outputs]


class Instruction(Protocol):
    """A step of a program; ``instructions.py`` has all there are."""

    def run(self, on: Any) -> None:
        """Do it in a ``Pass``: with the operations of any backend, which defines what it means."""

    def compile(self, to: Any) -> None:
        """Add it to a ``targets.Graph``.

        Raises:
            NotImplementedError: its ``native`` has no method for it.
        """


class Register(NamedTuple):
    """Rows of a pass, one per token.

    Attributes:
        name: of its place in memory; of the registers of one name, one is in use at a time.
        width: numbers in a row.
    """

    name: str
    width: int


@dataclass(frozen=True)
class Program:
    """A forward pass.

    Attributes:
        instructions: in order.
        caches: kind of cache of each number that an instruction names.
        result: the register that holds the result, one row per token of the outputs.
    """

    instructions: tuple[Instruction, ...]
    caches: tuple[CacheKind, ...]
    result: Register


def page_tables(caches: Sequence[CacheKind]) -> dict[KeysValues, tuple[int, ...]]:
    """Caches of keys and values of one kind, which share pages, by number."""
    return {
        kind: tuple(number for number, its in enumerate(caches) if its == kind)
        for kind in dict.fromkeys(it for it in caches if isinstance(it, KeysValues))
    }


def state_ranges(caches: Sequence[CacheKind]) -> dict[int, range]:
    """Numbers of each cache of fixed size, by its own, in one state for all of them."""
    sizes = [(number, its.size) for number, its in enumerate(caches) if isinstance(its, State)]
    ends = list(accumulate(size for _, size in sizes))
    return {number: range(end - size, end) for (number, size), end in zip(sizes, ends, strict=True)}
