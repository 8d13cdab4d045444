"""The compute path of a run, read from counters inside the compiled module and not from a claim.

``compute_path`` is ``real`` only if the compiled module itself counted at least one product of
weights per layer between two readings, for a model bound to exactly our native backend, with a
tokenizer that is one. That protects from mistakes: a mock, a backend that was replaced by a slower
one, kernels that are missing. It does not protect from someone who controls this Python process,
who can replace the reading itself; the numbers are the second witness, since products of 8-bit
activations cannot come as near to float64 as floats do, and ``crossval --check --replay`` on
another machine is the third.
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

# real: the compiled kernels; reference: our NumPy backend; mock: the tokenizer is none;
# none: nothing was counted.
ComputePath = Literal["real", "reference", "mock", "none"]

_MOCK = "mock"  # fingerprint of the tokenizer that takes bytes for tokens


class Receipt:
    """Begun before the work, ended after it.

    Attributes:
        backend: name of the backend the model is bound to.
    """

    def __init__(self, model: Model | None, tokenizer: Tokenizer | None) -> None:
        """Of *model*; without one nothing computes."""
        self._model = model
        self._mock = tokenizer is None or tokenizer.fingerprint == _MOCK
        self.backend: str = "none" if model is None else model.ops.name
        self.begin()

    def begin(self) -> None:
        """Count from here on."""
        self._before = self._counted()
        self._after: dict[str, int] | None = None

    def end(self) -> None:
        """Count no further."""
        self._after = self._counted()

    @property
    def kernels(self) -> dict[str, int]:
        """Calls of each kernel since the receipt was begun; those that ran, by name."""
        after = self._counted() if self._after is None else self._after
        calls = {name: count - self._before.get(name, 0) for name, count in after.items()}
        return {name: count for name, count in sorted(calls.items()) if count > 0}

    @property
    def compute_path(self) -> ComputePath:
        """What computed since the receipt was begun."""
        if self._model is None:
            return "none"
        kind = type(self._model.ops)
        products = sum(n for name, n in self.kernels.items() if name.startswith("linear/"))
        if type(self._model) is not Model or products < self._model.config.n_layers:
            return "none"
        if self._mock:
            return "mock"
        return "real" if kind is NativeOps else "reference" if kind is ReferenceOps else "none"

    def _counted(self) -> dict[str, int]:
        if self._model is None:
            return {}
        ops = self._model.ops
        if type(ops) is ReferenceOps:
            return dict(ReferenceOps.counters(ops))
        if type(ops) is not NativeOps:
            return {}
        # From the extension itself: an attribute of an object can be replaced.
        counters: Any = getattr(sys.modules.get("bitnet._native"), "kernel_counters", None)
        return dict(counters()) if type(counters).__module__ == "nanobind" else {}
