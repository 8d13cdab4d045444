"""Plausibility checks of a model without its original: ranges, neighbours, known settings.

Measured on SmolLM2-135M (Q4_1, 30 layers) and Gemma-3-270M (Q4_K_M, 18 layers); each limit is at
least twice what either has, and values beyond it are warnings:

    root mean square of a matrix to the median of its kind in all layers     0.27 .. 2.0
    the same of a norm                                                        0.08 .. 9.3
    largest row of a matrix to its median row                                 9.7
    negative numbers of a norm                                                16 %
    rows, and stretches of 256 bytes, that occur twice in a matrix            none
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import BitnetError
from bitnet.quants.registry import dequantize
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint

MATRIX = (1 / 16, 8.0)
NORM = (1 / 50, 50.0)
LARGEST_ROW = 20.0
MOST_NEGATIVE = 0.5
LARGEST_OF_NORM = 500.0
FEWEST_LAYERS = 4
SAMPLE = 1 << 19  # weights of a tensor that are decoded, in whole rows
CHUNK = 256
KEY = 16  # bytes of a row or chunk that are sorted first
# From config.json of released models, by prefix of the architecture's name.
# Families' released models, from their config.json files. A prefix of the architecture's name.
THETAS: dict[str, frozenset[float]] = {
    "llama": frozenset({1e4, 1e5, 1.3e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 8e6, 1e7}),
    "bitnet": frozenset({1e4, 5e5}),
    "gemma": frozenset({1e4, 1e6}),
    "phi3": frozenset({1e4, 2.5e5}),
    "qwen": frozenset({1e4, 1e6, 5e6, 1e7}),
}
EPSILONS: dict[str, frozenset[float]] = {
    "llama": frozenset({1e-5, 1e-6}),
    "bitnet": frozenset({1e-5, 1e-6}),
    "gemma": frozenset({1e-6}),
    "phi3": frozenset({1e-5}),
    "qwen": frozenset({1e-5, 1e-6}),
}


def settings_out_of_range(checkpoint: Checkpoint) -> Iterator[str]:
    """Settings that differ from all released models of the family."""
    for key, by_family in (
        ("rope.freq_base", THETAS),
        ("attention.layer_norm_rms_epsilon", EPSILONS),
    ):
        family = next(
            (name for name in by_family if checkpoint.architecture.startswith(name)), None
        )
        value = checkpoint.value(key, None)
        if family is None or value is None:
            continue
        number = float(value) if isinstance(value, int | float) else math.nan
        if not any(math.isclose(number, released, rel_tol=1e-6) for released in by_family[family]):
            names = ", ".join(f"{released:g}" for released in sorted(by_family[family]))
            name = f"{checkpoint.architecture}.{key}"
            yield f"{name} is {number:g}, models of this family have {names}"


def numbers_out_of_range(checkpoint: Checkpoint) -> Iterator[str]:
    """Tensors unlike those of their kind in other layers, rows unlike others, and duplicates."""
    kinds: dict[str, dict[str, float]] = {}
    copies: dict[tuple[int, bytes], str] = {}
    for name, weight in checkpoint.weights.items():
        try:
            with np.errstate(all="ignore"):  # a scale may be infinite
                values = _sample(weight)
        except BitnetError:
            continue  # the check of weights reports it
        if not values.size:
            continue  # the same
        with np.errstate(all="ignore"):
            size = float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
        if not math.isfinite(size):
            continue  # the same
        if name.startswith("blk."):
            kinds.setdefault(name.split(".", 2)[2], {})[name] = size
        if len(weight.shape) > 1:
            yield from _odd_rows(name, values)
        elif name.endswith("norm.weight"):
            yield from _odd_norm(name, values)
        if len(weight.shape) > 1 and name not in ("token_embd.weight", "output.weight"):
            yield from _copies_within(weight)
            yield from _constant(weight)
            key = (weight.data.size, weight.data[:4096].tobytes())
            first = copies.setdefault(key, name)
            if first != name and np.array_equal(checkpoint.weights[first].data, weight.data):
                yield f"{name} has the bytes of {first}"
    yield from _unlike_neighbours(kinds)


def _sample(weight: Weight) -> NDArray[np.float32]:
    """Values of *weight*: all of a small one, else evenly spaced rows."""
    rows = weight.shape[0] if len(weight.shape) > 1 else 1
    step = max(1, math.ceil(math.prod(weight.shape) / SAMPLE))
    if step == 1 or weight.data.size % rows or weight.quant.name.startswith(("I2_S", "PACKED")):
        return dequantize(weight)
    raw = np.ascontiguousarray(weight.data.reshape(rows, -1)[::step])
    shape = (len(raw), *weight.shape[1:])
    return dequantize(Weight(weight.name, shape, weight.quant, raw.reshape(-1), weight.scale))


def _odd_rows(name: str, values: NDArray[np.float32]) -> Iterator[str]:
    sizes = np.sqrt(np.mean(np.square(values, dtype=np.float64), axis=-1)).reshape(-1)
    sizes = sizes[sizes > 0]
    if not sizes.size:
        return
    ratio = float(sizes.max() / np.median(sizes))
    if not ratio <= LARGEST_ROW:
        yield f"{name}: a row is {ratio:,.0f} times the size of the median one"


def _odd_norm(name: str, values: NDArray[np.float32]) -> Iterator[str]:
    negative = float(np.mean(values < 0))
    if not negative <= MOST_NEGATIVE:
        yield f"{name}: {negative:.0%} of its numbers are negative"
    sizes = np.abs(values)
    middle = float(np.median(sizes))
    if middle and not float(sizes.max()) <= LARGEST_OF_NORM * middle:
        yield f"{name}: a number is {float(sizes.max()) / middle:,.0f} times the median one"


def _copies_within(weight: Weight) -> Iterator[str]:
    """Rows, or stretches of a page, that occur twice, except those of one repeated byte."""
    raw, rows = weight.data, weight.shape[0]
    if raw.size % rows == 0 and (count := _twice(raw.reshape(rows, -1))):
        yield f"{weight.name}: {count:,} rows occur twice"
    elif count := _twice(raw[: raw.size - raw.size % CHUNK].reshape(-1, CHUNK)):
        yield f"{weight.name}: {count:,} stretches of {CHUNK} bytes occur twice"


def _constant(weight: Weight) -> Iterator[str]:
    """Stretches of one repeated byte, other than the code of zero weights."""
    zero = 0x55 if weight.quant.name == "I2_S" else 0
    chunks = weight.data[: weight.data.size - weight.data.size % CHUNK].reshape(-1, CHUNK)
    count = int(np.count_nonzero((chunks == chunks[:, :1]).all(axis=1) & (chunks[:, 0] != zero)))
    if count:
        yield f"{weight.name}: {count:,} stretches of {CHUNK} bytes are one byte throughout"


def _twice(pieces: NDArray[np.uint8]) -> int:
    """Number of *pieces* equal to another one; the first bytes are compared first."""
    if len(pieces) < 2 or pieces.shape[1] < KEY:
        return 0
    keys = np.ascontiguousarray(pieces[:, :KEY]).view([("a", "<u8"), ("b", "<u8")]).reshape(-1)
    _, where, counts = np.unique(keys, return_inverse=True, return_counts=True)
    occurrences: dict[bytes, int] = {}
    for at in np.flatnonzero(counts[where.reshape(-1)] > 1)[:100_000]:
        piece = pieces[at]
        if (piece != piece[0]).any():
            whole = piece.tobytes()
            occurrences[whole] = occurrences.get(whole, 0) + 1
    return sum(count for count in occurrences.values() if count > 1)


def _unlike_neighbours(kinds: dict[str, dict[str, float]]) -> Iterable[str]:
    for kind, sizes in kinds.items():
        if len(sizes) < FEWEST_LAYERS or kind.endswith((".bias", ".scale")):
            continue
        least, most = NORM if kind.endswith("norm.weight") else MATRIX
        middle = float(np.median(list(sizes.values())))
        for name, size in sizes.items():
            if middle > 0 and not least <= size / middle <= most:
                ratio = f"{size / middle:.2g}"
                yield f"{name} is {ratio} times the size of the median {kind} of all layers"
