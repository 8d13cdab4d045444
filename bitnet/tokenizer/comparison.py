"""One comparison of two tokenizers: their parts, the ids of texts, and the text of every id."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError
from bitnet.base.tables import quantity
from bitnet.tokenizer.chat import chat_template
from bitnet.tokenizer.discover import MAX_PADDING, ModelFacts, different_ids, model_facts, search
from bitnet.tokenizer.load import extract_tokenizer_from_gguf
from bitnet.tokenizer.probes import PROBES
from bitnet.tokenizer.spec import ADDED_FLAGS, BYTE_NAMES, SPACE_SYMBOL, TokenType
from bitnet.tokenizer.tokenizer import Tokenizer
from bitnet.tokenizer.vocabularies import find_halves, merges_by_score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.tokenizer.spec import Step, TokenizerSpec


# Fields of a specification that are compared as they are.
_OPTIONS = (
    *("byte_level", "byte_fallback", "fuse_unknown", "ignore_merges", "add_space_prefix"),
    *("remove_extra_whitespaces", "continuing_prefix", "word_suffix", "max_chars_per_word"),
    *("unknown_text", "unknown_id", "bos_id", "eos_id", "second_type", "chat_template"),
)
# Parts that can differ without another result, see ``TokenizerDifference.certain``.
_UNCERTAIN = frozenset({
    "normalizer", "charsmap", "pre_tokenizer", "decoder", "unknown_id", "bos_id", "eos_id",
    "second_type",  # few models use it
    "chat_template", "named_templates", "texts in templates",
    "stop_ids", "fuse_unknown", "ignore_merges",  # the last two rarely change any ids
})  # fmt: skip


@dataclass(frozen=True)
class TokenizerDifference:
    """One part in which two specifications differ."""

    part: str  # ``vocabulary``, ``merges``, ``added tokens``, ``normalizer`` ...
    text: str  # the two values, or the first examples
    # true if some text or ids give another result; false for parts that can differ without that,
    # such as steps, which can be written in several ways
    certain: bool = True


@dataclass(frozen=True)
class Agreement:
    """Result of a comparison."""

    equal: int  # number of texts with equal ids
    total: int  # number of texts compared
    first_difference: str | None  # the first text with different ids, ``None`` if there is none
    decoded_equal: int = 0  # number of lists of ids that both decode to the same text
    decoded: int = 0  # number of lists of ids decoded; 0 if decoding was not compared
    first_ids: tuple[int, ...] | None = None  # the first ids that decode to different texts
    differences: tuple[TokenizerDifference, ...] = ()  # parts, if specifications were compared

    @property
    def ratio(self) -> float:
        """Share of texts with equal ids, 0 to 1."""
        return self.equal / self.total if self.total else 0.0

    @property
    def complete(self) -> bool:
        """True if all texts and lists of ids agree, at least one, and no part certainly differs."""
        certain = any(difference.certain for difference in self.differences)
        return self.ratio == 1 and 0 < self.decoded == self.decoded_equal and not certain

    def describe_first_other(self, name: str) -> str:
        """Number of texts with the ids that *name* gives, and the first text with others."""
        return f"{self._count_equal()} as {name}; first other: {self.first_difference!r}"

    def _count_equal(self) -> str:
        return f"{self.equal} of {self.total} probe texts ({self.ratio:.0%}) give the same ids"

    def __str__(self) -> str:
        ids = self._count_equal()
        if not self.decoded:
            return f"{ids}; texts of ids not checked"
        return f"{ids}, {self.decoded_equal} of {self.decoded} lists of ids the same text"


def measure_agreement(
    encode: Callable[[str], Sequence[int]],
    encode_other: Callable[[str], Sequence[int]],
    *,
    texts: Sequence[str] = PROBES,
    decode: tuple[Callable[[list[int]], str], Callable[[list[int]], str]] | None = None,
) -> Agreement:
    """Compare the ids of two tokenizers for each of *texts*; with *decode* of both, also the texts.

    Texts are decoded from lists of equal ids, and from each two of these lists joined.
    """
    pairs = [(text, list(encode(text)), list(encode_other(text))) for text in texts]
    different = [text for text, mine, theirs in pairs if mine != theirs]
    encoded = [mine for _, mine, theirs in pairs if mine == theirs] if decode else []
    joined = [ids + following for ids, following in itertools.pairwise(encoded)]
    lists = [ids for ids in (*encoded, *joined) if ids]
    wrong = [ids for ids in lists if decode and decode[0](ids) != decode[1](ids)]
    return Agreement(
        equal=len(pairs) - len(different),
        total=len(pairs),
        first_difference=different[0] if different else None,
        decoded_equal=len(lists) - len(wrong),
        decoded=len(lists),
        first_ids=tuple(wrong[0]) if wrong else None,
    )


def compare(left: TokenizerSpec, right: TokenizerSpec, texts: Sequence[str]) -> Agreement:
    """Compare two specifications, the ids of *texts*, and the text of every id."""
    first = Tokenizer.from_spec(left)
    second = Tokenizer.from_spec(right)
    unknown = {left.unknown_id} & {right.unknown_id}  # if it is the same: it has no text of its own

    def decode(tokenizer: Tokenizer) -> Callable[[list[int]], str]:
        return lambda ids: tokenizer.decode(id for id in ids if id not in unknown)

    decoders = decode(first), decode(second)
    agreement = measure_agreement(first.encode, second.encode, texts=texts, decode=decoders)
    bytes_by_id = [
        {
            id: tokenizer.token_bytes(id)
            for id in range(min(len(first), len(second)))
            if id not in unknown
        }
        for tokenizer in (first, second)
    ]
    parts = [*differences(left, right), *_compare_tables("text of ids", *bytes_by_id)]
    return replace(agreement, differences=tuple(parts))


def differences(left: TokenizerSpec, right: TokenizerSpec) -> list[TokenizerDifference]:
    """Parts in which two specifications differ in meaning; empty if there are none.

    If the models differ, a BPE equivalent to a SentencePiece model is compared as one. Steps are
    left out if both name the same pre-tokenizer, and so are options without an effect.
    """
    if left.model != right.model:
        left = as_sentencepiece(left) or left
        right = as_sentencepiece(right) or right
    models = {left.model, right.model}
    ignored: set[str] = set()  # parts that are equal by other means, or without an effect here
    if left.byte_level == right.byte_level and models <= {"bpe", "spm"}:
        ignored.add("model")
    if left.pre and left.pre == right.pre:
        ignored |= {"normalizer", "pre_tokenizer"}
    if not (left.is_sentencepiece and right.is_sentencepiece):
        ignored.add("unknown_text")
    if left.byte_level and right.byte_level:
        ignored.add("unknown_id")
    if left.middle_ids is None and right.middle_ids is None:
        ignored.add("second_type")
    if not any(spec.chat_template or spec.named_templates for spec in (left, right)):
        ignored.add("texts in templates")
    parts = _compare_tables("vocabulary", _vocabulary(left), _vocabulary(right))
    if models == {"unigram"}:
        parts += _compare_tables(
            "scores", *(dict(enumerate(map(float, s.scores))) for s in (left, right))
        )
    elif models <= {"bpe", "spm"}:
        parts += _compare_tables(
            "merges", *(dict(enumerate(_merges(spec))) for spec in (left, right))
        )
    # The last flag, ``normalized``, says whether a token is found in raw or in normalized text. If
    # no text is normalized, it makes no difference.
    has_one_stage = left.is_sentencepiece or right.is_sentencepiece
    has_one_stage = has_one_stage or not (left.normalizer or right.normalizer)
    flags = ADDED_FLAGS[: -1 if has_one_stage else None]
    parts += _compare_tables(
        "added tokens", *(_flags_of_added(spec, flags) for spec in (left, right))
    )
    left_values = _values(left)
    right_values = _values(right)
    for name in left_values:
        if name in ignored or left_values[name] == right_values[name]:
            continue
        values = (left_values[name], right_values[name])
        texts = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values)
        both = " / ".join(text if len(text) <= 200 else f"{text[:197]}..." for text in texts)
        # None: the file does not say how two texts are joined, and gives no ids for a pair.
        certain = name not in _UNCERTAIN and None not in values
        parts.append(TokenizerDifference(name, both, certain=certain))
    return parts


def _values(spec: TokenizerSpec) -> dict[str, Any]:
    """Parts of *spec* that are compared as a whole, as JSON values by name."""
    first, last = map(list, spec.affixes)
    middle = None if spec.middle_ids is None else list(spec.middle_ids)
    return {
        "model": spec.model,
        "normalizer": significant(spec.normalizer),
        "charsmap": sha256(spec.charsmap).hexdigest() if spec.charsmap else "",
        "pre_tokenizer": significant(spec.pre_tokenizer),
        "decoder": significant(spec.decoding),
        **{name: getattr(spec, name) for name in _OPTIONS},
        "ids put first": first,
        "ids put last": last,
        "ids between two texts": middle,
        "stop_ids": sorted(spec.stop_ids),
        "named_templates": dict(spec.named_templates),
        "texts in templates": _texts_in_templates(spec),
    }


def _texts_in_templates(spec: TokenizerSpec) -> dict[str, str]:
    """Texts of special tokens that chat templates see, by their names there (``bos_token``)."""
    ids = {"bos_token": spec.bos_id, "eos_token": spec.eos_id}
    texts = {role: spec.tokens[id] for role, id in ids.items() if id is not None}
    texts |= dict(spec.template_tokens)
    return {role: text for role, text in texts.items() if text}


def _vocabulary(spec: TokenizerSpec) -> dict[int, str]:
    """Texts by id, without ids that only pad the vocabulary."""
    types = spec.token_types or [TokenType.NORMAL] * spec.vocab_size
    return {
        id: text
        for id, (text, kind) in enumerate(zip(_texts(spec), types, strict=True))
        if text not in ("", f"[PAD{id}]") and kind != TokenType.UNUSED
    }


def _merges(spec: TokenizerSpec) -> list[str]:
    """Merges of a BPE; else those that scores imply, except merges into added or byte tokens."""
    tokens = _texts(spec)
    if spec.model == "bpe":
        return [f"{tokens[left]} {tokens[right]}" for left, right in spec.merges]
    cut_out = BYTE_NAMES.keys() | {tokens[token.id] for token in spec.added}
    merges = merges_by_score(tokens, spec.scores, spec.source)
    return [" ".join(pair) for pair in merges if "".join(pair) not in cut_out]


def _texts(spec: TokenizerSpec) -> list[str]:
    """Texts of all tokens, with U+2581 for spaces: converters write some U+2581 as spaces."""
    if spec.byte_level or spec.model == "wordpiece":
        return list(spec.tokens)
    return [text.replace(" ", SPACE_SYMBOL) for text in spec.tokens]


def _flags_of_added(spec: TokenizerSpec, flags: Sequence[str]) -> dict[int, Any]:
    """Texts and set *flags* of the added tokens by id."""
    entries = defaultdict(set)
    for token in spec.added:
        entries[token.id].add((token.text, *(flag for flag in flags if getattr(token, flag))))
    return {id: sorted(entry) for id, entry in entries.items()}


def significant(steps: Iterable[Step]) -> list[Any]:
    """*steps* without options that only concern offsets, or how added tokens are spelled."""
    ignored = ("trim_offsets", "respell")
    return [
        [step.type, {key: value for key, value in step.options.items() if key not in ignored}]
        for step in steps
    ]


def _compare_tables(part: str, a: dict[int, Any], b: dict[int, Any]) -> list[TokenizerDifference]:
    """The difference of two tables, called *part*, as the only element; empty if they are equal."""
    different = sorted(id for id in a.keys() | b.keys() if a.get(id) != b.get(id))
    if not different:
        return []
    examples = "; ".join(f"{id}: {a.get(id)!r} / {b.get(id)!r}" for id in different[:3])
    text = f"{len(a):,} and {len(b):,} entries, {len(different):,} differ: {examples}"
    return [TokenizerDifference(part, text)]


def as_sentencepiece(spec: TokenizerSpec) -> TokenizerSpec | None:
    """The SentencePiece BPE that is equivalent to the BPE *spec*; ``None`` if none is.

    SentencePiece joins the two neighbours whose result has the best score. The ordered merges of a
    ``tokenizer.json`` express the same if all merges that produce one token are adjacent and none
    is missing.
    """
    steps = [(step.type, step.options.get("content")) for step in spec.normalizer]
    # A Prepend has no option ``content``. Behind it, or first, there must be one Replace.
    prepends = steps[:1] == [("Prepend", None)]
    other_steps = steps[1:] if prepends else steps
    is_plain = other_steps == [("Replace", SPACE_SYMBOL)] and not spec.ignore_merges
    if spec.model != "bpe" or not spec.byte_fallback or not is_plain:
        return None
    tokens = list(spec.tokens)
    ranks: dict[str, int] = {}  # rank of each result, in the order of the merges
    for left, right in spec.merges:
        result = tokens[left] + tokens[right]
        if next(reversed(ranks), None) != result:  # not that of the merge before
            if result in ranks:
                return None
            ranks[result] = len(ranks)
    vocabulary = set(tokens)
    # Every way to make a token must be a merge.
    merged = [text for text in tokens if text not in BYTE_NAMES]
    ways = find_halves(merged, vocabulary, spec.source)
    if sum(1 for _ in ways) != len(set(spec.merges)):
        return None
    return replace(
        spec,
        model="spm",
        merges=(),
        scores=[-float(ranks.get(text, len(ranks))) for text in tokens],
        normalizer=(),
        pre_tokenizer=(),
        add_space_prefix=prepends,
    )


@dataclass(frozen=True)
class Compatibility:
    """Result of checking a tokenizer against a model."""

    compatible: bool  # true if they belong together
    verdict: str  # one line for people
    findings: tuple[str, ...]  # further observations, one line each
    model_vocab: int  # number of ids of the model
    tokenizer_vocab: int  # number of ids of the tokenizer
    padded_rows: int  # number of embedding rows beyond the vocabulary


def compatibility(
    model: Path | Checkpoint, tokenizer: Tokenizer, *, pre: str | None = None
) -> Compatibility:
    """Check *tokenizer* against *model*: size, embedded token texts if any, stop ids, template."""
    facts = model_facts(model)
    n_tokens = tokenizer.vocab_size
    spare = facts.padding(tokenizer.vocab_size)
    findings: list[str] = []
    problem = ""
    own = _own_tokenizer(facts, pre, findings)
    # After a finding, *own* has the right token texts only: its ids say nothing.
    is_rebuilt = own is not None and not findings
    beyond = facts.tokens_beyond(tokenizer)
    if beyond:
        findings.append(
            f"{quantity(beyond, 'added token')} without a row: a prompt with such a one is refused"
        )
    different = different_ids(own, tokenizer) if own is not None else []
    if spare is None and not beyond:
        size = facts.token_count or facts.vocab_size
        problem = f"vocabulary size differs (Model: {size}, Tokenizer: {n_tokens})"
    elif own is not None and different:
        spellings = f"{own.spelling(different[0])!r} and {tokenizer.spelling(different[0])!r}"
        count = f"{len(different):,} of {n_tokens:,} tokens differ, first id {different[0]}"
        problem = f"same size, other vocabulary: {count}: {spellings}"
    elif own is not None and is_rebuilt:
        ids = measure_agreement(own.encode, tokenizer.encode)
        if ids.first_difference is not None:
            count = f"{ids.total - ids.equal} of {ids.total} texts"
            text = f"the first is {ids.first_difference!r}"
            findings.append(f"other ids than {own.source} for {count}; {text}")
    spare = 0 if problem else spare or 0
    if spare:
        text = f"{spare} embedding rows beyond the vocabulary"
        findings.append(f"{text} (padding, below {MAX_PADDING})")
    if not tokenizer.stop_ids:
        findings.append("no end-of-generation token is known: generation stops only at its limit")
    if tokenizer.chat_template is not None:
        try:
            chat_template(tokenizer).render([{"role": "user", "content": "Hello"}])
        except BitnetError as error:
            findings.append(f"the chat template cannot be rendered: {error.message}")
    verdict = f"{tokenizer.source} and {facts.path.name}: "
    if problem:
        verdict = f"NOT COMPATIBLE: {verdict}{problem}"
    else:
        basis = "token by token" if own is not None else "by vocabulary size"
        verdict = f"compatible: {verdict}{n_tokens:,} tokens, {basis}"
    return Compatibility(not problem, verdict, tuple(findings), facts.vocab_size, n_tokens, spare)


def _own_tokenizer(facts: ModelFacts, pre: str | None, findings: list[str]) -> Tokenizer | None:
    """The tokenizer embedded in the model's file or found in its folder; None without a usable one.

    If the embedded one cannot be rebuilt, *findings* gets the reason, and the result is one whose
    token texts alone are right.
    """
    if facts.gguf is None:
        return search(facts, places=("sibling",), pre=pre).tokenizer
    if not facts.token_count:
        return None
    try:
        return extract_tokenizer_from_gguf(facts.gguf, pre=pre)
    except BitnetError as error:
        findings.append(f"the embedded tokenizer cannot be rebuilt: {error.message}")
    with suppress(BitnetError):  # token texts do not depend on the pre-tokenizer
        return extract_tokenizer_from_gguf(facts.gguf, pre="gpt-2")
    return None
