"""Embedding vectors: pooling and rounding."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import UsageError
from bitnet.base.options import check_type
from bitnet.runtime.options import PRECISIONS, Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray


def check_vectors(dim: int, dimensions: int | None, precision: str = "float32") -> None:
    """Check the requested form of vectors that have *dim* dimensions, of which some are kept."""
    check_type("dimensions", dimensions, "a whole number or None", Integral, None)
    if dimensions is not None and not 1 <= dimensions <= dim:
        raise UsageError(
            f"{dimensions:,} dimensions, the vectors of this model have {dim:,}",
            hint="leave it out for whole vectors",
            field="dimensions",
        )
    if precision not in PRECISIONS:
        raise UsageError(
            f"{precision!r} is not a precision: {', '.join(PRECISIONS)}", field="precision"
        )
    if precision.endswith("binary") and (dimensions or dim) % 8:
        raise UsageError(
            f"{precision} packs 8 dimensions into a byte, {dimensions or dim:,} are not a multiple",
            hint=f"ask for {(dimensions or dim) // 8 * 8:,} dimensions",
            field="precision",
        )


def round_vectors(vectors: NDArray[np.float32], precision: Precision) -> NDArray[Any]:
    """*vectors*, ``(N, dim)`` of 32 bits, in fewer; compare them by cosine similarity.

    ``int8`` and ``uint8`` scale each vector by its largest absolute value to -127..127, or to
    1..255 with zero at 128. Bits of ``ubinary`` tell which numbers are positive, the first one in
    the highest bit, 8 per byte; ``binary`` has the same bytes minus 128, as sentence-transformers.
    """
    if precision == "float32":
        return vectors
    if precision.endswith("binary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    whole = np.rint(vectors * (127 / np.where(largest > 0, largest, 1)))
    return (whole + 128).astype(np.uint8) if precision == "uint8" else whole.astype(np.int8)
