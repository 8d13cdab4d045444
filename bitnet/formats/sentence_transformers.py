"""Settings of sentence-transformers next to a model: pooling, projections and prompts.

    model/
      modules.json                        Transformer, Pooling, Dense, Normalize
      sentence_bert_config.json           max_seq_length
      1_Pooling/config.json
      2_Dense/config.json                 a projection of pooled vectors, and its weights
      2_Dense/model.safetensors
      1_LogitScore/config.json            tokens whose logits score a document, in a reranker
      config_sentence_transformers.json   prompts

https://github.com/huggingface/sentence-transformers/blob/v5.1.0/sentence_transformers/models/Pooling.py
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import NotFound
from bitnet.families.config_values import MAX_WIDTH
from bitnet.families.heads import MOST_PROJECTIONS, projection_name
from bitnet.families.keys import (
    HARMLESS,
    IgnoredKeys,
    Rule,
    check,
    neutral,
    read,
    reads,
    refusal,
)
from bitnet.formats.checkpoint import Prompts, damage_error
from bitnet.formats.safetensors import SINGLE, read_file
from bitnet.formats.sentence_settings import (
    MODEL_SETTINGS,
    check_settings,
    has_own_settings,
    model_settings,
    transformer_settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bitnet.families.blocks import Pooling
    from bitnet.families.heads import HeadActivation
    from bitnet.formats.checkpoint import Inventory
    from bitnet.quants.weight import Weight

#: By their number in GGUF.
POOLINGS: tuple[Pooling, ...] = ("none", "mean", "cls", "last")
_LONGEST = 1 << 31  # tokens; transformers writes a far larger number where there is no limit
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout", "LogitScore")
_TANH = "torch.nn.modules.activation.Tanh"
_ACTIVATIONS: dict[str, HeadActivation] = {
    _TANH: "tanh",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.SiLU": "silu",
}
_PROJECTED = {f"{projection_name(number)}.weight" for number in range(MOST_PROJECTIONS)}
_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
}
# Our names of the values of ``pooling_mode``.
_NAMES: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_NOT = neutral(None, False)
_POOLING: dict[str, Rule] = {
    "word_embedding_dimension": HARMLESS,
    "embedding_dimension": HARMLESS,
    "include_prompt": neutral(None, True),
    "pooling_mode": read("hidden states that are pooled, in one word"),
    **dict.fromkeys(_MODES, read("hidden states that are pooled")),
    "pooling_mode_max_tokens": _NOT,
    "pooling_mode_mean_sqrt_len_tokens": _NOT,
    "pooling_mode_weightedmean_tokens": _NOT,
}
_VECTOR = "sentence_embedding"
_DENSE: dict[str, Rule] = {
    **reads("in_features out_features bias activation_function"),
    "module_input_name": neutral(None, _VECTOR),
    "module_output_name": neutral(None, _VECTOR),
    "use_residual": neutral(None, False),
}
_LOGIT_SCORE: dict[str, Rule] = {
    **reads("true_token_id false_token_id"),
    "module_input_name": neutral(None, "causal_logits"),
}


@dataclass(frozen=True)
class Modules:
    """Modules behind the transformer: the pooling of hidden states, and projections."""

    pooling: int | None = None  # GGUF's number; ``None``: no file says it
    keys: Mapping[str, Any] = field(default_factory=dict)  # of the projections
    weights: Mapping[str, Weight] = field(default_factory=dict)  # of the projections, by name
    # ids of the tokens "yes" and "no" of a model whose logits score documents; None: it has none
    answers: tuple[int, int] | None = None


def read_modules(files: Inventory, ignore: IgnoredKeys, *, classifies: bool = False) -> Modules:
    """Modules behind the transformer, as *files* say without the keys to *ignore*.

    A model that *classifies* needs none; of another one, the hidden states must be pooled.
    """
    name = "modules.json"
    if name not in files:
        return Modules()
    modules = files.json(name, list)
    model = files.root.name
    if not all(
        isinstance(module, dict) and isinstance(module.get("type"), str) for module in modules
    ):
        raise damage_error(files.path(name), "expected a list of modules, each with a type")
    pooling = None
    keys: dict[str, Any] = {}
    weights: dict[str, Weight] = {}
    is_normalized = False
    answers = None
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        if kind not in _MODULES:
            why = f"only {', '.join(_MODULES)} are supported"
            raise refusal(name, module["type"], why, model=model, is_ignorable=False)
        folder = _folder_of(files, module, kind)
        if kind == "Pooling":
            pooling = _pooling(files, f"{folder}/config.json", ignore)
        elif kind == "Dense":
            if is_normalized or pooling is None:
                why = "a projection of pooled vectors before they are normalized is supported"
                raise refusal(name, module["type"], why, model=model, is_ignorable=False)
            number = len(weights.keys() & _PROJECTED)
            if number == MOST_PROJECTIONS:
                why = f"at most {MOST_PROJECTIONS} projections are supported"
                raise refusal(name, module["type"], why, model=model, is_ignorable=False)
            own_keys, own_weights = _projection(files, folder, projection_name(number), ignore)
            keys |= own_keys
            weights |= own_weights
        elif kind == "LogitScore":
            answers = _answers(files, f"{folder}/config.json", ignore)
        elif kind == "Normalize":
            is_normalized = True
    if pooling is None and answers is None and not classifies:
        why = "a module Pooling is expected behind the hidden states"
        kinds = [module["type"] for module in modules]
        raise refusal(name, kinds, why, model=model, is_ignorable=False)
    check_settings(files, ignore, classifies=classifies, answers=answers is not None)
    return Modules(pooling, keys, weights, answers)


def _folder_of(files: Inventory, module: Mapping[str, Any], kind: str) -> str:
    """The folder of a *module* of a *kind*, as ``modules.json`` names it, or else ``1_KIND``."""
    path = module.get("path") or f"1_{kind}"
    if not isinstance(path, str):
        problem = f"the path of {kind} is {path!r:.80}, expected the name of a folder"
        raise damage_error(files.path("modules.json"), problem)
    return path.rstrip("/")


def _answers(files: Inventory, name: str, ignore: IgnoredKeys) -> tuple[int, int]:
    """Ids of the tokens whose logits say that a document is relevant, and that it is not."""
    settings = ignore.without(files.json(name, dict), prefix=f"{name}: ")
    check(settings, _LOGIT_SCORE, model=files.root.name, below=f"{name}: ")
    relevant = _token_id(files, name, settings, "true_token_id")
    other = _token_id(files, name, settings, "false_token_id")
    return relevant, other


def _token_id(files: Inventory, name: str, settings: Mapping[str, Any], key: str) -> int:
    """The token *key* in the *settings* of the file *name*."""
    token = settings.get(key)
    if type(token) is not int or token < 0:
        why = "two tokens, of relevant and of other documents, are supported"
        raise refusal(f"{name}: {key}", token, why, model=files.root.name, is_ignorable=False)
    return token


def _projection(
    files: Inventory, folder: str, name: str, ignore: IgnoredKeys
) -> tuple[dict[str, Any], dict[str, Weight]]:
    """Keys and tensors of the projection in *folder*, under the *name* of its tensors."""
    config = files.path(f"{folder}/config.json")
    settings = ignore.without(files.json(f"{folder}/config.json", dict), prefix=f"{folder}: ")
    check(settings, _DENSE, model=files.root.name, below=f"{folder}: ")
    sizes = [_size_of(settings, key, config) for key in ("in_features", "out_features")]
    path = settings.get("activation_function", _TANH)
    if not isinstance(path, str) or path not in _ACTIVATIONS:
        key = f"{folder}: activation_function"
        why = f"only {', '.join(sorted(_ACTIVATIONS.values()))} are computed"
        raise refusal(key, path, model=files.root.name, why=why)
    weights_file = f"{folder}/{SINGLE}"
    if weights_file not in files:
        raise NotFound(
            f"{files.path(weights_file)} is missing, the weights of a projection",
            hint="fetch the whole model again; weights in pytorch_model.bin are not read",
        )
    weights = {
        f"{name}.{key.removeprefix('linear.')}": replace(
            weight, name=f"{name}.{key.removeprefix('linear.')}"
        )
        for key, weight in read_file(files, weights_file).items()
    }
    if f"{name}.weight" not in weights:
        raise damage_error(files.path(weights_file), "linear.weight is missing")
    states_bias = settings.get("bias", True)
    if not isinstance(states_bias, bool | None):
        raise damage_error(config, f"bias is {states_bias!r:.80}, expected true or false")
    has_bias = f"{name}.bias" in weights
    if has_bias != bool(states_bias):
        problem = "is there" if has_bias else "is missing"
        raise damage_error(config, f"linear.bias {problem}")
    keys = {
        f"{name}_feat_in": sizes[0],
        f"{name}_feat_out": sizes[1],
        f"{name}_activation": _ACTIVATIONS[path],
    }
    # A projection without a key for its activation has the identity.
    return {key: value for key, value in keys.items() if value != "identity"}, weights


def _size_of(settings: Mapping[str, Any], key: str, config: Path) -> int:
    """The number of inputs or outputs *key* in the *settings* of a projection."""
    if key not in settings:
        raise damage_error(config, f"it has no {key}")
    size = settings[key]
    if type(size) is not int or not 0 < size <= MAX_WIDTH:
        expected = f"an integer from 1 to {MAX_WIDTH:,}"
        raise damage_error(config, f"{key} is {size!r:.80}, expected {expected}")
    return size


def text_limit(
    files: Inventory,
    ignore: IgnoredKeys,
    longest: int | None = None,
    *,
    is_encoder: bool = False,
    scores: bool = False,
) -> int | None:
    """Tokens of a text that the model of *files* keeps, special ones included; ``None``: all.

    Without ``max_seq_length`` sentence-transformers takes the tokenizer's own limit, or *longest*,
    the positions of the model. It also does so for an encoder without ``modules.json``, whose
    ``max_seq_length`` it does not read. Settings of sentence-transformers to *ignore* count as
    absent. *scores* is true for a model that scores texts. The caller also keeps to the context.
    """
    if "modules.json" not in files and not is_encoder:
        return None
    own_name, own = transformer_settings(files, ignore)
    if not has_own_settings(files, ignore, scores=scores):
        own = {}
    of_tokenizer = "tokenizer_config.json"
    tokenizer = files.json(of_tokenizer, dict) if of_tokenizer in files else {}
    for name, settings, key in (
        (own_name, own, "max_seq_length"),
        (of_tokenizer, tokenizer, "model_max_length"),
    ):
        value = settings.get(key)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and value > _LONGEST:
            continue  # there is no limit
        if not isinstance(value, int) or not is_number or value < 1:
            problem = f"{key} is {value!r:.80}, expected a number of tokens"
            raise damage_error(files.path(name), problem)
        return value
    return longest


def prompts(files: Inventory, ignore: IgnoredKeys, *, scores: bool = False) -> Prompts:
    """Prompts of the model of *files* without the keys to *ignore*; empty if none has any.

    *scores* is true for a model that scores texts.
    """
    if not has_own_settings(files, ignore, scores=scores):
        return Prompts()
    config = model_settings(files, ignore)
    texts = config.get("prompts") or {}
    default = config.get("default_prompt_name") or ""
    is_texts = isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values())
    if not is_texts or not isinstance(default, str) or (default and default not in texts):
        problem = "expected prompts by name, and the name of one of them"
        raise damage_error(files.path(MODEL_SETTINGS), problem)
    return Prompts(texts, default)


def _pooling(files: Inventory, name: str, ignore: IgnoredKeys) -> int:
    """GGUF's number of the pooling that the file *name* describes."""
    inside = name.rpartition("/")[0]
    model = files.root.name
    settings = ignore.without(files.json(name, dict), prefix=f"{inside}: ")
    check(settings, _POOLING, model=model, below=f"{inside}: ")
    stated = _find_modes(settings)
    if len(stated) != 1 or stated[0] not in _NAMES:
        value = settings.get("pooling_mode", stated)
        why = "one of mean, cls and last is computed"
        key = f"{inside}: pooling_mode"
        raise refusal(key, value, why, model=model, is_ignorable=False)
    return POOLINGS.index(_NAMES[stated[0]])


def _find_modes(settings: Mapping[str, Any]) -> list[Any]:
    """Names of the poolings in the *settings* of a module; the library concatenates their vectors.

    Former settings have a key for each; where none is set, the library takes the mean.
    """
    if "pooling_mode" in settings:
        modes = settings["pooling_mode"]
        # A list in the list is not a name, and cannot be looked up as one.
        return list(map(str, modes)) if isinstance(modes, list) else [str(modes)]
    return [mode for key, mode in _MODES.items() if settings.get(key)] or ["mean"]
