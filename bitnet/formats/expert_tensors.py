"""The matrices of experts in a folder, as GGUF has them: one tensor of three dimensions for each.

Folders hold a tensor for each expert, or all in one, in which the rows of the gate precede those of
``up``. Bytes stay where they are in the files.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.formats.safetensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["split_gates", "stack_experts"]

_ONE = re.compile(r"(?P<all>.*\.experts)\.(?P<number>\d{1,5})\.(?P<part>\w+)\.weight")
_FUSED = re.compile(r"(?P<block>blk\.\d+\.ffn_)gate_up_(?P<kind>exps|shexp)\.weight")
_NOTHING = np.empty(0, dtype=np.uint8)


def stack_experts(tensors: Mapping[str, Tensor], model: str) -> dict[str, Tensor]:
    """*tensors*, with ``experts.0.up_proj.weight`` and the like as one ``experts.up_proj``.

    Raises:
        InvalidFormat: an expert is missing, or unlike the others.
    """
    stacked: dict[str, Tensor] = {}
    parts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _ONE.fullmatch(name)
        if match is None:
            stacked[name] = tensor
        else:
            parts.setdefault(f"{match['all']}.{match['part']}", {})[int(match["number"])] = tensor
    for name, experts in parts.items():
        kinds = {(tensor.dtype, tensor.shape) for tensor in experts.values()}
        if sorted(experts) != list(range(len(experts))) or len(kinds) > 1 or name in stacked:
            raise InvalidFormat(
                f"{model}: {name} is incomplete, or its {len(experts):,} experts differ in shape",
                hint="fetch the whole model again",
            )
        first = experts[0]
        pieces = tuple(experts[number].data for number in range(len(experts)))
        stacked[name] = Tensor(first.dtype, (len(experts), *first.shape), _NOTHING, pieces)
    return stacked


def split_gates(tensors: Mapping[str, Tensor], model: str) -> dict[str, Tensor]:
    """*tensors* by GGUF name, with ``ffn_gate_up_exps`` as ``ffn_gate_exps`` and ``ffn_up_exps``.

    Raises:
        InvalidFormat: it has no two halves.
    """
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _FUSED.fullmatch(name)
        if match is None:
            split[name] = tensor
            continue
        rows = tensor.shape[-2] if len(tensor.shape) == (3 if match["kind"] == "exps" else 2) else 1
        if rows % 2:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} is not a gate and as large a matrix",
                hint="fetch the whole model again",
            )
        halves = [_half(tensor, half) for half in (0, 1)]
        for part, half in zip(("gate", "up"), halves, strict=True):
            split[f"{match['block']}{part}_{match['kind']}.weight"] = half
    return split


def _half(tensor: Tensor, half: int) -> Tensor:
    """The first or the second rows of each matrix."""
    *experts, rows, columns = tensor.shape
    pieces = [piece.reshape(2, -1)[half] for piece in _matrices(tensor)]
    shape = (*experts, rows // 2, columns)
    if not experts:
        return replace(tensor, shape=shape, data=pieces[0])
    return Tensor(tensor.dtype, shape, _NOTHING, tuple(pieces))


def _matrices(tensor: Tensor) -> tuple[np.ndarray, ...]:
    if tensor.pieces:
        return tensor.pieces
    count = tensor.shape[0] if len(tensor.shape) == 3 else 1
    return tuple(tensor.data.reshape(count, -1))
