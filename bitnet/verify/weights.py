"""Plausibility checks of a model without its original: scales, ranges, neighbours, settings.

A damaged or badly converted tensor shows in its scales and codes: NaN, signs and magnitudes that no
quantizer writes, rows of zeros, invalid codes. Reading only the scales takes milliseconds where
decoding would take seconds.

Ranges were measured on SmolLM2-135M (Q4_1, 30 layers) and Gemma-3-270M (Q4_K_M, 18 layers); each
limit is at least twice what either has, and values beyond it are warnings:

    root mean square of a matrix to the median of its kind in all layers     0.27 .. 2.0
    the same of a norm                                                        0.08 .. 9.3
    largest row of a matrix to its median row                                 9.7
    negative numbers of a norm                                                16 %
    largest number of a norm to its median number                             172
    rows, and stretches of 256 bytes, that occur twice in a matrix            none
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import BitnetError
from bitnet.base.findings import Finding
from bitnet.families.tensor_names import without_block
from bitnet.quants.registry import dequantize, unpack_ternary
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import X86_BLOCK, Ternary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.gguf_audit import TernaryCounts
    from bitnet.quants.weight import Weight

# Within one tensor of the models measured, the largest scale is at most 27 times the median one.
LARGEST_RATIO = 1000.0
MOST_ZEROS = 0.98  # of ternary weights; trained ones have 30 to 60 %
MOST_ONE_SIGN = 0.9  # of the weights that are not zero; trained ones have 50 %

# Scales of each block: their offset, their type, and True if quantizers write negative ones. Block
# layouts of ggml (ggml-common.h); minima (``m``) may have either sign, the scales of minima
# (``dmin``) may not, and steps (``d``) only where the quantizer takes the extreme value with its
# sign.
_SCALES: dict[str, tuple[tuple[int, str, bool], ...]] = {
    **dict.fromkeys(("Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS"), ((0, "<f2", True),)),
    **dict.fromkeys(("Q4_1", "Q5_1"), ((0, "<f2", False), (2, "<f2", True))),
    **dict.fromkeys(("Q4_K", "Q5_K"), ((0, "<f2", False), (2, "<f2", False))),
    "Q8_0": ((0, "<f2", False),),
    "Q2_K": ((80, "<f2", False), (82, "<f2", False)),
    "Q3_K": ((108, "<f2", True),),
    "Q6_K": ((208, "<f2", True),),
    "Q8_K": ((0, "<f4", True),),
    **{name: ((layout.scale_at, "<f2", False),) for name, layout in SCALED_BLOCKS.items()},
}
# Unsigned type of a float's bits, and the mask of its exponent.
_FLOATS = {"F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80), "F32": ("<u4", 0x7F800000)}
_ALL_ZERO_CODES = 0x55  # a byte of four codes of ternary weights, all for 0

# Limits of the ranges that the module lists.
MATRIX = (1 / 16, 8.0)  # root mean square of a matrix, as a multiple of the median of its kind
NORM = (1 / 50, 50.0)  # the same of a norm
LARGEST_ROW = 20.0  # of a matrix, as a multiple of its median row
MOST_NEGATIVE = 0.5  # share of the numbers of a norm
LARGEST_OF_NORM = 500.0  # number of a norm, as a multiple of its median number

FEWEST_LAYERS = 4  # with fewer, tensors of one kind are not compared
SAMPLE = 1 << 19  # of a larger tensor, about this many weights are decoded, in whole rows
CHUNK = 256  # bytes of a stretch that is searched for copies
KEY = 16  # first bytes of a row or stretch, by which candidates for copies are found
# From config.json of released models, by prefix of the architecture's name.
RELEASED: dict[str, dict[str, frozenset[float]]] = {
    "rope.freq_base": {
        "llama": frozenset({1e4, 1e5, 1.3e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 8e6, 1e7, 5e7, 1e8, 1e9}),
        "bitnet": frozenset({1e4, 5e5}),
        "gemma": frozenset({1e4, 1e6}),
        "phi3": frozenset({1e4, 2.5e5}),
        "qwen": frozenset({1e4, 1e6, 5e6, 1e7}),
    },
    "attention.layer_norm_rms_epsilon": {
        "llama": frozenset({1e-5, 1e-6}),
        "bitnet": frozenset({1e-5, 1e-6}),
        "gemma": frozenset({1e-6}),
        "phi3": frozenset({1e-5}),
        "qwen": frozenset({1e-5, 1e-6}),
    },
}


def _wrong(text: str) -> Finding:
    """The finding that a tensor cannot be right."""
    return Finding("failed", "weights", text)


def _unusual(text: str) -> Finding:
    """The finding that a tensor is unlikely to be right."""
    return Finding("warning", "weights", text)


def weight_anomalies(weight: Weight) -> list[Finding]:
    """Anomalies in the values of *weight*; empty if there are none."""
    name = weight.quant.name
    if not weight.data.size or 0 in weight.shape:
        return [_wrong(f"{weight.name}: it holds no numbers")]
    try:
        if name in _FLOATS:
            dtype, exponent = _FLOATS[name]
            bits = weight.data.view(dtype)
            # Exponent all ones: Inf or NaN. Without the sign: -0.0 is zero, too.
            anomalies = _number_anomalies(weight, (bits & exponent) == exponent, bits << 1)
        elif name in _SCALES:
            anomalies = _block_anomalies(weight)
        elif name.startswith(("IQ1_BN", "IQ2_BN", "I2_S", "PACKED")):
            anomalies = _ternary_anomalies(weight)
        else:
            values = dequantize(weight)
            anomalies = _number_anomalies(weight, ~np.isfinite(values), values)
    except BitnetError as error:
        anomalies = [_wrong(f"{weight.name}: not examined: {error.message}")]
    return anomalies


def code_anomalies(counts: TernaryCounts) -> list[Finding]:
    """Anomalies in the counts of -1, 0, +1 and, where the type has it, 2 of a ternary tensor."""
    name = counts.name
    total = counts.total
    if counts.invalid:
        return [_wrong(f"{name}: {counts.invalid:,} of {total:,} codes mean nothing")]
    nonzero = counts.minus + counts.plus + counts.double
    if not nonzero:
        return [_wrong(f"{name}: all {total:,} weights are zero")]
    share = f"-1: {counts.minus:,}, 0: {counts.zero:,}, +1: {counts.plus:,}"
    one_sided = max(counts.minus, counts.plus) > MOST_ONE_SIGN * nonzero
    if total == max(counts.minus, counts.plus):
        return [_wrong(f"{name}: all weights have one value ({share})")]
    if one_sided or counts.zero > MOST_ZEROS * total:
        return [_unusual(f"{name}: degenerate distribution ({share})")]
    return []


def _number_anomalies(
    weight: Weight, bad: NDArray[np.bool_], numbers: NDArray[Any]
) -> list[Finding]:
    """Anomalies of *numbers*, the values of *weight*: *bad* ones, and rows of zeros."""
    if count := int(np.count_nonzero(bad)):
        return [_wrong(f"{weight.name}: {count:,} values are NaN or infinite")]
    return _zero_rows(weight, numbers.reshape(weight.shape).any(axis=-1))


def _block_anomalies(weight: Weight) -> list[Finding]:
    """Anomalies of the scales of *weight*, and rows whose blocks are all zero."""
    anomalies = []
    present = np.zeros(0, dtype=bool)  # per block: it may have weights other than zero
    blocks = weight.data.reshape(-1, weight.quant.type_size)
    for offset, dtype, signed in _SCALES[weight.quant.name]:
        end = offset + np.dtype(dtype).itemsize
        values = np.ascontiguousarray(blocks[:, offset:end]).view(dtype)
        anomalies += _scale_anomalies(weight, values.astype(np.float32), signed=signed)
        nonzero = values.reshape(-1) != 0
        present = nonzero if not present.size else present | nonzero
    if any(anomaly.failed for anomaly in anomalies):
        return anomalies
    layout = SCALED_BLOCKS.get(weight.quant.name)
    if layout is not None:  # a scale may be that of the whole tensor, so codes decide
        zero = np.zeros((1, layout.weights), dtype=np.int8)
        zeros = layout.pack(Ternary(zero, np.zeros((1, 1), dtype=np.float32)))
        codes = np.ones(layout.size, dtype=bool)
        codes[layout.scale_at : layout.scale_at + 2] = False
        present &= (blocks[:, codes] != zeros[codes]).any(axis=1)
    return anomalies + _zero_rows(weight, present.reshape(*weight.shape[:-1], -1).any(axis=-1))


def _scale_anomalies(weight: Weight, values: NDArray[np.float32], *, signed: bool) -> list[Finding]:
    """Anomalies of the scales *values* of *weight*; *signed* ones may be negative."""
    name = weight.name
    encoding = weight.quant.name
    if bad := int(np.count_nonzero(~np.isfinite(values))):
        return [_wrong(f"{name}: {bad:,} scales are NaN or infinite")]
    anomalies = []
    if not signed and (negative := int(np.count_nonzero(values < 0))):
        text = f"{name}: {negative:,} negative scales, which no quantizer of {encoding} writes"
        anomalies.append(_unusual(text))
    sizes = np.abs(values[values != 0])
    ratio = float(sizes.max() / np.median(sizes)) if sizes.size else 0.0
    if ratio > LARGEST_RATIO:
        text = f"{name}: the largest scale is {ratio:,.0f} times the median one"
        anomalies.append(_unusual(text))
    return anomalies


def _ternary_anomalies(weight: Weight) -> list[Finding]:
    """Anomalies of codes, and of scales: means of absolute weights are finite and positive."""
    has_whole_blocks = len(weight.shape) > 1 and weight.shape[-1] % X86_BLOCK == 0  # in each row
    if weight.quant.name == "I2_S" and has_whole_blocks:  # without unpacking it
        packed = weight.data[: int(np.prod(weight.shape)) // 4]
        scales = weight.data[packed.size : packed.size + 4].view("<f4")
        used = (packed.reshape(weight.shape[0], -1) != _ALL_ZERO_CODES).any(axis=1)
    else:
        ternary = unpack_ternary(weight)
        scales = np.asarray(ternary.scales).reshape(-1)
        used = (ternary.codes != 0).any(axis=-1)
    anomalies = [] if scales.size else [_wrong(f"{weight.name}: it has no scale")]
    wrong = scales[~(np.isfinite(scales) & (scales > 0))]
    if wrong.size:
        text = f"{weight.name}: a scale is {float(wrong[0]):g}, expected a finite number above 0"
        anomalies.append(_wrong(text))
    return anomalies + _zero_rows(weight, used)


def _zero_rows(weight: Weight, used: NDArray[np.bool_] | np.bool_) -> list[Finding]:
    """Anomalies of rows of zeros; *used* is True for each row with a nonzero value."""
    used = np.atleast_1d(np.asarray(used))
    rows = int(used.size - np.count_nonzero(used))
    # transformers 5.24 makes the first low stream of HRM-Text of zeros, and never trains it.
    if not rows or weight.name.endswith((".bias", ".scale", "hrm.z_l_init")):
        return []
    if rows == used.size:
        return [_wrong(f"{weight.name}: all values are zero")]
    if weight.name == "token_embd.weight":  # tokens that no text used; common and harmless
        return []
    return [_unusual(f"{weight.name}: {rows:,} of {used.size:,} rows are zero")]


def settings_out_of_range(checkpoint: Checkpoint) -> Iterator[str]:
    """Messages about settings that differ from those of all released models of the family."""
    for key, by_family in RELEASED.items():
        families = (name for name in by_family if checkpoint.architecture.startswith(name))
        family = next(families, None)
        value = checkpoint.value(key, None)
        if family is None or value is None:
            continue
        number = float(value) if isinstance(value, int | float) else math.nan
        if not any(math.isclose(number, released, rel_tol=1e-6) for released in by_family[family]):
            names = ", ".join(f"{released:g}" for released in sorted(by_family[family]))
            name = f"{checkpoint.architecture}.{key}"
            yield f"{name} is {number:g}, models of this family have {names}"


def numbers_out_of_range(checkpoint: Checkpoint) -> Iterator[str]:
    """Messages about tensors and rows unlike others of their kind, and about duplicates."""
    kinds: dict[str, dict[str, float]] = {}
    copies: dict[tuple[int, bytes], list[str]] = {}
    matrices = {
        matrix.name: matrix
        for weight in checkpoint.weights.values()
        for matrix in weight.matrices()
    }
    for name, weight in matrices.items():
        try:
            with np.errstate(all="ignore"):  # a scale may be infinite
                values = _sample(weight)
                squares = np.square(values, dtype=np.float64)
                rms = math.sqrt(squares.mean()) if values.size else math.nan
        except BitnetError:
            continue  # reported by `weight_anomalies`, and so are values that are not finite
        if not math.isfinite(rms):
            continue
        if name.startswith("blk."):
            kinds.setdefault(without_block(name), {})[name] = rms
        if len(weight.shape) > 1:
            yield from _odd_rows(name, values)
        elif name.endswith("norm.weight"):
            yield from _odd_norm(name, values)
        if len(weight.shape) > 1 and name not in ("token_embd.weight", "output.weight"):
            yield from _copies_within(weight)
            yield from _constant(weight)
            # Candidates for copies have the same size and beginning; then all bytes are compared.
            key = (weight.data.size, weight.data[:512].tobytes())
            candidates = copies.setdefault(key, [])
            for other in candidates:
                if np.array_equal(matrices[other].data, weight.data):
                    yield f"{name} has the bytes of {other}"
                    break
            else:
                candidates.append(name)
    yield from _unlike_neighbours(kinds)


def _sample(weight: Weight) -> NDArray[np.float32]:
    """Values of *weight*: all of a small one, else evenly spaced rows."""
    step = max(1, math.ceil(math.prod(weight.shape) / SAMPLE))
    if step == 1 or not weight.stores_rows:
        return dequantize(weight)
    return dequantize(weight.take_rows(slice(None, None, step)))


def _odd_rows(name: str, values: NDArray[np.float32]) -> Iterator[str]:
    """A message if the root mean square of the largest row of a matrix is unusual."""
    sizes = np.sqrt(np.mean(np.square(values, dtype=np.float64), axis=-1)).reshape(-1)
    sizes = sizes[sizes > 0]
    ratio = float(sizes.max() / np.median(sizes)) if sizes.size else 0.0
    if not ratio <= LARGEST_ROW:
        yield f"{name}: a row is {ratio:,.0f} times the size of the median one"


def _odd_norm(name: str, values: NDArray[np.float32]) -> Iterator[str]:
    """Messages about unusual signs and magnitudes among the numbers of a norm."""
    negative = float(np.mean(values < 0))
    sizes = np.abs(values)
    if not negative <= MOST_NEGATIVE:
        yield f"{name}: {negative:.0%} of its numbers are negative"
    largest = float(sizes.max())
    middle = float(np.median(sizes))
    if middle and not largest <= LARGEST_OF_NORM * middle:
        yield f"{name}: a number is {largest / middle:,.0f} times the median one"


def _copies_within(weight: Weight) -> Iterator[str]:
    """A message about rows, or else stretches of CHUNK bytes, that occur more than once."""
    raw = weight.data
    rows = weight.shape[0]
    if weight.quant.name == "PACKED_U8":  # each stored row has the codes of four
        rows //= 4
    if rows and raw.size % rows == 0 and (count := _twice(raw.reshape(rows, -1))):
        yield f"{weight.name}: {count:,} rows occur twice"
    elif count := _twice(raw[: raw.size - raw.size % CHUNK].reshape(-1, CHUNK)):
        yield f"{weight.name}: {count:,} stretches of {CHUNK} bytes occur twice"


def _constant(weight: Weight) -> Iterator[str]:
    """A message about stretches of one repeated byte, other than the code of zero weights."""
    zero = _ALL_ZERO_CODES if weight.quant.name in ("I2_S", "PACKED_U8") else 0
    chunks = weight.data[: weight.data.size - weight.data.size % CHUNK].reshape(-1, CHUNK)
    count = int(np.count_nonzero((chunks == chunks[:, :1]).all(axis=1) & (chunks[:, 0] != zero)))
    if count:
        yield f"{weight.name}: {count:,} stretches of {CHUNK} bytes are one byte throughout"


def _twice(pieces: NDArray[np.uint8]) -> int:
    """Number of *pieces*, the rows of an array, that equal another one.

    Pieces of one repeated byte do not count. The first KEY bytes are compared first.
    """
    if len(pieces) < 2 or pieces.shape[1] < KEY:
        return 0
    keys = np.ascontiguousarray(pieces[:, :KEY]).view([("a", "<u8"), ("b", "<u8")]).reshape(-1)
    _, where, counts = np.unique(keys, return_inverse=True, return_counts=True)
    occurrences: dict[bytes, int] = {}
    # Not more than 100,000 candidates are compared, which bounds the time.
    for at in np.flatnonzero(counts[where.reshape(-1)] > 1)[:100_000]:
        piece = pieces[at]
        if (piece != piece[0]).any():
            whole = piece.tobytes()
            occurrences[whole] = occurrences.get(whole, 0) + 1
    return sum(count for count in occurrences.values() if count > 1)


def _unlike_neighbours(kinds: dict[str, dict[str, float]]) -> Iterable[str]:
    """Messages about tensors whose size is unusual for their kind.

    *kinds* has the root mean square of each tensor, by kind and by name.
    """
    for kind, sizes in kinds.items():
        if len(sizes) < FEWEST_LAYERS or kind.endswith((".bias", ".scale")):
            continue
        least, most = NORM if kind.endswith("norm.weight") else MATRIX
        middle = float(np.median(list(sizes.values())))
        for name, size in sizes.items():
            if middle > 0 and not least <= size / middle <= most:
                ratio = f"{size / middle:.2g}"
                yield f"{name} is {ratio} times the size of the median {kind} of all layers"
