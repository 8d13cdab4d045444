"""Compare the tensors of a new file with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import VerificationFailed
from bitnet.convert.tensors import Job, count_nonzero
from bitnet.formats.containers import open_checkpoint
from bitnet.quants import registry
from bitnet.quants.ternary import Ternary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.quants.weight import Weight

__all__ = ["Converted", "compare"]


@dataclass(frozen=True)
class Converted:
    """One tensor, read back.

    Attributes:
        name: GGUF name.
        before: its encoding in the source.
        after: its encoding in the file.
        exact: it decodes to the same numbers.
        error: largest difference, as a share of the largest weight.
        keeps_rounding: products with it round their input to int8 if and only if they did before.
    """

    name: str
    before: str
    after: str
    exact: bool
    error: float = 0.0
    keeps_rounding: bool = True


def compare(path: Path, jobs: Sequence[Job]) -> Iterator[Converted]:
    """Compare every tensor of the file at *path* with its source."""
    written = open_checkpoint(path).weights
    for job in jobs:
        weight = written[job.weight.name]
        exact, error = _difference(job, weight)
        before, after = job.weight.quant.name, weight.quant.name
        result = Converted(weight.name, before, after, exact, error, job.keeps_rounding)
        if job.is_copy and not exact:
            raise VerificationFailed(
                f"{weight.name}: what was read back differs", hint="check the disk"
            )
        job.judge(exact, error)
        yield result


def _difference(job: Job, written: Weight) -> tuple[bool, float]:
    """True if *written* equals the source exactly; and the largest relative difference."""
    if job.matrices:
        pairs = zip(job.matrices, written.matrices(), strict=True)
        results = [_difference(matrix, its) for matrix, its in pairs]
        return all(exact for exact, _ in results), max(error for _, error in results)
    if job.is_copy:
        size = written.quant.size_bytes(written.shape)
        exact = np.array_equal(job.weight.data[:size], written.data[:size])
        return exact, 0.0
    if job.target.is_ternary and job.from_ternary:
        return _ternary_difference(job.ternary(), registry.unpack_ternary(written), written.name)
    copied = Job(written, written.quant, None, allow_lossy=False)
    largest, apart, exact = 0.0, 0.0, True
    for before, after in zip(job.values(), copied.values(job.step), strict=True):
        exact = exact and np.array_equal(before, after)
        largest = max(largest, float(np.abs(before).max(initial=0)))
        apart = max(apart, float(np.abs(before - after).max(initial=0)))
    return exact, apart / largest if largest else apart


def _nonzero_codes(ternary: Ternary) -> NDArray[np.int8]:
    """Codes; 0 where the scale is 0, whatever is stored."""
    rows, groups = ternary.codes.shape[0], ternary.scales.shape[1]
    codes = ternary.codes.reshape(rows, groups, -1) * (ternary.scales != 0)[:, :, None]
    nonzero: NDArray[np.int8] = codes.reshape(ternary.codes.shape).astype(np.int8)
    return nonzero


def _ternary_difference(source: Ternary, copy: Ternary, name: str) -> tuple[bool, float]:
    """As :func:`_difference`; codes must be equal, and scales where they have weights."""
    if not np.array_equal(_nonzero_codes(source), _nonzero_codes(copy)):
        raise VerificationFailed(f"{name}: other codes than its source's", hint="check the disk")
    groups = max(source.scales.shape[1], copy.scales.shape[1])
    before, after = (
        np.broadcast_to(
            np.repeat(scales, groups // scales.shape[1], axis=1), (len(source.codes), groups)
        )
        for scales in (source.scales, copy.scales)
    )
    used = count_nonzero(Ternary(source.codes, before)) > 0
    apart = np.where(used, np.abs(before - after), 0).max(initial=0)
    largest = np.where(used, np.abs(before), 0).max(initial=0)
    return bool(apart == 0), float(apart / largest) if largest else 0.0
