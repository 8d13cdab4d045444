"""Settings of sentence-transformers next to a model: pooling and prompts.

    model/
      modules.json                        Transformer, Pooling, Normalize
      sentence_bert_config.json
      1_Pooling/config.json
      config_sentence_transformers.json   prompts

https://github.com/huggingface/sentence-transformers/blob/v5.1.0/sentence_transformers/models/Pooling.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.families.keys import HARMLESS, Rule, check, neutral, read, refusal, without
from bitnet.formats.checkpoint import Prompts, damage_error

if TYPE_CHECKING:
    from collections.abc import Collection

    from bitnet.families.blocks import Pooling
    from bitnet.formats.checkpoint import Inventory

#: By their number in GGUF.
POOLINGS: tuple[Pooling, ...] = ("none", "mean", "cls", "last")
_LONGEST = 1 << 31  # tokens; transformers writes a far larger number where there is no limit
_MODULES = ("Transformer", "Pooling", "Normalize")
_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_NOT = neutral(None, False)
_POOLING: dict[str, Rule] = {
    "word_embedding_dimension": HARMLESS,
    "embedding_dimension": HARMLESS,
    "include_prompt": neutral(None, True),
    "pooling_mode": read("the same in one word"),
    **dict.fromkeys(_MODES, read("hidden states that are pooled")),
    "pooling_mode_max_tokens": _NOT,
    "pooling_mode_mean_sqrt_len_tokens": _NOT,
    "pooling_mode_weightedmean_tokens": _NOT,
}


def pooling_type(files: Inventory, ignore: Collection[str] = ()) -> int | None:
    """GGUF's number of the pooling method in *files*; ``None`` if none gives it."""
    name = "modules.json"
    if name not in files:
        return None
    modules, model = files.json(name, list), files.root.name
    if not all(isinstance(one, dict) and isinstance(one.get("type"), str) for one in modules):
        raise damage_error(files.path(name), "expected a list of modules, each with a type")
    pooling = None
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        if kind not in _MODULES:
            why = "only a transformer, pooling and normalization are supported"
            raise refusal(name, module["type"], model=model, why=why)
        if kind == "Pooling":
            inside = str(module.get("path") or "1_Pooling")
            pooling = _pooling(files, f"{inside}/config.json", ignore)
    settings = "sentence_bert_config.json"
    if settings in files:
        rules = {"do_lower_case": neutral(None, False)}
        given = without(files.json(settings, dict), ignore)
        check(
            {key: given[key] for key in rules if key in given}, rules,
            model=model, below=f"{settings}: ",
        )  # fmt: skip
    return pooling


def text_limit(files: Inventory) -> int | None:
    """Tokens of a text that the model of *files* keeps, special ones included; ``None``: all.

    Without ``max_seq_length`` that library takes the tokenizer's own limit.
    """
    limit = None
    for name, key in (
        ("tokenizer_config.json", "model_max_length"),
        ("sentence_bert_config.json", "max_seq_length"),
    ):
        if "modules.json" in files and name in files:
            value = files.json(name, dict).get(key)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LONGEST:
                limit = value
    return limit


def prompts(files: Inventory) -> Prompts:
    """Prompts of the model of *files*; empty if none has any."""
    name = "config_sentence_transformers.json"
    if name not in files:
        return Prompts()
    said = files.json(name, dict)
    texts, default = said.get("prompts") or {}, said.get("default_prompt_name") or ""
    is_texts = isinstance(texts, dict) and all(isinstance(one, str) for one in texts.values())
    if not is_texts or not isinstance(default, str) or (default and default not in texts):
        raise damage_error(
            files.path(name), "expected prompts by name, and the name of one of them"
        )
    return Prompts(texts, default)


def _pooling(files: Inventory, name: str, ignore: Collection[str]) -> int:
    inside, model = name.rpartition("/")[0], files.root.name
    given = without(files.json(name, dict), ignore)
    check(given, _POOLING, model=model, below=f"{inside}: ")
    named = given.get("pooling_mode")
    modes = [mode for key, mode in _MODES.items() if given.get(key)]
    if named is not None:
        modes = [_NAMES[named]] if isinstance(named, str) and named in _NAMES else []
    if len(modes) != 1:
        shown = named if named is not None else modes
        why = "one of mean, cls and last is computed"
        key = f"{inside}: pooling_mode"
        raise refusal(key, shown, model=model, why=why)
    return POOLINGS.index(modes[0])
