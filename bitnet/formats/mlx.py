"""Matrices of one and two bits as MLX stores them in safetensors folders.

``X.weight`` has the codes in 32-bit words, the first in the lowest bits; ``X.scales`` and
``X.biases`` have a number per group of columns: ``w = scale * code + bias``. With groups of 128,
and a bias by which the weights are -d and d, or -d, 0, d and 2 d, these are the blocks of Q1_0 and
PQ2_0, byte by byte, and become them here. Source: mlx, ``mlx.core.quantize``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats.safetensors import Tensor
from bitnet.quants import registry, types
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["CONFIG_KEYS", "TYPES", "mlx_quantization", "repack"]

#: Keys of ``config.json`` that describe the packing, and nothing else of the model.
CONFIG_KEYS = ("quantization", "quantization_config")

#: Names of the types that :func:`repack` gives, by bits.
TYPES = {1: "Q1_0", 2: "PQ2_0"}
_GROUP = 128
_HINT = "fetch the model's GGUF file, or its folder of plain weights"


def mlx_quantization(config: Mapping[str, Any], model: str) -> int | None:
    """Bits of the weights of MLX in a folder with *config*; ``None`` if there are none."""
    packing = config.get("quantization")
    if not isinstance(packing, dict):
        return None
    bits = packing.get("bits")
    expected = {"bits": bits, "group_size": _GROUP, "mode": "affine"}
    again = config.get("quantization_config", packing)
    if bits not in TYPES or again != packing or {"mode": "affine"} | packing != expected:
        raise Unsupported(
            f"{model}: quantization in config.json is {packing!r}; of MLX, 1 and 2 bits in "
            f"groups of {_GROUP} are read, the same for every matrix",
            hint=_HINT,
        )
    return int(bits)


def repack(tensors: Mapping[str, Tensor], bits: int) -> dict[str, Tensor]:
    """*tensors* with packed matrices as tensors of the type ``TYPES[bits]``."""
    matrices = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        packed = tensors.get(f"{stem}.weight")
        if packed is None or packed.dtype != "U32":
            matrices[name] = tensor
        elif kind == "weight":
            matrices[name] = _matrix(stem, tensors, bits)
        elif kind not in ("scales", "biases"):
            matrices[name] = tensor
    return matrices


def _matrix(stem: str, tensors: Mapping[str, Tensor], bits: int) -> Tensor:
    words = tensors[f"{stem}.weight"]
    scales, biases = (_numbers(f"{stem}.{kind}", tensors) for kind in ("scales", "biases"))
    rows, columns = words.shape[0], words.shape[-1] * 32 // bits
    expected = (rows, columns // _GROUP)
    if len(words.shape) != 2 or columns % _GROUP or {scales.shape, biases.shape} != {expected}:
        raise InvalidFormat(
            f"{stem}: codes of shape {words.shape}, scales of {scales.shape} and biases of "
            f"{biases.shape} do not belong together",
            hint="fetch the whole model again",
        )
    d = -biases
    halves = d.astype(np.float16)
    step = d + d if bits == 1 else d
    if not (np.array_equal(scales, step) and np.array_equal(halves.astype(np.float32), d)):
        raise Unsupported(
            f"{stem}: weights that are not symmetric, or scales that are not float16, do not fit "
            f"{TYPES[bits]}",
            hint=_HINT,
        )
    blocks = np.concatenate(
        [halves.reshape(-1, 1).view(np.uint8), words.data.reshape(halves.size, -1)], axis=1
    )
    return Tensor(TYPES[bits], (rows, columns), blocks.reshape(-1))


def _numbers(name: str, tensors: Mapping[str, Tensor]) -> NDArray[np.float32]:
    tensor = tensors.get(name)
    quant = types.by_name(tensor.dtype) if tensor is not None else None
    if tensor is None or quant is None or quant.name not in ("F16", "BF16", "F32"):
        raise InvalidFormat(
            f"{name} of packed weights is missing, or not numbers",
            hint="fetch the whole model again",
        )
    return registry.dequantize(Weight(name, tensor.shape, quant, tensor.data))
