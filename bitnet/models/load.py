"""Load a checkpoint as a runnable model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.errors import Unsupported
from bitnet.families.family import families, of_gguf
from bitnet.families.foreign import described
from bitnet.families.gguf_keys import check_keys
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.config import config_of
from bitnet.models.transformer import Model

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Ops
    from bitnet.models.config import TransformerConfig
    from bitnet.models.exact_head.head import HeadMode

__all__ = ["ARCHITECTURES", "config_from", "load_model"]

#: Names of the supported architectures in GGUF files.
ARCHITECTURES = tuple(sorted(name for family in families() for name in family.architectures))


def config_from(checkpoint: Checkpoint) -> TransformerConfig:
    """Configuration of the transformer in *checkpoint*.

    Raises:
        Unsupported: the architecture is unknown, or a key changes the computation in a way that
            is not supported.
        InvalidFormat: a key is missing or invalid.
    """
    family = of_gguf(checkpoint.architecture)
    if family is None:
        name = checkpoint.architecture
        raise Unsupported(
            f"Unsupported quantized architecture: {name or '(none)'}. "
            f"Supported: {', '.join(ARCHITECTURES)}{described(name)}",
            hint="choose a model of one of these families",
        )
    check_keys(
        checkpoint.metadata, family, prefixes=checkpoint.prefixes, model=checkpoint.path.name
    )
    return config_of(checkpoint, family)


def load_model(
    checkpoint: Checkpoint, *, ops: Ops | None = None, exact_head: HeadMode = "off"
) -> Model:
    """*checkpoint* as a model on *ops*; the NumPy reference is the default backend.

    Args:
        checkpoint: the model.
        ops: the backend.
        exact_head: find logits by a copy of the head; ``auto``: where it saves time.

    Raises:
        Unsupported: the architecture or an encoding; or with ``on`` the head
            cannot have a copy.
        InvalidFormat: keys or tensors do not fit the architecture; all of them are listed.
    """
    config = config_from(checkpoint)
    return Model(checkpoint, config, ops=ops or ReferenceOps(), exact_head=exact_head)
