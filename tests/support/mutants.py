"""Put one mistake into the graph of our models, which a comparison must detect."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from bitnet.families.blocks import Attention, LatentAttention
from bitnet.models import load as loading


def attending(config, change):
    """*config* with *change* applied to every attention, whatever its kind."""
    blocks = tuple(
        tuple(
            replace(
                branch,
                mixers=tuple(
                    change(mixer) if isinstance(mixer, (Attention, LatentAttention)) else mixer
                    for mixer in branch.mixers
                ),
            )
            for branch in block
        )
        for block in config.blocks
    )
    return replace(config, blocks=blocks)


def rotated(config, change):
    """*config* with *change* applied to the rope of every attention that has one."""

    def rotate(mixer):
        return mixer if mixer.rope is None else replace(mixer, rope=change(mixer.rope))

    return attending(config, rotate)


@contextmanager
def mutated(name, configurations, weights):
    """Put the mistake *name* into our models that are loaded inside the block, in every backend.

    Args:
        name: name of the mistake; empty for none.
        configurations: by the name of a mistake, a function that changes the configuration.
        weights: by the name of a mistake, a tensor and a function that changes its weight.
    """
    with pytest.MonkeyPatch.context() as patch:
        if name in configurations:
            original = loading.config_from
            change = configurations[name]
            patch.setattr(loading, "config_from", lambda *words: change(original(*words)))
        elif name:
            tensor, change = weights[name]
            model = loading.Model

            def wrong(checkpoint, *rest, **more):
                changed = {**checkpoint.weights, tensor: change(checkpoint.weights[tensor])}
                return model(replace(checkpoint, weights=changed), *rest, **more)

            patch.setattr(loading, "Model", wrong)
        yield
