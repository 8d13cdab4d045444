"""Write a tokenizer as Hugging Face's files, or as the ``tokenizer.*`` keys of a GGUF file.

Both are read back and compared with the original on the probe texts: what cannot be said exactly is
not written.
"""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, Unsupported, UsageError, VocabMismatch
from bitnet.base.outputs import OutputFile, OutputKind, json_in
from bitnet.tokenizer.comparison import as_sentencepiece, significant
from bitnet.tokenizer.from_gguf import spec_from_metadata
from bitnet.tokenizer.library import load_library, open_engine, tokenizer_json
from bitnet.tokenizer.probes import probe_texts
from bitnet.tokenizer.spec import BYTE_NAMES, TokenType
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from bitnet.tokenizer.spec import TokenizerSpec

_GGML = "tokenizer.ggml."
_ADDED_PROBED = 300
_JSON = OutputKind("a JSON file", lambda path: isinstance(json_in(path), dict))
_HINT = "convert with another --tokenizer, or without one: --no-tokenizer"


def export_tokenizer(
    spec: TokenizerSpec, folder: Path, *, force: bool = False, inputs: Iterable[Path] = ()
) -> list[Path]:
    """Write *spec* into *folder*, created if it is missing; *force* replaces files there.

    *inputs* are files that *spec* comes from, which are never replaced.
    """
    document = tokenizer_json(spec)
    library = load_library(spec.source, **document)
    engine, _ = open_engine(spec)
    for text in probe_texts():
        ids = library.encode(text, add_special_tokens=False).ids
        if ids != engine.encode(text):
            hint = "use the original file: it can be read as it is"
            raise _inexact(spec, f"as tokenizer.json: {text!r} would be {ids}", hint)
    roles = {"bos_token": spec.bos_id, "eos_token": spec.eos_id, "unk_token": spec.unknown_id}
    files = {
        "tokenizer.json": document,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_bos_token": spec.add_bos,
            "add_eos_token": spec.add_eos,
            **{name: None if id is None else spec.tokens[id] for name, id in roles.items()},
            "chat_template": spec.chat_template,
        },
        "generation_config.json": {
            "bos_token_id": spec.bos_id,
            "eos_token_id": sorted(spec.stop_ids),
        },
    }
    there = [folder / name for name in files if (folder / name).exists()]
    if there and not force:
        raise UsageError(f"{there[0]} exists already", hint="choose another folder, or add --force")
    inputs = tuple(inputs)
    outputs = [OutputFile(folder / name, _JSON, inputs=inputs, force=force) for name in files]
    for output in outputs:
        output.check()  # each before the first is written
    for output, content in zip(outputs, files.values(), strict=True):
        output.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    return [folder / name for name in files]


def _inexact(spec: TokenizerSpec, change: str, hint: str) -> Unsupported:
    return Unsupported(f"{spec.source} cannot be said exactly {change}", hint=hint)


def gguf_keys(
    spec: TokenizerSpec,
    *,
    rows: int,
    pre: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """*spec* as metadata; arrays are lists, ``bytes`` an array of uint8.

    Ids without a token, up to *rows* of the embedding, become unused ones. *pre* names the
    pre-tokenizer, if it does not follow from *spec*; *more* are other keys that affect the reading.
    """
    if spec.vocab_size > rows:
        raise VocabMismatch(
            f"Vocabulary size mismatch: {spec.source} has {spec.vocab_size:,} tokens, "
            f"the model has {rows:,}",
            hint="name the model's own tokenizer: --tokenizer PATH",
        )
    form = as_sentencepiece(spec) or spec
    ids = {"bos": form.bos_id, "eos": form.eos_id, "unknown": form.unknown_id}
    padding = range(form.vocab_size, rows)
    types = [*map(int, form.token_types or _types(form))][: form.vocab_size]
    keys: dict[str, Any] = {
        f"{_GGML}tokens": [*form.tokens, *(f"[PAD{id}]" for id in padding)],
        f"{_GGML}token_type": types + [int(TokenType.UNUSED)] * len(padding),
        **_kind(form, rows, pre),
    }
    keys |= {f"{_GGML}{role}_token_id": id for role, id in ids.items() if id is not None}
    keys[f"{_GGML}add_bos_token"] = form.add_bos and form.bos_id is not None
    keys[f"{_GGML}add_eos_token"] = form.add_eos and form.eos_id is not None
    if spec.chat_template is not None:
        keys["tokenizer.chat_template"] = spec.chat_template
    left = sorted(spec.stop_ids - _read_back(keys, more or {}, spec).stop_ids)
    for role, id in zip(("eot", "eom"), left, strict=False):
        keys[f"{_GGML}{role}_token_id"] = id
    _prove(_read_back(keys, more or {}, spec), spec)
    return keys


def pre_name(spec: TokenizerSpec) -> str:
    """GGUF's name of the pre-tokenizer of *spec*."""
    if spec.pre:  # named, or recognised by the vocabulary
        return spec.pre
    expected = (significant(spec.normalizer), significant(spec.pre_tokenizer))
    for name, kind in PRE_TOKENIZERS.items():
        steps = (significant(kind.normalizer), significant(kind.steps))
        if steps == expected and kind.ignore_merges == spec.ignore_merges and kind.byte_level:
            return name
    raise Unsupported(
        f"{spec.source} cuts text in a way GGUF has no name for", hint=f"--pre NAME, or {_HINT}"
    )


def _types(spec: TokenizerSpec) -> list[TokenType]:
    kinds = [TokenType.NORMAL] * spec.vocab_size
    for token in spec.added:
        kinds[token.id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    if spec.byte_fallback:
        for id, text in enumerate(spec.tokens):
            if text in BYTE_NAMES:
                kinds[id] = TokenType.BYTE
    if spec.unknown_id is not None and spec.model != "bpe":
        kinds[spec.unknown_id] = TokenType.UNKNOWN
    return kinds


def _kind(spec: TokenizerSpec, rows: int, pre: str | None) -> dict[str, Any]:
    """Keys particular to one kind of tokenizer."""
    if spec.model == "bpe" and spec.byte_level:
        tokens = spec.tokens
        return {
            f"{_GGML}model": "gpt2",
            f"{_GGML}pre": pre or pre_name(spec),
            f"{_GGML}merges": [f"{tokens[left]} {tokens[right]}" for left, right in spec.merges],
        }
    own = spec.model in ("spm", "unigram") and not (spec.normalizer or spec.pre_tokenizer)
    if not own or not len(spec.scores):
        raise Unsupported(
            f"{spec.source} ({spec.model}) cannot be said in GGUF: neither byte-level nor with the "
            "scores of SentencePiece",
            hint=f"put the model's tokenizer.model beside it; or {_HINT}",
        )
    keys: dict[str, Any] = {
        f"{_GGML}model": "llama" if spec.model == "spm" else "t5",
        f"{_GGML}scores": [float(score) for score in spec.scores]
        + [0.0] * (rows - len(spec.scores)),
        f"{_GGML}add_space_prefix": spec.add_space_prefix,
        f"{_GGML}remove_extra_whitespaces": spec.remove_extra_whitespaces,
    }
    if spec.model == "spm":
        keys[f"{_GGML}pre"] = "default"
    if spec.charsmap:
        keys[f"{_GGML}precompiled_charsmap"] = spec.charsmap
    return keys


def _read_back(
    keys: Mapping[str, Any], more: Mapping[str, Any], spec: TokenizerSpec
) -> TokenizerSpec:
    plain = {k: list(v) if isinstance(v, bytes) else v for k, v in {**keys, **more}.items()}
    try:
        return spec_from_metadata(plain, source="read back")
    except BitnetError as error:
        text = f"{spec.source} cannot be said in GGUF: {error.message}"
        raise Unsupported(text, hint=_HINT) from None


def _prove(copied: TokenizerSpec, spec: TokenizerSpec) -> None:
    """Compare *copied*, read back, with *spec*."""
    for what, expected, got in (
        ("what goes around a text", spec.affixes, copied.affixes),
        ("BOS", spec.bos_id, copied.bos_id),
        ("the ids that end a generation", sorted(spec.stop_ids), sorted(copied.stop_ids)),
        ("the chat template", spec.chat_template, copied.chat_template),
    ):
        if expected != got:
            raise _inexact(spec, f"in GGUF: {what} is {expected}, and would be {got}", _HINT)
    engine, copy = open_engine(spec)[0], open_engine(copied)[0]
    # Added tokens between letters and spaces, where their flags matter.
    forms = ("a{}b", "a  {}  b", " {0}{0}\n")
    texts = [form.format(token.text) for token in spec.added[:_ADDED_PROBED] for form in forms]
    for text, special in product([*probe_texts(), *texts], (True, False)):
        ids = copy.encode(text, parse_special=special)
        if ids != engine.encode(text, parse_special=special):
            raise _inexact(spec, f"in GGUF: {text!r} would be {ids}", _HINT)
