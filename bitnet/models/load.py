"""From a checkpoint to a model that runs: the table of architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.errors import Unsupported
from bitnet.kernels.reference import ReferenceOps
from bitnet.models import bitnet, gemma, llama, phi, qwen
from bitnet.models.transformer import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Ops
    from bitnet.models.config import TransformerConfig
    from bitnet.models.exact_head import ExactHead

__all__ = ["ARCHITECTURES", "config_from", "load_model"]

ARCHITECTURES: dict[str, Callable[[Checkpoint], TransformerConfig]] = {
    "bitnet": bitnet.config,
    "bitnet-25": bitnet.config,
    "bitnet-b1.58": bitnet.config,
    "gemma2": gemma.config,
    "gemma3": gemma.config,
    "llama": llama.config,
    "phi3": phi.config,
    "qwen2": qwen.config,
    "qwen3": qwen.config,
}


def config_from(checkpoint: Checkpoint) -> TransformerConfig:
    """What kind of transformer *checkpoint* holds.

    Raises:
        Unsupported: no family has its architecture's name; the text lists those there are.
        InvalidFormat: a key is missing or makes no sense.
    """
    family = ARCHITECTURES.get(checkpoint.architecture)
    if family is None:
        raise Unsupported(
            f"Unsupported quantized architecture: {checkpoint.architecture or '(none)'}. "
            f"Supported: {', '.join(sorted(ARCHITECTURES))}",
            hint="choose a model of one of these families",
        )
    return family(checkpoint)


def load_model(
    checkpoint: Checkpoint, *, ops: Ops | None = None, exact_head: ExactHead = "off"
) -> Model:
    """*checkpoint* as a model that runs on *ops*, on the NumPy reference by default.

    Args:
        checkpoint: the model.
        ops: the backend.
        exact_head: whether to screen the rows of the output head; ``auto``: where it saves time.

    Raises:
        Unsupported: its architecture or an encoding, or a head that cannot be screened with ``on``.
        InvalidFormat: keys or tensors do not make such a model; all of them are listed.
    """
    config = config_from(checkpoint)
    return Model(checkpoint, config, ops=ops or ReferenceOps(), exact_head=exact_head)
