"""Load a checkpoint as a runnable model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat
from bitnet.families import hadamard
from bitnet.families.config_values import list_sizes
from bitnet.families.family import architecture_refusal, check_keys, families, find_zero, of_gguf
from bitnet.families.heads import RANKS, classifier, projections
from bitnet.families.keys import COMPARE, refusal, value_refusal
from bitnet.formats.checkpoint import has_input_norms
from bitnet.formats.outside_keys import check_outside_keys
from bitnet.formats.sentence_transformers import POOLINGS
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.transformer import Model

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig, Pooling
    from bitnet.families.family import Family
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.program import Ops
    from bitnet.models.exact_head.head import HeadMode

#: Names of the supported architectures in GGUF files.
ARCHITECTURES = tuple(sorted(name for family in families() for name in family.architectures))


def config_from(checkpoint: Checkpoint) -> ModelConfig:
    """Configuration of the transformer in *checkpoint*, with every key accounted for."""
    family = of_gguf(checkpoint.architecture)
    if family is None:
        raise architecture_refusal(checkpoint.architecture, ARCHITECTURES, kind="quantized ")
    label = checkpoint.path.name
    # Families that do not read the key compute the usual scale, and a file may only repeat it.
    reads_no_scale = "attention.scale" not in family.gguf_keys
    check_outside_keys(checkpoint.metadata, label)
    check_keys(checkpoint.metadata, family, prefixes=checkpoint.prefixes, model=label)
    if checkpoint.gguf is not None and (zero := find_zero(checkpoint.metadata, family)):
        why = "llama.cpp computes no usable logits with 0, so no file can mean that"
        is_ignorable = not _is_required(checkpoint, family, zero)
        raise refusal(zero, 0, why, model=label, is_ignorable=is_ignorable)
    config = _decoder_of(checkpoint, family)
    scales = {attention.scale for attention in config.attentions} if reads_no_scale else set()
    for usual in scales:
        scale = checkpoint.number("attention.scale", usual)
        if scale and abs(scale - usual) > 1e-4 * usual:  # files round it; 0 means the usual one
            why = f"only {usual:g}, one over the root of the head's width, is computed"
            raise value_refusal(checkpoint, "attention.scale", scale, why)
    is_rotated = any(key.startswith(hadamard.PREFIX) for key in checkpoint.metadata)
    of_checkpoint: dict[str, Any] = {
        "pooling": _pooling(checkpoint, config),
        "classifier": classifier(checkpoint),
        "projections": projections(checkpoint),
        "input_norms": has_input_norms(checkpoint.weights),
        "basis": hadamard.hadamard_basis(checkpoint) if is_rotated else None,
        "kv_type": checkpoint.kv_type,
        "adapted": {
            name: checkpoint.weights[f"{name}.lora_a"].shape[0] for name in checkpoint.adapted
        },
    }
    drafter = replace(config.drafter, **of_checkpoint) if config.drafter else None
    return replace(config, drafter=drafter, **of_checkpoint)


def _is_required(checkpoint: Checkpoint, family: Family, key: str) -> bool:
    """True if *family* has no default for *key*, so that a file without it is refused."""
    rest = {name: value for name, value in checkpoint.metadata.items() if name != key}
    try:
        family.decoder(replace(checkpoint, metadata=rest))
    except InvalidFormat:
        return True
    return False


def _decoder_of(checkpoint: Checkpoint, family: Family) -> ModelConfig:
    """The blocks of *checkpoint*; an error about a folder has the sizes of its ``config.json``."""
    label = f"{checkpoint.path.name}: "
    try:
        return family.decoder(checkpoint)
    except InvalidFormat as error:
        message = label + error.message.removeprefix(label)
        if checkpoint.config is None:
            raise InvalidFormat(message, hint=error.hint) from None
        sizes = list_sizes(checkpoint.config)
        raise InvalidFormat(f"{message}; {sizes}", hint=COMPARE) from None


def _pooling(checkpoint: Checkpoint, config: ModelConfig) -> Pooling:
    """Pooling of the hidden states of a text that *checkpoint* embeds or scores."""
    number = checkpoint.integer("pooling_type", 0)
    if number == RANKS:  # by default the hidden state that has seen all tokens
        usual = POOLINGS.index("last" if config.causal else "cls")
        if config.pooling != "none":
            usual = POOLINGS.index(config.pooling)
        number = checkpoint.integer("classifier.pooling_type", usual)
    return POOLINGS[number]


def load_model(
    checkpoint: Checkpoint,
    *,
    ops: Ops | None = None,
    exact_head: HeadMode = "off",
    base: Model | None = None,
) -> Model:
    """*checkpoint* as a model on *ops*; the NumPy reference is the default backend.

    The other arguments are those of :class:`Model`.
    """
    config = config_from(checkpoint)
    ops = ops or (base.ops if base else ReferenceOps())
    return Model(checkpoint, config, ops=ops, exact_head=exact_head, base=base)
