"""Tensors of a folder that GGUF joins or splits otherwise, above all the matrices of experts.

GGUF has one tensor ``(experts, outputs, inputs)`` for each projection. Folders have a tensor for
each expert, or one for all, in which the rows of ``gate`` precede those of ``up``. Bytes stay where
they are in the files, with these exceptions, which are copied: matrices that were stored
transposed, those of gpt-oss, whose rows of ``gate`` and ``up`` alternate, norms of heads, and
tensors that are computed when they are read.
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

# Names in folders. Of one member of a series: an expert, a stream of Gemma 3n, a head.
_EXPERT = re.compile(r"(?P<all>.*\.experts)\.(?P<number>\d{1,5})\.(?P<part>\w+)\.weight")
_STREAM = re.compile(r"(?P<all>(?:.*\.)?altup_\w*projections)\.(?P<number>\d{1,5})\.weight")
_NORM_OF_HEAD = re.compile(r"(?P<all>.*layernorm)\.norms\.(?P<number>\d{1,4})\.weight")
# Of all experts together.
_ALL_EXPERTS = re.compile(
    r"(?P<all>.*\.experts)\.(?P<part>gate_up|down)_proj(?P<kind>_blocks|_scales|_bias)?"
)
# Names in GGUF.
_FUSED = re.compile(r"(?P<block>blk\.\d+\.ffn_)gate_up_(?P<kind>exps|shexp)\.weight")
_SHARED = re.compile(r"(?P<block>blk\.\d+\.)(?P<part>ffn_\w+)_shexp\.weight")
_FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_NOTHING = np.empty(0, dtype=np.uint8)  # ``data`` of a weight whose bytes are its ``pieces``


def stack_experts(tensors: Mapping[str, Weight], model: str) -> dict[str, Weight]:
    """*tensors*, with ``experts.0.up_proj.weight`` and its successors as one ``experts.up_proj``.

    The projections of Gemma 3n's streams, ``altup_projections.0.weight`` and so on, are joined in
    the same way.
    """
    stacked: dict[str, Weight] = {}
    parts: dict[str, dict[int, Weight]] = {}
    for name, tensor in tensors.items():
        expert = _EXPERT.fullmatch(name)
        stream = _STREAM.fullmatch(name)
        if expert is not None:
            whole = f"{expert['all']}.{expert['part']}"
            parts.setdefault(whole, {})[int(expert["number"])] = tensor
        elif stream is not None:
            parts.setdefault(f"{stream['all']}.weight", {})[int(stream["number"])] = tensor
        else:
            stacked[name] = tensor
    for name, matrices in parts.items():
        in_order = _in_order(name, matrices, stacked, "matrices", model)
        first = in_order[0]
        shape = len(in_order), *first.shape
        if any(matrix.is_deferred for matrix in in_order):  # ``pieces`` would compute them here
            size = sum(matrix.size_bytes for matrix in in_order)
            stacked[name] = first.like(shape=shape, data=Deferred(partial(_join, in_order), size))
        else:
            pieces = tuple(matrix.data for matrix in in_order)
            stacked[name] = replace(first, shape=shape, data=_NOTHING, pieces=pieces)
    return stacked


def _in_order(
    name: str, parts: Mapping[int, Weight], others: Container[str], noun: str, model: str
) -> list[Weight]:
    """The *parts* of the tensor *name*, in the order of their numbers.

    A missing part, parts that differ, and another tensor *name* among *others* are refused. *noun*
    names the parts in the message.
    """
    kinds = {(tensor.quant, tensor.shape) for tensor in parts.values()}
    if name in others:
        raise InvalidFormat(
            f"{model}: {name} is there twice, as one tensor and as {len(parts):,} {noun}",
            hint=COMPARE,
        )
    if sorted(parts) != list(range(len(parts))) or len(kinds) > 1:
        raise InvalidFormat(
            f"{model}: {name} is incomplete, or its {len(parts):,} {noun} differ in shape",
            hint=COMPARE,
        )
    return [parts[number] for number in range(len(parts))]


def _join(tensors: list[Weight]) -> NDArray[np.uint8]:
    """The bytes of *tensors*, one after the other."""
    return np.concatenate([tensor.data for tensor in tensors])


def stack_norms(tensors: Mapping[str, Weight], model: str) -> dict[str, Weight]:
    """*tensors*, with the norms of heads, ``norms.0.weight`` and so on, as one matrix of rows."""
    stacked: dict[str, Weight] = {}
    parts: dict[str, dict[int, Weight]] = {}
    for name, tensor in tensors.items():
        match = _NORM_OF_HEAD.fullmatch(name)
        if match is None:
            stacked[name] = tensor
        else:
            parts.setdefault(f"{match['all']}.weight", {})[int(match["number"])] = tensor
    for name, heads in parts.items():
        in_order = _in_order(name, heads, stacked, "heads", model)
        shape = len(in_order), *in_order[0].shape
        stacked[name] = replace(in_order[0], shape=shape, data=_join(in_order))
    return stacked


def transpose_by_shape(tensors: Mapping[str, Weight], width: int, model: str) -> dict[str, Weight]:
    """*tensors* with the matrices of all experts as ``(experts, outputs, inputs)``.

    transformers 5 stores them so, version 4 stored ``(experts, inputs, outputs)``. Only the shape
    tells which: hidden states, of *width* numbers, are the inputs of ``gate_up`` and the outputs of
    ``down``.
    """
    transposed = dict(tensors)
    for name, tensor in tensors.items():
        match = _ALL_EXPERTS.fullmatch(name)
        if match is None or match["kind"]:
            continue
        if 0 in tensor.shape:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} has no numbers", hint=COMPARE
            )
        hidden_axis = 2 if match["part"] == "gate_up" else 1
        are_of_width = [size == width for size in tensor.shape[1:]]
        if len(tensor.shape) != 3 or sum(are_of_width) != 1:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} does not tell which axis has the "
                f"{width:,} numbers of the model",
                hint=COMPARE,
            )
        if tensor.shape[hidden_axis] == width:
            continue
        if tensor.quant.name not in _FLOAT_BYTES:
            raise InvalidFormat(
                f"{model}: {name} is {tensor.quant.name}, which cannot be transposed",
                hint="choose a folder with F32, F16 or BF16",
            )
        rows = np.ascontiguousarray(_rows_of(tensors, name, ""))
        data = rows.reshape(-1).view(np.uint8)
        transposed[name] = replace(tensor, shape=rows.shape, data=data)
    return transposed


def split_gates(tensors: Mapping[str, Weight], model: str) -> dict[str, Weight]:
    """*tensors* by GGUF name, with each fused matrix of gate and up split into the two.

    ``ffn_gate_up_exps`` becomes ``ffn_gate_exps`` and ``ffn_up_exps``. For a shared expert, the
    names end in ``shexp``.
    """
    split: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        match = _FUSED.fullmatch(name)
        if match is None:
            split[name] = tensor
            continue
        n_dims = 3 if match["kind"] == "exps" else 2
        if len(tensor.shape) != n_dims or tensor.shape[-2] % 2:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} is not two matrices of equal size",
                hint=COMPARE,
            )
        *experts, rows, columns = tensor.shape
        for half, part in enumerate(("gate", "up")):
            pieces = tuple(each.data.reshape(2, -1)[half] for each in tensor.matrices())
            arrays = {"pieces": pieces, "data": _NOTHING} if experts else {"data": pieces[0]}
            matrix = replace(tensor, shape=(*experts, rows // 2, columns), **arrays)
            split[f"{match['block']}{part}_{match['kind']}.weight"] = matrix
    return {_name_in_network(name, split): tensor for name, tensor in split.items()}


def split_heads(
    tensors: Mapping[str, Weight], heads: int, key_dim: int, model: str
) -> dict[str, Weight]:
    """*tensors* by GGUF name, with ``attn_kv_b`` as ``attn_k_b`` and ``attn_v_b``.

    The rows of a head are *key_dim* of its keys, then those of its values. GGUF has the matrices of
    keys transposed, so they are copied; those of values stay where they are in the files.
    """
    split: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        if not name.endswith(".attn_kv_b.weight"):
            split[name] = tensor
            continue
        float_bytes = _FLOAT_BYTES.get(tensor.quant.name)
        if float_bytes is None or len(tensor.shape) != 2 or tensor.shape[0] % heads:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} is not a matrix of floats for each of "
                f"{heads} heads",
                hint="choose a folder with F32, F16 or BF16",
            )
        rows = tensor.shape[0] // heads
        latent = tensor.shape[1]
        floats = tensor.data.view(f"<u{float_bytes}").reshape(heads, rows, latent)
        keys = np.ascontiguousarray(floats[:, :key_dim].swapaxes(1, 2))
        values = tuple(head[key_dim:].reshape(-1).view(np.uint8) for head in floats)
        block = name.removesuffix("attn_kv_b.weight")
        # With fewer rows than *key_dim* the shapes still fit the bytes: a later check refuses them.
        shape = (heads, latent, min(key_dim, rows))
        flat = keys.reshape(-1).view(np.uint8)
        split[f"{block}attn_k_b.weight"] = replace(tensor, shape=shape, data=flat)
        shape = (heads, max(rows - key_dim, 0), latent)
        tensor_of_values = replace(tensor, shape=shape, data=_NOTHING, pieces=values)
        split[f"{block}attn_v_b.weight"] = tensor_of_values
    return split


def _name_in_network(name: str, tensors: Container[str]) -> str:
    """*name* of a tensor, without ``_shexp`` if the layer has no router in *tensors*.

    Without other experts, a shared one is the whole feed-forward network of its layer.
    """
    match = _SHARED.fullmatch(name)
    if match is None or f"{match['block']}ffn_gate_inp.weight" in tensors:
        return name
    return f"{match['block']}{match['part']}.weight"


def unpack_gpt_oss(tensors: Mapping[str, Weight], model: str) -> dict[str, Weight]:
    """*tensors* with the experts of gpt-oss as ``gate_proj``, ``up_proj`` and ``down_proj``.

    Its folders have matrices ``(experts, inputs, outputs)``, or their transposes as ``_blocks`` and
    ``_scales`` of MXFP4; outputs of ``gate_up`` and its biases alternate: gate, up, gate, up.
    """
    unpacked: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        match = _ALL_EXPERTS.fullmatch(name)
        if match is None:
            unpacked[name] = tensor
            continue
        part = match["part"]
        kind = match["kind"] or ""
        if kind == "_scales" and f"{match['all']}.{part}_proj_blocks" in tensors:
            continue  # read with its blocks
        try:
            rows = _rows_of(tensors, name, kind)
        except ValueError as error:
            raise InvalidFormat(
                f"{model}: {name} of shape {tensor.shape} is not a matrix of experts: {error}",
                hint=COMPARE,
            ) from error
        quant = by_name("MXFP4") if kind == "_blocks" else tensor.quant
        projections = ("gate", "up") if part == "gate_up" else (part,)
        end = "_bias" if kind == "_bias" else ""
        for first, projection in enumerate(projections):
            own_rows = np.ascontiguousarray(rows[:, first :: len(projections)])
            shape: tuple[int, ...] = own_rows.shape
            if kind == "_blocks":  # bytes of a row become weights
                shape = (*shape[:2], shape[2] // quant.type_size * quant.block_size)
            data = own_rows.reshape(-1).view(np.uint8)
            weight = replace(tensor, shape=shape, quant=quant, data=data)
            unpacked[f"{match['all']}.{projection}_proj{end}"] = weight
    return unpacked


def _rows_of(tensors: Mapping[str, Weight], name: str, kind: str) -> NDArray[Any]:
    """Rows of the matrices *name*, ``(experts, rows, ...)``, or its biases, ``(experts, rows)``.

    Rows of *kind* ``_blocks`` are bytes of MXFP4 as in ggml, others floats as unsigned integers.
    Missing scales, other types and other shapes are a ValueError.
    """
    tensor = tensors[name]
    if 0 in tensor.shape:
        raise ValueError("it has no numbers")
    if kind == "_blocks":
        scales = tensors.get(name.removesuffix("_blocks") + "_scales")
        if scales is None:
            raise ValueError("its scales are missing")
        are_bytes = {tensor.quant.name, scales.quant.name} == {"U8"}
        are_blocks = len(tensor.shape) == 4 and tensor.shape[3] == 16
        if not are_bytes or not are_blocks or scales.shape != tensor.shape[:3]:
            raise ValueError("its scales do not fit")
        blocks = tensor.data.reshape(tensor.shape)  # (experts, rows, columns / 32, 16)
        # Byte i holds the weights 2 i and 2 i + 1 of a block. In ggml it holds the weights i and
        # i + 16, and the byte of the scale comes first.
        nibbles = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
        packed = nibbles[..., :16] | nibbles[..., 16:] << 4
        powers = scales.data.reshape(*scales.shape, 1)
        ggml_blocks: NDArray[Any] = np.concatenate([powers, packed], axis=-1)
        return ggml_blocks.reshape(*scales.shape[:2], -1)
    float_bytes = _FLOAT_BYTES.get(tensor.quant.name)
    if float_bytes is None:
        raise ValueError(f"its type is {tensor.quant.name}, expected {', '.join(_FLOAT_BYTES)}")
    dtype = np.dtype(f"<u{float_bytes}")
    values = tensor.data.view(dtype).reshape(tensor.shape)
    if values.ndim != (2 if kind else 3):
        raise ValueError("it has other dimensions")
    return values if kind else values.swapaxes(1, 2)
