"""Write a tokenizer as Hugging Face's files, or as the ``tokenizer.*`` keys of a GGUF file.

Both are read back and compared with the original on the probe texts: a copy that would not be exact
is not written.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, Unsupported, UsageError, VocabMismatch
from bitnet.base.outputs import OutputFile, OutputKind, json_in
from bitnet.tokenizer.comparison import as_sentencepiece, significant
from bitnet.tokenizer.from_files import spec_from_folder
from bitnet.tokenizer.from_gguf import spec_from_metadata
from bitnet.tokenizer.library import tokenizer_json
from bitnet.tokenizer.probes import draw_texts, probe_texts
from bitnet.tokenizer.spec import BYTE_NAMES, SPACE_SYMBOL, TokenType
from bitnet.tokenizer.tokenizer import Tokenizer
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bitnet.tokenizer.spec import TokenizerSpec

_GGML = "tokenizer.ggml."
_ADDED_PROBED = 300  # added tokens, at most, in the texts with which a copy is compared
_DRAWN = 10_000  # drawn texts with which it is compared, besides the probes
_JSON = OutputKind("a JSON file", lambda path: isinstance(json_in(path), dict))


@dataclass(frozen=True)
class _Form:
    """A form in which a copy is written: its name in messages, and the hint if it is not exact."""

    name: str
    hint: str


_AS_FILES = _Form("as tokenizer.json", "use the original file: it can be read as it is")
_AS_GGUF = _Form("in GGUF", "convert with another --tokenizer, or without one: --no-tokenizer")


def export_tokenizer(
    spec: TokenizerSpec, folder: Path, *, force: bool = False, inputs: Iterable[Path] = ()
) -> list[Path]:
    """Write *spec* into *folder*, created if it is missing; *force* replaces files there.

    *inputs* are files that *spec* comes from, which are never replaced.
    """
    added = {spec.tokens[token.id] for token in spec.added}
    ids = {"bos_token": spec.bos_id, "eos_token": spec.eos_id, "unk_token": spec.unknown_id}
    roles = {role: "" if id is None else spec.tokens[id] for role, id in ids.items()}
    roles |= dict(spec.template_tokens)
    templates = [{"name": name, "template": text} for name, text in spec.named_templates]
    if templates and spec.chat_template is not None:
        templates.insert(0, {"name": "default", "template": spec.chat_template})
    files: dict[str, Any] = {
        "tokenizer.json": tokenizer_json(spec),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": any(step.type == "CleanUp" for step in spec.decoder),
            "add_bos_token": spec.add_bos,
            "add_eos_token": spec.add_eos,
            # Readers find the token of a role in texts, so only added tokens get one.
            **{role: text for role, text in roles.items() if text in added},
            "chat_template": templates or spec.chat_template,
        },
        "generation_config.json": {
            "bos_token_id": spec.bos_id,
            "eos_token_id": sorted(spec.stop_ids),
        },
    }
    try:
        _prove_files(files, spec)
    except Unsupported:
        # A token that is listed twice can have only one entry: try the other one of the two.
        if len({token.id for token in spec.added}) == len(spec.added):
            raise
        files["tokenizer.json"] = tokenizer_json(spec, finds_raw=True)
        _prove_files(files, spec)
    existing = [folder / name for name in files if (folder / name).exists()]
    if existing and not force:
        raise UsageError(
            f"{existing[0]} exists already", hint="choose another folder, or add --force"
        )
    inputs = tuple(inputs)
    outputs = [OutputFile(folder / name, _JSON, inputs=inputs, force=force) for name in files]
    for output in outputs:
        output.check()  # each before the first is written
    for output, content in zip(outputs, files.values(), strict=True):
        output.write_text(_to_json(content) + "\n")
    return [folder / name for name in files]


def _to_json(content: Any) -> str:
    """*content* as JSON that UTF-8 can encode: halves of surrogate pairs stay escaped."""
    text = json.dumps(content, ensure_ascii=False, indent=2)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


def _prove_files(files: Mapping[str, Any], spec: TokenizerSpec) -> None:
    """Refuse *files*, JSON values by name, from which a tokenizer other than *spec* is read."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_text(json.dumps(content), "utf-8")
        copied = spec_from_folder(folder)
        if spec.middle_ids is not None:
            _check_facts(_pair_facts(spec, copied), spec, _AS_FILES)
        _compare(spec, copied, _AS_FILES, extra_facts=("special_ids", "named_templates"))


def _pair_facts(
    spec: TokenizerSpec, copied: TokenizerSpec
) -> tuple[tuple[str, Any, Any], tuple[str, Any, Any]]:
    """Names and values, of *spec* and *copied*, of what a tokenizer does to two texts."""
    return (
        ("what goes between two texts", spec.middle_ids, copied.middle_ids),
        ("the type of a second text", spec.second_type, copied.second_type),
    )


def _check_facts(facts: Iterable[tuple[str, Any, Any]], spec: TokenizerSpec, form: _Form) -> None:
    """Refuse to write *spec* in a *form* if a fact, ``(name, value, copied value)``, differs."""
    for name, expected, got in facts:
        if expected != got:
            raise _inexact(spec, form, f"{name} is {expected}, and would be {got}")


def _compare(
    spec: TokenizerSpec, copied: TokenizerSpec, form: _Form, *, extra_facts: tuple[str, ...] = ()
) -> None:
    """Refuse to write *spec* in a *form* that reads back as *copied*, if these differ.

    It compares stop ids, the chat template and *extra_facts* (attributes of a tokenizer), then ids
    and decoded texts of the probes and of 10,000 drawn texts with added tokens in them.
    """
    # Without a fingerprint, the cache keeps neither of the two.
    original = Tokenizer.from_spec(replace(spec, fingerprint=""))
    try:
        copy = Tokenizer.from_spec(replace(copied, fingerprint=""))
    except BitnetError as error:
        raise _inexact(spec, form, f"read back, {error.message}") from None
    unknown = {spec.unknown_id}  # it has no text of its own
    for name in ("stop_ids", "chat_template", *extra_facts):
        expected = getattr(original, name)
        got = getattr(copy, name)
        if name == "special_ids":
            expected = expected - unknown
            got = got - unknown
        if expected != got:
            text = f"{name} is {expected!r:.80}, and would be {got!r:.80}"
            raise _inexact(spec, form, text)
    added = [token.text for token in spec.added[:_ADDED_PROBED]]
    # Added tokens between letters and spaces, where their flags matter.
    around = [shape.format(text) for text in added for shape in ("a{}b", "a  {}  b", " {0}{0}\n")]
    texts = [*probe_texts(), *around, *draw_texts(_DRAWN, added)]
    for special in (True, False):
        id_lists = original.encode_batch(texts, parse_special=special)
        copies = copy.encode_batch(texts, parse_special=special)
        for text, ids, copied_ids in zip(texts, id_lists, copies, strict=True):
            if ids != copied_ids:
                raise _inexact(spec, form, f"{text!r} would be {copied_ids}")
            if not special:  # decoded texts are compared in the other round
                continue
            comparable = [id for id in ids if id not in unknown]
            decoded = copy.decode(comparable)
            if original.decode(comparable) != decoded:
                raise _inexact(spec, form, f"{comparable} would be {decoded!r}")


def _inexact(spec: TokenizerSpec, form: _Form, change: str) -> Unsupported:
    return Unsupported(
        f"{spec.source} cannot be written exactly {form.name}: {change}", hint=form.hint
    )


def gguf_keys(
    spec: TokenizerSpec,
    *,
    rows: int,
    pre: str | None = None,
    further_keys: Mapping[str, Any] | None = None,
    ranks: bool = False,
    has_types: bool = False,
) -> dict[str, Any]:
    """*spec* as metadata; arrays are lists, ``bytes`` an array of uint8.

    Ids without a token, up to *rows* of the embedding, become unused ones. *pre* names the
    pre-tokenizer, if it does not follow from *spec*. *further_keys*, which the file has besides,
    may change how a reader understands these: the result is proved with them. *ranks* says that the
    model scores pairs of texts, *has_types* that it also gets the type of each text.
    """
    if spec.vocab_size > rows:
        raise VocabMismatch(
            f"Vocabulary size mismatch: {spec.source} has {spec.vocab_size:,} tokens, "
            f"the model has {rows:,}",
            hint="name the model's own tokenizer: --tokenizer PATH",
        )
    gguf_spec = as_sentencepiece(spec) or spec
    ids = {"bos": gguf_spec.bos_id, "eos": gguf_spec.eos_id, "unknown": gguf_spec.unknown_id}
    padding = range(gguf_spec.vocab_size, rows)
    types = [*map(int, gguf_spec.token_types or _types(gguf_spec))][: gguf_spec.vocab_size]
    tokens = (
        _phantom_spaces(gguf_spec, types) if gguf_spec.model == "wordpiece" else gguf_spec.tokens
    )
    keys: dict[str, Any] = {
        f"{_GGML}tokens": [*tokens, *(f"[PAD{id}]" for id in padding)],
        f"{_GGML}token_type": types + [int(TokenType.UNUSED)] * len(padding),
        **_kind(gguf_spec, rows, pre),
    }
    keys |= {f"{_GGML}{role}_token_id": id for role, id in ids.items() if id is not None}
    keys[f"{_GGML}add_bos_token"] = gguf_spec.add_bos and gguf_spec.bos_id is not None
    keys[f"{_GGML}add_eos_token"] = gguf_spec.add_eos and gguf_spec.eos_id is not None
    keys |= _between(gguf_spec)
    if spec.chat_template is not None:
        keys["tokenizer.chat_template"] = spec.chat_template
    # Stop ids that a reader does not know by their texts are named. With more than two of them, the
    # proof fails.
    missing_stops = sorted(spec.stop_ids - _read_back(keys, further_keys or {}, spec).stop_ids)
    for role, id in zip(("eot", "eom"), missing_stops, strict=False):
        keys[f"{_GGML}{role}_token_id"] = id
    copied = _read_back(keys, further_keys or {}, spec)
    _prove(copied, spec, ranks=ranks, has_types=has_types)
    return keys


def _between(spec: TokenizerSpec) -> dict[str, Any]:
    """Keys of the separator that follows EOS between two texts; none without one."""
    middle = spec.middle_ids or ()
    if not spec.add_eos or len(middle) != 2 or middle[0] != spec.eos_id:
        return {}
    return {f"{_GGML}seperator_token_id": middle[1], f"{_GGML}add_sep_token": True}


def pre_name(spec: TokenizerSpec) -> str:
    """GGUF's name of the pre-tokenizer of *spec*; one without a name is refused."""
    if spec.pre:  # named, or recognised by the vocabulary
        return spec.pre
    expected = (significant(spec.normalizer), significant(spec.pre_tokenizer))
    for name, kind in PRE_TOKENIZERS.items():
        steps = (significant(kind.normalizer), significant(kind.steps))
        if steps == expected and kind.ignore_merges == spec.ignore_merges and kind.byte_level:
            return name
    raise Unsupported(
        f"{spec.source} cuts text in a way GGUF has no name for",
        hint=f"--pre NAME, or {_AS_GGUF.hint}",
    )


def _types(spec: TokenizerSpec) -> list[TokenType]:
    """Types of all ids of a specification whose source has none."""
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
    """Keys that depend on the kind of tokenizer: its model with merges, scores or steps."""
    if spec.model == "bpe" and spec.byte_level:
        tokens = spec.tokens
        return {
            f"{_GGML}model": "gpt2",
            f"{_GGML}pre": pre or pre_name(spec),
            f"{_GGML}merges": [f"{tokens[left]} {tokens[right]}" for left, right in spec.merges],
        }
    if spec.model == "wordpiece":
        return _wordpiece(spec)
    # True if the model implies all steps, as SentencePiece's models do.
    is_implied = spec.model in ("spm", "unigram") and not (spec.normalizer or spec.pre_tokenizer)
    if not is_implied or not len(spec.scores):
        raise Unsupported(
            f"{spec.source} ({spec.model}) cannot be written in GGUF: neither byte-level nor with "
            "the scores of SentencePiece",
            hint=f"put the model's tokenizer.model beside it; or {_AS_GGUF.hint}",
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


def _wordpiece(spec: TokenizerSpec) -> dict[str, Any]:
    """Keys of BERT's tokenizer; :func:`_prove` refuses one whose steps they cannot express."""
    options: dict[str, Any] = {}
    for step in spec.normalizer:
        if step.type == "BertNormalizer":
            options = step.options
    lowercase = bool(options.get("lowercase", True))
    strips = options.get("strip_accents")
    keys: dict[str, Any] = {
        f"{_GGML}model": "bert",
        f"{_GGML}pre": "default",
        f"{_GGML}normalizer.lowercase": lowercase,
        f"{_GGML}normalizer.strip_accents": lowercase if strips is None else bool(strips),
    }
    ids_by_text = {token.text: token.id for token in spec.added}
    template_tokens = dict(spec.template_tokens)
    # GGUF spells the key of the separator this way.
    for role, name in (("padding", "pad"), ("mask", "mask"), ("seperator", "sep")):
        id = ids_by_text.get(template_tokens.get(f"{name}_token", ""))
        if id is not None:
            keys[f"{_GGML}{role}_token_id"] = id
    if spec.eos_id is not None:  # llama.cpp ends a text with the separator
        keys[f"{_GGML}seperator_token_id"] = spec.eos_id
    return keys


def _phantom_spaces(spec: TokenizerSpec, types: Sequence[int]) -> list[str]:
    """Tokens of BERT's tokenizer as GGUF spells them: U+2581 begins a word, without ``##`` inside.

    Special tokens keep their spelling.
    """
    verbatim = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)
    prefix = spec.continuing_prefix
    spellings = []
    for text, kind in zip(spec.tokens, types, strict=True):
        if kind in verbatim:
            spellings.append(text)
        elif prefix and text.startswith(prefix):
            spellings.append(text.removeprefix(prefix))
        else:
            spellings.append(f"{SPACE_SYMBOL}{text}")
    return spellings


def _read_back(
    keys: Mapping[str, Any], further_keys: Mapping[str, Any], spec: TokenizerSpec
) -> TokenizerSpec:
    """The specification that is read from *keys* and *further_keys*, which express *spec*."""
    plain = {k: list(v) if isinstance(v, bytes) else v for k, v in {**keys, **further_keys}.items()}
    try:
        return spec_from_metadata(plain, source="read back")
    except BitnetError as error:
        text = f"{spec.source} cannot be written in GGUF: {error.message}"
        raise Unsupported(text, hint=_AS_GGUF.hint) from None


def _prove(copied: TokenizerSpec, spec: TokenizerSpec, *, ranks: bool, has_types: bool) -> None:
    """Refuse *copied*, read back, if it differs from *spec*; it may have more ids, unused ones.

    GGUF has no key for some ways to join two texts: *copied* may define none, and then joins none.
    *ranks* and *has_types* are as for :func:`gguf_keys`.
    """
    facts = [
        ("what goes around a text", spec.affixes, copied.affixes),
        ("BOS", spec.bos_id, copied.bos_id),
    ]
    if copied.middle_ids is not None:
        middle, second_type = _pair_facts(spec, copied)
        if ranks or spec.middle_ids is not None:
            facts.append(middle)
        if ranks and has_types:
            facts.append(second_type)
    _check_facts(facts, spec, _AS_GGUF)
    _compare(spec, copied, _AS_GGUF)
