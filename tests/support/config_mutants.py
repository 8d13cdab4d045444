"""Configurations of tiny models with one wrong value, and the models they are opened as."""

import copy
import json
import math
from pathlib import Path

import numpy as np

from bitnet.formats import hf_checkpoint, safetensors
from bitnet.models.load import load_model
from bitnet.quants import types
from bitnet.quants.weight import Weight

#: ``config.json`` as transformers 5.24 writes it, and shapes of its tensors, by model.
MODELS = json.loads((Path(__file__).parents[1] / "data" / "tiny_configs.json").read_text("utf-8"))
#: Values that are wrong in most places of a configuration.
VALUES = (
    *(None, True, False, "x", "", [], {}, [1], [None], {"a": 1}),
    *(-1, 0, 1, 2, 2.0, 0.5, -0.5, 1e308, 1e-320, math.nan, math.inf, -math.inf),
    *(2**31, 3 * 10**9, 10**12, 2**64, 10**400),
)
_MOST_ENTRIES = 2  # of each list


def paths_of(value, above=()):
    """Paths of all keys in *value*, and of the first entries of lists."""
    parts = ()
    if isinstance(value, dict):
        parts = value.items()
    if isinstance(value, list):
        parts = enumerate(value[:_MOST_ENTRIES])
    for key, inner in parts:
        yield (*above, key)
        yield from paths_of(inner, (*above, key))


def mutants_of(name):
    """Yield every path in the configuration of the model *name* with every wrong value."""
    for path in paths_of(MODELS[name]["config"]):
        for value in VALUES:
            yield path, value


def changed(name, path, value):
    """The configuration of the model *name* with *value* at *path*."""
    config = copy.deepcopy(MODELS[name]["config"])
    table = config
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return config


def open_model(name, config, folder, monkeypatch, ignore_keys=()):
    """The model *name* with weights of zeros and the configuration *config*.

    *ignore_keys* are keys that are read as if they were not there.
    """
    quant = types.by_id(0)
    weights = {
        tensor: Weight(tensor, tuple(shape), quant, np.zeros(4 * math.prod(shape), np.uint8))
        for tensor, shape in MODELS[name]["tensors"].items()
    }
    monkeypatch.setattr(safetensors, "read_folder", lambda _files: weights)
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(hf_checkpoint.open_folder(folder, ignore_keys))
