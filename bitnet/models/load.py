"""Load a checkpoint as a runnable model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.families.family import families, of_gguf
from bitnet.families.foreign import sentence_about
from bitnet.families.gguf_keys import check_keys, find_zero
from bitnet.families.hadamard import hadamard_basis
from bitnet.families.rules import refusal
from bitnet.formats.checkpoint import has_input_norms
from bitnet.formats.sentence_transformers import POOLINGS
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.transformer import Model

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.family import Family
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Ops
    from bitnet.models.exact_head.head import HeadMode

__all__ = ["ARCHITECTURES", "config_from", "load_model"]

#: Names of the supported architectures in GGUF files.
ARCHITECTURES = tuple(sorted(name for family in families() for name in family.architectures))


def config_from(checkpoint: Checkpoint) -> ModelConfig:
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
            f"Supported: {', '.join(ARCHITECTURES)}{sentence_about(name)}",
            hint="choose a model of one of these families",
        )
    check_keys(
        checkpoint.metadata, family, prefixes=checkpoint.prefixes, model=checkpoint.path.name
    )
    if checkpoint.gguf is not None and (zero := find_zero(checkpoint.metadata, family)):
        why = "llama.cpp computes no usable logits with 0, so no file can mean that"
        raise refusal(zero, 0, model=checkpoint.path.name, kind=family.title, why=why)
    config = family.decoder(checkpoint)
    if not family.gguf_keys.get("attention.scale"):
        _check_scale(checkpoint, family, config)
    more: dict[str, Any] = {
        "pooling": POOLINGS[checkpoint.integer("pooling_type", 0)],
        "input_norms": has_input_norms(checkpoint.weights),
        "basis": hadamard_basis(checkpoint),
        "kv_type": checkpoint.kv_type,
        "adapted": {
            name: checkpoint.weights[f"{name}.lora_a"].shape[0] for name in checkpoint.adapted
        },
    }
    drafter = replace(config.drafter, **more) if config.drafter else None
    return replace(config, drafter=drafter, **more)


def _check_scale(checkpoint: Checkpoint, family: Family, config: ModelConfig) -> None:
    """Refuse a factor on attention scores that the family does not read."""
    for usual in {attention.scale for attention in config.attentions}:
        found = checkpoint.number("attention.scale", usual)
        if found and abs(found - usual) > 1e-4 * usual:
            raise refusal(
                f"{checkpoint.architecture}.attention.scale",
                found,
                model=checkpoint.path.name,
                kind=family.title,
                why=f"only {usual:g}, one over the root of the head's width, is computed",
            )


def load_model(
    checkpoint: Checkpoint,
    *,
    ops: Ops | None = None,
    exact_head: HeadMode = "off",
    base: Model | None = None,
) -> Model:
    """*checkpoint* as a model on *ops*; the NumPy reference is the default backend.

    Args:
        checkpoint: the model.
        ops: the backend.
        exact_head: find logits by a copy of the head; ``auto``: where it saves time.
        base: as of :class:`Model`.

    Raises:
        Unsupported: the architecture or an encoding; or with ``on`` the head
            cannot have a copy.
        InvalidFormat: keys or tensors do not fit the architecture; all of them are listed.
    """
    config = config_from(checkpoint)
    ops = ops or (base.ops if base else ReferenceOps())
    return Model(checkpoint, config, ops=ops, exact_head=exact_head, base=base)
