"""Compare both engines with the ``tokenizers`` library on random ``tokenizer.json`` files.

A file that an engine accepts must give the ids and texts of the library; others it must refuse.
"""

import base64
import json
import random
from dataclasses import dataclass, field, replace

import tokenizers
from charsmaps import charsmap

from bitnet.base.errors import BitnetError, is_panic
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.compiled import NativeEngine, NotNative, meta_of, open_compiled
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.library import library_engine
from bitnet.tokenizer.spec import BYTE_TO_CHARACTER, byte_spelling

SPACE = "\u2581"
LETTERS = [*"abcAB12.,'!#", " ", "é", "e\u0301", "ß", "字", SPACE, "\n", "\t", "\U0001f600"]
WORDS = [
    *("ab", "abc", "a b", "##a", "##b", "##ab", "b ", " a", f"{SPACE}a", f"{SPACE}b", "字字"),
    *("1 2", "ba", "aa", "bb", f"{SPACE}{SPACE}", "Ab", "'s", "a.", "é!", "İ", "ﬁ", "\u00a0a"),
]
SPECIAL = ["<s>", "</s>", "<unk>", "[UNK]", "[MASK]", "<|im|>"]
BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
REGEXES = (r"\s+", r"[ab]+", r"\p{L}+|\p{N}", r"\w+", r"(?=b)", r"^a", r"a|ab", r".", r"\s+(?!\S)")
TEMPLATE_TOKENS = ("<s>", "</s>", "<|im|>")


# By name; each raises an error if it does not run a specification exactly.
ENGINES = {"native": lambda spec: NativeEngine(*open_compiled(spec)), "portable": library_engine}


def _flag(rng, share=0.5):
    """True for a *share* of calls."""
    return rng.random() < share


def _pattern(rng, texts):
    """A random pattern: a regular expression, or one of *texts*, rarely an empty text."""
    if _flag(rng):
        return {"Regex": rng.choice(REGEXES)}
    return {"String": rng.choice([*texts, ""]) if _flag(rng, 0.1) else rng.choice(texts)}


def _normalizers(rng):
    """A random normalizer."""
    kinds = [
        *({"type": name} for name in ("NFC", "NFKC", "NFD", "NFKD", "StripAccents", "Lowercase")),
        {"type": "Nmt"},
        {"type": "Strip", "strip_left": _flag(rng), "strip_right": _flag(rng)},
        {"type": "Prepend", "prepend": rng.choice([SPACE, " ", "ab", ""])},
        {"type": "Replace", "pattern": _pattern(rng, [" ", "a", "ab", "é"]),
         "content": rng.choice([SPACE, "", "b", " ", "aa"])},
        {"type": "BertNormalizer", "clean_text": _flag(rng), "handle_chinese_chars": _flag(rng),
         "strip_accents": rng.choice([None, True, False]), "lowercase": _flag(rng)},
        {"type": "ByteLevel"},
        {"type": "Precompiled", "precompiled_charsmap": random_charsmap(rng)},
    ]  # fmt: skip
    return rng.choice(kinds)


def random_charsmap(rng):
    """A character map with letters, marks, clusters, and an Arabic sign that joins a letter."""
    keys = ["a", "é", "e\u0301", "ﬁ", "字", " ", "\t", "\u0301", "\r\n", "\u06dda", "ab", "😀"]
    texts = ["", "b", "fi", "x\u0301", " ", "字字"]
    chosen = rng.sample(keys, rng.randrange(1, 7))
    entries = {key.encode(): rng.choice(texts).encode() for key in chosen}
    return base64.b64encode(charsmap(entries)).decode()


def _metaspace(rng):
    """A Metaspace step in its present or in its old form."""
    split = {"split": _flag(rng)} if _flag(rng, 0.8) else {}
    scheme = {"prepend_scheme": rng.choice(["always", "first", "never"])}
    old = {"add_prefix_space": _flag(rng)}
    symbol = SPACE if _flag(rng, 0.9) else "_"
    chosen = scheme if _flag(rng, 0.9) else old
    return {"type": "Metaspace", "replacement": symbol} | chosen | split


def _byte_level(rng):
    """A ByteLevel step."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": _flag(rng),
        "trim_offsets": True,
        "use_regex": _flag(rng),
    }


def _pre_tokenizers(rng):
    """A random pre-tokenizer."""
    kinds = [
        {"type": "Split", "pattern": _pattern(rng, [" ", "a", "ab", SPACE]),
         "behavior": rng.choice(BEHAVIORS), "invert": _flag(rng, 0.3)},
        {"type": "Digits", "individual_digits": _flag(rng)},
        _metaspace(rng),
        _metaspace(rng),
        {"type": "Punctuation", "behavior": rng.choice(BEHAVIORS)},
        {"type": "BertPreTokenizer"},
        {"type": "WhitespaceSplit"},
        {"type": "Whitespace"},
        {"type": "CharDelimiterSplit", "delimiter": rng.choice("a. ")},
        {"type": "UnicodeScripts"},
        {"type": "FixedLength", "length": rng.choice([1, 2, 5])},
        _byte_level(rng),
    ]  # fmt: skip
    return rng.choice(kinds)


def _decoders(rng, pre):
    """A random decoder, often the one that fits a step of *pre*."""
    kinds = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "Replace", "pattern": _pattern(rng, ["a", "##"]), "content": rng.choice("b ")},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": rng.randrange(3), "stop": rng.randrange(2)},
        {"type": "WordPiece", "prefix": "##", "cleanup": _flag(rng)},
        {"type": "BPEDecoder", "suffix": rng.choice(["</w>", "a"])},
        {"type": "CTC", "pad_token": rng.choice("ab"), "cleanup": _flag(rng),
         "word_delimiter_token": rng.choice([" ", "b"])},
        _byte_level(rng),
        _metaspace(rng),
    ]  # fmt: skip
    usual = {"ByteLevel": _byte_level(rng), "Metaspace": next(
        (step for step in pre if step["type"] == "Metaspace"), None
    )}  # fmt: skip
    for step in pre:
        if step["type"] in usual and _flag(rng, 0.6):
            return usual[step["type"]]
    return rng.choice(kinds)


def _some(rng, make, kind, most=3):
    """None, one step that *make* draws, or a ``Sequence`` of several; and the list of steps.

    *kind* is the key of the steps in a sequence.
    """
    count = rng.choice([0, 1, 1, *range(2, most + 1)])
    steps = [make(rng) for _ in range(count)]
    if not steps:
        return None, []
    if len(steps) == 1:
        return steps[0], steps
    return {"type": "Sequence", kind: steps}, steps


def _bpe(rng, pieces, *, byte_level):
    """A random BPE with *pieces* in its vocabulary."""
    texts = list(dict.fromkeys(BYTE_TO_CHARACTER if byte_level else LETTERS))
    if _flag(rng, 0.3):
        rng.shuffle(texts)
        texts = texts[: len(texts) * 2 // 3]
    if not byte_level and _flag(rng, 0.25):
        return _affixed(rng, texts, pieces)
    merges = []
    for _ in range(rng.randrange(25)):
        left = rng.choice(texts)
        right = rng.choice(texts)
        if byte_level and _flag(rng, 0.8):
            text = byte_spelling(rng.choice(WORDS).encode())
            cut = rng.randrange(1, len(text)) if len(text) > 1 else 0
            left = text[:cut]
            right = text[cut:]
        if left in texts and right in texts and [left, right] not in merges:
            merges.append([left, right])
            texts += [left + right] if left + right not in texts else []
    texts += [text for text in pieces if text not in texts]
    if _flag(rng, 0.4):
        names = [f"<0x{byte:02X}>" for byte in range(0x20, 0xF5)]
        missing = rng.choices(names, k=rng.choice([0, 0, 20]))  # their characters are unknown
        texts += [name for name in names if name not in texts and name not in missing]
    vocabulary = _numbered(rng, texts)
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    model |= {"unk_token": "<unk>" if "<unk>" in vocabulary and _flag(rng, 0.8) else None}
    for name in ("fuse_unk", "byte_fallback", "ignore_merges"):
        model |= {name: True} if _flag(rng, 0.4) else {}
    return model


def _affixed(rng, letters, pieces):
    """A BPE whose tokens inside a word have a prefix, and those at its end a suffix."""
    prefix, suffix = rng.choice([("##", ""), ("", "</w>"), ("@", "</w>")])
    texts = [a + text + z for text in letters for a in ("", prefix) for z in ("", suffix)]
    texts = list(dict.fromkeys(["<unk>", *texts]))
    merges = []
    for _ in range(rng.randrange(40)):
        left = rng.choice(texts)
        right = rng.choice(texts)
        if right.startswith(prefix) and not left.endswith(suffix or "\0"):
            merges += [[left, right]] if [left, right] not in merges else []
            texts += [text] if (text := left + right.removeprefix(prefix)) not in texts else []
    texts += [text for text in pieces if text not in texts]
    model = {"type": "BPE", "vocab": _numbered(rng, texts), "merges": merges, "unk_token": "<unk>"}
    model |= {"continuing_subword_prefix": prefix or None, "end_of_word_suffix": suffix or None}
    for name in ("fuse_unk", "ignore_merges"):
        model |= {name: True} if _flag(rng, 0.3) else {}
    return model


def _numbered(rng, texts):
    """Ids of *texts*, sometimes in another order."""
    if _flag(rng, 0.2):
        texts = texts[:]
        rng.shuffle(texts)
    return {text: id for id, text in enumerate(texts)}


def _unigram(rng, pieces):
    """A random unigram model with *pieces* in its vocabulary."""
    texts = list(dict.fromkeys(["<unk>", *LETTERS, *pieces]))
    if _flag(rng, 0.3):
        del texts[rng.randrange(1, len(texts)) :]
    if _flag(rng, 0.3):
        texts += [f"<0x{byte:02X}>" for byte in range(256)]
    scores = [round(rng.uniform(-12, 0), rng.choice([1, 3])) for _ in texts]
    vocabulary = [[text, score] for text, score in zip(texts, scores, strict=True)]
    unknown = 0 if _flag(rng, 0.8) else rng.choice([None, 1, 3])
    model = {"type": "Unigram", "vocab": vocabulary, "unk_id": unknown}
    return model | ({"byte_fallback": True} if _flag(rng, 0.3) else {})


def _wordpiece(rng, pieces):
    """A random WordPiece model with *pieces* in its vocabulary."""
    prefix = "##" if _flag(rng, 0.8) else rng.choice(["", "@"])
    texts = ["[UNK]", *LETTERS, *(prefix + text for text in LETTERS), *pieces]
    texts = list(dict.fromkeys(text for text in texts if text))
    if _flag(rng, 0.5):
        texts = ["[UNK]", *(text for text in texts[1:] if _flag(rng, 0.7))]
    model = {"type": "WordPiece", "vocab": _numbered(rng, texts), "unk_token": "[UNK]"}
    model |= {"continuing_subword_prefix": prefix}
    return model | {"max_input_chars_per_word": rng.choice([100, 100, 3, 5])}


def _added(rng, model):
    """Random added tokens, and the ids of all texts with them."""
    vocabulary = model["vocab"]
    known = vocabulary if isinstance(vocabulary, dict) else [text for text, _ in vocabulary]
    ids = {text: id for id, text in enumerate(known)} if isinstance(known, list) else dict(known)
    texts = dict.fromkeys(rng.sample([*SPECIAL, *WORDS, *LETTERS, *ids], rng.randrange(6)))
    entries = []
    for text in texts:
        if text not in ids:
            ids[text] = max(ids.values(), default=-1) + 1
        entry = {"id": ids[text], "content": text, "special": _flag(rng, 0.4)}
        entry["normalized"] = _flag(rng, 0.15 if entry["special"] else 0.6)
        for name in ("single_word", "lstrip", "rstrip"):
            entry[name] = _flag(rng, 0.25)
        entries.append(entry)
    return sorted(entries, key=lambda entry: entry["id"]), ids


def _processor(rng, ids):
    """A random post-processor, or None."""
    usable = [text for text in TEMPLATE_TOKENS if text in ids]
    kinds = [None, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}]
    if usable:
        names = {"cls": rng.choice(usable), "sep": rng.choice(usable)}
        pair = {name: [text, ids[text]] for name, text in names.items()}
        kinds.append({"type": "BertProcessing"} | pair)
        kinds.append(
            {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": True} | pair
        )
        kinds += [_template(rng, usable, ids)] * 3
    chosen = rng.choice(kinds)
    if _flag(rng, 0.2):
        both = [step for step in (rng.choice(kinds), chosen) if step]
        return {"type": "Sequence", "processors": both}
    return chosen


def _template(rng, usable, ids):
    """A random template of the tokens *usable*."""

    def some(at):
        return [{"SpecialToken": {"id": t, "type_id": at}} for t in rng.choices(usable, k=at)]

    text = [{"Sequence": {"id": "A", "type_id": 0}}] * (2 if _flag(rng, 0.05) else 1)
    single = [*some(rng.randrange(3)), *text, *some(rng.randrange(3))]
    tokens = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in usable}
    if _flag(rng, 0.1):
        tokens[usable[0]] |= {"ids": [0, 1], "tokens": ["x", "y"]}
    pair = [*text, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def random_document(seed):
    """A random ``tokenizer.json``, partly usual and partly odd."""
    rng = random.Random(seed)
    pieces = rng.sample([*WORDS, *SPECIAL], rng.randrange(len(WORDS)))
    normalizer, normal = _some(rng, _normalizers, "normalizers")
    pre_tokenizer, pre = _some(rng, _pre_tokenizers, "pretokenizers")
    bytes_at = [step["type"] == "ByteLevel" for step in (*normal, *pre)]
    kind = rng.choice(["bpe", "bpe", "unigram", "wordpiece", "wordlevel"])
    if kind == "wordlevel":
        texts = list(dict.fromkeys(["<unk>", *LETTERS, *pieces]))
        model = {"type": "WordLevel", "vocab": _numbered(rng, texts), "unk_token": "<unk>"}
    elif kind == "bpe":
        model = _bpe(rng, pieces, byte_level=any(bytes_at) or _flag(rng, 0.1))
    else:
        model = (_unigram if kind == "unigram" else _wordpiece)(rng, pieces)
    added, ids = _added(rng, model)
    decoder, _ = _some(rng, lambda rng: _decoders(rng, pre), "decoders")
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _processor(rng, ids),
        "decoder": decoder,
        "model": model,
    }


def texts(rng, known, added, count=25):
    """Texts of letters, of the pieces *known* and of the tokens *added*."""
    pool = [*LETTERS, *WORDS, *SPECIAL, *rng.sample(known, min(len(known), 10)), *added * 3]
    joins = ("", "", " ", "  ")
    for _ in range(count):
        parts = rng.choices(pool, k=rng.randrange(8))
        yield "".join(part + rng.choice(joins) for part in parts)


@dataclass
class Outcome:
    """Outcome of both engines for one configuration.

    Attributes:
        refusals: reason by name of the engine that refuses it; ``native`` and ``portable``.
        differences: a line for each difference between an engine and the library.
    """

    refusals: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    @property
    def refused(self):
        """True if no engine runs it."""
        return len(self.refusals) == len(ENGINES)


def open_engines(read, outcome):
    """The specification that *read* gives, and a tokenizer for each engine that runs it."""
    try:
        spec = replace(read(), fingerprint="")
    except BitnetError as error:
        outcome.refusals = dict.fromkeys(ENGINES, error.message)
        return None, []
    engines = []
    for name, make in ENGINES.items():
        try:
            engines.append(Tokenizer(make(spec), meta_of(spec)))
        except (BitnetError, NotNative) as error:  # noqa: PERF203 - two engines
            outcome.refusals[name] = str(error)
    return spec, engines


def compare(document, folder, seed=0, count=25):
    """The outcome of *document* beside the ``tokenizers`` library, over *count* texts."""
    outcome = Outcome()
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    spec, engines = open_engines(lambda: spec_from_file(path), outcome)
    if not engines:
        return outcome
    differences = outcome.differences
    try:
        library = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises nothing more exact
        differences.append(f"the library refuses it: {error}")
        return outcome
    # Post-processors may change offsets, which this package does not imitate.
    plain = tokenizers.Tokenizer.from_str(json.dumps(document | {"post_processor": None}))
    rng = random.Random(seed)
    vocabulary = document["model"]["vocab"]
    known = list(vocabulary) if isinstance(vocabulary, dict) else [text for text, _ in vocabulary]
    added = [entry["content"] for entry in document["added_tokens"]]
    for text in texts(rng, known, added, count):
        differences += _encoded(library, engines, text)
        differences += _placed(plain, engines, text)
    if library.get_vocab_size():
        for ids in id_lists(rng, len(spec.tokens), count * 3 // 5):
            differences += _decoded(library, engines, ids)
    return outcome


def id_lists(rng, size, count):
    """Lists of random ids below *size*."""
    for _ in range(count if size else 0):
        yield [rng.randrange(size) for _ in range(rng.randrange(1, 10))]


def _encoded(library, engines, text):
    """Yield a line for each difference between the ids of *text*, with special tokens or not."""
    for special in (True, False):
        library.encode_special_tokens = not special
        plain_encoding = _call_library(library.encode, text, add_special_tokens=False)
        full_encoding = _call_library(library.encode, text)
        if plain_encoding is None or full_encoding is None:
            continue
        plain = plain_encoding.ids
        in_template = full_encoding.ids
        for engine in engines:
            ids = answer(engine.encode, text, add_special=False, parse_special=special)
            if ids != plain:
                yield f"{engine.engine} {text!r} ({special=}): {ids}, expected {plain}"
            elif not _begins_as_template(engine, plain):
                both = answer(engine.encode, text, parse_special=special)
                if both != in_template:
                    yield f"{engine.engine} {text!r} in full: {both}, expected {in_template}"
    library.encode_special_tokens = False


def _placed(library, engines, text):
    """Yield a line for each engine whose offsets of *text* differ."""
    encoding = _call_library(library.encode, text, add_special_tokens=False)
    if encoding is None:
        return
    for engine in engines:
        offsets = answer(offsets_of, engine, text)
        if offsets != encoding.offsets:
            yield f"{engine.engine} {text!r}: {offsets}, expected {encoding.offsets}"


def offsets_of(engine, text, **options):
    """Start and end of each token of *text* as *engine* finds them, without BOS and EOS."""
    spans = engine.spans(text, add_special=False, **options)
    return [(start, stop) for _, start, stop in spans]


def _begins_as_template(engine, ids):
    """True if *ids* begin or end with the template's tokens, which the library would add again."""
    first = engine._prefix
    last = engine._suffix
    return (first and ids[: len(first)] == first) or (last and ids[-len(last) :] == last)


def _decoded(library, engines, ids):
    """Yield a line for each engine that decodes *ids* otherwise, at once or one by one."""
    for skip in (False, True):
        reference = _call_library(library.decode, ids, skip_special_tokens=skip)
        if reference is not None:
            yield from other_texts(engines, ids, reference, skip=skip)


def other_texts(engines, ids, reference, *, skip):
    """Yield a line for each text of *ids* by *engines*, at once or one by one, not *reference*."""
    for engine in engines:
        text = answer(engine.decode, ids, skip_special=skip)
        if text != reference:
            yield f"{engine.engine} {ids} ({skip=}): {text!r}, expected {reference!r}"
        text = answer(streamed, engine, ids, skip)
        if text != reference:
            yield f"{engine.engine} {ids} streamed ({skip=}): {text!r}, expected {reference!r}"


def streamed(engine, ids, skip):
    """Text of *ids*, pushed one by one."""
    stream = engine.stream(skip_special=skip)
    return "".join(map(stream.push, ids)) + stream.finish()


def answer(run, *args, **options):
    """Result of *run*, which calls an engine; or a text with its exception, a difference."""
    try:
        return run(*args, **options)
    except Exception as error:  # noqa: BLE001 - the fuzzer keeps the file of each difference
        return f"{type(error).__name__}: {error}"


def _call_library(run, *args, **options):
    """Result of *run*, a method of the library; None if it fails, so that nothing is compared.

    The library raises ``Exception`` itself, or panics.
    """
    try:
        return run(*args, **options)
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):
            raise
        return None
