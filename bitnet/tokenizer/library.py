"""Engines: the compiled one, and without it the libraries ``tokenizers`` and ``sentencepiece``.

``tokenizers`` runs every ``tokenizer.json``, and specifications from most other files, which this
module writes as a ``tokenizer.json``; ``sentencepiece`` runs SentencePiece's models between the
tokens that are found in raw text. The time that regular expressions take in ``tokenizers`` has no
bound, so only those of published tokenizers, and the simplest, are run.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from bitnet.base.errors import BitnetError, Unsupported, is_panic
from bitnet.base.invocation import extra_command
from bitnet.tokenizer.compiled import NativeEngine, NotNative, is_verbatim, meta_of, open_compiled
from bitnet.tokenizer.limits import SPACES, check_spec, damage_error, over_budget
from bitnet.tokenizer.post_processor import write_post_processor
from bitnet.tokenizer.sentencepiece_model import charsmaps_of, check_charsmap, write_model
from bitnet.tokenizer.spec import (
    BYTE_NAMES,
    PLAIN_DECODING,
    SPACE_SYMBOL,
    Step,
    TokenType,
    bytes_of_spelling,
)
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS, merges_by_score

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from bitnet.tokenizer.spec import AddedToken, TokenizerSpec


_HINT = (
    "install the compiled module of this program (a wheel, or a C++ compiler), or name another"
    " tokenizer with --tokenizer FILE"
)
# Matches expressions that never backtrack: only the last part of an alternative is repeated.
_PART = r"(?:[^\\\[\](){}|*+?^$.]|\\[a-zA-Z](?:\{\w+\})?|\[[^\[\]\\]*\])"
_FORWARD = re.compile(rf"{_PART}+[+*]?(?:\|{_PART}+[+*]?)*")
# Pre-tokenizers of ``PRE_TOKENIZERS`` whose expressions take the library quadratic time.
_SLOW = ("afmoe", "tiny_aya", "cohere2moe", "deepseek-llm", "superbpe")

logger = logging.getLogger(__name__)


def tokenizer_json(spec: TokenizerSpec, *, finds_raw: bool = False) -> dict[str, Any]:
    """*spec* as a ``tokenizer.json``.

    A token that *spec* finds in raw and in normalized text can have only one entry there: the one
    for normalized text; or with *finds_raw* the one for raw text, which is enough if merges make
    the token of normalized text.
    """
    # True if the model implies all steps, as SentencePiece's models do.
    is_implied = spec.model in ("spm", "unigram") and not (spec.normalizer or spec.pre_tokenizer)
    normalizer = _sentencepiece_normalizer(spec) if is_implied else _steps(spec.normalizer)
    if is_implied and spec.model == "unigram":
        scheme = "always" if spec.add_space_prefix else "never"
        metaspace = {"type": "Metaspace", "replacement": SPACE_SYMBOL, "prepend_scheme": scheme}
        pre_tokenizer = [metaspace | {"split": True}]
    else:
        pre_tokenizer = _steps(spec.pre_tokenizer)
    # Of several entries with one id, the last one is written. That for normalized text also finds
    # the token, which is spelled with U+2581, in raw text, but perhaps not at the same place if a
    # space, which becomes U+2581, is beside it: in " \u2581\u2581x" one character earlier.
    added = sorted(spec.added, key=lambda token: (token.id, token.normalized != finds_raw))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            *{
                token.id: _entry(token, token.text if is_implied else _content(spec, token))
                for token in added
            }.values()
        ],
        "normalizer": _sequence(normalizer, "normalizers"),
        "pre_tokenizer": _sequence(pre_tokenizer, "pretokenizers"),
        "post_processor": write_post_processor(spec),
        "decoder": _decoder(spec),
        "model": _model(spec),
    }


def _entry(token: AddedToken, content: str) -> dict[str, Any]:
    """*token* as an entry of ``added_tokens`` whose text is *content*."""
    entry = asdict(token) | {"content": content}
    del entry["text"]
    return entry


def _content(spec: TokenizerSpec, token: AddedToken) -> str:
    """Text of *token* before normalization, which the library does itself."""
    spelling = spec.tokens[token.id]
    # A difference in spaces alone comes from converters to GGUF, which write U+2581 as spaces.
    is_unchanged = not token.normalized or token.text == spelling.replace(" ", SPACE_SYMBOL)
    return token.text if is_unchanged else spelling


def _steps(steps: Iterable[Step]) -> list[dict[str, Any]]:
    return [{"type": step.type, **step.options} for step in steps]


def _sequence(steps: list[dict[str, Any]], key: str) -> dict[str, Any] | None:
    """*steps* as one section, a ``Sequence`` with the field *key* if there are several."""
    if len(steps) < 2:
        return steps[0] if steps else None
    return {"type": "Sequence", key: steps}


def _sentencepiece_normalizer(spec: TokenizerSpec) -> list[dict[str, Any]]:
    """Steps for what a SentencePiece model implies; of ``unigram``, Metaspace does the rest."""
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


def _decoder(spec: TokenizerSpec) -> dict[str, Any] | None:
    """The ``decoder`` of *spec*, None for tokens joined by spaces."""
    # Not ``CleanUp``, which is a flag of tokenizer_config.json, nor ``Bytes``, which is ByteLevel.
    listed = [step for step in spec.decoder if step.type not in ("Bytes", "CleanUp")]
    if [step.type for step in listed] == ["Join"]:
        return None
    if listed:
        return _sequence(_steps(listed), "decoders")
    if spec.byte_level:
        flags = ("add_prefix_space", "trim_offsets", "use_regex")
        return {"type": "ByteLevel", **dict.fromkeys(flags, True)}
    if spec.model == "wordpiece":
        return {"type": "WordPiece", "prefix": spec.continuing_prefix, "cleanup": True}
    strip = Step("Strip", {"content": " ", "start": 1, "stop": 0})
    return _sequence(_steps([*PLAIN_DECODING, *[strip] * spec.add_space_prefix]), "decoders")


def _model(spec: TokenizerSpec) -> dict[str, Any]:
    """The ``model`` section of *spec*."""
    tokens = list(spec.tokens)
    for token in spec.added:  # converters to GGUF write U+2581 as spaces
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
        scored = [[text, float(score)] for text, score in zip(tokens, spec.scores, strict=True)]
        flags = {"unk_id": spec.unknown_id, "byte_fallback": spec.byte_fallback}
        return {"type": "Unigram", "vocab": scored, **flags}
    if spec.model == "spm":
        merges = merges_by_score(tokens, spec.scores, spec.source)
    else:
        merges = [[tokens[left], tokens[right]] for left, right in spec.merges]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if spec.byte_level else unknown,
        "continuing_subword_prefix": spec.continuing_prefix or None,
        "end_of_word_suffix": spec.word_suffix or None,
        "fuse_unk": spec.fuse_unknown or spec.model == "spm",
        "byte_fallback": spec.byte_fallback,
        "ignore_merges": spec.ignore_merges,
        "vocab": vocabulary,
        "merges": merges,
    }


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Translate exceptions of a library, Rust panics included, into :class:`InvalidFormat`."""
    try:
        yield
    except (BitnetError, MemoryError, UnicodeEncodeError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise damage_error(f"{what} cannot be run: {error}") from None


def load_library(source: str, /, **sections: Any) -> Tokenizer:
    """The ``tokenizers.Tokenizer`` of these *sections* of a ``tokenizer.json``."""
    from tokenizers import Tokenizer

    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    outline = {"version": "1.0", "added_tokens": []} | dict.fromkeys(names)
    outline["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    with translate_errors(f"the tokenizer {source}"):
        return Tokenizer.from_str(json.dumps(outline | sections))


def library_engine(spec: TokenizerSpec) -> LibraryEngine:
    """The engine of a library that runs *spec* exactly."""
    check_spec(spec)
    for charsmap in charsmaps_of(spec):
        check_charsmap(charsmap)
    return _SentencePiece(spec) if spec.is_sentencepiece else _Tokenizers(spec)


class LibraryEngine:
    """Base of engines that encode with a library; spellings come from the specification alone."""

    name: str = "portable"

    def __init__(self, spec: TokenizerSpec) -> None:
        self._spec = spec
        self._added = {token.id for token in spec.added}
        self._lock = threading.Lock()
        # Tokens of spaces with lstrip or rstrip: for each one in a run of spaces, the library walks
        # along the run again.
        widens = (token.lstrip or token.rstrip for token in spec.added if token.text.isspace())
        self._walks = any(widens)

    def _check_spaces(self, text: str) -> None:
        """Refuse a run of spaces on which the library would spend quadratic time."""
        if self._walks and max(map(len, re.findall(r"\s+", text)), default=0) > SPACES:
            run = f"more than {SPACES:,} spaces in a row"
            raise over_budget(self._spec.source, f"{run}, among which added tokens are looked for")

    def __len__(self) -> int:
        return len(self._spec.tokens)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Ids of *text* without BOS or EOS."""
        return [id for id, *_ in self.spans(text, parse_special=parse_special)]

    def encode_array(self, text: str, *, parse_special: bool) -> NDArray[np.int32]:
        """Ids of *text* without BOS or EOS, as an array."""
        import numpy as np

        return np.array(self.encode(text, parse_special=parse_special), dtype=np.int32)

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        """Ids of each of *texts*."""
        return [self.encode(text, parse_special=parse_special) for text in texts]

    def spans(self, text: str, *, parse_special: bool = True) -> list[tuple[int, int, int]]:
        """Ids of *text*, each with the start and end of its characters."""
        raise NotImplementedError

    def _type(self, id: int) -> int:
        return self._spec.token_types[id] if self._spec.token_types else TokenType.NORMAL

    def is_verbatim(self, id: int) -> bool:
        """True if the token is an added or control token."""
        return is_verbatim(self._type(id), added=id in self._added)

    def is_byte(self, id: int) -> bool:
        """True if the token spells one byte, as ``<0x0A>`` does."""
        spec = self._spec
        is_sentencepiece = spec.model in ("spm", "unigram")
        may_be_byte = not is_sentencepiece or self._type(id) in (TokenType.NORMAL, TokenType.BYTE)
        return spec.byte_fallback and may_be_byte and spec.tokens[id] in BYTE_NAMES

    def text(self, id: int) -> str:
        """The token as in the vocabulary."""
        return self._spec.tokens[id]

    def spelling(self, id: int) -> bytes:
        """Bytes of a byte-level token; text of others, and of added tokens."""
        text = self._spec.tokens[id]
        spelled = (
            bytes_of_spelling(text) if self._spec.byte_level and id not in self._added else None
        )
        return text.encode() if spelled is None else spelled


class _Tokenizers(LibraryEngine):
    """Runs a ``tokenizer.json``: that of the specification, or one written from it."""

    def __init__(self, spec: TokenizerSpec) -> None:
        super().__init__(spec)
        self._what = f"the tokenizer {spec.source}"
        document = json.loads(spec.document) if spec.document else _document(spec)
        _check_patterns(document, spec.source)
        absent = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
        self._library = load_library(spec.source, **document | absent)
        self._differing_ids = {} if spec.document else _differing_ids(self._library, spec)

    def spans(self, text: str, *, parse_special: bool = True) -> list[tuple[int, int, int]]:
        text.encode()  # raises UnicodeEncodeError for half of a surrogate pair
        self._check_spaces(text)
        with translate_errors(self._what), self._lock:
            if self._walks and self._library.normalizer is not None:
                self._check_spaces(self._library.normalizer.normalize_str(text))
            self._library.encode_special_tokens = not parse_special
            encoding = self._library.encode(text, add_special_tokens=False)
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [(self._differing_ids.get(id, id), start, stop) for id, (start, stop) in pairs]


def _differing_ids(library: Tokenizer, spec: TokenizerSpec) -> dict[int, int]:
    """Ids in *spec* by ids in *library*, for added tokens that the two number differently."""
    ids = {}
    normalizer = library.normalizer
    for token in spec.added:
        text = _content(spec, token)
        normalized = (
            normalizer.normalize_str(text) if normalizer and token.normalized else token.text
        )
        if normalized != token.text:
            raise Unsupported(
                f"{spec.source} has the added token {token.text!r:.60}, which the normalizer"
                f" changes: the tokenizers library looks for {normalized!r:.60}",
                hint=_HINT,
            )
        ids[library.token_to_id(text)] = token.id
    return {id: own for id, own in ids.items() if id is not None and id != own}


def _document(spec: TokenizerSpec) -> dict[str, Any]:
    """*spec* as a ``tokenizer.json`` in which ordinary text never becomes one of ``spec.outside``.

    The model then spells these tokens, and those without text, as a noncharacter and their id.
    """
    document = tokenizer_json(spec)
    vocabulary = document["model"]["vocab"]
    for token in spec.added:
        if vocabulary.get(token.text, token.id) != token.id:
            raise Unsupported(
                f"{spec.source} has {token.text!r:.60} as an added and as an ordinary token, which"
                " the tokenizers library does not tell apart",
                hint=_HINT,
            )
    document["model"]["vocab"] = {
        text if text and id not in spec.outside else f"\U0010ffff{id}": id
        for text, id in vocabulary.items()
    }
    return document


@cache
def _list_published_patterns() -> frozenset[str]:
    """Expressions of published tokenizers, without those that take the library quadratic time."""
    published = (pre for name, pre in PRE_TOKENIZERS.items() if name not in _SLOW)
    steps = (step.options for pre in published for step in (*pre.normalizer, *pre.steps))
    return frozenset(_regexes([*steps]))


def _regexes(value: object) -> Iterator[str]:
    """The expressions in a part of a ``tokenizer.json``."""
    if isinstance(value, dict):
        if isinstance(value.get("Regex"), str):
            yield value["Regex"]
        value = [*value.values()]
    if isinstance(value, list):
        for part in value:
            yield from _regexes(part)


def _check_patterns(document: dict[str, Any], source: str) -> None:
    """Refuse expressions that may take quadratic time: all but published and the simplest ones."""
    for regex in _regexes([document.get("normalizer"), document.get("pre_tokenizer")]):
        if regex not in _list_published_patterns() and not _FORWARD.fullmatch(regex):
            raise Unsupported(
                f"{source} has the expression {regex!r:.80}, which takes time without a bound"
                " outside of the compiled module",
                hint=_HINT,
            )


def _sentencepiece_processor() -> Any:
    """The class of the package sentencepiece that runs a model, or ``None`` without one to use.

    Releases before 0.2.3 give no offsets. Older releases of the package gguf install one of them.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        return None
    if not hasattr(SentencePieceProcessor, "EncodeAsOffsetMapping"):
        return None
    return SentencePieceProcessor


class _SentencePiece(LibraryEngine):
    """Runs a SentencePiece model on the text between the tokens that are found in raw text."""

    def __init__(self, spec: TokenizerSpec) -> None:
        super().__init__(spec)
        processor = _sentencepiece_processor()
        if processor is None:
            raise Unsupported(
                f"{spec.source} is a SentencePiece model: running it takes the compiled module or"
                " the package sentencepiece, version 0.2.3 or newer",
                hint=extra_command("sentencepiece"),
            )
        self._what = f"the tokenizer {spec.source}"
        self._model = processor()
        with translate_errors(self._what):
            self._model.LoadFromSerializedProto(write_model(spec))
        raw = [token for token in spec.added if not token.normalized and token.text]
        self._raw = _splitter(raw, spec.source)
        # Where special tokens are not looked for, others are found inside of their texts.
        self._ordinary = _splitter([token for token in raw if not token.special], spec.source)

    def spans(self, text: str, *, parse_special: bool = True) -> list[tuple[int, int, int]]:
        text.encode()
        self._check_spaces(text)
        spans = []
        library, ids = self._raw if parse_special else self._ordinary
        with translate_errors(self._what):
            encoding = library.encode(text, add_special_tokens=False)
            for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
                if id in ids:
                    spans.append((ids[id], start, stop))
                    continue
                encoded = self._model.encode(text[start:stop], out_type="offset_mapping")
                pieces = zip(encoded["ids"], encoded["offsets"], strict=True)
                spans += self._widen([(id, start + a, start + b) for id, (a, b) in pieces])
        return spans

    def _widen(self, spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """*spans*, changed in place so that each byte token of a character has the whole character.

        The library gives the whole character to its last byte, and empty spans to the others.
        """
        continues = False  # whether the byte before belongs to the same character
        end = 0
        for index in range(len(spans) - 1, -1, -1):
            id, start, stop = spans[index]
            if not self.is_byte(id):
                continues = False
                continue
            end = end if continues else stop
            continues = 0x80 <= int(self._spec.tokens[id][3:5], 16) < 0xC0
            spans[index] = (id, start, end)
        return spans


def _splitter(tokens: Sequence[AddedToken], source: str) -> tuple[Tokenizer, dict[int, int]]:
    """A library tokenizer that finds only *tokens*, and our id of each by the id that it gives.

    All other text has its id 0.
    """
    entries = [_entry(token, token.text) | {"id": id} for id, token in enumerate(tokens, 1)]
    longest = max((len(token.text) for token in tokens), default=0)
    absent_text = "\U0010ffff" * (longest + 1)  # longer than any token
    model = {"type": "WordLevel", "vocab": {absent_text: 0}, "unk_token": absent_text}
    library = load_library(source, model=model, added_tokens=entries)
    our_ids = {}
    for token in tokens:
        id = library.token_to_id(token.text)
        assert id, "the library gives each text of an added token an id of its own"
        our_ids[id] = token.id
    return library, our_ids


Engine: TypeAlias = NativeEngine | LibraryEngine  # both give the same ids


def open_engine(spec: TokenizerSpec) -> tuple[Engine, dict[str, Any]]:
    """The engine of *spec*, compiled tables if they are exact, else a library; and its facts."""
    try:
        engine, meta = open_compiled(spec)
    except NotNative as reason:
        logger.debug("%s runs in a library: %s", spec.source, reason)
        return library_engine(spec), meta_of(spec)
    return NativeEngine(engine, meta), meta
