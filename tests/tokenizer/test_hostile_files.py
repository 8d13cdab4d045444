"""Tokenizer files made to do harm: both engines refuse them with a reason, or agree."""

import base64
import contextlib
import itertools
import json
import math
import struct
from dataclasses import replace

import pytest
from charsmaps import charsmap
from json_places import places_in, put
from sentencepiece_writer import sentencepiece_bytes
from small_specs import BYTE_LEVEL_STEP, byte_level, pieces, split, words

from bitnet.base import native
from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.tokenizer import Tokenizer, compiled
from bitnet.tokenizer.comparison import as_sentencepiece
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.library import library_engine, open_engine, tokenizer_json
from bitnet.tokenizer.spec import ADDED_FLAGS, AddedToken, Step, byte_spelling

needs_native = pytest.mark.skipif(native.module() is None, reason="the native module is missing")
TEXT = "a hello aab \u00e9\u5b57 12"


GOOD_MAP = {b"a": b"b", "é".encode(): b"e", b"12": "字".encode()}
BAD_MAPS = {
    "a lone lead byte": charsmap({b"a": b"\xc3"}),
    "a lone continuation byte": charsmap({b"a": b"\x80"}),
    "a surrogate": charsmap({b"a": b"\xed\xa0\x80"}),
    "an overlong form": charsmap({b"a": b"\xc0\xaf"}),
    "above U+10FFFF": charsmap({b"a": b"\xf4\x90\x80\x80"}),
    "no end of the last text": charsmap({b"a": b"bb"})[:-1],
    "no texts": charsmap({b"a": b""})[:-1],
    "a trie that is too long": struct.pack("<I", 1 << 30) + bytes(64),
    "a trie of odd size": struct.pack("<I", 6) + bytes(64),
    "three bytes": b"abc",
    "a value behind the texts": charsmap({b"a": b"b"}).replace(
        struct.pack("<I", 1 << 31), struct.pack("<I", 1 << 31 | 9)
    ),
    "an entry without a value": charsmap({b"a": b"b"}).replace(
        struct.pack("<I", 1 << 31), struct.pack("<I", 0)
    ),
}
# Maps whose fault only a text shows.
LATE_MAPS = {
    "an entry that ends inside a character": charsmap({"é".encode()[:1]: b"e"}),
    "an entry for more than 128 bytes": charsmap({b"a" * 200: b"b"}),
}


@pytest.mark.parametrize("model", ["spm", "unigram"])
@pytest.mark.parametrize("name", BAD_MAPS)
def test_a_character_map_that_is_damaged_is_refused(model, name, engine):
    with pytest.raises(InvalidFormat, match="character map"):
        Tokenizer.from_spec(pieces(model, charsmap=BAD_MAPS[name]))


@pytest.mark.skipif(native.module() is None, reason="sentencepiece reports no such fault")
@pytest.mark.parametrize("name", LATE_MAPS)
def test_a_fault_of_a_map_that_only_a_text_shows_is_refused_with_that_text(name):
    tokenizer = Tokenizer.from_spec(pieces(charsmap=LATE_MAPS[name]))
    assert tokenizer.encode("b", add_special=False)
    with pytest.raises(InvalidFormat):
        tokenizer.encode("é" + "a" * 300)


@pytest.mark.parametrize("model", ["spm", "unigram"])
def test_a_character_map_that_is_sound_runs_in_both_engines(model):
    spec = pieces(model, charsmap=charsmap(GOOD_MAP))
    expected = library_engine(spec).encode("aé1212é")
    assert Tokenizer.from_spec(spec).encode("aé1212é", add_special=False) == expected


def test_a_character_map_that_makes_a_text_enormous_is_stopped(engine):
    spec = pieces(charsmap=charsmap({b"a": b"b" * 10_000}))
    with pytest.raises(Unsupported, match="too long"):
        Tokenizer.from_spec(spec).encode("a" * 10_000)


# Each is beyond a bound on the bytes, depth or size of a pattern.
PATTERNS = {
    "stacked intervals": "a" + "{1}" * 40_000,
    "few stacked intervals": "a" + "{1}" * 4_000,
    "stacked pluses": "a" + "+" * 5_000,
    "groups": "(" * 5_000 + "a" + ")" * 5_000,
    "looks": "(?=" * 3_000 + "a" + ")" * 3_000,
    "atomic groups": "(?>" * 3_000 + "a" + ")" * 3_000,
    "groups that repeat": "(" * 60 + "a" + "{2})" * 60 + "b",
    "classes": "[" * 5_000 + "a" + "]" * 5_000,
    "a long one": "ab|" * 50_000 + "c",
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_beyond_the_bounds_is_refused(name, engine):
    with pytest.raises(BitnetError) as caught:
        Tokenizer.from_spec(split(PATTERNS[name]))
    assert caught.value.hint


@needs_native
@pytest.mark.parametrize("name", PATTERNS)
def test_the_native_engine_of_regular_expressions_refuses_a_pattern_beyond_the_bounds(name):
    with pytest.raises(ValueError, match="regular expression"):
        native.module().regex_find_all(PATTERNS[name], TEXT)


EMPTY = {
    "a string": {"pattern": "", "behavior": "Isolated", "invert": False},
    "a String": {"pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
    "a Regex": {"pattern": {"Regex": ""}, "behavior": "Isolated", "invert": False},
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_pattern_is_refused_or_loses_no_text(name, engine):
    try:
        tokenizer = Tokenizer.from_spec(
            byte_level(pre_tokenizer=(Step("Split", EMPTY[name]), BYTE_LEVEL_STEP))
        )
    except BitnetError:
        return
    whole = Tokenizer.from_spec(byte_level(merges=()))
    found = tokenizer.encode("hello", add_special=False)
    assert tokenizer.decode(found) == whole.decode(found) == "hello"


@pytest.mark.parametrize("symbol", ["", "ab", 7, None])
def test_a_metaspace_whose_replacement_is_not_one_character_is_refused(symbol, engine):
    step = Step("Metaspace", {"replacement": symbol, "prepend_scheme": "always", "split": True})
    with pytest.raises(BitnetError):
        Tokenizer.from_spec(words(pre_tokenizer=(step,)))


def test_replacements_that_multiply_a_text_are_refused(engine):
    grow = Step("Replace", {"pattern": {"String": "a"}, "content": "aa"})
    with pytest.raises(Unsupported, match="bytes for each byte"):
        Tokenizer.from_spec(byte_level(normalizer=(grow,) * 40))


CONTRADICTIONS = {
    "NaN": pieces(scores=[math.nan] * 7),
    "infinity": pieces(scores=[0.0] * 6 + [math.inf]),
    "minus infinity": pieces("spm", scores=[0.0] * 6 + [-math.inf]),
    "beyond float32": pieces(scores=[0.0] * 6 + [1e39]),
    "few scores": pieces(scores=[0.0]),
    "no scores": pieces(scores=[]),
    "few types": pieces(token_types=[1]),
    "an unknown id outside": pieces(unknown_id=7),
    "an unknown id that is negative": pieces(unknown_id=-1),
    "an unknown id that is a text": pieces(unknown_id="0"),
    "an enormous unknown id": pieces(unknown_id=10**30),
    "a merge outside": byte_level(merges=[(0, 10**6)]),
    "a negative merge": byte_level(merges=[(-1, 0)]),
    "a merge of three": byte_level(merges=[(0, 1, 2)]),
    "a merge of texts": byte_level(merges=[("a", "b")]),
    "an added token outside": byte_level(added=(AddedToken(10**6, "x"),)),
    "a stop id outside": byte_level(stop_ids=frozenset({10**6})),
    "a prefix outside": byte_level(prefix_ids=(10**6,)),
    "a suffix outside": byte_level(suffix_ids=(10**6,)),
    "an id between two texts outside": byte_level(middle_ids=(0, 99_999)),
    "a negative id between two texts": byte_level(middle_ids=(-1,)),
    "many ids between two texts": byte_level(middle_ids=(0,) * 1_025),
    "a token that is a number": words(tokens=["[UNK]", 7]),
    "a word of any length": words(max_chars_per_word=10**9),
    "a word of no number": words(max_chars_per_word="many"),
    "a token of a megabyte": pieces(tokens=["a" * (1 << 20)] * 7),
    "an added token of a megabyte": byte_level(added=(AddedToken(0, "a" * (1 << 20)),)),
    "a step that is not one": byte_level(pre_tokenizer=(Step("Nonsense"), BYTE_LEVEL_STEP)),
    "a step without its options": byte_level(pre_tokenizer=(Step("Split"), BYTE_LEVEL_STEP)),
    "a thousand steps": byte_level(normalizer=(Step("NFC"),) * 1000),
    "a replacement without content": byte_level(
        normalizer=(Step("Replace", {"pattern": {"String": "a"}}),)
    ),
    "a map that is not base64": byte_level(
        normalizer=(Step("Precompiled", {"precompiled_charsmap": "!"}),)
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_specification_that_contradicts_itself_is_refused(name, engine):
    with pytest.raises(BitnetError) as caught:
        Tokenizer.from_spec(CONTRADICTIONS[name])
    assert type(caught.value) in (InvalidFormat, Unsupported)


def _parts(spec, **changes):
    """A compiled file of *spec* with a right checksum and *changes* of its parts."""
    return _builder(spec)(**changes)


def _builder(spec):
    """A function that builds the compiled file of *spec* with changes of its parts."""
    parts = {}
    module = native.module()

    class Recorder:
        def __getattr__(self, name):
            return getattr(module, name)

        def build_tokenizer(self, **given):
            parts.update(given)
            return module.build_tokenizer(**given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "module", Recorder)
        compiled.compile_spec(spec)
    return lambda **changes: module.build_tokenizer(**(parts | changes))


def _step(kind, text, mode=1):
    """The section of steps with one step: kind, *mode*, flag 0, text and an empty second text."""
    return struct.pack("<5I", 1, kind, mode, 0, len(text)) + text + struct.pack("<I", 0)


def _config(model, flags, unknown_id, longest):
    """A configuration: the model, flags, the unknown id and the most characters of a word."""
    return struct.pack("<4I2084x", model, flags, unknown_id, longest)


# Changes of a part, and the reason of the refusal. Kinds of steps are those of
# native/tokenizer/steps.hpp: 1 composes, 7 is that of BERT, 9 replaces, 12 strips, 20 to 22 split,
# 23 puts a space before, 24 is the metaspace and 29 cuts to a length. An added token has an id,
# flags, the length of its text, and the text.
HOSTILE_PARTS = {
    "a pattern that is not UTF-8": ({"steps": _step(20, b"[\xf0")}, "a text that is not UTF-8"),
    "a text that is not UTF-8": ({"steps": _step(21, b"\xc3")}, "a text that is not UTF-8"),
    "a text to replace that is empty": ({"steps": _step(9, b"")}, "looks for the empty text"),
    "a text to split at that is empty": ({"steps": _step(21, b"")}, "looks for the empty text"),
    "a metaspace that is empty": ({"steps": _step(24, b"")}, "looks for the empty text"),
    "steps that end early": ({"steps": _step(20, b"abc")[:-5]}, "steps end early"),
    "an unknown step": ({"steps": _step(99, b"")}, "unknown step"),
    **{
        f"mode {mode} of step {kind}": ({"steps": _step(kind, text, mode)}, "an unknown mode")
        for kind, text, mode in (
            *((1, b"", 1), (7, b"", 16), (9, b"a", 1), (12, b"", 4)),
            *((20, b"a", 5), (21, b"a", 5), (22, b"", 5), (22, b"", 2**32 - 1)),
            *((23, b" ", 3), (24, b"_", 3), (29, b"", 2**31)),
        )
    },
    "a million steps": ({"steps": struct.pack("<I", 10**6) + bytes(64)}, "too many steps"),
    "an added token that is not UTF-8": (
        {"added": struct.pack("<III", 0, 0, 1) + b"\xe5"},
        "an added token is not UTF-8",
    ),
    "an added token outside": (
        {"added": struct.pack("<III", 1 << 30, 0, 1) + b"x"},
        "an added token has an id outside of the vocabulary",
    ),
    "an added token that is too long": (
        {"added": struct.pack("<III", 0, 0, 999) + b"x" * 999},
        "an added token is too long",
    ),
    "added tokens that end early": (
        {"added": struct.pack("<III", 0, 0, 9) + b"x"},
        "added tokens end early",
    ),
    "bytes outside of the vocabulary": (
        {"byte_ids": struct.pack("<256I", *[1 << 30] * 256)},
        "a table points outside of the vocabulary",
    ),
    "few bytes": ({"byte_ids": bytes(1000)}, "its tables have wrong sizes"),
    "an unknown id outside": (
        {"config": _config(0, 1, 1 << 30, 100)},
        "a table points outside of the vocabulary",
    ),
    "an unknown model": ({"config": _config(77, 1, 0, 100)}, "its tables have wrong sizes"),
    "a word of any length": ({"config": _config(3, 0, 0, 1 << 30)}, "its longest word is too long"),
    "a Unigram model without scores": (
        {"scores": b"", "config": _config(2, 2, 0, 9)},
        "its scores are missing",
    ),
    "scores that are not numbers": (
        {"scores": struct.pack("<f", math.nan) * 274},  # one for each token
        "a score is NaN or too large",
    ),
    "few scores": ({"scores": bytes(8)}, "its tables have wrong sizes"),
    "a character map": ({"charsmap": charsmap({b"a": b"\xc3"})}, "character map: .* not UTF-8"),
    "a prefix that is not UTF-8": ({"prefix": b"\xff"}, "a text is not UTF-8"),
    "a description that is not UTF-8": ({"meta": b"\xff"}, "a text is not UTF-8"),
}


@needs_native
@pytest.mark.parametrize("name", HOSTILE_PARTS)
def test_a_compiled_file_with_a_right_checksum_and_a_wrong_part_is_refused(name):
    changes, reason = HOSTILE_PARTS[name]
    with pytest.raises(ValueError, match=reason):
        native.module().TokenizerEngine(_parts(byte_level(), **changes))


# Bytes at the edges of the ranges that UTF-8 gives a meaning, and what may follow them.
EDGES = bytes.fromhex("00 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")
TAILS = (b"", b"\x80", b"\xbf\xbf", b"\x80a", b"\xc2")


def _is_text(data):
    """True if Python decodes *data* as UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@needs_native
def test_the_native_engine_accepts_the_utf_8_that_python_does():
    """Each text by itself and between others, as long texts are read several bytes at a time."""
    build = _builder(byte_level())
    engine = native.module().TokenizerEngine
    inside = ("é€x" * 5).encode(), ("😀z" * 3).encode()
    pairs = [bytes(pair) for pair in itertools.product(EDGES, repeat=2)]
    for part in (pair + tail for pair in pairs for tail in TAILS):
        for text in (part, part.join(inside)):
            if _is_text(text):
                engine(build(suffix=text))
                continue
            with pytest.raises(ValueError, match="UTF-8"):
                engine(build(suffix=text))


META = compiled.meta_of(byte_level())
# Wrong descriptions, the JSON in a compiled file.
DESCRIPTIONS = {
    "not JSON": b"{",
    "a list": b"[]",
    "empty": b"{}",
    "too deep": b"[" * 100_000,
    **{
        f"{name} = {value!r}": json.dumps(META | {name: value}).encode()
        for name, value in (
            ("prefix", [10**6]),
            ("prefix", "abc"),
            ("suffix", [-1]),
            ("middle", [10**6]),
            ("middle", 0),
            ("middle", {}),
            ("second_type", 2),
            ("second_type", "1"),
            ("named_templates", [1]),
            ("named_templates", [["a", 1]]),
            ("template_tokens", {"a": "b"}),
            ("respelled", [[0, 1]]),
            ("stop_ids", [-1]),
            ("special_ids", [1.5]),
            ("bos_id", 10**6),
            ("model", 7),
            ("byte_level", None),
            ("chat_template", ["a"]),
            ("chat_template", []),
            ("spelled", None),
        )
    },
}


@needs_native
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_compiled_file_with_a_wrong_description_is_written_again(name):
    spec = byte_level(fingerprint="ab" * 32)
    expected = Tokenizer.from_spec(spec).encode(TEXT)
    path = compiled.path_of_compiled(spec.fingerprint)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(_parts(spec, meta=DESCRIPTIONS[name]))
    assert Tokenizer.from_cache(spec.fingerprint, source="x") is None
    assert Tokenizer.from_spec(spec).encode(TEXT) == expected
    assert path.read_bytes() == whole


@needs_native
def test_a_vocabulary_whose_tokens_share_a_place_in_the_table_is_not_compiled():
    # The constants of the hash in native/tokenizer/file.hpp, which is undone here.
    mask = (1 << 64) - 1
    multiplier = 0xD6E8FEB86659FD93
    inverse_of_multiplier = pow(multiplier, -1, 1 << 64)
    texts = []
    for n in range(3000):  # eight bytes whose hash is n << 40 and the same lowest bits
        mixed_hash = n << 40
        mixed_hash ^= mixed_hash >> 32
        word = (mixed_hash * inverse_of_multiplier & mask) ^ (0x9E3779B97F4A7C15 ^ 8)
        texts.append(struct.pack("<Q", word))
    spellings = [byte_spelling(text) for text in dict.fromkeys(texts)]
    spec = byte_level(tokens=[*byte_level().tokens, *spellings])
    with pytest.raises(compiled.NotNative, match="share a place"):
        compiled.compile_spec(spec)


_DOCUMENT = {
    "version": "1.0",
    "added_tokens": [{"id": 3, "content": "<s>", "special": True, "single_word": False,
                      "lstrip": False, "rstrip": False, "normalized": False}],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "x"}, "content": "a"}, {"type": "NFC"}]},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a|b"}, "behavior": "Isolated",
                      "invert": False},
    "post_processor": {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                  {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                {"Sequence": {"id": "A", "type_id": 0}},
                                {"SpecialToken": {"id": "<t>", "type_id": 0}},
                                {"Sequence": {"id": "B", "type_id": 1}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]},
                                          "<t>": {"id": "<t>", "ids": [3], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "Fuse"}]},
}  # fmt: skip
_MODELS = {
    "BPE": {"type": "BPE", "unk_token": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    "Unigram": {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0], ["b", -2.0], ["ab", -3.0]]},
    "WordPiece": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {"a": 0, "b": 1, "##b": 2}},
}  # fmt: skip
_WRONG = (None, True, -1, 2**70, 0.5, math.nan, "", "x", [], [0], [None], {}, {"x": 0}, {"0": []})


@pytest.mark.parametrize("kind", _MODELS)
def test_a_tokenizer_json_with_a_wrong_value_anywhere_is_refused_or_runs(kind, engine, tmp_path):
    document = _DOCUMENT | {"model": _MODELS[kind]}
    path = tmp_path / "tokenizer.json"
    tried = 0
    for place in places_in(document):
        for wrong in _WRONG:
            path.write_text(json.dumps(put(document, place, wrong)))
            with contextlib.suppress(BitnetError):
                tokenizer = Tokenizer.from_spec(spec_from_file(path))
                tokenizer.decode(tokenizer.encode("ab<s> xé"))
                around = tokenizer.around_pair or ()
                tokenizer.decode([id for ids in around for id in ids])
            tried += 1
    assert tried > 700  # the documents have more than fifty values


@pytest.mark.parametrize(
    "texts",
    [
        [bytes([65 + n]) * 4000 for n in range(5)],  # each is compared with all of its beginnings
        [b"a" * n for n in range(1, 3000)],  # every cut of every token is a merge
    ],
    ids=["long", "nested"],
)
def test_ranks_whose_merges_take_long_to_find_are_refused(texts, tmp_path):
    path = tmp_path / "a.tiktoken"
    texts = [bytes([n]) for n in range(256) if bytes([n]) not in texts] + texts
    lines = [base64.b64encode(text) + b" %d\n" % rank for rank, text in enumerate(texts)]
    path.write_bytes(b"".join(lines))
    spec = spec_from_file(path, pre="gpt-2")
    for engine in (Tokenizer.from_spec, open_engine):
        with pytest.raises(Unsupported, match="squared characters, at most"):
            engine(spec)


LONG = "a" * 20_000  # a copy of each of its beginnings has 200 million characters
SPACES = Step("Replace", {"pattern": {"String": " "}, "content": "\u2581"})


def _class_folder(folder):
    """Read a ``tokenizer.model`` whose class in transformers builds merges of the pieces."""
    spec = pieces("spm", tokens=["<unk>", "<s>", "</s>", LONG], scores=[0.0] * 4)
    model = sentencepiece_bytes(replace(spec, token_types=[2, 3, 3, 1], bos_id=1, eos_id=2))
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    spec_from_file(folder / "tokenizer.model")


def _merges_as_scores(_):
    """Find the scores that join like merges."""
    spec = pieces("bpe", scores=(), normalizer=(SPACES,), byte_fallback=True)
    as_sentencepiece(replace(spec, tokens=[*spec.tokens, LONG]))


def _scores_as_merges(_):
    """Find the merges that join like scores."""
    tokenizer_json(pieces("spm", tokens=["<unk>", LONG], scores=[0.0] * 2, token_types=[2, 1]))


@pytest.mark.parametrize("read", [_class_folder, _merges_as_scores, _scores_as_merges])
def test_a_token_whose_halves_take_long_to_find_is_refused_before_the_search(read, tmp_path):
    with pytest.raises(Unsupported, match="squared characters, at most"):
        read(tmp_path)


def test_an_added_token_that_is_too_long_to_normalize_is_refused(tmp_path):
    entry = {"id": 1, "content": "a" * 513, **dict.fromkeys(ADDED_FLAGS, False)}
    normalizer = {"type": "Replace", "pattern": {"Regex": "a+b"}, "content": ""}
    document = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    document |= {"normalizer": normalizer, "added_tokens": [entry | {"normalized": True}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(Unsupported, match="513 bytes in an added token, at most 512"):
        spec_from_file(tmp_path / "tokenizer.json")
