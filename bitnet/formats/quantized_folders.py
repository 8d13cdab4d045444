"""Quantized matrices of a folder, dequantized to the type of number that the method gives.

``quantization_config`` in ``config.json`` names the method. The numbers, and their type, are those
of the method's own library when it dequantizes; ``tests/formats/test_quantized_folders.py``
compares them. Such libraries may round activations too, which is not done here. Codes, scales and
their shapes are checked when a folder is opened; the numbers of a matrix are computed when they are
first read.

==================  =============================================================================
``fp8``             transformers' ``Fp8Dequantize``: a scale for each block of rows and columns
compressed-tensors  int8, packed integers of 2, 4 or 8 bits, and 8-bit floats, by vLLM's
                    ``compressed_tensors``
bitsandbytes        4 bits, an index into 16 numbers; see ``bitsandbytes_folders.py``
GPTQ, AWQ           integers minus zero points, by ``gptqmodel``; see ``gptq_folders.py``
==================  =============================================================================
"""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.keys import COMPARE, HARMLESS, Rule, check, neutral, read, split_ignored
from bitnet.formats.bitsandbytes_folders import unpack_bitsandbytes
from bitnet.formats.gptq_folders import unpack_awq, unpack_gptq
from bitnet.formats.scale_grids import ScaleGrid
from bitnet.formats.stored_numbers import (
    BELOW,
    DTYPES,
    HINT,
    KEY,
    defer,
    read_floats,
    read_integers,
    unlike,
    unpack_codes,
)
from bitnet.quants import types

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Inventory
    from bitnet.quants.weight import Weight

logger = logging.getLogger(__name__)

#: Methods that are known and not supported, and their names for users.
_NOT_READ = {
    "aqlm": "AQLM",
    "auto-round": "AutoRound",
    "eetq": "EETQ",
    "fbgemm_fp8": "FBGEMM",
    "fp_quant": "FP-Quant",
    "higgs": "HIGGS",
    "hqq": "HQQ",
    "modelopt": "NVIDIA's ModelOpt",
    "quanto": "Quanto",
    "quark": "AMD's Quark",
    "sinq": "SINQ",
    "spqr": "SpQR",
    "torchao": "torchao",
    "vptq": "VPTQ",
}
_FP8_RULES: dict[str, Rule] = {
    "quant_method": read("fp8"),
    "fmt": neutral(None, "e4m3", "float8_e4m3fn"),
    "weight_block_size": read("rows and columns of a block"),
    "scale_fmt": neutral(None, "float", "ue8m0"),
    **dict.fromkeys(
        ("activation_scheme", "modules_to_not_convert", "ignored_layers", "dequantize"), HARMLESS
    ),
}
_COMPRESSED_RULES: dict[str, Rule] = {
    "quant_method": read("compressed-tensors"),
    "format": read("form of the tensors"),
    "config_groups": read("numbers of a matrix"),
    "quantization_status": neutral(None, "compressed", "frozen"),
    "sparsity_config": neutral(None, {}),
    "transform_config": neutral(None, {}),
    "kv_cache_scheme": neutral(None),
    **dict.fromkeys(("ignore", "global_compression_ratio", "version"), HARMLESS),
}
_SCHEME_RULES: dict[str, Rule] = {
    **dict.fromkeys(("num_bits", "type"), read("of the codes")),
    "block_structure": read("rows and columns of a block"),
    # The shapes of scales and zero points show these.
    **dict.fromkeys(("strategy", "group_size", "symmetric"), HARMLESS),
    "actorder": neutral(None, False, "weight", "static"),
    "dynamic": neutral(None, False),
    **dict.fromkeys(("observer", "observer_kwargs", "scale_dtype", "zp_dtype"), HARMLESS),
}
# Tensors of a compressed matrix beside its codes; those of activations are not used.
_PARTS_OF_WEIGHT = ("weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
_PARTS_OF_COMPRESSED = (
    *_PARTS_OF_WEIGHT,
    *("input_scale", "input_zero_point", "output_scale", "output_zero_point"),
)
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_BLOCK = re.compile(r"(?P<rows>[0-9]{1,9})x(?P<columns>[0-9]{1,9})")
_BELOW_GROUPS = f"{BELOW}config_groups."
_AUTO_GPTQ = "quantize_config.json"
_AUTO_AWQ = "quant_config.json"
# Files of libraries that describe the weights, the last of NVIDIA's ModelOpt.
_OTHER_FILES = (_AUTO_GPTQ, _AUTO_AWQ, "hf_quant_config.json")
_DEFAULTS_OF_AUTO_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True}
_NAMES_OF_AUTO_AWQ = {"w_bit": "bits", "q_group_size": "group_size"}


def unpack_quantized(
    tensors: dict[str, Weight], config: dict[str, Any], model: str
) -> tuple[dict[str, Weight], dict[str, Any]]:
    """*tensors* with plain matrices, and *config* without ``quantization_config``.

    Without such a key, both are returned unchanged, and so are models whose method another module
    reads, such as BitNet's ternary weights.
    """
    quantization = config.get(KEY)
    if not isinstance(quantization, dict):
        return tensors, config
    method = quantization.get("quant_method")
    if not isinstance(method, str):
        return tensors, config
    if method in _NOT_READ:
        raise Unsupported(
            f"{model}: its weights are quantized by {_NOT_READ[method]} "
            f"({BELOW}quant_method = {method!r}), which is not read",
            hint=HINT,
        )
    if method == "fp8":
        check(quantization, _FP8_RULES, model=model, below=BELOW)
        unpacked = _unpack_fp8(tensors, quantization, config, model)
    elif method == "compressed-tensors":
        unpacked = _unpack_compressed(tensors, quantization, model)
    elif method == "gptq":
        unpacked = unpack_gptq(tensors, quantization, config, model)
    elif method == "awq":
        unpacked = unpack_awq(tensors, quantization, config, model)
    elif method == "bitsandbytes":
        unpacked = unpack_bitsandbytes(tensors, quantization, model)
    else:
        return tensors, config
    logger.info("%s: its %s weights become plain numbers in memory", model, method)
    return unpacked, {key: value for key, value in config.items() if key != KEY}


def find_quantization(
    files: Inventory, config: dict[str, Any], tensors: Mapping[str, Weight]
) -> dict[str, Any]:
    """*config*, completed with ``quantization_config`` from a file of auto-gptq or AutoAWQ.

    Quantized *tensors* that only a file of another library describes are refused.
    """
    has_codes = any(name.endswith((".qweight", ".qzeros")) for name in tensors)
    has_floats = any(tensor.quant.name.startswith("F8_") for tensor in tensors.values())
    described = [file for file in _OTHER_FILES if file in files]
    if KEY in config or not described or not (has_codes or has_floats):
        return config
    name = described[0]
    if name == _AUTO_GPTQ and has_codes:
        quantization = {**_DEFAULTS_OF_AUTO_GPTQ, **files.json(name, dict)}
    elif name == _AUTO_AWQ and has_codes:
        values = files.json(name, dict)
        quantization = {_NAMES_OF_AUTO_AWQ.get(key, key): value for key, value in values.items()}
        quantization["quant_method"] = "awq"
    else:
        raise Unsupported(
            f"{files.root.name}: its weights are quantized as {name} says, which is not read, and "
            f"config.json has no {KEY}",
            hint=HINT,
        )
    return {**config, KEY: quantization}


def leave_out_keys(
    config: dict[str, Any], ignore: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """*config* without the keys below ``quantization_config`` in *ignore*, and the ignored keys.

    A key of a group of compressed-tensors is named without the group, ``config_groups.weights``,
    and is left out of every group.
    """
    quantization = config.get(KEY)
    if not isinstance(quantization, dict):
        return config, {}
    remaining, ignored = split_ignored(quantization, ignore, prefix=BELOW)
    groups = remaining.get("config_groups")
    if isinstance(groups, dict):
        remaining["config_groups"] = {}
        for name, group in groups.items():
            group_keys, ignored_in_group = split_ignored(group, ignore, prefix=_BELOW_GROUPS)
            remaining["config_groups"][name] = group_keys
            ignored |= ignored_in_group
    return {**config, KEY: remaining}, ignored


def _unpack_fp8(
    tensors: Mapping[str, Weight],
    quantization: Mapping[str, Any],
    config: Mapping[str, Any],
    model: str,
) -> dict[str, Weight]:
    """*tensors* with each 8-bit float times its scale, in the type that *config* names."""
    dtype = _dtype_of(config, model)
    block = quantization.get("weight_block_size")
    unpacked = {}
    for name, tensor in tensors.items():
        if name.endswith((".weight_scale_inv", ".activation_scale", ".input_scale")):
            continue
        scale = tensors.get(f"{name}_scale_inv")
        if scale is None:
            unpacked[name] = tensor
            continue
        if tensor.quant.name != "F8_E4M3" or len(tensor.shape) != 2:
            raise unlike(tensor, "8-bit floats (E4M3) of a matrix", model)
        grid = ScaleGrid.of(read_floats(scale, model), tensor.shape, name, model, block)
        numbers = partial(_multiply, tensor, grid, model)
        unpacked[name] = defer(name, tensor.shape, types.by_name(dtype), numbers)
    return unpacked


def _multiply(codes: Weight, scales: ScaleGrid, model: str) -> NDArray[np.float32]:
    """Values of the 8-bit floats *codes*, times their *scales*."""
    return read_floats(codes, model) * scales.spread()


def _unpack_compressed(
    tensors: Mapping[str, Weight], quantization: Mapping[str, Any], model: str
) -> dict[str, Weight]:
    """*tensors* with ``(code - zero point) * scale`` for codes, in the type of the scales."""
    check(quantization, _COMPRESSED_RULES, model=model, below=BELOW)
    scheme = _only_scheme(quantization, model)
    unpacked = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        is_compressed = f"{stem}.weight_scale" in tensors
        if is_compressed and kind in ("weight", "weight_packed"):
            if f"{stem}.weight" in unpacked:
                raise InvalidFormat(
                    f"{model}: {stem} has both weight and weight_packed", hint=COMPARE
                )
            parts = {part: tensors.get(f"{stem}.{part}") for part in _PARTS_OF_COMPRESSED}
            unpacked[f"{stem}.weight"] = _decompress(stem, tensor, parts, scheme, model)
        elif not is_compressed or kind not in _PARTS_OF_COMPRESSED:
            unpacked[name] = tensor
    return unpacked


def _only_scheme(quantization: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """The scheme of the weights, which must be the same in all ``config_groups``."""
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise InvalidFormat(f"{model}: {BELOW}config_groups has no group", hint=COMPARE)
    tables = [group if isinstance(group, dict) else {} for group in groups.values()]
    scheme = tables[0].get("weights")
    form = quantization.get("format")
    forms = [group["format"] for group in tables if group.get("format")]
    has_other = any(group.get("weights") != scheme for group in tables)
    if has_other or form not in _FORMATS or any(each != form for each in forms):
        raise Unsupported(
            f"{model}: {BELOW}format is {form!r} with {len(groups)} groups; of compressed-tensors "
            f"one kind of matrices is read, in a format of {', '.join(_FORMATS)}",
            hint=HINT,
        )
    if not isinstance(scheme, dict):
        raise Unsupported(f"{model}: only activations are quantized", hint=HINT)
    check(scheme, _SCHEME_RULES, model=model, below=f"{_BELOW_GROUPS}weights.")
    return scheme


def _decompress(
    stem: str,
    codes: Weight,
    parts: Mapping[str, Weight | None],
    scheme: Mapping[str, Any],
    model: str,
) -> Weight:
    """The matrix *stem* of its *codes* and *parts*, whose keys are ``_PARTS_OF_COMPRESSED``."""
    scale, zero_point, stated_shape, group_index = (parts[part] for part in _PARTS_OF_WEIGHT)
    assert scale is not None  # the caller found it
    shape = _shape_of(codes, stated_shape, scheme, model)
    if group_index is not None:
        raise Unsupported(
            f"{model}: {group_index.name} assigns the columns of a matrix to groups one by one, "
            "which is not read",
            hint=HINT,
        )
    if scale.quant.name not in DTYPES.values():
        raise unlike(scale, "scales in BF16, F16 or F32", model)
    scales = read_floats(scale, model)
    key = "block_structure"
    block = _read_block(scheme.get(key))
    grid_of_scales = ScaleGrid.of(scales, shape, stem, model, block, key)
    grid_of_zeros: ScaleGrid | None = None
    if zero_point is not None:
        has_words = codes.quant.name == "I32" and shape[0] == 1 and len(scales.shape) == 2
        has_words = has_words and scheme.get("strategy") != "tensor"  # whose zero point is plain
        zeros = _zeros_of(zero_point, scales.shape, scheme, model, has_words=has_words)
        grid_of_zeros = ScaleGrid.of(zeros, shape, stem, model, block, key)

    def numbers() -> NDArray[np.float32]:
        values = _codes_of(codes, shape, scheme, model)
        if grid_of_zeros is not None:
            values = values - grid_of_zeros.spread()
        return values * grid_of_scales.spread()

    return defer(f"{stem}.weight", shape, scale.quant, numbers)


def _read_block(stated: Any) -> Any:
    """The rows and columns of a block, *stated* as such or, in older folders, as ``128x128``."""
    match = _BLOCK.fullmatch(stated) if isinstance(stated, str) else None
    return stated if match is None else [int(match["rows"]), int(match["columns"])]


def _shape_of(
    codes: Weight, stated_shape: Weight | None, scheme: Mapping[str, Any], model: str
) -> tuple[int, ...]:
    """Rows and columns of the matrix of *codes*; if they are packed, those in *stated_shape*."""
    expected = {"int": ("I8", "I32"), "float": ("F8_E4M3",)}.get(str(scheme.get("type")), ())
    if codes.quant.name not in expected or len(codes.shape) != 2:
        raise unlike(codes, f"codes of the type {scheme.get('type')!r}", model)
    if codes.quant.name != "I32":
        return codes.shape
    if stated_shape is None:
        raise InvalidFormat(f"{model}: {codes.name} has no weight_shape", hint=COMPARE)
    shape = tuple(map(int, read_integers(stated_shape, model).reshape(-1)))
    if len(shape) != 2:
        raise unlike(stated_shape, "rows and columns", model)
    row_bits = shape[1] * _bits_of(scheme, model)
    if codes.shape != (shape[0], -(-row_bits // 32)):
        raise unlike(codes, f"{' x '.join(map(str, shape))} numbers", model)
    return shape


def _codes_of(
    codes: Weight, shape: tuple[int, ...], scheme: Mapping[str, Any], model: str
) -> NDArray[np.float32]:
    """The *codes* of a matrix of *shape* as floats, unpacked if they are packed."""
    if codes.quant.name != "I32":
        return read_floats(codes, model)
    packed = read_integers(codes, model)
    return _unpack_words(packed, _bits_of(scheme, model), shape[1])


def _zeros_of(
    zero_point: Weight,
    shape: tuple[int, ...],
    scheme: Mapping[str, Any],
    model: str,
    *,
    has_words: bool,
) -> NDArray[np.float32]:
    """Zero points, of the *shape* of the scales. Packed ones have neighbouring rows in a word.

    Words of a matrix with one row are as many as its zero points; *has_words* tells them apart.
    """
    is_plain = zero_point.shape == shape and not has_words
    if zero_point.quant.name != "I32" or is_plain:
        return read_floats(zero_point, model)
    if len(zero_point.shape) != 2 or len(shape) != 2:
        raise unlike(zero_point, f"zero points for scales of {shape}", model)
    packed = read_integers(zero_point, model).T
    values = _unpack_words(packed, _bits_of(scheme, model), shape[0]).T
    if values.shape != shape:
        raise unlike(zero_point, f"zero points for scales of {shape}", model)
    return np.ascontiguousarray(values)


def _bits_of(scheme: Mapping[str, Any], model: str) -> int:
    bits = scheme.get("num_bits")
    if type(bits) is not int or bits not in (2, 4, 8):
        raise Unsupported(
            f"{model}: {BELOW}config_groups.weights.num_bits is {bits!r}; packed integers of 2, "
            "4 and 8 bits are read",
            hint=HINT,
        )
    return bits


def _unpack_words(words: NDArray[np.integer[Any]], bits: int, columns: int) -> NDArray[np.float32]:
    """Signed integers of rows of 32-bit *words*, the first in the lowest *bits* of a word.

    Half of their range was added to store them: code 0 is the least integer.
    """
    codes = unpack_codes(words, bits, columns)
    numbers: NDArray[np.float32] = codes.astype(np.float32) - np.float32(1 << (bits - 1))
    return numbers


def _dtype_of(config: Mapping[str, Any], model: str) -> str:
    """Type of the model's numbers, as *config* names it; BF16 if it does not."""
    inner = config.get("text_config")
    tables = (config, inner) if isinstance(inner, dict) else (config,)
    names = [table[key] for table in tables for key in ("dtype", "torch_dtype") if table.get(key)]
    name = names[0] if names else "bfloat16"
    if not isinstance(name, str) or name not in DTYPES:
        raise Unsupported(f"{model}: config.json: dtype is {name!r:.80}", hint=HINT)
    return DTYPES[name]
