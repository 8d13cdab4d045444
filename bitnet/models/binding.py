"""Tensors of a decoder, prepared for its backend; and the check that a checkpoint has these."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.base.errors import InvalidFormat
from bitnet.families.foreign import what_it_is
from bitnet.models.hidden_program import layout
from bitnet.quants import registry, types

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Ops, Prepared
    from bitnet.models.layout import Layout
    from bitnet.quants.weight import Weight

__all__ = ["bind", "differences"]

FACTORS = (".lora_a", ".lora_b")  # ends of the names of an adapter's tensors
# Read by the configuration.
_READ_ELSEWHERE = frozenset(
    {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
)


def bind(
    checkpoint: Checkpoint,
    config: ModelConfig,
    ops: Ops,
    *,
    by_row: Collection[str] = (),
    bound: Mapping[str, Prepared] | None = None,
) -> dict[str, Prepared]:
    """Every tensor of *checkpoint*, prepared by *ops*, by GGUF name.

    Args:
        checkpoint: the model.
        config: its configuration.
        ops: the backend.
        by_row: names of matrices from which single rows are read, mostly.
        bound: the tensors of the same model with other adapters, which are shared.

    Raises:
        InvalidFormat: tensors are missing, unexpected or of the wrong shape; the error lists all.
        Unsupported: *ops* has no kernel for an encoding.
    """
    expected = layout(config)
    wrong = list(differences(checkpoint, expected))
    if wrong:
        found = what_it_is(checkpoint.weights)
        kind = f"; this is {found}" if found else ""
        raise InvalidFormat(
            f"{checkpoint.path.name}: {len(wrong)} tensors do not fit a model of architecture "
            f"{config.architecture}{kind}:\n  " + "\n  ".join(wrong),
            hint="the file is incomplete or was converted for another architecture",
        )
    if bound is None:
        ops.expect(checkpoint.weights.values())
    shared = {name: it for name, it in (bound or {}).items() if not name.endswith(FACTORS)}
    prepared = {}
    for name, weight in checkpoint.weights.items():
        is_scale = name.endswith(".scale") and name not in expected.required
        if name in _READ_ELSEWHERE or is_scale or name.startswith(expected.left_out):
            continue
        if name in shared:
            prepared[name] = shared[name]
            continue
        if name in expected.scales:
            weight = replace(weight, scale=weight.scale * expected.scales[name])
        if expected.required.get(name) == (1, *weight.shape):  # a matrix of one row, as a vector
            weight = replace(weight, shape=(1, *weight.shape))
        if name in expected.vectors:
            weight = registry.quantize(
                name, registry.dequantize(weight).reshape(-1), types.by_id(0)
            )
        looked_up = name in (*by_row, *expected.tables) or (
            name == "token_embd.weight" and "output.weight" in checkpoint.weights
        )
        scale = f"{name.removesuffix('weight')}scale" if name.endswith(".weight") else ""
        scale = "" if scale in expected.required else scale
        matrices = [
            ops.prepare(it, looked_up=looked_up, expert=len(weight.shape) == 3)
            for it in _scale_matrices(checkpoint, weight, scale)
        ]
        prepared[name] = tuple(matrices) if len(weight.shape) == 3 else matrices[0]
    return prepared


def _scale_matrices(checkpoint: Checkpoint, weight: Weight, scale: str) -> Iterator[Weight]:
    """The matrices of *weight*, or itself, times those of the tensor *scale*, if there is one."""
    matrices = weight.matrices()
    scales = checkpoint.numbers(scale, (len(matrices),)) if scale else None
    for at, matrix in enumerate(matrices):
        factor = 1.0 if scales is None else float(scales[at])
        yield replace(matrix, scale=matrix.scale * factor)


def differences(checkpoint: Checkpoint, expected: Layout) -> Iterator[str]:
    """Missing, unexpected and misshapen tensors, one line for each.

    Args:
        checkpoint: the model.
        expected: the tensors of its decoder.
    """
    for name, shape in expected.required.items():
        if name not in checkpoint.weights:
            yield f"{name} {shape} is missing"
    for name, weight in checkpoint.weights.items():
        its_shape = expected.required.get(name) or expected.optional.get(name)
        if its_shape is None:
            if name not in _READ_ELSEWHERE and not name.startswith(expected.left_out):
                yield f"{name} {weight.shape} is unexpected"
        elif weight.shape != its_shape and (1, *weight.shape) != its_shape:
            yield f"{name} has shape {weight.shape}, expected {its_shape}"
