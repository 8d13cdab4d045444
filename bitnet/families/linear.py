"""Parts of families with states: rates of decay, and linear attention by the delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import DeltaNet
from bitnet.families.keys import Keys, reads

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Rules for the keys of a delta net in ``config.json``.
DELTA_CONFIG = reads(
    "linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads "
    "linear_value_head_dim"
)
#: Rules for the keys of a delta net in GGUF files.
DELTA_KEYS = reads(
    "ssm.conv_kernel ssm.group_count ssm.inner_size ssm.state_size ssm.time_step_rank"
)


def decay_rates(logarithms: NDArray[Any]) -> NDArray[Any]:
    """Rates of decay, as GGUF stores them, from the *logarithms* of a folder: ``-exp(A_log)``."""
    rates: NDArray[Any] = -np.exp(logarithms)
    return rates


def delta_net(keys: Keys, **fields: Any) -> DeltaNet:
    """The delta net of a model, from its keys and further *fields* of :class:`DeltaNet`."""
    heads = keys.integer("ssm.time_step_rank")
    return DeltaNet(
        heads=heads,
        key_heads=keys.integer("ssm.group_count"),
        key_dim=keys.integer("ssm.state_size"),
        value_dim=keys.integer("ssm.inner_size") // max(heads, 1),
        kernel=keys.integer("ssm.conv_kernel"),
        **fields,
    )
