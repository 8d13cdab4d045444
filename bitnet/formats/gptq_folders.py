"""Matrices of GPTQ and AWQ folders, as the plain numbers that they stand for.

A number is ``(code - zero point) * scale``. A layer with inputs and outputs stores

===========  ===========================================  =========================================
tensor       GPTQ                                         AWQ, in the layout ``gemm``
===========  ===========================================  =========================================
``qweight``  codes of 2, 3, 4 or 8 bits, packed along     codes of 4 bits, packed along outputs, a
             inputs                                       word holds 0, 2, 4, 6, 1, 3, 5, 7 of eight
``qzeros``   a zero point for each group and output,      a zero point for each group and output,
             packed along outputs; version 1 of the       packed as its codes are
             format stores them less one
``scales``   ``(groups, outputs)``                        ``(groups, outputs)``
``g_idx``    the group of each input                      neighbours are a group
===========  ===========================================  =========================================

Sources: gptqmodel 7.7.0, with which transformers 5 runs both (``nn_modules/qlinear/torch.py``,
``torch_awq.py``, ``utils/model.py``), auto-gptq 0.7.1 and autoawq 0.2.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.family import of_model_type
from bitnet.families.gpt import transpose_products
from bitnet.families.keys import COMPARE, HARMLESS, Rule, check, neutral, read
from bitnet.formats.stored_numbers import (
    BELOW,
    HINT,
    defer,
    read_floats,
    read_integers,
    unlike,
    unpack_codes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bitnet.quants.weight import Weight

# A function that returns the codes of inputs *start* to *stop*, shape (outputs, stop - start).
_Codes: TypeAlias = "Callable[[int, int], NDArray[np.uint8]]"

_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_BITS_OF_GPTQ = (2, 3, 4, 8)
_BITS_OF_AWQ = 4
_DEFAULT_GROUP = 128  # of transformers' ``GPTQConfig`` and ``AwqConfig``
# Places in a word of the eight codes of AWQ, in the order of their outputs.
_ORDER_OF_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
_SLAB = 256  # inputs that are decoded at once, a multiple of 32

# Keys of GPTQConfig, optimum's quantizer, auto-gptq and gptqmodel that say how the codes were found
# or which kernels are preferred.
_HOW_IT_WAS_DONE = (
    *("act_group_aware", "batch_size", "block_name_to_quantize", "cache_block_outputs"),
    *("cache_examples_on_gpu", "damp_auto_increment", "damp_percent", "dataset", "disable_exllama"),
    *("exllama_config", "hyb_act", "lm_head", "max_input_length", "meta", "mock_quantization"),
    *("model_file_base_name", "model_name_or_path", "model_seqlen", "modules_in_block_to_quantize"),
    *("modules_to_not_convert", "module_name_preceding_first_block", "mse", "pad_token_id"),
    *("parallel_packing", "static_groups", "sym", "tokenizer", "true_sequential", "use_cuda_fp16"),
    *("use_exllama", "v2"),
)
_RULES_OF_BOTH: dict[str, Rule] = {
    **dict.fromkeys(_HOW_IT_WAS_DONE, HARMLESS),
    "bits": read("of a code"),
    "group_size": read("inputs of a group"),
    "pack_dtype": neutral(None, "int32"),
    **dict.fromkeys(("activation", "adapter", "rotation"), neutral(None, {})),
}
_GPTQ_RULES: dict[str, Rule] = {
    **_RULES_OF_BOTH,
    **dict.fromkeys(("quant_method", "method"), neutral(None, "gptq")),
    **dict.fromkeys(("checkpoint_format", "format"), neutral(None, "gptq", "gptq_v2")),
    "desc_act": read("whether inputs have groups of their own"),
    "dynamic": read("matrices with other codes"),
    "backend": HARMLESS,
    "is_marlin_format": neutral(None, False),
    "awq_gemm_checkpoint": neutral(None, False),
}
_AWQ_RULES: dict[str, Rule] = {
    **_RULES_OF_BOTH,
    **dict.fromkeys(("quant_method", "method"), neutral(None, "awq")),
    **dict.fromkeys(("version", "format", "checkpoint_format"), neutral(None, "gemm", "GEMM")),
    "zero_point": neutral(None, True),
    "desc_act": neutral(None, False),
    "dynamic": neutral(None, {}),
    "backend": neutral(None, "auto", "autoawq", "legacy_awq"),
    **dict.fromkeys(("do_fuse", "fuse_max_seq_len", "modules_to_fuse"), HARMLESS),
}
# Of an entry of ``dynamic``, which may give some matrices another number of bits and other groups.
_DYNAMIC_KEYS = frozenset({"bits", "group_size", "desc_act", "sym", *_HOW_IT_WAS_DONE})


@dataclass(frozen=True)
class _Form:
    """Facts of ``quantization_config`` that hold for the tensors of all matrices."""

    model: str  # name of the folder, for messages
    bits: int  # of a code
    group_size: int  # -1: all inputs are one group
    first_version: bool  # zero points are stored less one
    # written by gptqmodel, which adds that one to all codes of a word at once: a full code carries
    # into the next
    by_gptqmodel: bool
    any_group: bool  # an input may be of any group
    any_bits: bool  # matrices may have other numbers of bits and other groups than stated here
    inputs_first: bool  # the folder's own matrices have a row for each input, as in GPT-2


def unpack_gptq(
    tensors: Mapping[str, Weight],
    quantization: Mapping[str, Any],
    config: Mapping[str, Any],
    model: str,
) -> dict[str, Weight]:
    """*tensors* with plain matrices, in the type of their scales, in place of GPTQ's tensors."""
    check(quantization, _GPTQ_RULES, model=model, below=BELOW)
    bits = _bits_of(quantization, _BITS_OF_GPTQ, model)
    stated_format = quantization.get("checkpoint_format") or quantization.get("format") or "gptq"
    form = _Form(
        model,
        bits,
        _group_size_of(quantization, model),
        first_version=stated_format == "gptq",
        by_gptqmodel="gptqmodel" in str(_writers(quantization)),
        any_group=quantization.get("desc_act") is not False,
        any_bits=_has_dynamic_bits(quantization, model),
        inputs_first=_stores_inputs_first(config),
    )
    return _unpack(tensors, form, _gptq_matrix)


def unpack_awq(
    tensors: Mapping[str, Weight],
    quantization: Mapping[str, Any],
    config: Mapping[str, Any],
    model: str,
) -> dict[str, Weight]:
    """*tensors* with plain matrices, in the type of their scales, in place of AWQ's tensors."""
    check(quantization, _AWQ_RULES, model=model, below=BELOW)
    form = _Form(
        model,
        _bits_of({"bits": _BITS_OF_AWQ, **quantization}, (_BITS_OF_AWQ,), model),
        _group_size_of(quantization, model),
        first_version=False,
        by_gptqmodel=False,
        any_group=False,
        any_bits=False,
        inputs_first=_stores_inputs_first(config),
    )
    return _unpack(tensors, form, _awq_matrix)


def _unpack(
    tensors: Mapping[str, Weight],
    form: _Form,
    matrix: Callable[[str, Mapping[str, Weight], _Form], Weight],
) -> dict[str, Weight]:
    """*tensors* with one tensor, made by *matrix*, for the parts of each quantized matrix."""
    unpacked = {}
    is_quantized = False
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        if part not in _PARTS:
            unpacked[name] = tensor
            continue
        if f"{stem}.qweight" not in tensors:
            # Such as AWQ's ``scales`` for the results of some activation functions.
            raise Unsupported(
                f"{form.model}: {name} belongs to no quantized matrix, and is not read", hint=HINT
            )
        if part != "qweight":
            continue
        if f"{stem}.weight" in tensors:
            raise InvalidFormat(f"{form.model}: {stem} has both weight and qweight", hint=COMPARE)
        if stem.rpartition(".")[2] in ("embed_tokens", "wte", "word_embeddings", "tok_embeddings"):
            raise Unsupported(f"{form.model}: {name}: a quantized embedding is not read", hint=HINT)
        is_quantized = True
        unpacked[f"{stem}.weight"] = matrix(stem, tensors, form)
    if not is_quantized:
        raise InvalidFormat(
            f"{form.model}: {BELOW}quant_method names quantized matrices, and no tensor is a "
            "qweight",
            hint=COMPARE,
        )
    return unpacked


def _gptq_matrix(stem: str, tensors: Mapping[str, Weight], form: _Form) -> Weight:
    """The matrix of the layer *stem*, of which GPTQ's tensors are among *tensors*."""
    codes, zeros, scales = _parts_of(stem, tensors, form)
    groups, outputs = scales.shape
    g_idx = tensors.get(f"{stem}.g_idx")
    inputs = codes.shape[0] * 32 // form.bits
    if g_idx is not None:
        inputs = g_idx.shape[0] if len(g_idx.shape) == 1 else 0
    bits = form.bits
    if form.any_bits:  # those of this matrix follow from its shape
        bits = codes.shape[0] * 32 // max(inputs, 1)
    words = -(-inputs * bits // 32)
    if bits not in _BITS_OF_GPTQ or codes.shape != (words, outputs) or not inputs:
        raise unlike(codes, f"{inputs:,} x {outputs:,} codes of {bits} bits", form.model)
    if zeros.shape != (groups, -(-outputs * bits // 32)):
        raise unlike(zeros, f"zero points of {bits} bits for {groups} x {outputs}", form.model)
    group_of_input = _groups_of_inputs(stem, g_idx, inputs, groups, form)
    points = _zero_points(zeros, bits, outputs, form)

    def codes_between(start: int, stop: int) -> NDArray[np.uint8]:
        packed = read_integers(codes, form.model)[start * bits // 32 : -(-stop * bits // 32)]
        return unpack_codes(packed.T, bits, stop - start)

    return _matrix(stem, scales, (outputs, inputs), group_of_input, points, codes_between, form)


def _awq_matrix(stem: str, tensors: Mapping[str, Weight], form: _Form) -> Weight:
    """The matrix of the layer *stem*, of which AWQ's tensors are among *tensors*."""
    codes, zeros, scales = _parts_of(stem, tensors, form)
    groups, outputs = scales.shape
    inputs = codes.shape[0]
    if codes.shape != (inputs, outputs // 8) or outputs % 8 or not inputs:
        raise unlike(codes, f"{inputs:,} x {outputs:,} codes of 4 bits", form.model)
    if zeros.shape != (groups, outputs // 8):
        raise unlike(zeros, f"zero points of 4 bits for {groups} x {outputs}", form.model)
    size = _size_of_groups(form, inputs)
    if groups * size != inputs:
        raise unlike(scales, f"scales of groups of {size:,} among {inputs:,} inputs", form.model)

    def codes_between(start: int, stop: int) -> NDArray[np.uint8]:
        words = read_integers(codes, form.model)[start:stop]
        turned: NDArray[np.uint8] = _in_order(words, outputs).T
        return turned

    def points() -> NDArray[np.uint8]:
        return _in_order(read_integers(zeros, form.model), outputs)

    group_of_input = np.arange(inputs) // size
    return _matrix(stem, scales, (outputs, inputs), group_of_input, points, codes_between, form)


def _in_order(words: NDArray[np.integer[Any]], outputs: int) -> NDArray[np.uint8]:
    """The codes of rows of AWQ's *words*, in the order of the *outputs*."""
    codes = unpack_codes(words, _BITS_OF_AWQ, outputs).reshape(len(words), -1, 8)
    ordered: NDArray[np.uint8] = codes[:, :, _ORDER_OF_AWQ]
    return ordered.reshape(len(words), outputs)


def _matrix(
    stem: str,
    scales: Weight,
    shape: tuple[int, int],
    group_of: NDArray[np.intp],
    points: Callable[[], NDArray[np.integer[Any]]],
    codes: _Codes,
    form: _Form,
) -> Weight:
    """The matrix of a layer of *shape* ``(outputs, inputs)``, computed when it is read.

    *group_of* has the group of each input, *points* returns the zero points, ``(groups, outputs)``.
    """

    def numbers() -> NDArray[np.float32]:
        zeros_of = points().astype(np.float32).T  # (outputs, groups)
        scales_of = read_floats(scales, form.model).T
        values = np.empty(shape, dtype=np.float32)
        for start in range(0, shape[1], _SLAB):
            stop = min(start + _SLAB, shape[1])
            groups = group_of[start:stop]
            slab = codes(start, stop).astype(np.float32) - zeros_of[:, groups]
            values[:, start:stop] = slab * scales_of[:, groups]
        return np.ascontiguousarray(values.T) if form.inputs_first else values

    stored = shape[::-1] if form.inputs_first else shape
    return defer(f"{stem}.weight", stored, scales.quant, numbers)


def _parts_of(
    stem: str, tensors: Mapping[str, Weight], form: _Form
) -> tuple[Weight, Weight, Weight]:
    """Codes, zero points and scales of the layer *stem*, all of them matrices."""
    parts = []
    for part in ("qweight", "qzeros", "scales"):
        tensor = tensors.get(f"{stem}.{part}")
        if tensor is None:
            raise InvalidFormat(f"{form.model}: {stem} has no {part}", hint=COMPARE)
        types = ("F16", "BF16", "F32") if part == "scales" else ("I32",)
        if len(tensor.shape) != 2 or tensor.quant.name not in types:
            raise unlike(tensor, f"a matrix of {' or '.join(types)}", form.model)
        parts.append(tensor)
    codes, zeros, scales = parts
    return codes, zeros, scales


def _groups_of_inputs(
    stem: str, g_idx: Weight | None, inputs: int, groups: int, form: _Form
) -> NDArray[np.intp]:
    """The group of each input of the layer *stem*: stated by *g_idx*, or else neighbours."""
    size = min(_size_of_groups(form, inputs), inputs)  # any stated size may be larger
    neighbours = np.arange(inputs) // size
    if g_idx is None:
        if -(-inputs // size) != groups:
            raise InvalidFormat(
                f"{form.model}: {stem} has {groups:,} groups, expected {-(-inputs // size):,} of "
                f"{size:,} inputs",
                hint=COMPARE,
            )
        return neighbours
    group_of_input = read_integers(g_idx, form.model).astype(np.intp)
    if group_of_input.min() < 0 or group_of_input.max() >= groups:
        raise InvalidFormat(
            f"{form.model}: {g_idx.name} names the groups {group_of_input.min():,} to "
            f"{group_of_input.max():,}, there are {groups:,}",
            hint=COMPARE,
        )
    if form.any_bits:  # the size of the groups differs, too, and follows from their number
        size = -(-inputs // groups)
        neighbours = np.arange(inputs) // size
    is_plain = np.array_equal(group_of_input, neighbours)
    # auto-gptq and exllama read a g_idx of zeros as groups of neighbours, and ignore any g_idx
    # without desc_act; gptqmodel always follows it.
    if not is_plain and (not form.any_group or not group_of_input.any()):
        raise Unsupported(
            f"{form.model}: {g_idx.name} does not put neighbouring inputs into groups of "
            f"{size:,}, and libraries differ in whether they follow it: {BELOW}desc_act",
            hint=HINT,
        )
    return group_of_input


def _zero_points(
    zeros: Weight, bits: int, outputs: int, form: _Form
) -> Callable[[], NDArray[np.integer[Any]]]:
    """A function that returns the zero points, shape ``(groups, outputs)``."""

    def decode(words: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        return unpack_codes(words, bits, outputs).astype(np.int16)

    def read_stored() -> NDArray[np.integer[Any]]:
        return decode(read_integers(zeros, form.model))

    if not form.first_version:
        return read_stored

    largest = (1 << bits) - 1
    if not (read_stored() == largest).any():
        return lambda: read_stored() + np.int16(1)
    if not form.by_gptqmodel:
        raise Unsupported(
            f"{form.model}: {zeros.name} has the largest code, to which version 1 of the format "
            "adds one: its libraries read this differently",
            hint=HINT,
        )
    if bits == 3:  # codes of 3 bits cross words, so each is increased by itself
        return lambda: read_stored() + np.int16(1) & np.int16(largest)

    def add_to_words() -> NDArray[np.integer[Any]]:
        ones = np.uint32(sum(1 << shift for shift in range(0, 32, bits)))
        words = read_integers(zeros, form.model).view(np.uint32)
        return decode((words + ones).view(np.int32))

    return add_to_words


def _size_of_groups(form: _Form, inputs: int) -> int:
    return inputs if form.group_size == -1 else form.group_size


def _bits_of(quantization: Mapping[str, Any], expected: tuple[int, ...], model: str) -> int:
    bits = quantization.get("bits")
    if type(bits) is not int or bits not in expected:
        raise Unsupported(
            f"{model}: {BELOW}bits is {bits!r:.80}; codes of {', '.join(map(str, expected))} bits "
            "are read",
            hint=HINT,
        )
    return bits


def _group_size_of(quantization: Mapping[str, Any], model: str) -> int:
    size = quantization.get("group_size", _DEFAULT_GROUP)
    if type(size) is not int or (size < 1 and size != -1):
        raise InvalidFormat(
            f"{model}: {BELOW}group_size is {size!r:.80}, expected a number of inputs, or -1 for "
            "all",
            hint=COMPARE,
        )
    return size


def _writers(quantization: Mapping[str, Any]) -> Any:
    """Names and versions of the libraries that wrote the folder."""
    meta = quantization.get("meta")
    return meta.get("quantizer", "") if isinstance(meta, dict) else ""


def _has_dynamic_bits(quantization: Mapping[str, Any], model: str) -> bool:
    """True if ``dynamic`` gives some matrices other codes, and not only leaves matrices plain."""
    dynamic = quantization.get("dynamic")
    if dynamic in (None, False, {}):
        return False
    entries = dynamic.values() if isinstance(dynamic, dict) else [dynamic]
    for entry in entries:
        unknown = {*entry} - _DYNAMIC_KEYS if isinstance(entry, dict) else {repr(entry)}
        if unknown:
            raise Unsupported(
                f"{model}: {BELOW}dynamic has {min(unknown):.80}, which is not read", hint=HINT
            )
    return any(entries)


def _stores_inputs_first(config: Mapping[str, Any]) -> bool:
    """True for the classes of transformers whose layers are ``Conv1D``: ``(inputs, outputs)``."""
    family = of_model_type(str(config.get("model_type")))
    return family is not None and family.orders is transpose_products
