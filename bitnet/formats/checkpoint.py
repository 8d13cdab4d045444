"""A model on disk, whatever its container: GGUF keys and GGUF tensor names, weights still encoded.

checkpoint = open_checkpoint("model.gguf")       # or a folder with safetensors files
checkpoint.architecture                          # "llama"
checkpoint.value("block_count")                  # the key llama.block_count
checkpoint.weights["blk.0.attn_q.weight"]        # a Weight: a view into the mapped file
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from bitnet.errors import InvalidFormat, NotFound, Unsupported, UsageError, from_os_error
from bitnet.formats.gguf import GGUF, Array
from bitnet.quants import registry
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["OPENERS", "Checkpoint", "I2SLayout", "RopeStyle", "open_checkpoint"]

RopeStyle = Literal["interleaved", "half"]
I2SLayout = Literal["x86", "arm"]

# Converters permute the query and key rows of these, so that pairs lie side by side.
_INTERLEAVED = frozenset({"llama"})

# Third-party conversions of BitNet keep other prefixes for their keys.
_OTHER_PREFIXES = ("bitnet-b1.58", "bitnet", "llama")

_MISSING = object()


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model on disk.

    Attributes:
        path: the file or folder.
        architecture: GGUF's ``general.architecture``.
        metadata: GGUF keys; arrays are :class:`~bitnet.formats.gguf.Array` or lists.
        weights: by GGUF name, in file order.
        rope_style: which elements of a head form a rotated pair: neighbours (``interleaved``) or
            element i and element i + half (``half``).
    """

    path: Path
    architecture: str
    metadata: Mapping[str, Any]
    weights: Mapping[str, Weight]
    rope_style: RopeStyle

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """The architecture's own *key*, such as ``attention.head_count``; arrays as lists.

        Raises:
            InvalidFormat: the key is missing and there is no *default*.
        """
        for prefix in (self.architecture, *_OTHER_PREFIXES):
            found = self.metadata.get(f"{prefix}.{key}")
            if found is not None:
                return list(found) if isinstance(found, Array) else found
        if default is not _MISSING:
            return default
        raise InvalidFormat(
            f"{self.path.name}: the key {self.architecture}.{key} is missing",
            hint="the file was converted incompletely; choose another conversion",
        )

    def integer(self, key: str, default: Any = _MISSING) -> int:
        """The integer *key*, at least zero.

        Raises:
            InvalidFormat: it is missing, or not such a number.
        """
        found = self.value(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            raise self._wrong_value(key, found, "an integer of at least 0")
        return found

    def number(self, key: str, default: Any = _MISSING) -> float:
        """The finite number *key*.

        Raises:
            InvalidFormat: it is missing, or not such a number.
        """
        found = self.value(key, default)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if not is_number or not abs(found) <= sys.float_info.max:  # false for NaN, too
            raise self._wrong_value(key, found, "a finite number")
        return float(found)

    def numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """The tensor *name* decoded, ``None`` where there is none.

        Raises:
            InvalidFormat: it has another shape than *shape*.
        """
        weight = self.weights.get(name)
        if weight is not None and weight.shape != shape:
            raise InvalidFormat(
                f"{self.path.name}: {name} has shape {weight.shape}, expected {shape}",
                hint="the file is damaged; fetch it again",
            )
        return None if weight is None else registry.dequantize(weight)

    def _wrong_value(self, key: str, found: Any, expected: str) -> InvalidFormat:
        return InvalidFormat(
            f"{self.path.name}: the key {self.architecture}.{key} is {found!r}, "
            f"expected {expected}",
            hint="the file is damaged; fetch it again",
        )


def open_checkpoint(path: str | os.PathLike[str], *, i2_s_layout: I2SLayout = "x86") -> Checkpoint:
    """The model at *path*: a GGUF file, a safetensors file, or a folder with safetensors files.

    Args:
        path: recognised by its first bytes, not by its name.
        i2_s_layout: the processor that wrote I2_S weights; no file records it.

    Raises:
        NotFound: nothing is there, or the folder holds no model.
        InvalidFormat: a damaged file.
        Unsupported: not a container we read.
        UsageError: no such layout.
    """
    if i2_s_layout not in get_args(I2SLayout):
        raise UsageError(f"--i2-s-layout is {i2_s_layout!r}, expected x86 or arm")
    path = Path(path)
    checkpoint = _opener(path)(path)
    if i2_s_layout == "arm":
        arm = {name: _of_arm(weight) for name, weight in checkpoint.weights.items()}
        return replace(checkpoint, weights=arm)
    return checkpoint


def _opener(path: Path) -> Callable[[Path], Checkpoint]:
    try:
        if not path.exists():
            raise NotFound(f"no such file or folder: {path}", hint="bitnet download-model --help")
        for recognises, opener in OPENERS:
            if recognises(path):
                return opener
    except OSError as error:
        raise from_os_error(error, path) from error
    raise Unsupported(
        f"{path.name or path} is neither a GGUF file nor safetensors",
        hint="pass a .gguf file, or the folder that holds config.json and *.safetensors",
    )


def _of_arm(weight: Weight) -> Weight:
    return replace(weight, quant=registry.I2_S_ARM) if weight.quant.name == "I2_S" else weight


def _starts_with_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"GGUF".startswith(file.read(4))  # one that ends before is a truncated one


def _open_gguf(path: Path) -> Checkpoint:
    import numpy as np

    gguf = GGUF.open(path)
    weights = {
        name: Weight(
            name, info.shape, info.type, np.frombuffer(gguf.tensor_bytes(name), dtype=np.uint8)
        )
        for name, info in gguf.tensors.items()
    }
    style: RopeStyle = "interleaved" if gguf.architecture in _INTERLEAVED else "half"
    return Checkpoint(gguf.path, gguf.architecture, gguf.metadata, weights, style)


def _is_safetensors(path: Path) -> bool:
    from bitnet.formats import safetensors

    return safetensors.recognises(path)


def _open_safetensors(path: Path) -> Checkpoint:
    from bitnet.formats import hf_checkpoint

    return hf_checkpoint.open_folder(path if path.is_dir() else path.parent)


OPENERS: list[tuple[Callable[[Path], bool], Callable[[Path], Checkpoint]]] = [
    (_starts_with_gguf, _open_gguf),
    (_is_safetensors, _open_safetensors),
]
