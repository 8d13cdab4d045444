"""Layers behind the pooled hidden states of a text: projections of its vector, and classifiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from bitnet.families.keys import Rule, contradiction, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.families.keys import Keys

HeadActivation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]

MOST_PROJECTIONS = 6  # of a vector, one after another
_FIRST = 2  # number of the first projection: those before are the transformer and the pooling
_NAMES = [f"dense_{number}" for number in range(_FIRST, _FIRST + MOST_PROJECTIONS)]


@dataclass(frozen=True)
class Projection:
    """``activation(weight x + bias)`` of a vector of a text; the bias may be missing."""

    name: str  # of its tensors
    inputs: int  # numbers of *x*
    outputs: int  # numbers of the result
    activation: HeadActivation = "identity"


#: Rules for the keys of projections in GGUF's terms; llama.cpp knows the first two, without
#: activations.
PROJECTION_KEYS: dict[str, Rule] = {
    f"{name}_{part}": read(about)
    for name in _NAMES
    for part, about in (
        ("feat_in", "numbers of the vector before"),
        ("feat_out", "numbers of the vector behind"),
        ("activation", " or ".join(get_args(HeadActivation))),
    )
}


def projection_name(number: int) -> str:
    """Name of the tensors of a projection, by its *number* from 0."""
    return _NAMES[number]


def projections(keys: Keys) -> tuple[Projection, ...]:
    """The projections of a model's pooled vectors, in order."""
    chain = tuple(_projections(keys))
    stray = [name for name in _NAMES[len(chain) :] if f"{name}.weight" in keys.weights]
    if stray:
        raise contradiction(keys, f"{stray[0]} is there, and not the projections before")
    return chain


def _projections(keys: Keys) -> Iterator[Projection]:
    width = keys.integer("embedding_length")
    for name in _NAMES:
        if f"{name}.weight" not in keys.weights:
            return
        inputs = keys.integer(f"{name}_feat_in", width)
        if inputs != width:
            problem = f"reads vectors of {inputs:,} numbers, those before have {width:,}"
            raise contradiction(keys, f"{name} {problem}")
        outputs = keys.integer(f"{name}_feat_out", keys.weights[f"{name}.weight"].shape[0])
        activation = keys.value(f"{name}_activation", "identity")
        if activation not in get_args(HeadActivation):
            raise contradiction(keys, f"{name}_activation is {activation!r}")
        yield Projection(name, inputs, outputs, cast("HeadActivation", activation))
        width = outputs
