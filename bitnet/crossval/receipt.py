"""The compute path of a run, read from counters inside the native module.

``compute_path`` is ``real`` only if the native module itself counted at least one product of
weights per layer between two readings, for a model bound to exactly our native backend, with a
real tokenizer. This protects against mistakes: a mock, a backend replaced by a slower one, missing
kernels. It does not protect against someone who controls this Python process and can replace the
reading itself; ``crossval --check --replay`` on another machine does.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.transformer import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.tokenizer import Tokenizer

# real: the native kernels; reference: our NumPy backend; mock: a mock tokenizer;
# none: nothing was counted.
ComputePath = Literal["real", "reference", "mock", "none"]

_MOCK = "mock"  # fingerprint of the tokenizer that treats bytes as tokens


def read_counters(model: Model) -> dict[str, int]:
    """Calls of each kernel so far; empty for a backend that is not ours."""
    if type(model.ops) is ReferenceOps:
        return dict(ReferenceOps.counters(model.ops))
    if type(model.ops) is not NativeOps:
        return {}
    # Read from the extension itself: an attribute of an object can be replaced.
    counters: Any = getattr(sys.modules.get("bitnet._native"), "kernel_counters", None)
    return dict(counters()) if type(counters).__module__ == "nanobind" else {}


def kernels_since(model: Model, before: Mapping[str, int]) -> dict[str, int]:
    """Calls of each kernel that ran since the counters read *before*, by name."""
    calls = {name: count - before.get(name, 0) for name, count in read_counters(model).items()}
    return {name: count for name, count in sorted(calls.items()) if count > 0}


def compute_path(model: Model, tokenizer: Tokenizer, kernels: Mapping[str, int]) -> ComputePath:
    """Kind of backend that computed a pass of *model* with calls of *kernels*."""
    products = sum(count for name, count in kernels.items() if name.startswith("linear/"))
    if type(model) is not Model or products < model.config.n_layers:
        return "none"
    if tokenizer.fingerprint == _MOCK:
        return "mock"
    kind = type(model.ops)
    return "real" if kind is NativeOps else "reference" if kind is ReferenceOps else "none"
