"""Layers behind the pooled hidden states of a text: projections of its vector, and classifiers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from bitnet.families.keys import Rule, contradiction, read, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from bitnet.families.keys import Keys

HeadActivation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]
#: Layers of a folder's classifier, each with its name there, its name in GGUF and its activation.
HeadLayers: TypeAlias = tuple[tuple[str, str, HeadActivation], ...]

MOST_PROJECTIONS = 6  # of a vector, one after another
_FIRST = 2  # number of the first projection: modules 0 and 1 are the transformer and the pooling
_NAMES = [f"dense_{number}" for number in range(_FIRST, _FIRST + MOST_PROJECTIONS)]


@dataclass(frozen=True)
class Projection:
    """``norm(activation(weight x + bias))`` of a text's vector; bias and norm may be missing."""

    name: str  # of its tensors
    inputs: int  # width of ``x``
    outputs: int  # width of the result
    activation: HeadActivation = "identity"
    # weight of a LayerNorm of the result, ``(outputs,)``; None: it has none
    norm: NDArray[np.float32] | None = field(default=None, compare=False)
    norm_eps: float = 0.0  # its epsilon


#: Rules for the GGUF keys of projections; llama.cpp reads the widths and applies no activation.
PROJECTION_KEYS: dict[str, Rule] = {
    f"{name}_{part}": read(about)
    for name in _NAMES
    for part, about in (
        ("feat_in", "numbers of the vector before"),
        ("feat_out", "numbers of the vector behind"),
        ("activation", " or ".join(get_args(HeadActivation))),
    )
}


ScoreFunction = Literal["none", "sigmoid", "softmax"]

RANKS = 4  # ``pooling_type`` of a model with a classifier
YES_NO = ("yes", "no")  # labels of a model that answers whether a document is relevant
#: GGUF names of a classifier's layers: the inner one, and the one that gives the labels' scores.
INNER = "cls"
SCORES = "cls.output"
HEAD_NORM = "cls.norm"  # the norm behind the inner layer
_RELEVANCE_FUNCTIONS = ("none", "sigmoid")
# Activations of inner layers by architecture, for files without the key; elsewhere it is tanh.
_INNER_ACTIVATIONS = {"modern-bert": "gelu"}
CLASSIFIER_KEYS: dict[str, Rule] = {
    "classifier.output_labels": read("names of the labels"),
    "classifier.pooling_type": Rule(
        "hidden state that is scored: 1 mean, 2 first, 3 last", (1, 2, 3), is_read=True
    ),
    "classifier.activation": read(
        "of the inner layer; tanh if the file has none, gelu for ModernBERT"
    ),
    "classifier.function": read("that makes shares of scores: none, sigmoid or softmax"),
    "classifier.relevance": read("that makes a relevance of a score: none or sigmoid"),
}


@dataclass(frozen=True)
class Classifier:
    """Scores of labels from a pooled hidden state."""

    layers: tuple[Projection, ...]  # the last one has an output for each label
    labels: tuple[str, ...]
    function: ScoreFunction = "softmax"  # makes the shares of the labels from their scores
    # makes a relevance from a score, which for yes and no is the difference of theirs
    relevance_function: ScoreFunction = "none"

    @property
    def ranks(self) -> bool:
        """True if its scores say how well a document answers a query."""
        return len(self.labels) == 1 or self.labels == YES_NO

    def relevance(self, scores: NDArray[np.floating[Any]]) -> float:
        """Relevance of a document with these *scores*, ``(labels,)``."""
        if self.labels == YES_NO:
            scores = np.subtract(scores[:1], scores[1:], dtype=np.float64)
        return float(apply_function(self.relevance_function, scores)[0])

    def shares(self, scores: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Share of each label, ``(labels,)``, of a text with these *scores*.

        It is from 0 to 1, unless *function* is ``none``: then it is the score itself.
        """
        return apply_function(self.function, scores).astype(np.float32)


def apply_function(
    name: ScoreFunction, scores: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """The function *name* of *scores*: both ``(labels,)``, in float64 unless it is ``none``."""
    if name == "none":
        return scores
    doubles = scores.astype(np.float64)
    if name == "sigmoid":  # the exponential of a positive number could overflow
        return np.where(
            doubles >= 0,
            1 / (1 + np.exp(-np.abs(doubles))),
            np.exp(-np.abs(doubles)) / (1 + np.exp(-np.abs(doubles))),
        )
    weights = np.exp(doubles - doubles.max())
    return np.asarray(weights / weights.sum())


def classifier(keys: Keys) -> Classifier | None:
    """The classifier of a model; None if it has none."""
    if keys.integer("pooling_type", 0) != RANKS:
        return None
    layers = []
    width = keys.integer("embedding_length")
    usual_inner = _INNER_ACTIVATIONS.get(keys.architecture, "tanh")
    inner = _one_of(keys, "classifier.activation", usual_inner, get_args(HeadActivation))
    stages: tuple[tuple[str, HeadActivation], ...] = ((INNER, inner), (SCORES, "identity"))
    for name, activation in stages:
        weight = keys.weights.get(f"{name}.weight")
        if weight is None:
            continue
        outputs = weight.shape[0] if len(weight.shape) == 2 else 1
        layer = Projection(name, width, outputs, activation)
        width = outputs
        if name == INNER:
            layer = _with_norm(keys, layer)
        layers.append(layer)
    if not layers:
        raise contradiction(keys, "pooling_type is 4, and cls.output.weight is missing")
    labels = _labels(keys, width)
    if len(labels) != width:
        raise contradiction(keys, f"{len(labels)} labels, and scores of {width}")
    usual = "sigmoid" if width == 1 else "softmax"
    function = _one_of(keys, "classifier.function", usual, get_args(ScoreFunction))
    usual_relevance = "sigmoid" if labels == YES_NO else "none"
    relevance = _one_of(keys, "classifier.relevance", usual_relevance, _RELEVANCE_FUNCTIONS)
    return Classifier(tuple(layers), labels, function, relevance)


def _labels(keys: Keys, scores: int) -> tuple[str, ...]:
    """Names of the labels; without a key, as many as *scores* says: LABEL_0, LABEL_1 ..."""
    key = "classifier.output_labels"
    names = keys.value(key, None) or [f"LABEL_{label}" for label in range(scores)]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        problem = f"{keys.own_name(key)} is {show(names)}, expected a list of texts"
        raise contradiction(keys, problem)
    return tuple(names)


def _one_of(keys: Keys, key: str, default: str, names: tuple[str, ...]) -> Any:
    """The value of *key*, or *default* without it; it must be one of *names*."""
    name = keys.value(key, default)
    if name not in names:
        problem = f"{keys.own_name(key)} is {show(name)}, expected {' or '.join(names)}"
        raise contradiction(keys, problem)
    return name


def _with_norm(keys: Keys, layer: Projection) -> Projection:
    """*layer* with the norm behind it, if the model has one."""
    norm = keys.numbers(f"{HEAD_NORM}.weight", (layer.outputs,))
    if norm is None:
        return layer
    return replace(layer, norm=norm, norm_eps=keys.number("attention.layer_norm_epsilon"))


def projection_name(number: int) -> str:
    """Name of the tensors of a projection, by its *number* from 0."""
    return _NAMES[number]


def projections(keys: Keys) -> tuple[Projection, ...]:
    """The projections of a model's pooled vectors, in order."""
    chain = tuple(_projections(keys))
    stray = [name for name in _NAMES[len(chain) :] if f"{name}.weight" in keys.weights]
    if stray:
        raise contradiction(
            keys, f"the projection {stray[0]} has a tensor, and one before it does not"
        )
    return chain


def _projections(keys: Keys) -> Iterator[Projection]:
    """The projections up to the first one that is missing."""
    width = keys.integer("embedding_length")
    for name in _NAMES:
        if f"{name}.weight" not in keys.weights:
            return
        inputs = keys.integer(f"{name}_feat_in", width)
        if inputs != width:
            problem = f"reads vectors of {inputs:,} numbers, those before have {width:,}"
            raise contradiction(keys, f"{name} {problem}")
        rows = keys.weights[f"{name}.weight"].shape[:1]
        outputs = keys.integer(f"{name}_feat_out", rows[0] if rows else 1)
        activation = _one_of(keys, f"{name}_activation", "identity", get_args(HeadActivation))
        yield Projection(name, inputs, outputs, activation)
        width = outputs
