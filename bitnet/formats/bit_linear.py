"""Linear layers of transformers made ternary by ``quantization_config``.

https://github.com/huggingface/transformers/blob/v5.0.0/src/transformers/integrations/bitnet.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.quants import registry, types
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.formats.safetensors import Tensor

__all__ = ["BitLinear"]


@dataclass(frozen=True)
class BitLinear:
    """Storage of the linear layers of a safetensors folder.

    Attributes:
        online: plain weights are quantized when they are read; otherwise they are packed.
        multiplies: the scale of packed weights multiplies (``AutoBitLinear``), else it divides.
        kept: patterns of modules that stay plain; ``None``: only the head.
    """

    online: bool
    multiplies: bool
    kept: tuple[str, ...] | None

    @classmethod
    def of(cls, quantization: Mapping[str, Any]) -> BitLinear | None:
        """Storage as *quantization* describes it; ``None`` if nothing is ternary."""
        if not quantization:
            return None
        multiplies = quantization.get("linear_class", "bitlinear") == "autobitlinear"
        online = multiplies and quantization.get("quantization_mode") == "online"
        kept = quantization.get("modules_to_not_convert")
        return cls(online, multiplies, None if kept is None else tuple(map(str, kept)))

    def converts(self, module: str) -> bool:
        """True if the linear layer *module*, such as ``model.layers.0.mlp.up_proj``, is ternary."""
        patterns = ("lm_head",) if self.kept is None else self.kept
        try:
            return not any(
                re.match(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))", module) or module.endswith(pattern)
                for pattern in patterns
            )
        except re.error as error:
            raise InvalidFormat(
                f"config.json: modules_to_not_convert: {error}", hint="fetch config.json again"
            ) from error

    def weight(self, name: str, plain: Weight, scale: Tensor | None) -> Weight:
        """The ternary weight of a layer from its stored form."""
        packed = plain.quant.name == "U8"
        if packed == self.online or len(plain.shape) != 2:
            kind = "packed" if packed else "plain"
            mode = "online" if self.online else "offline"
            raise Unsupported(
                f"{name}: {kind} weights with quantization_mode {mode!r}",
                hint="fetch the config.json that belongs to these weights",
            )
        if not packed:
            return registry.quantize(name, registry.dequantize(plain), registry.PACKED_U8)
        if scale is None:
            raise InvalidFormat(f"{name}: packed ternary weights without a weight_scale")
        shape = (4 * plain.shape[0], plain.shape[1])
        return Weight(name, shape, registry.PACKED_U8, plain.data, self.factor(name, scale))

    @property
    def scales_biases(self) -> bool:
        """True if the scale of packed weights applies to their bias, too (``AutoBitLinear``)."""
        return self.multiplies and not self.online

    def factor(self, name: str, scale: Tensor) -> float:
        """Factor that the *scale* next to the tensor *name* stands for."""
        factor = _number(f"{name.rpartition('.')[0]}.scale", scale)
        return factor if self.multiplies else 1 / factor


def _number(name: str, tensor: Tensor) -> float:
    kind = types.by_name(tensor.dtype) or types.QuantType(tensor.dtype, -1, 1, 0)
    values = registry.dequantize(Weight(name, tensor.shape, kind, tensor.data))
    factor = float(values.reshape(-1)[0]) if values.size == 1 else 0.0
    if not np.isfinite(factor) or factor <= 0:
        raise InvalidFormat(f"{name}: its weight_scale is not a positive number")
    return factor
