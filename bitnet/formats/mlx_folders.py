"""Matrices of one and two bits of MLX.

``X.weight`` has the codes in 32-bit words, the first in the lowest bits; ``X.scales`` and
``X.biases`` have a number per group of columns: ``w = scale * code + bias``. With groups of 128,
and a bias by which the weights are -d and d, or -d, 0, d and 2 d, these are the blocks of Q1_0 and
PQ2_0, byte by byte, and become them here. Source: mlx, ``mlx.core.quantize``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.keys import COMPARE
from bitnet.quants import registry, types

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bitnet.quants.weight import Weight

#: Keys of ``config.json`` that describe the packing, and nothing else of the model.
MLX_KEYS = ("quantization", "quantization_config")
#: Names of the types that :func:`repack` gives, by bits.
_MLX_TYPES = {1: "Q1_0", 2: "PQ2_0"}
_GROUP = 128
_HINT = "fetch the model's GGUF file, or its folder of plain weights"


def mlx_bits(config: Mapping[str, Any], model: str) -> int | None:
    """Bits of the weights of MLX in a folder with *config*; ``None`` if there are none."""
    packing = config.get("quantization")
    if not isinstance(packing, dict):
        return None
    bits = packing.get("bits")
    expected = {"bits": bits, "group_size": _GROUP, "mode": "affine"}
    is_supported = {"mode": "affine", **packing} == expected
    is_stated_once = config.get("quantization_config", packing) == packing
    if type(bits) is not int or bits not in _MLX_TYPES or not is_supported or not is_stated_once:
        raise Unsupported(
            f"{model}: quantization in config.json is {packing!r}; of MLX, 1 and 2 bits in "
            f"groups of {_GROUP} are read, the same for every matrix",
            hint=_HINT,
        )
    return bits


def repack(tensors: Mapping[str, Weight], bits: int) -> dict[str, Weight]:
    """*tensors* with packed matrices as tensors of the type ``_MLX_TYPES[bits]``."""
    matrices = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        packed = tensors.get(f"{stem}.weight")
        if packed is None or packed.quant.name != "U32":
            matrices[name] = tensor
        elif kind == "weight":
            matrices[name] = _matrix(stem, tensors, bits)
        elif kind not in ("scales", "biases"):
            matrices[name] = tensor
    return matrices


def _matrix(stem: str, tensors: Mapping[str, Weight], bits: int) -> Weight:
    """The matrix of the layer *stem*, its codes, scales and biases as blocks of Q1_0 or PQ2_0."""
    words = tensors[f"{stem}.weight"]
    numbers = [tensors.get(f"{stem}.{kind}") for kind in ("scales", "biases")]
    if any(tensor is None or not tensor.quant.known for tensor in numbers):
        raise InvalidFormat(
            f"{stem}: scales or biases of packed weights are missing, or not numbers", hint=COMPARE
        )
    scales, biases = (registry.dequantize(tensor) for tensor in numbers if tensor)
    is_matrix = len(words.shape) == 2 and 0 not in words.shape
    rows, words_of_row = words.shape if is_matrix else (0, 0)
    columns = words_of_row * 32 // bits
    expected = (rows, columns // _GROUP)
    if not is_matrix or columns % _GROUP or {scales.shape, biases.shape} != {expected}:
        raise InvalidFormat(
            f"{stem}: codes of shape {words.shape}, scales of {scales.shape} and biases of "
            f"{biases.shape} do not belong together",
            hint=COMPARE,
        )
    d = -biases
    halves = d.astype(np.float16)
    step = d + d if bits == 1 else d
    if not (np.array_equal(scales, step) and np.array_equal(halves.astype(np.float32), d)):
        raise Unsupported(
            f"{stem}: weights that are not symmetric, or scales that are not float16, do not fit "
            f"{_MLX_TYPES[bits]}",
            hint=_HINT,
        )
    blocks = np.concatenate(
        [halves.reshape(-1, 1).view(np.uint8), words.data.reshape(halves.size, -1)], axis=1
    )
    quant = types.by_name(_MLX_TYPES[bits])
    return replace(words, shape=(rows, columns), quant=quant, data=blocks.reshape(-1))
