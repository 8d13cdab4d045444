"""Functions of numbers: activations, and the softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.kernels.kv_codes import Array

_erfc = np.vectorize(math.erfc, otypes=[np.float64])  # complementary error function


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    weights: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``; where the exponential overflows, 0 is right."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    """``x * sigmoid(x)``."""
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def _gelu_tanh(x: Array) -> Array:
    root = x.dtype.type(np.sqrt(2 / np.pi))
    return x * (1 + np.tanh(root * (x + x.dtype.type(0.044715) * x * x * x))) / 2


def _gelu(x: Array) -> Array:
    # (1 + erf(z)) / 2 as erfc(-z) / 2, which keeps its digits where it is near 0.
    share = _erfc(x.astype(np.float64) * -(0.5**0.5)) / 2
    product: Array = x * share.astype(x.dtype)
    return product


#: Activations by name. ``Gate`` clamps the input of ``silu_clamped``, and computes ``swiglu_oai``.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu_tanh": _gelu_tanh,
    "relu_squared": lambda x: np.square(np.maximum(x, 0)),
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
    "silu_clamped": silu,
    "identity": lambda x: x,
    "gelu": _gelu,
    "gelu_quick": lambda x: x * sigmoid(x * x.dtype.type(1.702)),
    "softplus": lambda x: np.logaddexp(x.dtype.type(0), x),
    "tanh": np.tanh,
}
