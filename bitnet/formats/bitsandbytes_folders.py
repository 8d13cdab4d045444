"""Matrices of bitsandbytes in codes of 4 bits, as the plain numbers that they stand for.

A code (``nf4``, ``fp4``) is an index into a table of 16 numbers, and each block of codes has a
scale. With double quantization the scales are codes, too: of 8 bits, with a table and scales of
their own. A tensor ``quant_state`` beside the codes is a text in JSON that describes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.families.keys import COMPARE, HARMLESS, Rule, check, neutral, read
from bitnet.formats.checkpoint import parse_json
from bitnet.formats.stored_numbers import BELOW, DTYPES, defer, read_floats, unlike
from bitnet.quants import types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bitnet.quants.weight import Weight

_LARGEST = float(np.finfo(np.float32).max)
_MOST_DIMENSIONS = 8
_MOST_NUMBERS = 1 << 63
_BITSANDBYTES_RULES: dict[str, Rule] = {
    "quant_method": read("bitsandbytes"),
    "load_in_4bit": neutral(True),
    "_load_in_4bit": neutral(None, True),
    **dict.fromkeys(("load_in_8bit", "_load_in_8bit"), neutral(None, False)),
    "bnb_4bit_quant_storage": neutral(None, "uint8"),
    **dict.fromkeys(
        (
            *("bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant"),
            *("llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight"),
            *("llm_int8_skip_modules", "llm_int8_threshold"),
        ),
        HARMLESS,
    ),
}


@dataclass(frozen=True)
class _State:
    """Description of the 4-bit codes of a matrix."""

    name: str  # of the codes
    model: str  # name of the folder, for messages
    tensors: Mapping[str, Weight]  # all of the folder, by name
    values: Mapping[str, Any]  # the description itself, read from JSON
    shape: tuple[int, ...]  # of the matrix
    dtype: str  # our name of the type of the numbers

    @classmethod
    def of(cls, name: str, state: Weight, tensors: Mapping[str, Weight], model: str) -> _State:
        """The *state* of the codes *name*."""
        file = Path(model) / state.name  # as messages name it
        values = parse_json(state.data.tobytes(), file, dict)
        facts = cls(name, model, tensors, values, (), "")
        shape = values.get("shape")
        sizes = shape if isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS else []
        are_sizes = all(type(size) is int and 0 < size < _MOST_NUMBERS for size in sizes)
        if not sizes or not are_sizes:
            raise facts.wrong(f"shape is {shape!r:.80}")
        dtype = values.get("dtype")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise facts.wrong(f"dtype is {dtype!r:.80}")
        return replace(facts, shape=tuple(sizes), dtype=DTYPES[dtype])

    def part(self, kind: str) -> Weight:
        """The tensor beside the codes whose name ends with *kind*, such as ``absmax``."""
        tensor = self.tensors.get(f"{self.name}.{kind}")
        if tensor is None:
            raise self.wrong(f"{self.name}.{kind} is missing")
        return tensor

    def size(self, key: str) -> int:
        """Number of codes in a block, which *key* of the description states."""
        size = self.values.get(key)
        if type(size) is not int or not 0 < size < _MOST_NUMBERS:
            raise self.wrong(f"{key} is {size!r:.80}")
        return size

    def offset(self) -> float:
        """The number that is added to all scales."""
        offset: object = self.values.get("nested_offset")
        if isinstance(offset, int | float) and abs(offset) <= _LARGEST:
            return float(offset)
        raise self.wrong(f"nested_offset is {offset!r:.80}")

    def wrong(self, problem: str) -> InvalidFormat:
        """Error for a *problem* of the description."""
        return InvalidFormat(
            f"{self.model}: the state of the codes {self.name} is wrong: {problem}", hint=COMPARE
        )


def unpack_bitsandbytes(
    tensors: Mapping[str, Weight], quantization: Mapping[str, Any], model: str
) -> dict[str, Weight]:
    """*tensors* with ``table[code] * scale of the block`` for 4-bit codes."""
    check(quantization, _BITSANDBYTES_RULES, model=model, below=BELOW)
    unpacked = {}
    for name, tensor in tensors.items():
        stem, _, part = name.partition(".weight.")
        if part and f"{stem}.weight" in tensors:
            continue  # a scale, a table or the state of codes: read with them
        state = _state_of(name, tensors)
        unpacked[name] = tensor if state is None else _from_state(tensor, state, tensors, model)
    return unpacked


def _state_of(name: str, tensors: Mapping[str, Weight]) -> Weight | None:
    """The tensor that describes the codes *name*, or None if *name* is not quantized."""
    for kind in ("nf4", "fp4"):
        state = tensors.get(f"{name}.quant_state.bitsandbytes__{kind}")
        if state is not None:
            return state
    return None


def _from_state(codes: Weight, state: Weight, tensors: Mapping[str, Weight], model: str) -> Weight:
    """The matrix of *codes*, whose *state* is JSON: shape, block size, and type of the numbers."""
    facts = _State.of(codes.name, state, tensors, model)
    count = math.prod(facts.shape)
    table = read_floats(facts.part("quant_map"), model)
    scales = _read_scales(facts)
    pairs = codes.data.reshape(-1)
    if codes.quant.name != "U8" or table.shape != (16,) or pairs.size != -(-count // 2):
        raise unlike(codes, f"4-bit codes of {count:,} numbers", model)
    block = facts.size("blocksize")
    if scales.size != -(-count // block):
        raise unlike(codes, f"a scale for each {block:,} numbers", model)

    def decode() -> NDArray[np.float32]:
        flat = np.stack([pairs >> 4, pairs & 15], axis=-1).reshape(-1)[:count]
        values = table[flat] * _spread(scales, block, count)
        return values.reshape(facts.shape)

    return defer(codes.name, facts.shape, types.by_name(facts.dtype), decode)


def _read_scales(facts: _State) -> NDArray[np.float32]:
    """The scales of the blocks; with double quantization they are codes, too."""
    scales = read_floats(facts.part("absmax"), facts.model).reshape(-1)
    if "nested_blocksize" not in facts.values:
        return scales
    # The values of *scales* are codes from here on, and only their number is used.
    nested_scales = read_floats(facts.part("nested_absmax"), facts.model).reshape(-1)
    nested_table = read_floats(facts.part("nested_quant_map"), facts.model)
    block = facts.size("nested_blocksize")
    if nested_table.shape != (256,) or nested_scales.size != -(-scales.size // block):
        raise facts.wrong(f"a scale for each {block:,} of {scales.size:,} scales is expected")
    codes = facts.part("absmax")
    if codes.quant.name != "U8":
        raise unlike(codes, "codes of scales", facts.model)
    numbers: NDArray[np.float32] = nested_table[codes.data]
    with np.errstate(all="ignore"):  # numbers may become infinite, as in the library
        numbers *= _spread(nested_scales, block, scales.size)
        numbers += np.float32(facts.offset())
    return numbers


def _spread(scales: NDArray[np.float32], block: int, count: int) -> NDArray[np.float32]:
    """The scale of each of *count* numbers, of which each *block* has one."""
    return np.repeat(scales, min(block, count))[:count]
