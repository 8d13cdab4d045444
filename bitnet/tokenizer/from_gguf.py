"""Build a specification from the ``tokenizer.ggml.*`` keys of a GGUF file.

Defaults for absent keys are llama.cpp's (``llama_vocab::impl::load`` in ``src/llama-vocab.cpp``).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from bitnet.base.errors import InvalidFormat, TokenizerNotFound
from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.limits import damage_error, reading, refusal
from bitnet.tokenizer.spec import (
    BYTE_NAMES,
    SPACE_SYMBOL,
    AddedToken,
    Step,
    TokenizerSpec,
    TokenType,
    stop_ids,
)
from bitnet.tokenizer.vocabularies import (
    PRE_TOKENIZERS,
    LazySequence,
    bpe_spec,
    pair_merges,
    pre_tokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bitnet.formats.gguf import GGUF

logger = logging.getLogger(__name__)

T = TypeVar("T")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = map(int, TokenType)
_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template."
# Pre-tokenizers of encoders that put two separators between two texts.
_WITH_SEPARATOR = ("jina-v1-en", "jina-v2-code", "roberta-bpe")
# Special tokens of Phi-3 that do not include the white space after them; all others do.
_PHI3_PLAIN = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def spec_from_gguf(gguf: GGUF, *, pre: str | None = None) -> TokenizerSpec:
    """The tokenizer embedded in *gguf*, with views into the open file; *pre* overrides its own."""
    return spec_from_metadata(gguf.metadata, pre=pre, source=f"embedded in {gguf.path.name}")


def spec_from_metadata(
    metadata: Mapping[str, Any], *, pre: str | None = None, source: str = "embedded"
) -> TokenizerSpec:
    """As :func:`spec_from_gguf`, from the metadata alone.

    If its arrays are lists and not views into a file, the specification has no fingerprint, so the
    cache does not keep its compiled form.
    """
    with reading(f"the tokenizer {source}", "tokenizer"):
        return _read_metadata(metadata, pre, source)


def _read_metadata(metadata: Mapping[str, Any], pre: str | None, source: str) -> TokenizerSpec:
    fields = _Fields(metadata, source)
    model = fields.text("model")
    if model in ("", "none", "no_vocab"):
        named = repr(model) if model else "absent"
        raise TokenizerNotFound(
            f"no tokenizer is {source}: tokenizer.ggml.model is {named}",
            hint="name one with --tokenizer FILE, or put its tokenizer.json beside the model",
        )
    build = _BUILDERS.get(model)
    if build is None:
        supported = ", ".join(sorted(_BUILDERS))
        text = f"tokenizer.ggml.model {model!r}, {source}, is not supported"
        raise refusal(f"{text}. Supported: {supported}")
    template = fields.get("tokenizer.chat_template", str, "a string")
    spec = replace(
        _finish(fields, build(fields, pre)),
        chat_template=template,
        named_templates=_read_templates(fields, metadata),
        template_tokens=_template_tokens(fields),
        source=source,
    )
    if not hasattr(metadata[f"{_PREFIX}tokens"], "raw"):
        return spec
    arrays = ("merges", "scores", "token_type", "precompiled_charsmap")
    content = (fields.digest("tokens").encode(), *(fields.raw(name) for name in arrays))
    return replace(spec, fingerprint=vocabularies.spec_key(spec, *content))


def _read_templates(fields: _Fields, metadata: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Name and text of each further template: the keys ``tokenizer.chat_template.NAME``."""
    keys = sorted(key for key in metadata if key.startswith(_TEMPLATE))
    texts = ((key, fields.get(key, str, "a string")) for key in keys)
    return tuple((key.removeprefix(_TEMPLATE), text) for key, text in texts if text)


def _template_tokens(fields: _Fields) -> tuple[tuple[str, str], ...]:
    """Names in templates and texts of the padding and unknown tokens, if the file has them."""
    roles = {"pad_token": "padding", "unk_token": "unknown"}
    ids = {role: fields.token_id(name, None) for role, name in roles.items()}
    return tuple((role, fields.token_text(id)) for role, id in ids.items() if id is not None)


def _bpe(fields: _Fields, pre: str | None) -> TokenizerSpec:
    """``gpt2``: merges, mostly byte-level; ``gemma4``: over SentencePiece-like text."""
    is_gpt2 = fields.text("model") == "gpt2"
    name = _pre_name(fields, pre) if is_gpt2 else pre or "gemma4"
    kind = pre_tokenizer(name)
    fallback = 11 if is_gpt2 else None  # llama.cpp's default id of BOS and of EOS
    bos = fields.special_id("bos", fallback if kind.has_bos else None)
    eos = fields.special_id("eos", fallback)
    separator = fields.token_id("seperator", None)
    # Files of encoders name the token at the end of a text a separator.
    add_sep = fields.flag("add_sep_token", name in _WITH_SEPARATOR)
    add_eos = fields.flag("add_eos_token", False)
    if add_sep and separator is not None and not add_eos:
        eos = separator
        add_eos = True
    lowercase = name == "whitespace" and fields.flag("normalizer.lowercase", False)
    return bpe_spec(
        name,
        tokens=fields.tokens,
        merges=_merges(fields, fields.tokens),
        normalizer=(Step("Lowercase"),) if lowercase else kind.normalizer,
        byte_fallback=not kind.byte_level,
        unknown_id=fields.token_id("unknown", None),
        bos_id=bos,
        eos_id=eos,
        add_bos=fields.flag("add_bos_token", kind.add_bos),
        add_eos=add_eos,
    )


def _merges(fields: _Fields, tokens: Sequence[str]) -> LazySequence[tuple[int, int]]:
    """Ids of the halves of each merge, looked up when they are needed."""
    if not fields.has("merges"):
        raise TokenizerNotFound(
            f"tokenizer.ggml.merges is missing, {fields.source}: a BPE cannot be rebuilt without",
            hint="name the model's own tokenizer.json with --tokenizer FILE",
        )
    count = fields.length("merges")
    return LazySequence(count, lambda: pair_merges(fields.strings("merges"), tokens))


def _pre_name(fields: _Fields, explicit: str | None) -> str:
    """The pre-tokenizer: requested, recognised by the vocabulary, or named by the file."""
    if explicit:
        return explicit
    named = fields.text("pre")
    is_named = named not in ("", "default")
    n_merges = fields.length("merges") if fields.has("merges") else 0
    exact = vocabularies.identify(fields.digest("tokens"), n_merges)
    vocabulary = exact or vocabularies.identify_merges(n_merges, lambda: fields.digest("merges"))
    if vocabulary is not None and vocabularies.another_pre(vocabulary, named):
        # If only the merges are known, a name in the file counts.
        if exact is None and is_named and named in PRE_TOKENIZERS:
            text = "tokenizer.ggml.pre is %r, the merges are those of %s: --pre %s tries its own"
            logger.warning(text, named, vocabulary.name, vocabulary.pre)
            return named
        text = "tokenizer.ggml.pre is %r, the vocabulary is that of %s: using %r"
        level = logging.WARNING if is_named else logging.INFO
        logger.log(level, text, named, vocabulary.name, vocabulary.pre)
        return vocabulary.pre
    if not is_named:
        raise TokenizerNotFound(
            f"tokenizer.ggml.pre is {repr(named) if named else 'absent'}, {fields.source},"
            f" and the vocabulary of {fields.length('tokens'):,} tokens and {n_merges:,} merges is"
            " not a known one: how text is cut into words cannot be told from the file",
            hint="say which with --pre NAME (the model's family, such as llama-bpe or qwen2),"
            " or name the model's own tokenizer.json with --tokenizer FILE",
        )
    return named


def _sentencepiece(fields: _Fields, pre: str | None) -> TokenizerSpec:  # noqa: ARG001
    """``llama``: SentencePiece BPE with scores, also Gemma, Phi-3, Mistral; ``t5``: Unigram."""
    is_bpe = fields.text("model") == "llama"
    unknown, bos, eos = (0, 1, 2) if is_bpe else (2, None, 1)
    return TokenizerSpec(
        model="spm" if is_bpe else "unigram",
        tokens=fields.tokens,
        scores=fields.scores,
        byte_fallback=fields.has_bytes(),
        charsmap=fields.raw("precompiled_charsmap"),
        add_space_prefix=fields.flag("add_space_prefix", is_bpe),
        remove_extra_whitespaces=fields.flag("remove_extra_whitespaces", False),
        unknown_id=fields.token_id("unknown", unknown),
        bos_id=fields.token_id("bos", bos),
        eos_id=fields.token_id("eos", eos),
        add_bos=fields.flag("add_bos_token", is_bpe),
        add_eos=fields.flag("add_eos_token", not is_bpe),
    )


def _wordpiece(fields: _Fields, pre: str | None) -> TokenizerSpec:  # noqa: ARG001
    """``bert``: the file marks the beginnings of words (U+2581), BERT their continuations (##)."""
    # A vocabulary that can spell capital letters is cased.
    words = (token for token in fields.tokens if token[:1] + token[-1:] != "[]")
    is_cased = any("A" <= char <= "Z" for word in words for char in word)
    lowercase = fields.flag("normalizer.lowercase", not is_cased)
    options: dict[str, object] = {"clean_text": True, "handle_chinese_chars": True}
    options["strip_accents"] = fields.flag("normalizer.strip_accents", lowercase)
    return TokenizerSpec(
        model="wordpiece",
        tokens=LazySequence(
            fields.length("tokens"), lambda: _bert_spelling(fields.tokens, fields.token_types)
        ),
        normalizer=(Step("BertNormalizer", options | {"lowercase": lowercase}),),
        pre_tokenizer=(Step("BertPreTokenizer"),),
        unknown_id=fields.token_id("unknown", 100),
        continuing_prefix="##",
        bos_id=fields.token_id("cls", fields.token_id("bos", 101)),
        eos_id=fields.token_id("seperator", 102),
        add_bos=True,
        add_eos=True,
        second_type=1,
    )


def _bert_spelling(tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    """*tokens* as BERT spells them; special ones, known by *types*, are spelled alike in both."""
    if not any(token.startswith(SPACE_SYMBOL) for token in tokens):
        return list(tokens)  # already in BERT's own spelling
    if types:
        are_kept = [kind in (CONTROL, UNKNOWN, UNUSED) for kind in types[: len(tokens)]]
    else:
        are_kept = [text.startswith("[") and text.endswith("]") for text in tokens]
    spellings = []
    for text, is_kept in zip(tokens, are_kept, strict=True):
        if text.startswith(SPACE_SYMBOL):
            spellings.append(text[1:])
        else:
            spellings.append(text if is_kept else f"##{text}")
    return spellings


def _finish(fields: _Fields, spec: TokenizerSpec) -> TokenizerSpec:
    """Add the parts common to all kinds: added tokens and stop ids."""
    added: list[AddedToken] = []
    for id, kind in fields.special_types.items():
        text = fields.token_text(id)
        if kind not in (CONTROL, USER_DEFINED, UNKNOWN) or not text or text == f"[PAD{id}]":
            continue  # converters fill ids without a token with [PAD9]
        added += _entries(fields, spec, AddedToken(id, text, special=kind != USER_DEFINED))

    # A special token that the file names by id is added even if its type is the normal one.
    marked = {token.id for token in added}
    types = fields.token_types
    ends = [fields.token_id(name, None) for name in ("eot", "eom")]
    named = {spec.bos_id, spec.eos_id, spec.unknown_id, *ends}
    named |= {fields.token_id(name, None) for name in ("padding", "mask")}
    for id in sorted(id for id in named if id is not None and id not in marked):
        text = fields.token_text(id)
        if (not types or types[id] == NORMAL) and text[:1] + text[-1:] in ("<>", "[]"):
            added += _entries(fields, spec, AddedToken(id, text))

    # A file that asks for BOS or EOS around texts has to name the token.
    for name, around in (("bos", spec.bos_id), ("eos", spec.eos_id)):
        if around is None and fields.flag(f"add_{name}_token", False):
            absent = f"tokenizer.ggml.{name}_token_id is absent"
            text = f"tokenizer.ggml.add_{name}_token is true, but {absent}, {fields.source}"
            raise damage_error(text)

    by_text = {token.text: token.id for token in added}
    eos = spec.eos_id if spec.model != "wordpiece" else None  # BERT's separator ends no answer
    return replace(
        spec,
        middle_ids=_middle_ids(fields, spec),
        token_types=types,
        added=tuple(added),
        add_bos=spec.add_bos and spec.bos_id is not None,
        add_eos=spec.add_eos and spec.eos_id is not None,
        stop_ids=stop_ids(by_text, (eos, *ends)),
    )


def _middle_ids(fields: _Fields, spec: TokenizerSpec) -> tuple[int, ...] | None:
    """Ids between two texts, as llama.cpp's server puts them (``format_prompt_rerank``)."""
    if not (spec.add_eos and spec.eos_id is not None):
        return None
    separator = fields.token_id("seperator", None)
    is_roberta = spec.pre in _WITH_SEPARATOR
    if fields.flag("add_sep_token", is_roberta) and separator is not None:
        return spec.eos_id, separator
    return (spec.eos_id,)


def _entries(fields: _Fields, spec: TokenizerSpec, token: AddedToken) -> Iterable[AddedToken]:
    """*token* with the flags that GGUF does not store; twice if raw and normalized text have it."""
    if spec.model == "bpe":  # RoBERTa's, ModernBERT's and mmBERT's masks include the space before
        # spec.pre is not always the name in the file: the caller or the vocabulary may replace it.
        is_roberta = spec.pre.startswith(("jina-v1", "jina-v2")) or spec.pre == "roberta-bpe"
        masks = {"modern-bert": "[MASK]", "mmbert": "<mask>"}
        mask = masks.get(spec.pre, "<mask>" if is_roberta else None)
        return (replace(token, lstrip=token.text == mask),)
    if spec.model == "unigram":  # as XLM-RoBERTa's
        return (replace(token, lstrip=token.text == "<mask>"),)
    if spec.model == "wordpiece":
        return (token,)
    if fields.is_phi3 and token.text not in _PHI3_PLAIN:
        return (replace(token, rstrip=True),)
    spelled = token.text.replace(" ", SPACE_SYMBOL)
    if token.special or SPACE_SYMBOL not in spelled:
        return (token,)
    # Converters write these user-defined pieces with spaces. The original has U+2581, and is
    # matched in raw text, and again after spaces have become U+2581.
    return (replace(token, text=spelled), replace(token, text=spelled, normalized=True))


_BUILDERS: dict[str, Callable[[_Fields, str | None], TokenizerSpec]] = {
    "gpt2": _bpe,
    "gemma4": _bpe,
    "llama": _sentencepiece,
    "t5": _sentencepiece,
    "bert": _wordpiece,
}


class _Fields:
    """The tokenizer keys of *metadata*; arrays are those of ``bitnet.formats.gguf``, or lists.

    The *name* of a key is what follows ``tokenizer.ggml.``; :meth:`get` takes the whole key.
    """

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata = metadata
        self.source = source
        self._digests: dict[str, str] = {}  # of arrays, by name

    def has(self, name: str) -> bool:
        """True if the file has the key *name*."""
        return _PREFIX + name in self._metadata

    def get(self, key: str, kind: type[T], expected: str) -> T | None:
        """The value of *key*, ``None`` if absent; other types than *kind* are refused."""
        value = self._metadata.get(key)
        if value is None or type(value) is kind:
            return value
        raise self._wrong(key, expected, value)

    def text(self, name: str) -> str:
        """A string value, empty when absent."""
        return self.get(_PREFIX + name, str, "a string") or ""

    def flag(self, name: str, default: bool) -> bool:
        """A boolean value, *default* when absent."""
        value = self.get(_PREFIX + name, bool, "true or false")
        return default if value is None else value

    def token_id(self, name: str, default: int | None) -> int | None:
        """The id under ``<name>_token_id``, else *default*; only ids in the vocabulary count."""
        value = self.get(f"{_PREFIX}{name}_token_id", int, "a token id")
        size = self.length("tokens")
        if value is None or not 0 <= value < size:
            value = default
        return value if value is not None and value < size else None

    def special_id(self, name: str, default: int | None) -> int | None:
        """As :meth:`token_id`, but *default* counts only if its token looks like a special one."""
        value = self.token_id(name, None)
        if value is not None or default is None or default >= self.length("tokens"):
            return value
        text = self.token_text(default)
        return default if text[:1] + text[-1:] == "<>" and text not in BYTE_NAMES else None

    def length(self, name: str) -> int:
        """Number of elements of an array."""
        return len(self._array(name))

    @cached_property
    def tokens(self) -> Sequence[str]:
        """The text of every token."""
        # Not self, which keeps this sequence: the two would keep each other and the file alive.
        own = _Fields(self._metadata, self.source)
        return LazySequence(self.length("tokens"), partial(own.strings, "tokens"))

    def token_text(self, id: int) -> str:
        """The text of one token, without reading all of them."""
        text = self._array("tokens")[id]
        if not isinstance(text, str):
            raise self._wrong(_PREFIX + "tokens", "an array of strings", text)
        return text

    def digest(self, name: str) -> str:
        """SHA-256 of an array of strings as GGUF stores it, computed once."""
        if name not in self._digests:
            array = self._array(name)
            self._digests[name] = vocabularies.fingerprint(getattr(array, "raw", None) or array)
        return self._digests[name]

    def strings(self, name: str) -> list[str]:
        """An array of strings."""
        values = list(self._array(name))
        if not set(map(type, values)) <= {str}:
            wrong = next(value for value in values if type(value) is not str)
            raise self._wrong(_PREFIX + name, "an array of strings", wrong)
        return values

    @cached_property
    def scores(self) -> Sequence[float]:
        """Score of each token, as float32."""
        return self._numbers("scores", "f", ("float32",))

    @cached_property
    def token_types(self) -> Sequence[int]:
        """Type of each token; empty if the file has none."""
        if not self.has("token_type"):
            return ()
        return self._numbers("token_type", "i", ("int32", "uint32"))

    @cached_property
    def special_types(self) -> dict[int, int]:
        """Type by id of every token that is not normal."""
        types = np.asarray(self.token_types)[: self.length("tokens")]
        return {int(id): int(types[id]) for id in np.flatnonzero(types != NORMAL)}

    def has_bytes(self) -> bool:
        """True if the vocabulary has tokens of bytes, which spell characters that have no token."""
        if self.token_types:
            return BYTE in self.special_types.values()
        return "<0x00>" in self.tokens

    @cached_property
    def is_phi3(self) -> bool:
        """True if this is Phi-3's extension of LLaMA-2's vocabulary."""
        name = (self.get("general.name", str, "a string") or "").lower()
        if "phi-3" in name or "phi3" in name:
            return True
        return any(
            self.token_text(id) == "<|placeholder1|>"
            for id, kind in self.special_types.items()
            if kind in (CONTROL, USER_DEFINED)
        )

    def raw(self, name: str) -> bytes:
        """The bytes of an array; empty when absent."""
        array = self._array(name) if self.has(name) else b""
        return bytes(getattr(array, "raw", array))

    def _array(self, name: str) -> Any:
        key = _PREFIX + name
        value = self._metadata.get(key)
        if value is None:
            hint = "fetch the file again, or name the tokenizer with --tokenizer FILE"
            if name == "scores":
                # https://github.com/ggml-org/llama.cpp, conversion/xverse.py, b11549: the order
                # in which pieces are merged is lost.
                hint = "name the model's own tokenizer with --tokenizer FILE: llama.cpp's converter"
                hint += " writes files of XVERSE without scores"
            raise TokenizerNotFound(f"Missing {key}, {self.source}", hint=hint)
        if isinstance(value, (str, bytes, int, float)):
            raise self._wrong(key, "an array", value)
        return value

    def _numbers(
        self, name: str, code: Literal["f", "i"], item_types: tuple[str, ...]
    ) -> Sequence[Any]:
        """A number for each token, as a view into the file if its array has one of *item_types*."""
        array = self._array(name)
        if len(array) < (size := self.length("tokens")):
            text = f"{_PREFIX}{name} has {len(array):,} elements for {size:,} tokens"
            raise damage_error(f"{text}, {self.source}")
        if getattr(array, "item_type", "none") in item_types:
            view: memoryview = array.raw
            return view.cast("B").cast(code)
        values = list(array)
        kinds = (int, float) if code == "f" else (int,)
        wrong = [value for value in values if type(value) not in kinds]
        if wrong:
            expected = "an array of numbers" if code == "f" else "an array of whole numbers"
            raise self._wrong(_PREFIX + name, expected, wrong[0])
        return [*map(float, values)] if code == "f" else values

    def _wrong(self, key: str, expected: str, value: object) -> InvalidFormat:
        kind = type(value).__name__
        return damage_error(f"{key} should be {expected}, and is a {kind}, {self.source}")
