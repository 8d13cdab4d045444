"""Sequences whose elements are created on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["LazySequence"]

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence of known length; a compiled tokenizer never needs its elements.

    Args:
        length: number of elements.
        load: creates them; called at most once.
        raw: source of the elements, for callers that do not need them.
    """

    def __init__(
        self, length: int, load: Callable[[], list[T]], *, raw: list[Any] | None = None
    ) -> None:
        self.raw = raw
        self._length = length
        self._load: Callable[[], list[T]] | None = load
        self._items: list[T] = []

    def _all(self) -> list[T]:
        if self._load is not None:
            self._items = self._load()
            self._load = None
        return self._items

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        return self._all()[at]

    def __iter__(self) -> Iterator[T]:
        return iter(self._all())
