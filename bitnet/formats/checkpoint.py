"""A model on disk in any container: GGUF keys and tensor names, weights still encoded.

checkpoint.architecture                          # "llama"
checkpoint.value("block_count")                  # the key llama.block_count
checkpoint.weights["blk.0.attn_q.weight"]        # a Weight: a view into the mapped file

:func:`bitnet.formats.containers.open_checkpoint` opens one. It is opened once and passed to
everything that reads the model: tokenizer, configuration, weights, narration, checks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.families.keys import Keys, contradiction
from bitnet.formats.inventory import Inventory
from bitnet.formats.sentence_transformers import Prompts
from bitnet.quants import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.families.blocks import KVType
    from bitnet.formats.gguf import GGUF
    from bitnet.quants.weight import Weight


def has_input_norms(names: Iterable[str]) -> bool:
    """True if there is a norm before every projection, as in BitNet's embedding models."""
    return any(name.endswith("_norm_in.weight") for name in names)


@dataclass(frozen=True, eq=False)
class Checkpoint(Keys):
    """A model on disk."""

    weights: Mapping[str, Weight]  # by GGUF name, in file order
    gguf: GGUF | None = None  # the open file, if the container is GGUF
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

    def numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """The tensor *name* decoded; ``None`` if it does not exist."""
        weight = self.weights.get(name)
        if weight is not None and weight.shape != shape:
            raise contradiction(self, f"{name} has shape {weight.shape}, expected {shape}")
        return None if weight is None else registry.dequantize(weight)
