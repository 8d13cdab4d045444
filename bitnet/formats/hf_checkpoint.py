"""A folder with ``config.json`` and safetensors files as a :class:`Checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.errors import InvalidFormat
from bitnet.formats import hf_names, safetensors
from bitnet.formats.checkpoint import Checkpoint
from bitnet.quants import registry, types
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.formats.safetensors import Tensor
    from bitnet.quants.types import QuantType

__all__ = ["open_folder"]


def open_folder(path: Path) -> Checkpoint:
    """The model in the folder *path*, or beside the safetensors file *path*; GGUF keys and names.

    Weights of BitNet stay packed; its bfloat16 master weights are made ternary here.

    Raises:
        NotFound: ``config.json`` or a tensor file is missing.
        InvalidFormat: a damaged file.
        Unsupported: an architecture or a data type we do not run.
    """
    folder = path if path.is_dir() else path.parent
    outer = safetensors.read_json(folder / "config.json")
    config = hf_names.text_config(outer)
    try:
        metadata = hf_names.gguf_keys(config)
        rope = hf_names.rope_tensors(config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise InvalidFormat(
            f"{folder / 'config.json'}: missing or wrong: {error}", hint="fetch config.json again"
        ) from error
    architecture = metadata["general.architecture"]
    tensors = _renamed(safetensors.read_folder(folder), architecture)
    if config.get("tie_word_embeddings", outer.get("tie_word_embeddings")):
        tensors.pop("output.weight", None)
    quantization = outer.get("quantization_config") or {}
    weights = {
        name: _weight(name, tensors, architecture, quantization)
        for name in tensors
        if not name.endswith(".scale")
    }
    weights |= {name: _plain(name, divisors) for name, divisors in rope.items()}
    return Checkpoint(folder, architecture, metadata, weights, "half", config=outer)


def _renamed(tensors: Mapping[str, Tensor], architecture: str) -> dict[str, Tensor]:
    named = {hf_names.gguf_name(name, architecture): tensor for name, tensor in tensors.items()}
    named.pop("", None)
    return named


def _weight(
    name: str,
    tensors: Mapping[str, Tensor],
    architecture: str,
    quantization: Mapping[str, Any],
) -> Weight:
    tensor = tensors[name]
    if tensor.dtype == "U8" and len(tensor.shape) == 2:
        return _packed(name, tensor, tensors.get(_scale_name(name)), quantization)
    quant = types.by_name(tensor.dtype)
    if tensor.dtype not in ("F32", "F16", "BF16") or quant is None:
        quant = _unknown(tensor.dtype)
    weight = Weight(name, tensor.shape, quant, tensor.data)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        # The checkpoint stores what is added to one; GGUF stores the factor.
        return _plain(name, registry.dequantize(weight) + np.float32(1))
    bitnet = architecture.startswith("bitnet") or quantization.get("quant_method") == "bitnet"
    if bitnet and name.startswith("blk.") and len(tensor.shape) == 2:
        return registry.quantize(name, registry.dequantize(weight), registry.PACKED_U8)
    return weight


def _packed(
    name: str, tensor: Tensor, scale: Tensor | None, quantization: Mapping[str, Any]
) -> Weight:
    """A packed ternary weight; ``BitLinear`` divides by its scale, ``AutoBitLinear`` multiplies."""
    if scale is None:
        raise InvalidFormat(f"{name}: packed ternary weights without a weight_scale")
    kind = types.by_name(scale.dtype) or _unknown(scale.dtype)
    values = registry.dequantize(Weight(_scale_name(name), scale.shape, kind, scale.data))
    factor = float(values.reshape(-1)[0]) if values.size == 1 else 0.0
    if not np.isfinite(factor) or factor <= 0:
        raise InvalidFormat(f"{name}: its weight_scale is no positive number")
    if quantization.get("linear_class", "bitlinear") != "autobitlinear":
        factor = 1 / factor
    shape = (4 * tensor.shape[0], tensor.shape[1])
    return Weight(name, shape, registry.PACKED_U8, tensor.data, factor)


def _scale_name(name: str) -> str:
    return name.removesuffix("weight") + "scale"


def _plain(name: str, values: NDArray[np.float32]) -> Weight:
    quant = types.by_id(0)
    return Weight(name, values.shape, quant, values.astype("<f4").reshape(-1).view(np.uint8))


def _unknown(dtype: str) -> QuantType:
    """A type without decoder, so that the error names tensor and type when it is needed."""
    return types.QuantType(dtype, -1, 1, 0)
