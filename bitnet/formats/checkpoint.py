"""A model on disk in any container: GGUF keys and tensor names, weights still encoded.

checkpoint.architecture                          # "llama"
checkpoint.value("block_count")                  # the key llama.block_count
checkpoint.weights["blk.0.attn_q.weight"]        # a Weight: a view into the mapped file

:func:`bitnet.formats.containers.open_checkpoint` opens one. It is opened once and passed to
everything that reads the model: tokenizer, configuration, weights, narration, checks.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat
from bitnet.families.keys import contradiction
from bitnet.formats.gguf_contents import Array
from bitnet.formats.inventory import Inventory
from bitnet.formats.sentence_transformers import Prompts
from bitnet.quants import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.families.blocks import KVType
    from bitnet.families.keys import RopeStyle
    from bitnet.formats.gguf import GGUF
    from bitnet.quants.weight import Weight

# Third-party conversions of BitNet use other prefixes for their keys.
_PREFIXES_OF_BITNET = ("bitnet-b1.58", "bitnet", "llama")

_MISSING = object()
_LARGEST = 2**32 - 1


def has_input_norms(names: Iterable[str]) -> bool:
    """True if there is a norm before every projection, as in BitNet's embedding models."""
    return any(name.endswith("_norm_in.weight") for name in names)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model on disk."""

    path: Path  # the file or folder
    architecture: str  # GGUF's ``general.architecture``
    metadata: Mapping[str, Any]  # GGUF keys; arrays are ``Array`` or lists
    weights: Mapping[str, Weight]  # by GGUF name, in file order
    # pairing of rotary dimensions: neighbours (``interleaved``), or element i and element i + half
    # (``half``)
    rope_style: RopeStyle
    gguf: GGUF | None = None  # the open file, if the container is GGUF
    config: Mapping[str, Any] | None = None  # ``config.json``, if the container is a folder
    opened_s: float = 0.0  # seconds it took to open
    # keys ignored on request, with their values
    ignored: Mapping[str, Any] = field(default_factory=dict)
    # prefixes that the model expects before texts it embeds
    prompts: Prompts = field(default_factory=Prompts)
    # a BitNet model: ternary layers round a token's input to int8, whatever their quantization type
    rounds_inputs: bool = False
    # the files that were read
    inventory: Inventory = field(default_factory=lambda: Inventory(Path()))
    # names of matrices that adapters change; ``NAME.lora_a`` and ``NAME.lora_b`` are among the
    # weights
    adapted: frozenset[str] = frozenset()
    kv_type: KVType = "f16"  # form of the keys and values that it is run with

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes that the architecture's own keys may have."""
        more = _PREFIXES_OF_BITNET if self.architecture.startswith("bitnet") else ()
        return (self.architecture, *(name for name in more if name != self.architecture))

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """The architecture's own *key*, such as ``attention.head_count``; arrays as lists."""
        for prefix in self.prefixes:
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
        """The integer *key*, an unsigned 32-bit number, GGUF's type for these."""
        found = self.value(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= _LARGEST:
            raise self._wrong_value(key, found, f"an integer from 0 to {_LARGEST:,}")
        return found

    def number(self, key: str, default: Any = _MISSING) -> float:
        """The finite number *key*."""
        found = self.value(key, default)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if not is_number or not abs(found) <= sys.float_info.max:  # also false for NaN
            raise self._wrong_value(key, found, "a finite number")
        return float(found)

    def numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """The tensor *name* decoded; ``None`` if it does not exist."""
        weight = self.weights.get(name)
        if weight is not None and weight.shape != shape:
            raise contradiction(self, f"{name} has shape {weight.shape}, expected {shape}")
        return None if weight is None else registry.dequantize(weight)

    def _wrong_value(self, key: str, found: Any, expected: str) -> InvalidFormat:
        name = f"{self.architecture}.{key}"
        return contradiction(self, f"the key {name} is {found!r}, expected {expected}")
