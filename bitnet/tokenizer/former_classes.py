"""Tokenizer classes of transformers 4, for folders that it wrote.

The fast tokenizers of version 4 keep the normalizer, the pre-tokenizer and the decoder of
``tokenizer.json``; those of version 5 build their own. With version 5, a folder of Llama 2 gives
other ids for texts that begin with two spaces, and one of DeepSeek-V3 adds no BOS, unlike in
training. So folders of version 4 are read as version 4 reads them. Its classes of encoders also
keep the post-processor of the file.

The rules are those of 4.46.3 and 4.57.1, ``models/*/tokenization_*_fast.py``. If a folder has a key
that these two versions treat differently, and its own version is between them, the key is refused.
Texts are decoded as in version 5, which ignores ``clean_up_tokenization_spaces`` for these models.

From a ``vocab.json``, versions 4 and 5 both build all steps; ``SAME_FROM_VOCABULARY`` names the
classes that build the same ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

# The rules of versions 4.46 and 4.57 are known.
_OLD = 46
_NEW = 57

_END = "<|endoftext|>"
_BOS_EOS_UNK = ("bos_token", "eos_token", "unk_token")
_OF_BERT = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
# Keys of tokenizer_config.json that set an option of the normalizer: the name of the option, and
# its value if the key is absent.
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
    """Changes of a class of transformers 4 to the ``tokenizer.json`` of a folder."""

    # texts of special tokens by role, if no file of the folder names them
    special: dict[str, str] = field(default_factory=dict)
    add_bos: bool = False  # default of ``add_bos_token``; that of ``add_eos_token`` is False
    has_template: bool = False  # a template of BOS and EOS replaces the file's post-processor
    # effect of ``add_prefix_space`` in ``tokenizer_config.json``: it sets the option of the file's
    # ByteLevel pre-tokenizer in ``both`` versions, or in the ``new`` one alone; or Llama's class
    # ``converts`` ``tokenizer.model`` because of it, and does not read ``tokenizer.json``
    prefix_space: Literal["both", "new", "converts"] = "new"
    # keys of ``_NORMALIZER_KEYS`` that set options of the file's normalizer
    normalizer_keys: tuple[str, ...] = ()
    # roles whose tokens get the class's own flags, unless a file declares the flags of the token
    flagged: tuple[str, ...] = ()
    minor: int = 0  # minor version that wrote the folder: 57 for 4.57.1

    def row(self) -> dict[str, Any]:
        """The class as a row of ``tokenizer_classes.json``, which has the classes of version 5."""
        row = {"keeps": True, "special": self.special, "former": self}
        return {**row, **_add_flags(self.special, self.flagged)} if self.flagged else row

    def wrong_option(self, config: dict[str, Any]) -> str | None:
        """The first normalizer key with a value of a wrong type in *config*; None if all fit."""
        for key in self.normalizer_keys:
            _, default = _NORMALIZER_KEYS[key]
            value = config.get(key, default)
            if not isinstance(value, bool) and not (value is None and default is None):
                return key
        return None

    def set_options(self, normalizer: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        """The *normalizer* of a file with the options of *config*.

        As in transformers, all options are set if one differs; an option that *normalizer* lacks
        does not differ.
        """
        options = {}
        for key in self.normalizer_keys:
            option, default = _NORMALIZER_KEYS[key]
            options[option] = config.get(key, default)
        in_file = {option: normalizer.get(option, value) for option, value in options.items()}
        return normalizer if in_file == options else {**normalizer, **options}

    @property
    def is_old(self) -> bool:
        """True if the version follows the rules of 4.46."""
        return self.minor <= _OLD

    @property
    def is_between(self) -> bool:
        """True if the version may follow the rules of 4.46 or those of 4.57."""
        return _OLD < self.minor < _NEW


def _add_flags(special: dict[str, str], roles: tuple[str, ...]) -> dict[str, Any]:
    """Entries of a row whose class has flags of its own for the tokens of *roles*.

    The flags are for the tokens *special* of the class, and for tokens that a file names by text
    alone. The class adds its tokens to the vocabulary once more.
    """
    flags = {role: _flags(role) for role in roles}
    tokens = {
        role: {"content": text, **flags[role]} if role in flags else text
        for role, text in special.items()
    }
    return {"special": tokens, "named": flags, "adds_again": "defaults"}


def _flags(role: str) -> dict[str, bool]:
    """Flags of a special token with *role*: the mask includes the white space before it."""
    is_mask = role == "mask_token"
    plain = {"single_word": False, "rstrip": False, "normalized": False}
    return {**plain, "lstrip": is_mask, "special": True}


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
    "GPTNeoXTokenizer": FormerClass(
        dict.fromkeys(_BOS_EOS_UNK, _END), has_template=True, prefix_space="both"
    ),
    "GPT2Tokenizer": FormerClass(dict.fromkeys(_BOS_EOS_UNK, _END), prefix_space="both"),
    "CodeGenTokenizer": FormerClass(dict.fromkeys(_BOS_EOS_UNK, _END), prefix_space="both"),
    "Qwen2Tokenizer": FormerClass(dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END)),
    **dict.fromkeys(
        (
            *("BertTokenizer", "ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"),
            *("LayoutLMTokenizer", "LxmertTokenizer", "MobileBertTokenizer"),
            "SqueezeBertTokenizer",
        ),
        FormerClass(_OF_BERT, normalizer_keys=tuple(_NORMALIZER_KEYS)),
    ),
    "FunnelTokenizer": FormerClass(_OF_FUNNEL, normalizer_keys=tuple(_NORMALIZER_KEYS)),
    "MPNetTokenizer": FormerClass(
        _OF_MPNET,
        normalizer_keys=("do_lower_case", "strip_accents"),
        flagged=tuple(_OF_MPNET),
    ),
}


#: Classes that build the same steps from a ``vocab.json`` in 4.46.3, 4.57.1 and version 5, and the
#: roles whose tokens version 4 gives flags of the class if a file names them by text alone.
SAME_FROM_VOCABULARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer", "Qwen2Tokenizer"), ()),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"), ("mask_token",)),
}


def vocabulary_row(name: str, minor: int, row: dict[str, Any]) -> dict[str, Any]:
    """The *row* of a class in transformers 5 with the tokens that version 4 adds to its vocabulary.

    *name* is one of ``SAME_FROM_VOCABULARY``, *minor* the version that wrote the folder.
    """
    # The steps that version 5 builds follow add_prefix_space already; ``converts`` has no effect on
    # them.
    former = FormerClass(prefix_space="converts", minor=minor)
    return {**row, **_add_flags(row["special"], SAME_FROM_VOCABULARY[name]), "former": former}


def former_version(model_config: dict[str, Any]) -> int | None:
    """Minor version of transformers 4 in ``config.json``; None if another version wrote it."""
    version = model_config.get("transformers_version")
    match = re.match(r"4\.(\d{1,3})(?:\.|$)", version) if isinstance(version, str) else None
    return None if match is None else int(match[1])


def former_class(
    name: str | None, model_config: dict[str, Any], config: dict[str, Any]
) -> FormerClass | None:
    """Rules of the class *name* for a folder that transformers 4 wrote.

    *model_config* is the ``config.json`` of the folder, *config* its ``tokenizer_config.json``.

    Returns:
        None if another version wrote the folder, or the class is not known. Llama's class with
        ``add_prefix_space`` has no rules, either: version 4 converts ``tokenizer.model`` for it.
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
    """The post-processor that adds *bos* before a text and *eos* after it, as ``(token, id)``.

    Each text of a pair has both, as in ``update_post_processor`` of transformers 4.46 to 5.24.
    """
    tokens = {
        text: {"id": text, "ids": [id], "tokens": [text]} for text, id in filter(None, (bos, eos))
    }
    first = _with_ends("A", 0, bos, eos)
    second = _with_ends("B", 1, bos, eos)
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *second],
        "special_tokens": tokens,
    }


def _with_ends(
    sequence: str, type_id: int, bos: tuple[str, int] | None, eos: tuple[str, int] | None
) -> list[object]:
    """Items of a template for a *sequence* between *bos* and *eos*, all of one *type_id*."""
    items: list[object] = [{"Sequence": {"id": sequence, "type_id": type_id}}]
    if bos is not None:
        items.insert(0, {"SpecialToken": {"id": bos[0], "type_id": type_id}})
    if eos is not None:
        items.append({"SpecialToken": {"id": eos[0], "type_id": type_id}})
    return items
