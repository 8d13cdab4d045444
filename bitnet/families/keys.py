"""A model on disk, as its family reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Keys", "RopeStyle"]

RopeStyle = Literal["interleaved", "half"]


class Keys(Protocol):
    """A model on disk: its keys under GGUF's names, without the architecture prefix."""

    @property
    def architecture(self) -> str:
        """GGUF's name of the architecture."""

    @property
    def path(self) -> Path:
        """The file or folder."""

    @property
    def config(self) -> Mapping[str, Any] | None:
        """``config.json``, if it is a folder."""

    @property
    def rope_style(self) -> RopeStyle:
        """Pairing of rotary dimensions."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """All keys, as they are stored."""

    @property
    def weights(self) -> Mapping[str, Any]:
        """Tensors by GGUF name."""

    def numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """The tensor *name* decoded; ``None`` if it does not exist."""

    def value(self, key: str, default: Any = ...) -> Any:
        """The value of *key*."""

    def integer(self, key: str, default: Any = ...) -> int:
        """The integer *key*."""

    def number(self, key: str, default: Any = ...) -> float:
        """The finite number *key*."""
