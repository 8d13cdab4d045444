"""Ternary linear layers of a safetensors folder: which they are, and how they are stored.

https://github.com/huggingface/transformers/blob/v5.0.0/src/transformers/integrations/bitnet.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.keys import COMPARE
from bitnet.formats.patterns import compile_pattern
from bitnet.quants import registry
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = float(np.finfo(np.float32).max)
_KEPT = "config.json: modules_to_not_convert"


@dataclass(frozen=True)
class BitLinear:
    """Storage of the linear layers of a safetensors folder."""

    online: bool  # plain weights are quantized when they are read; otherwise they are packed
    multiplies: bool  # the scale of packed weights multiplies (``AutoBitLinear``), else it divides
    kept: tuple[str, ...] | None  # patterns of modules that stay plain; ``None``: only the head

    @classmethod
    def of(cls, quantization: Mapping[str, Any]) -> BitLinear | None:
        """Storage as *quantization* describes it; ``None`` if nothing is ternary."""
        if not quantization:
            return None
        multiplies = quantization.get("linear_class", "bitlinear") == "autobitlinear"
        online = multiplies and quantization.get("quantization_mode") == "online"
        unconverted = quantization.get("modules_to_not_convert")
        return cls(
            online, multiplies, None if unconverted is None else tuple(map(str, unconverted))
        )

    def converts(self, module: str) -> bool:
        """True if the linear layer *module*, such as ``model.layers.0.mlp.up_proj``, is ternary."""
        patterns = ("lm_head",) if self.kept is None else self.kept
        for pattern in patterns:
            # As an expression it matches whole dotted components from the start of *module*, as a
            # plain text any ending.
            names = compile_pattern(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))", _KEPT, hint=COMPARE)
            if names.match(module) or module.endswith(pattern):
                return False
        return True

    def weight(self, name: str, plain: Weight, scale: Weight | None) -> Weight:
        """The ternary weight of a layer from its stored form."""
        packed = plain.quant.name == "U8"
        # Packed weights are quantized before they are saved (offline), plain ones as they are read.
        if packed == self.online or len(plain.shape) != 2:
            kind = "packed" if packed else "plain"
            mode = "online" if self.online else "offline"
            raise Unsupported(
                f"{name}: {kind} weights with quantization_mode {mode!r}",
                hint="fetch the config.json that belongs to these weights",
            )
        if 0 in plain.shape:
            raise InvalidFormat(f"{name}: its shape {plain.shape} has no numbers", hint=COMPARE)
        if not packed:
            return registry.quantize(name, registry.dequantize(plain), registry.PACKED_U8)
        if scale is None:
            raise InvalidFormat(
                f"{name}: packed ternary weights without a weight_scale", hint=COMPARE
            )
        shape = (4 * plain.shape[0], plain.shape[1])
        return Weight(name, shape, registry.PACKED_U8, plain.data, self.factor(name, scale))

    def factor(self, name: str, scale: Weight) -> float:
        """Factor on the codes of the tensor *name*: its *scale*, or the inverse of that."""
        values = registry.dequantize(scale)
        factor = float(values.reshape(-1)[0]) if values.size == 1 else 0.0
        is_usable = np.isfinite(factor) and factor > 0
        if is_usable and not self.multiplies:
            factor = 1 / factor
            is_usable = factor <= _LARGEST
        if not is_usable:
            own_name = f"{name.rpartition('.')[0]}.scale"
            raise InvalidFormat(
                f"{own_name}: its weight_scale is not a positive number that a float32 can store",
                hint=COMPARE,
            )
        return factor
