"""Keys of classifiers in GGUF files."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import tiny

from bitnet.base.errors import InvalidFormat
from bitnet.families.heads import classifier


@pytest.fixture(scope="module")
def model():
    """A tiny encoder with scores of two labels."""
    plain = tiny("bert")
    weights = {**plain.weights, "cls.output.weight": np.zeros((2, 256), dtype=np.float32)}
    # Pooling type 4, in llama.cpp "rank": the model scores.
    return replace(plain, weights=weights, metadata={**plain.metadata, "bert.pooling_type": 4})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("output_labels", 5),
        ("output_labels", "ab"),
        ("output_labels", [1, 2]),
        ("output_labels", ["only one"]),
        ("function", ["softmax"]),
        ("function", "spiral"),
        ("function", 1),
        ("relevance", ["none"]),
        ("relevance", "spiral"),
        ("relevance", "softmax"),
        ("activation", ["tanh"]),
        ("activation", "spiral"),
    ],
)
def test_a_wrong_value_of_a_classifiers_key_is_damage(model, key, value):
    keys = {**model.metadata, f"bert.classifier.{key}": value}
    with pytest.raises(InvalidFormat):
        classifier(replace(model, metadata=keys))


def test_labels_are_numbered_if_no_key_names_them(model):
    assert classifier(model).labels == ("LABEL_0", "LABEL_1")
    named = {**model.metadata, "bert.classifier.output_labels": ["no", "yes"]}
    assert classifier(replace(model, metadata=named)).labels == ("no", "yes")


# For scores of 3 and 1: the logistic function of 2, or 2 itself.
@pytest.mark.parametrize(
    ("keys", "expected"),
    [({}, 0.880797), ({"relevance": "sigmoid"}, 0.880797), ({"relevance": "none"}, 2.0)],
)
def test_a_relevance_is_a_function_of_the_score_of_yes_minus_that_of_no(model, keys, expected):
    keys = {"output_labels": ["yes", "no"]} | keys
    own = {f"bert.classifier.{key}": value for key, value in keys.items()}
    head = classifier(replace(model, metadata={**model.metadata, **own}))
    scores = np.array([3.0, 1.0], dtype=np.float32)
    assert head.relevance(scores) == pytest.approx(expected, abs=1e-6)
