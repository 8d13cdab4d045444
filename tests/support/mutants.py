"""A model of ours with one mistake in its graph, which a comparison has to find."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from bitnet.models import load as loading


@contextmanager
def mutated(name, configurations, weights):
    """Our graph with the mistake *name*, in every backend, for models that are loaded within.

    Args:
        name: of the mistake; empty: there is none.
        configurations: functions on the configuration, by name.
        weights: a tensor and a function on its weight, by name.
    """
    with pytest.MonkeyPatch.context() as patch:
        if name in configurations:
            right = loading.config_from
            patch.setattr(loading, "config_from", lambda *it: configurations[name](right(*it)))
        elif name:
            tensor, change = weights[name]
            model = loading.Model

            def wrong(checkpoint, *rest, **more):
                changed = {**checkpoint.weights, tensor: change(checkpoint.weights[tensor])}
                return model(replace(checkpoint, weights=changed), *rest, **more)

            patch.setattr(loading, "Model", wrong)
        yield
