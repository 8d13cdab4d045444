"""Settings of a folder's classifier: its labels, and the functions of its scores.

transformers 5: ``pipelines/text_classification.py``; sentence-transformers 6:
``cross_encoder/model.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat
from bitnet.families.heads import INNER, SCORES, YES_NO
from bitnet.families.keys import COMPARE, refusal, split_ignored
from bitnet.formats.sentence_settings import has_own_settings, model_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.family import Family
    from bitnet.families.heads import ScoreFunction
    from bitnet.families.keys import Config, IgnoredKeys
    from bitnet.formats.checkpoint import Inventory
    from bitnet.quants.weight import Weight

_FORMER_KEY = "sbert_ce_default_activation_function"  # of sentence-transformers before version 4
_FUNCTIONS: dict[str, ScoreFunction] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "none",
}
_OF_PROBLEM: dict[str, ScoreFunction] = {
    "regression": "none",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}


def classifier_keys(
    files: Inventory,
    config: Config,
    family: Family,
    weights: Mapping[str, Weight],
    ignore: IgnoredKeys,
) -> dict[str, Any]:
    """Keys of the classifier in *files*, whose tensors are among *weights*.

    Keys of *config* to *ignore* count as absent.
    """
    # The ignored keys are reported by config_json.describe.
    config, _ignored = split_ignored(config, ignore.names)
    model = files.root.name
    missing = [module for module, gguf, _ in family.classifier if f"{gguf}.weight" not in weights]
    if missing:
        raise InvalidFormat(
            f"{model}: {missing[0]}.weight, a layer of the classifier, is missing", hint=COMPARE
        )
    shape = weights[f"{SCORES}.weight"].shape
    if not shape:
        raise InvalidFormat(
            f"{model}: the scores of the classifier are a single number, expected a matrix",
            hint=COMPARE,
        )
    count = shape[0]
    labels = _labels(config, count, model)
    relevance = _relevance(files, config, count, ignore)
    if tuple(labels) == YES_NO:
        # Our choice, whatever activation the files name: the sigmoid of yes minus no.
        # sentence-transformers gives both scores.
        relevance = "sigmoid"
    keys: dict[str, Any] = {
        "classifier.output_labels": labels,
        "classifier.function": _function(config, count, model),
        "classifier.relevance": relevance,
    }
    for _, gguf, activation in family.classifier:
        if gguf == INNER:
            keys["classifier.activation"] = activation
    return keys


def _labels(config: Config, count: int, model: str) -> list[str]:
    """Names of the *count* labels, in the order of their scores."""
    names = config.get("id2label")
    if names is None:
        return [f"LABEL_{label}" for label in range(count)]
    labels = names.values() if isinstance(names, dict) else [None]
    if not all(isinstance(label, str | int | float) for label in labels):
        raise InvalidFormat(
            f"{model}: id2label in config.json is {names!r:.80}, expected labels by their numbers",
            hint=COMPARE,
        )
    by_number = {key: str(label) for key, label in names.items()}
    if by_number.keys() != {str(label) for label in range(count)}:
        raise InvalidFormat(
            f"{model}: config.json names {len(by_number)} labels, the classifier scores {count}",
            hint=COMPARE,
        )
    return [by_number[str(label)] for label in range(count)]


def _function(config: Config, count: int, model: str) -> ScoreFunction:
    """Function that turns the scores of *count* labels into the values that are reported."""
    problem = config.get("problem_type")
    usual: ScoreFunction = "sigmoid" if count == 1 else "softmax"
    # As in transformers, a single label gets a sigmoid: its softmax would always be 1.
    if problem is None or (problem == "single_label_classification" and count == 1):
        return usual
    if not isinstance(problem, str) or problem not in _OF_PROBLEM:
        raise refusal("problem_type", problem, "not a kind of classification", model=model)
    return _OF_PROBLEM[problem]


def read_yes_no_keys(files: Inventory, config: Config, ignore: IgnoredKeys) -> dict[str, Any]:
    """Keys of the model in *files* that scores a document by its logits of two tokens.

    Keys of *config* to *ignore* count as absent.
    """
    config, _ignored = split_ignored(config, ignore.names)
    # Its score is one number, the difference of the two logits.
    return {
        "classifier.output_labels": list(YES_NO),
        "classifier.relevance": _relevance(files, config, 1, ignore),
    }


def _relevance(files: Inventory, config: Config, count: int, ignore: IgnoredKeys) -> ScoreFunction:
    """Function that turns the score of a pair of texts into its relevance.

    Without a name in the files it is a sigmoid of a single score, and none of several.
    """
    key, path = _find_activation(files, config, ignore)
    if path is None:
        return "sigmoid" if count == 1 else "none"
    if not isinstance(path, str) or path not in _FUNCTIONS:
        why = "only a sigmoid, or no function, of scores is computed"
        raise refusal(key, path, why, model=files.root.name)
    return _FUNCTIONS[path]


def _find_activation(files: Inventory, config: Config, ignore: IgnoredKeys) -> tuple[str, Any]:
    """The key that names the function of scores, and its value: the path of a torch class.

    The value is None if no file names one. The library's own file comes before ``config.json``,
    where a null in its table ends the search: no function is named.
    """
    key = "activation_fn"
    own = has_own_settings(files, ignore, scores=True)
    path = model_settings(files, ignore).get(key) if own else None
    if path is not None:
        return key, path
    table = config.get("sentence_transformers") or {}
    if not isinstance(table, dict):
        why = "a table is expected"
        raise refusal("sentence_transformers", table, why, model=files.root.name)
    if key in table:
        return key, table[key]
    return _FORMER_KEY, config.get(_FORMER_KEY)
