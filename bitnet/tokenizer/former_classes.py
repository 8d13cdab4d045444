"""Tokenizer classes of transformers 4, for folders that it wrote.

Its fast tokenizers keep the normalizer, the pre-tokenizer and the decoder of ``tokenizer.json``,
where those of transformers 5 build steps of their own: a folder of Llama 2 gets other ids for texts
with two spaces first, and one of DeepSeek-V3 no BOS. The model was trained with the former ones.
The classes of encoders keep what the file cleans and puts around a text.
The rules are those of 4.46.3 and 4.57.1, ``models/*/tokenization_*_fast.py``. Where they differ, a
version between them is refused by the key. Decoded texts are those of transformers 5, which does
not follow ``clean_up_tokenization_spaces`` for these models.

Of a ``vocab.json``, both build all steps; ``SAME_FROM_VOCABULARY`` names the classes that build the
same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

# Minor versions whose rules are known.
_OLD = 46
_NEW = 57

_END = "<|endoftext|>"
_THREE = ("bos_token", "eos_token", "unk_token")
_OF_BERT = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
# Keys that set options of a normalizer: name of the option, and value if the key is absent.
_NORMALIZER_KEYS = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
_OF_FUNNEL = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "<sep>",
    "pad_token": "<pad>",
    "cls_token": "<cls>",
    "mask_token": "<mask>",
}
_OF_MPNET = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "[UNK]",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}


@dataclass(frozen=True)
class FormerClass:
    """Additions of a class to the ``tokenizer.json`` of a folder."""

    special: dict[str, str] = field(default_factory=dict)  # special tokens that no file names
    # Default of ``add_bos_token``, and true if a template replaces the file's post-processor;
    # ``add_eos_token`` is false by default everywhere.
    add_bos: bool = False
    has_template: bool = False
    # ``add_prefix_space`` sets that of a ByteLevel pre-tokenizer: in both versions, or in ``new``
    # ones; in Llama's class it is an order to convert ``tokenizer.model``
    prefix_space: Literal["both", "new", "converts"] = "new"
    # keys of ``_NORMALIZER_KEYS`` that set options of the file's normalizer, if it has them
    normalizer_keys: tuple[str, ...] = ()
    # roles whose tokens get flags of the class, unless a file declares the named token
    flagged: tuple[str, ...] = ()
    minor: int = 0  # of the version that wrote the folder, 57 of 4.57.1

    def row(self) -> dict[str, Any]:
        """The class as a row of the table of transformers 5."""
        row = {"keeps": True, "special": self.special, "former": self}
        return {**row, **_add_flags(self.special, self.flagged)} if self.flagged else row

    def wrong_option(self, config: dict[str, Any]) -> str | None:
        """The key of an option in *config* that is not true or false, None if there is none."""
        for key in self.normalizer_keys:
            _, default = _NORMALIZER_KEYS[key]
            value = config.get(key, default)
            if not isinstance(value, bool) and not (value is None and default is None):
                return key
        return None

    def set_options(self, normalizer: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        """The *normalizer* of a file with the options that *config* names, if one differs."""
        options = {}
        for key in self.normalizer_keys:
            option, default = _NORMALIZER_KEYS[key]
            options[option] = config.get(key, default)
        stated = {option: normalizer.get(option, value) for option, value in options.items()}
        return normalizer if stated == options else {**normalizer, **options}

    @property
    def is_old(self) -> bool:
        """True for versions that are as 4.46."""
        return self.minor <= _OLD

    @property
    def is_between(self) -> bool:
        """True for versions of which is not known whether they are as 4.46 or as 4.57."""
        return _OLD < self.minor < _NEW


def _add_flags(special: dict[str, str], roles: tuple[str, ...]) -> dict[str, Any]:
    """Entries of a row whose class gives the tokens of *roles* flags, and adds its own again."""
    flags = {role: _flags(role) for role in roles}
    tokens = {
        role: {"content": text, **flags[role]} if role in flags else text
        for role, text in special.items()
    }
    return {"special": tokens, "named": flags, "adds_again": "defaults"}


def _flags(role: str) -> dict[str, bool]:
    """Flags of the token of a *role*: a mask takes the space before it."""
    is_mask = role == "mask_token"
    plain = {"single_word": False, "rstrip": False, "normalized": False}
    return {**plain, "lstrip": is_mask, "special": True}


def _all(text: str, *roles: str) -> dict[str, str]:
    return dict.fromkeys(roles, text)


#: Rules by the name of the class, without the suffix ``Fast``.
FORMER_CLASSES = {
    "LlamaTokenizer": FormerClass(
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        add_bos=True,
        has_template=True,
        prefix_space="converts",
    ),
    "GemmaTokenizer": FormerClass(
        {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"},
        add_bos=True,
        has_template=True,
    ),
    "GPTNeoXTokenizer": FormerClass(_all(_END, *_THREE), has_template=True, prefix_space="both"),
    "GPT2Tokenizer": FormerClass(_all(_END, *_THREE), prefix_space="both"),
    "CodeGenTokenizer": FormerClass(_all(_END, *_THREE), prefix_space="both"),
    "Qwen2Tokenizer": FormerClass(_all(_END, "eos_token", "unk_token", "pad_token")),
    **dict.fromkeys(
        (
            *("BertTokenizer", "ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"),
            *("LayoutLMTokenizer", "LxmertTokenizer", "MobileBertTokenizer"),
            "SqueezeBertTokenizer",
        ),
        FormerClass(_OF_BERT, normalizer_keys=(*_NORMALIZER_KEYS,)),
    ),
    "FunnelTokenizer": FormerClass(_OF_FUNNEL, normalizer_keys=(*_NORMALIZER_KEYS,)),
    "MPNetTokenizer": FormerClass(
        _OF_MPNET,
        normalizer_keys=("do_lower_case", "strip_accents"),
        flagged=(*_OF_MPNET,),
    ),
}


#: Classes that build the same steps of a ``vocab.json`` in 4.46.3 and 4.57.1 as in transformers 5,
#: and roles whose tokens get flags of the class, in version 4 alone, if a file names them by text.
SAME_FROM_VOCABULARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer", "Qwen2Tokenizer"), ()),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"), ("mask_token",)),
}


def vocabulary_row(name: str, minor: int, row: dict[str, Any]) -> dict[str, Any]:
    """The *row* of a class in transformers 5 with the tokens that version 4 adds to its vocabulary.

    *name* is one of ``SAME_FROM_VOCABULARY``, *minor* the version that wrote the folder.
    """
    former = FormerClass(prefix_space="converts", minor=minor)
    return {**row, **_add_flags(row["special"], SAME_FROM_VOCABULARY[name]), "former": former}


def former_version(model_config: dict[str, Any]) -> int | None:
    """Minor version of the transformers 4 that wrote a folder, by its ``config.json``."""
    version = model_config.get("transformers_version")
    match = re.match(r"4\.(\d{1,3})(?:\.|$)", version) if isinstance(version, str) else None
    return None if match is None else int(match[1])


def former_class(
    name: str | None, model_config: dict[str, Any], config: dict[str, Any]
) -> FormerClass | None:
    """The class *name* of transformers 4, if that wrote a folder and its rules are known.

    *model_config* is the ``config.json`` of the folder, *config* its tokenizer's. A Llama tokenizer
    with ``add_prefix_space`` is converted from ``tokenizer.model`` there, and so not one of these.
    """
    minor = former_version(model_config)
    former = FORMER_CLASSES.get(name or "")
    if minor is None or former is None:
        return None
    if former.prefix_space == "converts" and config.get("add_prefix_space") is not None:
        return None
    return replace(former, minor=minor)


def template_processor(
    bos: tuple[str, int] | None, eos: tuple[str, int] | None
) -> dict[str, object]:
    """The post-processor that puts *bos* before a text and *eos* behind it, texts with ids."""
    single: list[object] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if bos is not None:
        single.insert(0, {"SpecialToken": {"id": bos[0], "type_id": 0}})
    if eos is not None:
        single.append({"SpecialToken": {"id": eos[0], "type_id": 0}})
    tokens = {
        text: {"id": text, "ids": [id], "tokens": [text]} for text, id in filter(None, (bos, eos))
    }
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}
