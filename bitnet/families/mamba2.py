"""The keys and tensors of Mamba-2, which several families share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.families.blocks import Mamba2
from bitnet.families.rules import neutral, read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bitnet.families.keys import Keys

__all__ = ["MAMBA2_KEYS", "NO_LIMIT", "mamba2", "mamba2_keys", "mamba2_tensors", "mamba2_values"]

#: Rules of its keys in GGUF files.
MAMBA2_KEYS = {
    "attention.causal": neutral(True, note="states look back only"),
    "attention.sliding_window": neutral(0),
    "ssm.conv_kernel": read("positions of the convolution"),
    "ssm.group_count": read("groups of heads that share inputs and outputs of states"),
    "ssm.inner_size": read("width of all heads"),
    "ssm.state_size": read("rows of a state"),
    "ssm.time_step_rank": read("heads of the state-space model"),
}
_INFINITY = {"__float__": "Infinity"}  # as transformers writes it
NO_LIMIT = neutral(None, [0.0, math.inf], [0.0, _INFINITY], note="steps are not limited")


def mamba2(keys: Keys, **more: Any) -> Mamba2:
    """The mixer, with *more* fields, as all families read its keys.

    Raises:
        InvalidFormat: the heads are not equally wide.
    """
    heads, width = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    if width % max(heads, 1):
        raise InvalidFormat(
            f"{keys.path.name}: {heads} heads of a state-space model that are {width} wide",
            hint="the file is damaged; fetch it again",
        )
    groups = keys.integer("ssm.group_count")
    usual: dict[str, Any] = {"norm_groups": groups}
    return Mamba2(
        heads,
        width // max(heads, 1),
        groups,
        keys.integer("ssm.state_size"),
        keys.integer("ssm.conv_kernel"),
        **(usual | more),
    )


def mamba2_keys(
    *, heads: int, width: int, groups: int, state_size: int, kernel: int
) -> dict[str, Any]:
    """The keys of a GGUF file."""
    return {
        "ssm.conv_kernel": kernel,
        "ssm.group_count": groups,
        "ssm.inner_size": width,
        "ssm.state_size": state_size,
        "ssm.time_step_rank": heads,
    }


def mamba2_tensors(module: str) -> dict[str, str]:
    """GGUF's names of the tensors below *module* of a layer."""
    return {
        f"{module}.in_proj": "ssm_in",
        f"{module}.conv1d": "ssm_conv1d",
        f"{module}.dt_bias": "ssm_dt.bias",
        f"{module}.A_log": "ssm_a",
        f"{module}.D": "ssm_d",
        f"{module}.norm": "ssm_norm",
        f"{module}.out_proj": "ssm_out",
    }


def mamba2_values(groups: int) -> Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]:
    """Functions from a folder's tensors to GGUF's."""
    return {
        "ssm_a": lambda logarithms: -np.exp(logarithms)[:, None],
        "ssm_conv1d.weight": lambda weight: weight[:, 0],
        "ssm_d": lambda factors: factors[:, None],
        "ssm_norm.weight": lambda weight: weight.reshape(groups, -1),
    }
