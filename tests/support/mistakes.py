"""Models with one small mistake in their graph, which a comparison must detect."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from mutants import attending, rotated

from bitnet.families.blocks import LatentAttention, ModelConfig
from bitnet.formats.checkpoint import Checkpoint
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import config_from
from bitnet.models.transformer import Model
from bitnet.quants.weight import Weight

MOST_BLOCKS = 4  # whose norms and biases are changed; later blocks are of the same kinds

LEAST_EPSILON = 1e-9  # a smaller one, even times a hundred, is lost in the rounding of float32


class Mistake(NamedTuple):
    """A model with one mistake."""

    kind: str  # what is wrong, the same words for every family
    place: str  # the tensor that is wrong; empty: the configuration
    model: Callable[[], Model]  # makes it, in float64


def mistakes(checkpoint: Checkpoint) -> Iterator[Mistake]:
    """The float64 models of *checkpoint* with one mistake each."""
    ops = ReferenceOps(dtype=np.float64)
    config = config_from(checkpoint)
    for kind, change in _of_configuration(config).items():
        yield Mistake(kind, "", lambda change=change: Model(checkpoint, change(config), ops=ops))
    for name in checkpoint.weights:
        for kind, change in _of_tensor(checkpoint.weights[name]).items():
            yield Mistake(
                kind,
                name,
                lambda name=name, change=change: Model(
                    with_changed(checkpoint, name, change), config, ops=ops
                ),
            )


def _of_configuration(config: ModelConfig) -> dict[str, Callable[[ModelConfig], ModelConfig]]:
    """Changes of *config* by kind of mistake."""
    changes = {}
    if config.norm_eps >= LEAST_EPSILON:
        changes = {
            f"every epsilon x{factor:g}": partial(with_epsilon, factor=factor)
            for factor in (1.5, 10, 100)
        }
    if config.ropes:
        changes["theta x1.02"] = lambda right: rotated(
            right, lambda rope: replace(rope, theta=rope.theta * 1.02)
        )
    if any(isinstance(mixer, LatentAttention) for mixer in config.mixers()):
        changes["epsilon of latents x10"] = partial(with_epsilon, factor=10, of_latents_alone=True)
    return changes


def with_epsilon(
    config: ModelConfig, factor: float, *, of_latents_alone: bool = False
) -> ModelConfig:
    """*config* with every epsilon of a norm times *factor*, or only those of latent attention."""

    def change(mixer):
        is_latent = isinstance(mixer, LatentAttention)
        return replace(mixer, eps=mixer.eps * factor) if is_latent else mixer

    changed = attending(config, change)
    if of_latents_alone:
        return changed
    return replace(changed, norm_eps=config.norm_eps * factor)


def _of_tensor(weight: Weight) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Changes of the values of *weight* by kind of mistake; empty if it is not examined."""
    block = int(weight.name.split(".")[1]) if weight.name.startswith("blk.") else 0
    if weight.quant.name != "F32" or block >= MOST_BLOCKS:
        return {}
    if weight.name.endswith(("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias")):
        return {
            "a bias of attention x0": lambda values: values * 0,
            "a bias of attention x1.01": scaled_up,
        }
    if "norm" not in weight.name:
        return {}
    changes = {"one norm x1.01": scaled_up}
    if weight.name.endswith(("attn_q_norm.weight", "attn_k_norm.weight")):
        changes["one element of a norm of queries or keys x1.3"] = _with_one_larger
    return changes


def scaled_up(values: np.ndarray) -> np.ndarray:
    """*values* times 1.01."""
    return values * np.float32(1.01)


def _with_one_larger(values: np.ndarray) -> np.ndarray:
    """*values*, of which the second is 1.3 times as large."""
    factors = np.ones_like(values)
    factors[1] = 1.3
    return values * factors


def with_changed(
    checkpoint: Checkpoint, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> Checkpoint:
    """*checkpoint* with the tensor *name*, of F32, changed."""
    weight = checkpoint.weights[name]
    values = np.asarray(change(weight.data.view("<f4")), dtype="<f4")
    changed = replace(weight, data=values.view(np.uint8))
    return replace(checkpoint, weights={**checkpoint.weights, name: changed})
