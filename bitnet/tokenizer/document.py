"""A specification as a ``tokenizer.json``, for files that are written and for the library."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bitnet.tokenizer.merges import merges_by_score
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec


def tokenizer_json(spec: TokenizerSpec) -> dict[str, Any]:
    """*spec* as a ``tokenizer.json``."""
    own = spec.model in ("spm", "unigram") and not (spec.normalizer or spec.pre_tokenizer)
    normalizer = _sentencepiece_normalizer(spec) if own else _steps(spec.normalizer)
    if own and spec.model == "unigram":
        scheme = "always" if spec.add_space_prefix else "never"
        metaspace = {"type": "Metaspace", "replacement": SPACE_SYMBOL, "prepend_scheme": scheme}
        cut = [metaspace | {"split": True}]
    else:
        cut = _steps(spec.pre_tokenizer)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {key: value for key, value in asdict(token).items() if key != "text"}
            | {"content": token.text}
            for token in _list_added(spec)
        ],
        "normalizer": _sequence(normalizer, "normalizers"),
        "pre_tokenizer": _sequence(cut, "pretokenizers"),
        "post_processor": _template(spec),
        "decoder": _decoder(spec),
        "model": _model(spec),
    }


def _list_added(spec: TokenizerSpec) -> list[AddedToken]:
    """Added tokens by id; of one that is found in raw and in normalized text, the latter entry.

    What raw text holds of it (U+2581 themselves) is the same in normalized text.
    """
    order = sorted(spec.added, key=lambda token: (token.id, token.normalized))
    return list({token.id: token for token in order}.values())


def _steps(steps: Iterable[Step]) -> list[dict[str, Any]]:
    return [{"type": step.type, **step.options} for step in steps]


def _sequence(steps: list[dict[str, Any]], key: str) -> dict[str, Any] | None:
    if len(steps) < 2:
        return steps[0] if steps else None
    return {"type": "Sequence", key: steps}


def _sentencepiece_normalizer(spec: TokenizerSpec) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if spec.charsmap:
        table = base64.b64encode(spec.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    if spec.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if spec.model == "spm":
        if spec.add_space_prefix:
            steps.append({"type": "Prepend", "prepend": SPACE_SYMBOL})
        steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SYMBOL})
    return steps


def _template(spec: TokenizerSpec) -> dict[str, Any] | None:
    """BOS and EOS, for texts and for pairs of texts."""
    before, after = spec.affixes
    if not (before or after):
        return None

    def special(id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": spec.tokens[id], "type_id": 0}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    first, last = [special(id) for id in before], [special(id) for id in after]
    return {
        "type": "TemplateProcessing",
        "single": [*first, text("A", 0), *last],
        "pair": [*first, text("A", 0), *last, *first, text("B", 1), *last],
        "special_tokens": {
            spec.tokens[id]: {"id": spec.tokens[id], "ids": [id], "tokens": [spec.tokens[id]]}
            for id in (*before, *after)
        },
    }


def _decoder(spec: TokenizerSpec) -> dict[str, Any] | None:
    if spec.byte_level:
        flags = ("add_prefix_space", "trim_offsets", "use_regex")
        return {"type": "ByteLevel", **dict.fromkeys(flags, True)}
    if spec.model == "wordpiece":
        return {"type": "WordPiece", "prefix": spec.continuing_prefix, "cleanup": True}
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_SYMBOL}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if spec.add_space_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _model(spec: TokenizerSpec) -> dict[str, Any]:
    tokens = list(spec.tokens)
    for token in spec.added:  # converters write U+2581 as spaces
        if token.text == tokens[token.id].replace(" ", SPACE_SYMBOL):
            tokens[token.id] = token.text
    vocabulary = {text: id for id, text in enumerate(tokens)}
    unknown = None if spec.unknown_id is None else tokens[spec.unknown_id]
    if spec.model == "wordpiece":
        return {
            "type": "WordPiece",
            "unk_token": unknown or "[UNK]",
            "continuing_subword_prefix": spec.continuing_prefix,
            "max_input_chars_per_word": spec.max_chars_per_word,
            "vocab": vocabulary,
        }
    if spec.model == "wordlevel":
        return {"type": "WordLevel", "unk_token": unknown or "", "vocab": vocabulary}
    if spec.model == "unigram":
        return {
            "type": "Unigram",
            "unk_id": spec.unknown_id,
            "vocab": [[text, float(s)] for text, s in zip(tokens, spec.scores, strict=True)],
            "byte_fallback": spec.byte_fallback,
        }
    merges = (
        merges_by_score(tokens, spec.scores)
        if spec.model == "spm"
        else [[tokens[left], tokens[right]] for left, right in spec.merges]
    )
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if spec.byte_level else unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": spec.fuse_unknown or spec.model == "spm",
        "byte_fallback": spec.byte_fallback,
        "ignore_merges": spec.ignore_merges,
        "vocab": vocabulary,
        "merges": merges,
    }
