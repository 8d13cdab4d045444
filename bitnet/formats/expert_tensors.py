"""The matrices of experts in a folder, as GGUF has them: one tensor of three dimensions for each.

Folders hold a tensor for each expert, or all in one, in which the rows of the gate precede those of
``up``. Bytes stay where they are in the files, but for gpt-oss, whose matrices are stored
transposed or as blocks of MXFP4, with gate and up in turns: they are arranged in memory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.families.keys import COMPARE
from bitnet.quants.types import by_name
from bitnet.quants.weight import Deferred

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from numpy.typing import NDArray

    from bitnet.quants.weight import Weight

_ONE = re.compile(r"(?P<all>.*\.experts)\.(?P<number>\d{1,5})\.(?P<part>\w+)\.weight")
_OF_STREAM = re.compile(r"(?P<all>(?:.*\.)?altup_\w*projections)\.(?P<number>\d{1,5})\.weight")
_NORM_OF_HEAD = re.compile(r"(?P<all>.*layernorm)\.norms\.(?P<number>\d{1,4})\.weight")
_FUSED = re.compile(r"(?P<block>blk\.\d+\.ffn_)gate_up_(?P<kind>exps|shexp)\.weight")
_SHARED = re.compile(r"(?P<block>blk\.\d+\.)(?P<part>ffn_\w+)_shexp\.weight")
_TURNED = re.compile(
    r"(?P<all>.*\.experts)\.(?P<part>gate_up|down)_proj(?P<kind>_blocks|_scales|_bias)?"
)
_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}
_NOTHING = np.empty(0, dtype=np.uint8)


def stack_experts(tensors: Mapping[str, Weight], model: str) -> dict[str, Weight]:
    """*tensors*, with ``experts.0.up_proj.weight`` and the like as one ``experts.up_proj``.

    Products of the embeddings for several streams are one tensor, too.
    """
    stacked: dict[str, Weight] = {}
    parts: dict[str, dict[int, Weight]] = {}
    for name, tensor in tensors.items():
        expert = _ONE.fullmatch(name)
        of_stream = _OF_STREAM.fullmatch(name)
        if expert is not None:
            whole = f"{expert['all']}.{expert['part']}"
            parts.setdefault(whole, {})[int(expert["number"])] = tensor
        elif of_stream is not None:
            whole = f"{of_stream['all']}.weight"
            parts.setdefault(whole, {})[int(of_stream["number"])] = tensor
        else:
            stacked[name] = tensor
    for name, experts in parts.items():
        kinds = {(tensor.quant, tensor.shape) for tensor in experts.values()}
        if sorted(experts) != list(range(len(experts))) or len(kinds) > 1 or name in stacked:
            raise InvalidFormat(
                f"{model}: {name} is incomplete, or its {len(experts):,} matrices differ in shape",
                hint=COMPARE,
            )
        shape = len(experts), *experts[0].shape
        in_order = [experts[number] for number in range(len(experts))]
        if any(expert.is_deferred for expert in in_order):
            size = sum(expert.size_bytes for expert in in_order)
            joined = Deferred(partial(_join, in_order), size)
            stacked[name] = experts[0].like(shape=shape, data=joined)
        else:
            pieces = tuple(expert.data for expert in in_order)
            stacked[name] = replace(experts[0], shape=shape, data=_NOTHING, pieces=pieces)
    return stacked


def _join(tensors: list[Weight]) -> NDArray[np.uint8]:
    """The bytes of *tensors*, one after the other."""
    return np.concatenate([tensor.data for tensor in tensors])


def stack_norms(tensors: Mapping[str, Weight], model: str) -> dict[str, Weight]:
    """*tensors*, with the norms of heads, ``norms.0.weight`` and so on, as one matrix."""
    stacked: dict[str, Weight] = {}
    parts: dict[str, dict[int, Weight]] = {}
    for name, tensor in tensors.items():
        match = _NORM_OF_HEAD.fullmatch(name)
        if match is None:
            stacked[name] = tensor
        else:
            parts.setdefault(f"{match['all']}.weight", {})[int(match["number"])] = tensor
    for name, heads in parts.items():
        kinds = {(tensor.quant, tensor.shape) for tensor in heads.values()}
        if sorted(heads) != list(range(len(heads))) or len(kinds) > 1 or name in stacked:
            raise InvalidFormat(
                f"{model}: {name} is incomplete, or its {len(heads):,} heads differ in shape",
                hint=COMPARE,
            )
        rows = np.concatenate([heads[number].data for number in range(len(heads))])
        stacked[name] = replace(heads[0], shape=(len(heads), *heads[0].shape), data=rows)
    return stacked


def turn_columns(tensors: Mapping[str, Weight], width: int, model: str) -> dict[str, Weight]:
    """*tensors* with the rows of experts that read and give *width* numbers, in any of two forms.

    transformers 4 stored these matrices transposed, version 5 stores them as others: their shapes
    tell which.
    """
    turned = dict(tensors)
    for name, tensor in tensors.items():
        match = _TURNED.fullmatch(name)
        if match is None or match["kind"]:
            continue
        axis = 2 if match["part"] == "gate_up" else 1
        are_of_width = [size == width for size in tensor.shape[1:]]
        if len(tensor.shape) != 3 or sum(are_of_width) != 1:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} does not tell which axis has the "
                f"{width:,} numbers of the model",
                hint=COMPARE,
            )
        if not are_of_width[axis - 1]:
            try:
                rows = np.ascontiguousarray(_rows_of(tensors, name, ""))
            except (KeyError, ValueError) as error:
                raise InvalidFormat(
                    f"{model}: {name} is {tensor.quant.name}, which is not turned",
                    hint="choose a folder with F32, F16 or BF16",
                ) from error
            turned[name] = replace(tensor, shape=rows.shape, data=rows.reshape(-1).view(np.uint8))
    return turned


def split_gates(tensors: Mapping[str, Weight], model: str) -> dict[str, Weight]:
    """*tensors* by GGUF name; ``ffn_gate_up_exps`` is ``ffn_gate_exps`` and ``ffn_up_exps``."""
    split: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        match = _FUSED.fullmatch(name)
        if match is None:
            split[name] = tensor
            continue
        rows = tensor.shape[-2] if len(tensor.shape) == (3 if match["kind"] == "exps" else 2) else 1
        if rows % 2:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} is not a gate and as large a matrix",
                hint=COMPARE,
            )
        *experts, _, columns = tensor.shape
        for half, part in enumerate(("gate", "up")):
            pieces = tuple(each.data.reshape(2, -1)[half] for each in tensor.matrices())
            arrays = {"pieces": pieces, "data": _NOTHING} if experts else {"data": pieces[0]}
            matrix = replace(tensor, shape=(*experts, rows // 2, columns), **arrays)
            split[f"{match['block']}{part}_{match['kind']}.weight"] = matrix
    return {_name_alone(name, split): tensor for name, tensor in split.items()}


def split_heads(
    tensors: Mapping[str, Weight], heads: int, key_dim: int, model: str
) -> dict[str, Weight]:
    """*tensors* by GGUF name, with ``attn_kv_b`` as ``attn_k_b`` and ``attn_v_b``.

    Matrices of values stay where they are in the files, those of keys, *key_dim* rows of each
    head, are turned in memory.
    """
    split: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        if not name.endswith(".attn_kv_b.weight"):
            split[name] = tensor
            continue
        width = _WIDTHS.get(tensor.quant.name)
        if width is None or len(tensor.shape) != 2 or tensor.shape[0] % heads:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} is not a matrix of floats for each of "
                f"{heads} heads",
                hint="choose a folder with F32, F16 or BF16",
            )
        rows = tensor.shape[0] // heads
        latent = tensor.shape[1]
        words = tensor.data.view(f"<u{width}").reshape(heads, rows, latent)
        keys = np.ascontiguousarray(words[:, :key_dim].swapaxes(1, 2))
        values = tuple(head[key_dim:].reshape(-1).view(np.uint8) for head in words)
        block = name.removesuffix("attn_kv_b.weight")
        shape = (heads, latent, min(key_dim, rows))
        flat = keys.reshape(-1).view(np.uint8)
        split[f"{block}attn_k_b.weight"] = replace(tensor, shape=shape, data=flat)
        shape = (heads, max(rows - key_dim, 0), latent)
        tensor_of_values = replace(tensor, shape=shape, data=_NOTHING, pieces=values)
        split[f"{block}attn_v_b.weight"] = tensor_of_values
    return split


def _name_alone(name: str, tensors: Container[str]) -> str:
    """*name* of a tensor; a network beside experts is the only one where there is no router."""
    match = _SHARED.fullmatch(name)
    if match is None or f"{match['block']}ffn_gate_inp.weight" in tensors:
        return name
    return f"{match['block']}{match['part']}.weight"


def turn_experts(tensors: Mapping[str, Weight], model: str) -> dict[str, Weight]:
    """*tensors* with the experts of gpt-oss as ``gate_proj``, ``up_proj`` and ``down_proj``."""
    turned: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        match = _TURNED.fullmatch(name)
        if match is None:
            turned[name] = tensor
            continue
        part = match["part"]
        kind = match["kind"] or ""
        if kind == "_scales" and f"{match['all']}.{part}_proj_blocks" in tensors:
            continue
        try:
            rows = _rows_of(tensors, name, kind)
        except (KeyError, ValueError) as error:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} is not a matrix of experts: {error}",
                hint=COMPARE,
            ) from error
        quant = by_name("MXFP4") if kind == "_blocks" else tensor.quant
        names = ("gate", "up") if part == "gate_up" else (part,)
        end = "_bias" if kind == "_bias" else ""
        for at, own in enumerate(names):
            mine = np.ascontiguousarray(rows[:, at :: len(names)])
            shape: tuple[int, ...] = mine.shape
            if kind == "_blocks":
                shape = (*shape[:2], shape[2] // 17 * 32)
            data = mine.reshape(-1).view(np.uint8)
            turned_tensor = replace(tensor, shape=shape, quant=quant, data=data)
            turned[f"{match['all']}.{own}_proj{end}"] = turned_tensor
    return turned


def _rows_of(tensors: Mapping[str, Weight], name: str, kind: str) -> NDArray[Any]:
    """Rows of the matrices, or numbers of the biases, ``(experts, rows, ...)``."""
    tensor = tensors[name]
    if kind == "_blocks":
        scales = tensors[name.removesuffix("_blocks") + "_scales"]
        blocks = tensor.data.reshape(tensor.shape)  # (experts, rows, columns / 32, 16)
        are_bytes = {tensor.quant.name, scales.quant.name} == {"U8"}
        if not are_bytes or scales.shape != tensor.shape[:3]:
            raise ValueError("its scales do not fit")
        nibbles = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
        packed = nibbles[..., :16] | nibbles[..., 16:] << 4
        powers = scales.data.reshape(*scales.shape, 1)
        whole: NDArray[Any] = np.concatenate([powers, packed], axis=-1)
        return whole.reshape(*scales.shape[:2], -1)
    words = np.dtype(f"<u{_WIDTHS[tensor.quant.name]}")
    values = tensor.data.view(words).reshape(tensor.shape)
    if values.ndim != (2 if kind else 3):
        raise ValueError("it has other dimensions")
    return values if kind else values.swapaxes(1, 2)
