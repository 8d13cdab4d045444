"""Importance matrices: the mean square of each input of each matrix, as llama-imatrix writes them.

There are two formats: GGUF files with the tensors ``NAME.in_sum2`` and ``NAME.counts``, and before
them files of one record after another (``imatrix.dat``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat, NotFound
from bitnet.formats.gguf import GGUF
from bitnet.quants.registry import dequantize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.quants.weight import Weight

_SUMS, _COUNTS = ".in_sum2", ".counts"
_KEYS = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")


@dataclass(frozen=True)
class Importance:
    """An importance matrix."""

    path: Path  # its file
    # by the name of a matrix, its inputs' weights; one expert after another
    values: Mapping[str, NDArray[np.float32]]
    dataset: str = ""  # name of the text that it was computed on, or ""
    chunks: int = 0  # number of pieces of that text, or 0

    def of(self, weight: Weight) -> NDArray[np.float32] | None:
        """Weights of the inputs of *weight*, ``(matrices, columns)``; ``None`` without them."""
        values = self.values.get(weight.name)
        if values is None:
            return None
        matrices = weight.shape[0] if len(weight.shape) == 3 else 1
        if values.size == matrices * weight.shape[-1]:
            return values.reshape(matrices, weight.shape[-1])
        if weight.name in ("token_embd.weight", "per_layer_token_embd.weight"):
            return None  # it was computed for the head, which has the same numbers
        raise InvalidFormat(
            f"{self.path.name}: {values.size:,} numbers for {weight.name}, expected "
            f"{matrices * weight.shape[-1]:,}",
            hint="use the importance matrix of this model",
        )


def read_importance(path: Path) -> Importance:
    """The importance matrix in the file *path*."""
    if not path.is_file():
        raise NotFound(f"{path} does not exist", hint="compute one with llama-imatrix")
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    found = _from_gguf(path) if is_gguf else _Records(path).importance()
    for name, values in found.values.items():
        if not np.isfinite(values).all():
            raise _invalid(path, f"the numbers for {name} are not all finite")
    return found


def _from_gguf(path: Path) -> Importance:
    with GGUF.open(path) as file:
        missing = [key for key in _KEYS if key not in file.metadata]
        if missing:
            raise _invalid(path, f"it has no key {missing[0]}")
        tensors = {
            name: dequantize(file.weight(name))
            for name in file.tensors
            if name.endswith((_SUMS, _COUNTS))
        }
        datasets = list(file.metadata[_KEYS[0]])
        chunks = int(file.metadata[_KEYS[1]])
    names = {name.removesuffix(_SUMS).removesuffix(_COUNTS) for name in tensors}
    if not names:
        raise _invalid(path, "it has no sums")
    values = {}
    for name in names:
        sums, counts = tensors.get(name + _SUMS), tensors.get(name + _COUNTS)
        if sums is None or counts is None or counts.size == 0 or sums.size % counts.size:
            raise _invalid(path, f"sums and counts of {name} do not belong together")
        calls = np.floor(counts + np.float32(0.5)).reshape(-1, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = sums.reshape(calls.size, -1) / calls
        values[name] = np.where(calls > 0, means, np.float32(1)).astype(np.float32).reshape(-1)
    return Importance(path, values, datasets[0] if datasets else "", chunks)


class _Records:
    """Reader of ``imatrix.dat``: the number of entries, then name, calls and sums of each."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, path.read_bytes(), 0

    def importance(self) -> Importance:
        values = {}
        count = self._number()
        if count < 1:
            raise _invalid(self.path, "it is neither GGUF nor an imatrix.dat")
        for _ in range(count):
            name = self._take(self._number()).split(b"\0")[0].decode("utf-8", "replace")
            calls, size = self._number(), self._number()
            if size < 1:
                raise _invalid(self.path, f"{name} has no sums")
            sums = np.frombuffer(self._take(4 * size), "<f4").astype(np.float32)
            values[name] = sums / np.float32(calls) if calls > 0 else sums
        if self.at == len(self.data):
            return Importance(self.path, values)
        chunks = self._number()
        dataset = self._take(self._number()) if self.at < len(self.data) else b""
        return Importance(self.path, values, dataset.decode("utf-8", "replace"), max(chunks, 0))

    def _number(self) -> int:
        return int(struct.unpack("<i", self._take(4))[0])

    def _take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise _invalid(self.path, "it ends too early, or is not an importance matrix")
        self.at += size
        return self.data[self.at - size : self.at]


def _invalid(path: Path, why: str) -> InvalidFormat:
    return InvalidFormat(
        f"{path.name}: {why}", hint="compute the importance matrix with llama-imatrix"
    )
