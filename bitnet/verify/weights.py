"""Plausibility checks of one weight, read from its scales where the type has any.

A damaged or badly converted tensor shows in its scales and codes: NaN, signs and magnitudes that no
quantizer writes, rows of zeros, invalid codes. Reading only the scales takes milliseconds where
decoding would take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import BitnetError
from bitnet.base.findings import Finding
from bitnet.quants.registry import dequantize, unpack_ternary
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import Ternary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.formats.gguf_ternary import TernaryCounts
    from bitnet.quants.weight import Weight

# Within one tensor of the models measured, the largest scale is at most 27 times the median one.
LARGEST_RATIO = 1000.0
MOST_ZEROS = 0.98  # of ternary weights; trained ones have 30 to 60 %
MOST_ONE_SIGN = 0.9  # of the weights that are not zero; trained ones have 50 %


def _wrong(text: str) -> Finding:
    """The finding that a tensor cannot be right."""
    return Finding("failed", "weights", text)


def _unusual(text: str) -> Finding:
    """The finding that a tensor is unlikely to be right."""
    return Finding("warning", "weights", text)


@dataclass(frozen=True)
class _Scale:
    """Scale of each block: its offset, its type, and whether quantizers write negative ones."""

    offset: int
    dtype: str = "<f2"
    signed: bool = False


# Block layouts of ggml (ggml-common.h); minima (``m``) may have either sign, steps (``d``) only
# where the quantizer takes the extreme value with its sign.
_SCALES: dict[str, tuple[_Scale, ...]] = {
    "Q4_0": (_Scale(0, signed=True),),
    "Q4_1": (_Scale(0), _Scale(2, signed=True)),
    "Q5_0": (_Scale(0, signed=True),),
    "Q5_1": (_Scale(0), _Scale(2, signed=True)),
    "Q8_0": (_Scale(0),),
    "Q2_K": (_Scale(80), _Scale(82)),
    "Q3_K": (_Scale(108, signed=True),),
    "Q4_K": (_Scale(0), _Scale(2)),
    "Q5_K": (_Scale(0), _Scale(2)),
    "Q6_K": (_Scale(208, signed=True),),
    "Q8_K": (_Scale(0, "<f4", signed=True),),
    "IQ4_NL": (_Scale(0, signed=True),),
    "IQ4_XS": (_Scale(0, signed=True),),
} | {name: (_Scale(layout.scale_at),) for name, layout in SCALED_BLOCKS.items()}
_FLOATS = {"F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80), "F32": ("<u4", 0x7F800000)}
_ALL_ZERO_CODES = 0x55  # a byte of four I2_S codes for 0


def weight_anomalies(weight: Weight) -> list[Finding]:
    """Anomalies in the values of *weight*; empty if there are none."""
    name = weight.quant.name
    if not weight.data.size or 0 in weight.shape:
        return [_wrong(f"{weight.name}: it holds no numbers")]
    try:
        if name in _FLOATS:
            anomalies = _float_anomalies(weight)
        elif name in _SCALES:
            anomalies = _block_anomalies(weight)
        elif name == "I2_S":
            anomalies = _i2_s_anomalies(weight)
        elif name.startswith(("IQ1_BN", "IQ2_BN", "I2_S", "PACKED")):
            anomalies = _ternary_anomalies(weight)
        else:
            anomalies = _value_anomalies(weight, dequantize(weight))
    except BitnetError as error:
        anomalies = [_wrong(f"{weight.name}: not examined: {error.message}")]
    return anomalies


def code_anomalies(counts: TernaryCounts) -> list[Finding]:
    """Anomalies in the counts of -1, 0 and +1 of a ternary tensor."""
    name, total = counts.name, counts.total
    if counts.invalid:
        text = f"{name}: {counts.invalid:,} of {total:,} codes mean nothing"
        return [_wrong(text)]
    used = counts.minus + counts.plus + counts.double
    if not used:
        return [_wrong(f"{name}: all {total:,} weights are zero")]
    share = f"-1: {counts.minus:,}, 0: {counts.zero:,}, +1: {counts.plus:,}"
    one_sided = max(counts.minus, counts.plus) > MOST_ONE_SIGN * used
    if total == max(counts.minus, counts.plus):
        return [_wrong(f"{name}: all weights have one value ({share})")]
    if one_sided or counts.zero > MOST_ZEROS * total:
        return [_unusual(f"{name}: degenerate distribution ({share})")]
    return []


def _float_anomalies(weight: Weight) -> list[Finding]:
    dtype, exponent = _FLOATS[weight.quant.name]
    bits = weight.data.view(dtype)
    bad = int(np.count_nonzero((bits & exponent) == exponent))  # exponent all ones: Inf or NaN
    if bad:
        return [_wrong(f"{weight.name}: {bad:,} values are NaN or infinite")]
    magnitude = bits << 1  # without the sign: -0.0 is zero, too
    return _zero_rows(weight, magnitude.reshape(weight.shape).any(axis=-1))


def _block_anomalies(weight: Weight) -> list[Finding]:
    anomalies, present = [], np.zeros(0, dtype=bool)
    blocks = weight.data.reshape(-1, weight.quant.type_size)
    for scale in _SCALES[weight.quant.name]:
        end = scale.offset + np.dtype(scale.dtype).itemsize
        values = np.ascontiguousarray(blocks[:, scale.offset : end]).view(scale.dtype)
        anomalies += _scale_anomalies(weight, values.astype(np.float32), scale)
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


def _scale_anomalies(weight: Weight, values: NDArray[np.float32], scale: _Scale) -> list[Finding]:
    name, encoding = weight.name, weight.quant.name
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        return [_wrong(f"{name}: {bad:,} scales are NaN or infinite")]
    anomalies = []
    negative = 0 if scale.signed else int(np.count_nonzero(values < 0))
    if negative:
        text = f"{name}: {negative:,} negative scales, which no quantizer of {encoding} writes"
        anomalies.append(_unusual(text))
    sizes = np.abs(values[values != 0])
    if sizes.size and float(sizes.max()) > LARGEST_RATIO * float(np.median(sizes)):
        ratio = float(sizes.max()) / float(np.median(sizes))
        text = f"{name}: the largest scale is {ratio:,.0f} times the median one"
        anomalies.append(_unusual(text))
    return anomalies


def _i2_s_anomalies(weight: Weight) -> list[Finding]:
    packed = weight.data[: int(np.prod(weight.shape)) // 4]
    scales = weight.data[packed.size : packed.size + 4].view("<f4")
    used = (packed.reshape(weight.shape[0], -1) != _ALL_ZERO_CODES).any(axis=1)
    return _ternary_scale_anomalies(weight, scales) + _zero_rows(weight, used)


def _ternary_anomalies(weight: Weight) -> list[Finding]:
    ternary = unpack_ternary(weight)
    found = _ternary_scale_anomalies(weight, np.asarray(ternary.scales).reshape(-1))
    return found + _zero_rows(weight, (ternary.codes != 0).any(axis=1))


def _ternary_scale_anomalies(weight: Weight, scales: NDArray[np.float32]) -> list[Finding]:
    """Anomalies of a ternary scale, a mean of absolute weights: finite and positive."""
    if not scales.size:
        return [_wrong(f"{weight.name}: it has no scale")]
    wrong = scales[~(np.isfinite(scales) & (scales > 0))]
    if not wrong.size:
        return []
    text = f"{weight.name}: a scale is {float(wrong[0]):g}, expected a finite number above 0"
    return [_wrong(text)]


def _value_anomalies(weight: Weight, values: NDArray[np.float32]) -> list[Finding]:
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        return [_wrong(f"{weight.name}: {bad:,} values are NaN or infinite")]
    return _zero_rows(weight, values.any(axis=-1))


def _zero_rows(weight: Weight, used: NDArray[np.bool_] | np.bool_) -> list[Finding]:
    """Anomalies of zero rows; *used* tells which rows have a nonzero value."""
    used = np.atleast_1d(np.asarray(used))
    rows = int(used.size - np.count_nonzero(used))
    if not rows or weight.name.endswith((".bias", ".scale")):
        return []
    if rows == used.size:
        return [_wrong(f"{weight.name}: all values are zero")]
    if weight.name == "token_embd.weight":  # tokens that no text used; common and harmless
        return []
    return [_unusual(f"{weight.name}: {rows:,} of {used.size:,} rows are zero")]
