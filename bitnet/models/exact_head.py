"""Selection of the models whose output head is screened."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Literal

from bitnet.errors import Unsupported
from bitnet.kernels.screened_head import ScreenedHead, reason_against, saves_time

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Ops, Prepared
    from bitnet.models.config import TransformerConfig

__all__ = ["ExactHead", "Meter", "head_name", "is_screened", "screen"]

logger = logging.getLogger(__name__)

ExactHead = Literal["off", "on", "auto"]

# Cost of a byte relative to reading the interleaved head from memory.
FROM_FILE = 2.0  # the whole head, read from the file
ROWS = 10.0  # single rows of it
SIXTH = 4.0  # sixth bits of single rows
PASSES = 64  # recent passes that decide


class Meter:
    """Memory that recent passes read of a screened head; one pass over the interleaved head is 1.

    It counts bytes and not time, so the same passes always lead to the same decision.
    """

    def __init__(self, head: ScreenedHead) -> None:
        """A meter without passes."""
        self._copy = (head.size_bytes - head.sixth_bytes) / head.head_bytes
        self._sixth = head.sixth_bytes / head.head_bytes
        self._costs: deque[float] = deque(maxlen=PASSES)

    def screened(self, refined: float, rescored: float) -> None:
        """Record a pass over the copy, and over sixth bits and weights of these shares of rows."""
        self._costs.append(self._copy + SIXTH * self._sixth * refined + ROWS * rescored)

    def undecided(self) -> None:
        """Record that the last pass had to read the whole head after all."""
        if self._costs:
            self._costs[-1] += FROM_FILE

    def full(self) -> None:
        """Record a pass that read the whole head."""
        self._costs.append(FROM_FILE)

    @property
    def is_dear(self) -> bool:
        """True if recent passes would have read less with the head interleaved."""
        return len(self._costs) == PASSES and sum(self._costs) > PASSES


def head_name(checkpoint: Checkpoint) -> str:
    """Name of the output head's tensor; the token embedding where they are tied."""
    return "output.weight" if "output.weight" in checkpoint.weights else "token_embd.weight"


def is_screened(
    checkpoint: Checkpoint, config: TransformerConfig, ops: Ops, exact_head: ExactHead
) -> bool:
    """True if the head of *checkpoint* is to be screened.

    Raises:
        Unsupported: *exact_head* is ``on`` and the head cannot be screened.
    """
    weight = checkpoint.weights.get(head_name(checkpoint))
    if exact_head == "off" or not config.writes or weight is None or len(weight.shape) != 2:
        return False
    reason = reason_against(ops, weight)
    if "output.bias" in checkpoint.weights or config.final_softcap or config.logit_scale != 1:
        reason = "its logits are changed afterwards"
    if head_name(checkpoint).replace("weight", "scale") in checkpoint.weights:
        reason = "it has a scale of its own"
    if exact_head == "on" and reason:
        raise Unsupported(
            f"{checkpoint.path.name}: the output head cannot be screened: {reason}",
            hint="leave out --exact-head",
        )
    return exact_head == "on" or (not reason and saves_time(ops, weight))


def screen(ops: Ops, head: Prepared, norm: Prepared, exact_head: ExactHead) -> ScreenedHead | None:
    """Screen of *head*; ``None`` with ``auto`` if its weights do not permit one.

    Args:
        ops: the backend.
        head: the head as *ops* has prepared it, in rows.
        norm: weight of the norm before it.
        exact_head: ``on`` or ``auto``.

    Raises:
        Unsupported: *exact_head* is ``on`` and the weights do not permit a screen.
    """
    try:
        return ScreenedHead.build(ops, head, importance=norm)
    except Unsupported as error:
        if exact_head == "on":
            raise
        logger.warning("%s: every step reads the whole head", error)
        return None
