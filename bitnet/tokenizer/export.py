"""Write a tokenizer in the files that Hugging Face's tools read, if they can express it exactly.

    tokenizer.json            vocabulary, merges, pre-tokenizer, added tokens, BOS and EOS
    tokenizer_config.json     special tokens by role, chat template
    generation_config.json    every id that ends a generation

The files are read back with the ``tokenizers`` library and compared with the original on the probe
texts before they are kept: an approximate file is not written.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bitnet.errors import Unsupported, UsageError, from_os_error
from bitnet.tokenizer.merges import merges_by_score
from bitnet.tokenizer.portable import PortableEngine
from bitnet.tokenizer.probes import probe_texts
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec

__all__ = ["export_tokenizer", "tokenizer_json"]


def export_tokenizer(spec: TokenizerSpec, folder: Path, *, force: bool = False) -> list[Path]:
    """Write *spec* into *folder*.

    Args:
        spec: any tokenizer.
        folder: created if it is missing.
        force: replace files that are there.

    Returns:
        The files written.

    Raises:
        Unsupported: the ``tokenizers`` library would give different ids.
        UsageError: a file is there already and *force* is off.
    """
    document = tokenizer_json(spec)
    _prove(document, spec)
    files = {
        "tokenizer.json": document,
        "tokenizer_config.json": _config(spec),
        "generation_config.json": {
            "bos_token_id": spec.bos_id,
            "eos_token_id": sorted(spec.stop_ids),
        },
    }
    there = [folder / name for name in files if (folder / name).exists()]
    if there and not force:
        raise UsageError(f"{there[0]} exists already", hint="choose another folder, or add --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            draft = folder / f"{name}.partial"
            draft.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", "utf-8")
            draft.replace(folder / name)
    except OSError as error:
        raise from_os_error(error, error.filename or folder) from error
    return [folder / name for name in files]


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
            for token in _added(spec)
        ],
        "normalizer": _sequence(normalizer, "normalizers"),
        "pre_tokenizer": _sequence(cut, "pretokenizers"),
        "post_processor": _template(spec),
        "decoder": _decoder(spec),
        "model": _model(spec),
    }


def _added(spec: TokenizerSpec) -> list[AddedToken]:
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


def _config(spec: TokenizerSpec) -> dict[str, Any]:
    def text(id: int | None) -> str | None:
        return None if id is None else spec.tokens[id]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": spec.add_bos,
        "add_eos_token": spec.add_eos,
        "bos_token": text(spec.bos_id),
        "eos_token": text(spec.eos_id),
        "unk_token": text(spec.unknown_id),
        "chat_template": spec.chat_template,
    }


def _prove(document: dict[str, Any], spec: TokenizerSpec) -> None:
    """Compare the ``tokenizers`` library on *document* with the original.

    Raises:
        Unsupported: they differ; the message names the first difference.
    """
    from tokenizers import Tokenizer

    try:
        library = Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise Unsupported(f"{spec.source} cannot be said as tokenizer.json: {error}") from None
    original = PortableEngine(spec)
    for text in probe_texts():
        expected, got = original.encode(text), library.encode(text, add_special_tokens=False).ids
        if expected != got:
            raise Unsupported(
                f"{spec.source} cannot be said exactly as tokenizer.json: {text!r} is {expected}, "
                f"and would be {got}",
                hint="use the original file: it can be read as it is",
            )
