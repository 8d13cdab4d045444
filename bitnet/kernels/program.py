"""A model's forward pass as data, instructions over named registers.

A register holds float rows, one per token of the batch: ``(T, width)``. Weights are named; the
tokens of all segments of a batch follow each other. ``instructions.py`` says what each instruction
means, in NumPy; a backend may compile the list instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.families.blocks import CacheKind
    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.kv_codes import Array


@dataclass(frozen=True)
class Segment:
    """Tokens of one sequence in a batch."""

    tokens: Sequence[int]  # ids that continue what *cache* holds
    cache: KVCache  # of this sequence; no two segments of a batch share one
    outputs: Literal["none", "last", "all"] = "last"  # the tokens whose hidden states are returned
    # of the tokens before *tokens*, ``(T, dim)``, for a program that takes them
    hidden: Array | None = None

    @property
    def rows(self) -> int:
        """Number of hidden states that are returned."""
        return {"none": 0, "last": 1, "all": len(self.tokens)}[self.outputs]


class Instruction(Protocol):
    """A step of a program, a dataclass; ``instructions.py`` has all there are."""

    def run(self, on: Any) -> None:
        """Do it in a ``Pass``: in NumPy, with the products of any backend, which defines it."""


class Register(NamedTuple):
    """Rows of a pass, one per token."""

    name: str  # of its place in memory; of the registers of one name, one is in use at a time
    width: int  # numbers in a row


@dataclass(frozen=True)
class Program:
    """A forward pass."""

    instructions: tuple[Instruction, ...]  # in order
    caches: tuple[CacheKind, ...]  # kind of cache of each number that an instruction names
    result: Register  # the register that holds the result, one row per token of the outputs


@dataclass(frozen=True)
class Mark:
    """*register* holds what a trace calls *name*."""

    name: str
    register: Register

    def run(self, on: Any) -> None:
        """Nothing: a trace stops here."""
