"""Weights as a folder stores them."""

import numpy as np

from bitnet.quants import types
from bitnet.quants.weight import Weight


def stored_weight(name, values, dtype):
    """The weight *name* with the bytes of *values*, whose type in the folder is *dtype*."""
    array = np.asarray(values)
    view = array.reshape(-1).view(np.uint8)
    # ggml has no such type; the table of types has the others.
    kind = types.QuantType(dtype, -1, 1, 0) if dtype == "F8_E4M3" else types.by_name(dtype)
    return Weight(name, array.shape, kind, view, rounds_input=False)
