"""Models in a rotated basis, made from models in the usual one."""

from dataclasses import replace

import numpy as np

from bitnet.quants import registry, types
from bitnet.quants.weight import Weight

F32 = types.by_name("F32")


def sylvester(size):
    """Walsh and Hadamard's matrix in natural order, orthonormal."""
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(size)


def rotated(checkpoint, block, *, explicit=True, embedding=True, only=""):
    """*checkpoint* in the basis of ``H(signs * x)``: its rows are ``H(signs * row)``.

    Args:
        checkpoint: a model in the usual basis.
        block: columns of a block that H, :func:`sylvester`, rotates.
        explicit: True for random signs, which the metadata list; else all are 1.
        embedding: True to rotate the embedding, too.
        only: beginning of the names of the matrices to rotate.
    """
    rng = np.random.default_rng(4)
    h = sylvester(block)
    matrices = {
        name: weight
        for name, weight in checkpoint.weights.items()
        if len(weight.shape) == 2 and name.startswith(only) and "conv1d" not in name
    }
    widths = sorted({weight.shape[1] for weight in matrices.values()})
    signs = {width: rng.choice([-1, 1], width) if explicit else np.ones(width) for width in widths}
    weights = dict(checkpoint.weights)
    for name, weight in matrices.items():
        if name == "token_embd.weight" and not embedding:
            continue
        rows = registry.dequantize(weight).astype(np.float64) * signs[weight.shape[1]]
        stored = (rows.reshape(-1, block) @ h).reshape(weight.shape).astype("<f4")
        weights[name] = Weight(name, weight.shape, F32, stored.reshape(-1).view(np.uint8))
    keys = {
        "version": 1,
        "block_size": block,
        "transform": "normalized-sylvester-walsh-hadamard",
        "axis": "input-last-dimension",
        "sign_mode": "explicit" if explicit else "identity",
        "weight_names": [n for n in matrices if n != "token_embd.weight" or embedding],
        "inverse_weight_names": ["token_embd.weight"] if embedding else [],
    }
    if explicit:
        keys["sign_widths"] = [int(width) for width in widths]
        keys["sign_values"] = [int(sign) for width in widths for sign in signs[width]]
    named = {f"prism.hadamard.{key}": value for key, value in keys.items()}
    return replace(checkpoint, weights=weights, metadata=dict(checkpoint.metadata) | named)
