"""The compute path of a run, read from counters inside the native module.

``compute_path`` is ``real`` only if the native module itself counted at least one product of
weights per layer between two readings, for a model bound to exactly our native backend, with a
real tokenizer. This protects against mistakes: a mock, a backend replaced by a slower one, missing
kernels. It does not protect against someone who controls this Python process and can replace the
reading itself; the noise is the second witness, since products of 8-bit activations cannot come as
close to float64 as floats do, and ``crossval --check --replay`` on another machine is the third.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.transformer import Model

if TYPE_CHECKING:
    from bitnet.tokenizer import Tokenizer

__all__ = ["ComputePath", "Receipt"]

# real: the native kernels; reference: our NumPy backend; mock: a mock tokenizer;
# none: nothing was counted.
ComputePath = Literal["real", "reference", "mock", "none"]

_MOCK = "mock"  # fingerprint of the tokenizer that treats bytes as tokens


class Receipt:
    """Started before the work, ended after it.

    Attributes:
        backend: name of the model's backend.
    """

    def __init__(self, model: Model | None, tokenizer: Tokenizer | None) -> None:
        """A receipt for *model*; without one nothing computes."""
        self._model = model
        self._mock = tokenizer is None or tokenizer.fingerprint == _MOCK
        self.backend: str = "none" if model is None else model.ops.name
        self.begin()

    def begin(self) -> None:
        """Start counting."""
        self._before = self._read_counters()
        self._after: dict[str, int] | None = None

    def end(self) -> None:
        """Stop counting."""
        self._after = self._read_counters()

    @property
    def kernels(self) -> dict[str, int]:
        """Calls of each kernel since the start; only kernels that ran, by name."""
        after = self._read_counters() if self._after is None else self._after
        calls = {name: count - self._before.get(name, 0) for name, count in after.items()}
        return {name: count for name, count in sorted(calls.items()) if count > 0}

    @property
    def compute_path(self) -> ComputePath:
        """Kind of backend that computed since the start."""
        if self._model is None:
            return "none"
        kind = type(self._model.ops)
        products = sum(n for name, n in self.kernels.items() if name.startswith("linear/"))
        if type(self._model) is not Model or products < self._model.config.n_layers:
            return "none"
        if self._mock:
            return "mock"
        return "real" if kind is NativeOps else "reference" if kind is ReferenceOps else "none"

    def _read_counters(self) -> dict[str, int]:
        if self._model is None:
            return {}
        ops = self._model.ops
        if type(ops) is ReferenceOps:
            return dict(ReferenceOps.counters(ops))
        if type(ops) is not NativeOps:
            return {}
        # Read from the extension itself: an attribute of an object can be replaced.
        counters: Any = getattr(sys.modules.get("bitnet._native"), "kernel_counters", None)
        return dict(counters()) if type(counters).__module__ == "nanobind" else {}
