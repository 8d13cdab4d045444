"""Faults of tokenizer files, hostile ones too: a reason, or what the library makes of them."""

import base64
import json
from dataclasses import replace as replaced

import pytest
import sentencepiece
import tokenizers
from charsmaps import charsmap
from json_places import places_in, put
from sentencepiece_writer import sentencepiece_bytes
from small_specs import pieces

from bitnet.base import native
from bitnet.base.errors import BitnetError
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.load import load_tokenizer

VOCABULARY = {"a": 0, "b": 1, "ab": 2, "<s>": 3}
BPE = {"type": "BPE", "vocab": VOCABULARY, "merges": [["a", "b"]]}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]}


def document(model=BPE, **parts):
    """A ``tokenizer.json`` with *model* and these *parts*."""
    empty = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
    return {"version": "1.0", "added_tokens": [], **dict.fromkeys(empty), "model": model} | parts


def write(folder, content):
    """Write *content* as ``tokenizer.json`` in *folder*, and return its path."""
    path = folder / "tokenizer.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def split(regex):
    """A step that cuts a text with *regex*."""
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def replace(regex, content):
    """A step or decoder that puts *content* in place of what *regex* matches."""
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": content}


def template(ids, times):
    """A template that puts *times* special tokens of *ids* ids each before a text."""
    around = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * times
    return {
        "type": "TemplateProcessing",
        "single": [*around, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [3] * ids, "tokens": ["<s>"] * ids}},
    }


def pair(ids, *, names=1, second_type=1):
    """A template whose two texts have *names* tokens of these *ids* between them."""
    text = [{"Sequence": {"id": name, "type_id": at * second_type}} for at, name in enumerate("AB")]
    between = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * names
    special = {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"] * len(ids)}}
    return {
        "type": "TemplateProcessing",
        "single": text[:1],
        "pair": [text[0], *between, text[1]],
        "special_tokens": special,
    }


HOSTILE = {
    "an id between two texts outside of the vocabulary": document(post_processor=pair([99_999])),
    "a hundred million ids between two texts": document(
        post_processor=pair([3] * 10_000, names=10_000)
    ),
    "an id of 5,000 digits": json.dumps(document()).replace('"a": 0', '"a": ' + "9" * 5000),
    "a decoder that panics": document(decoder=replace(r"(a*)*b|(?=a{0,9}{0,9}{0,9}c)", "x")),
    "decoders that grow": document(decoder={"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}] * 5}),
    "a template of a hundred million ids": document(post_processor=template(10_000, 10_000)),
    "a reference to a group": document(pre_tokenizer=split(r"(a+)\1b")),
    "a named reference": document(pre_tokenizer=split(r"(?<x>a+)\k<x>b")),
    "a call of a group": document(pre_tokenizer=split(r"(a|b\g<1>c)*")),
    "a condition": document(pre_tokenizer=split(r"(a)?(?(1)b|c)")),
    "an absent text": document(pre_tokenizer=split(r"(?~ab)")),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name, tmp_path, engine):
    with pytest.raises(BitnetError) as caught:
        load_tokenizer(write(tmp_path, HOSTILE[name]))
    assert caught.value.message


# Models know the types 0 and 1; ids go before, between and after two texts. Without such ids the
# type is 0.
@pytest.mark.parametrize(
    ("second_type", "around", "kept_type"),
    [(0, ([], [3], []), 0), (1, ([], [3], []), 1), (2, None, 0)],
)
def test_two_texts_are_joined_if_a_model_can_tell_them_apart(
    second_type, around, kept_type, tmp_path
):
    path = write(tmp_path, document(post_processor=pair([3], second_type=second_type)))
    tokenizer = load_tokenizer(path)
    assert tokenizer.around_pair == around
    assert tokenizer.second_type == kept_type


@pytest.mark.parametrize("pattern", [r"\p{L}+", r"a|b", r"a{0,5}b"])
def test_a_decoder_replaces_what_the_library_replaces(pattern, tmp_path):
    path = write(tmp_path, document(decoder=replace(pattern, "x")))
    library = tokenizers.Tokenizer.from_file(str(path))
    assert load_tokenizer(path).decode([0, 1, 2, 2]) == library.decode([0, 1, 2, 2])


# Values of other types and sizes.
ODD = (True, False, None, -1, 0.5, "1", "x", [], {}, [1], 2**40)


@pytest.mark.parametrize("model", [BPE, UNIGRAM], ids=["BPE", "Unigram"])
def test_values_that_the_library_does_not_accept_are_refused(model, tmp_path):
    """Every value of a vocabulary and its options, replaced by values of other types."""
    accepted = []  # what the library refuses and we do not
    for place in places_in(model):
        for odd in ODD:
            path = write(tmp_path, document(put(model, place, odd)))
            try:
                tokenizers.Tokenizer.from_file(str(path))
                continue  # the library accepts it
            except Exception:  # noqa: BLE001 - the library raises nothing more exact
                pass
            try:
                Tokenizer.from_spec(replaced(spec_from_file(path), fingerprint=""))
            except BitnetError:
                continue
            accepted.append((place, odd))
    assert accepted == []


def test_of_equal_pieces_the_last_one_counts_as_in_the_library(tmp_path, engine):
    vocabulary = [["<unk>", 0.0], ["a", -1.0], ["b", -2.0], ["a", -9.0], ["ab", -4.0], ["b", -1.0]]
    path = write(tmp_path, document({"type": "Unigram", "unk_id": 0, "vocab": vocabulary}))
    library = tokenizers.Tokenizer.from_file(str(path))
    ours = load_tokenizer(path)
    for text in ("a", "b", "ab", "aab", "bab", "abab", "cab"):
        assert ours.encode(text) == library.encode(text).ids
    assert [ours.decode([id]) for id in range(6)] == [library.decode([id]) for id in range(6)]


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("truncation", {"direction": "Right", "max_length": 2, "strategy": "LongestFirst",
                        "stride": 0}),
        ("padding", {"strategy": {"Fixed": 6}, "direction": "Right", "pad_to_multiple_of": None,
                     "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}),
    ],
)  # fmt: skip
def test_truncation_and_padding_are_not_applied_and_a_warning_says_so(
    section, value, tmp_path, caplog
):
    load_tokenizer(write(tmp_path, document(**{section: value})))
    assert f"has a {section} section, which is not applied" in caplog.text


def normal_charsmap():
    """A character map about as large as SentencePiece's own."""
    wide = {chr(code).encode(): chr(code - 0xFEE0).encode() for code in range(0xFF01, 0xFF5F)}
    table = charsmap(wide | {"ﬁ".encode(): b"fi", b"\t": b" "})
    assert len(table) > 16_384
    return table


def test_a_charsmap_of_the_usual_size_runs_as_in_the_library(tmp_path, engine):
    table = base64.b64encode(normal_charsmap()).decode()
    model = UNIGRAM | {"vocab": [*UNIGRAM["vocab"], ["f", -3.0], ["i", -3.5], ["\u2581", -4.0]]}
    path = write(tmp_path, document(
        model,
        normalizer={"type": "Precompiled", "precompiled_charsmap": table},
        pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
                       "split": True},
    ))  # fmt: skip
    library = tokenizers.Tokenizer.from_file(str(path))
    ours = load_tokenizer(path)
    for text in ("ab ﬁ", "ａｂ\tab", "\u1e9b\u0323 é", "ﬁ" * 20, "a\r\nb"):
        expected = library.encode(text)
        spans = ours.spans(text, add_special=False)
        assert [span.id for span in spans] == expected.ids == ours.encode(text)
        assert [(span.start, span.stop) for span in spans] == expected.offsets


def test_a_charsmap_that_is_enormous_is_refused(tmp_path, engine):
    table = base64.b64encode(bytes(5 << 20)).decode()
    path = write(
        tmp_path, document(normalizer={"type": "Precompiled", "precompiled_charsmap": table})
    )
    with pytest.raises(BitnetError):
        load_tokenizer(path)


@pytest.mark.parametrize("model", ["spm", "unigram"])
@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("symbol", ["  ", "   ", " a", "a ", "bb"])
def test_user_defined_symbols_of_spaces_give_the_ids_of_sentencepiece(model, trim, symbol, engine):
    tokens = ["<unk>", "\u2581", "a", "b", symbol, "\u2581a"]
    spec = pieces(
        model,
        tokens=tokens,
        scores=[0.0, -1.0, -2.0, -3.0, 0.0, -1.5],
        token_types=[2, 1, 1, 1, 4, 1],
        remove_extra_whitespaces=trim,
        add_space_prefix=True,
    )
    loaded_spec = _spec_of_model(spec)
    original = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_bytes(spec))
    ours = Tokenizer.from_spec(loaded_spec)
    for text in ("a", "a  b", "a   b", "  a", "a  ", "a    b  a", "   ", " a a  a", "b  b b"):
        assert ours.encode(text, add_special=False) == original.encode(text), text


def _spec_of_model(spec):
    """*spec* as a loader makes it of the model file."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.model")
        path.write_bytes(sentencepiece_bytes(spec))
        loaded = spec_from_file(path)
    return replaced(loaded, add_bos=False, fingerprint="")


@pytest.mark.parametrize("model", ["spm", "unigram"])
def test_the_unknown_id_is_decoded_as_sentencepiece_does(model, engine):
    spec = pieces(model)
    original = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_bytes(spec))
    ours = Tokenizer.from_spec(_spec_of_model(spec))
    for ids in ([0], [2, 0, 3], [0, 0], [1, 0], [0, 1, 2]):
        assert ours.decode(ids) == original.decode(ids)
        assert ours.decode(ids, skip_special=True) == original.decode(ids)
    assert 0 not in ours.special_ids


WORDS = {"type": "WordLevel", "vocab": {"<unk>": 0, "ab": 1, "a": 2, "é": 3}, "unk_token": "<unk>"}
PIECES = {
    "type": "Unigram",
    "unk_id": 0,
    "vocab": [["<unk>", -9.0], ["\u2581", -2.5], ["a", -1.25], ["b", -2.0], ["ab", -2.75]],
}
METASPACE = {
    "type": "Metaspace",
    "replacement": "\u2581",
    "prepend_scheme": "always",
    "split": True,
}
# Model, normalizer and pre-tokenizer of files that the native engine runs step by step. The
# character map of T5's normalizer is made when the test runs.
STEPWISE = {
    "T5": (PIECES, None, METASPACE),
    "Unigram, lower case": (PIECES, {"type": "Lowercase"}, METASPACE),
    "Unigram, regular": (PIECES, replace(r"\s+", " "), METASPACE),
    "words": (WORDS, {"type": "NFC"}, {"type": "Whitespace"}),
    "words at a letter": (WORDS, None, {"type": "CharDelimiterSplit", "delimiter": "b"}),
    "words of two": (WORDS, {"type": "Nmt"}, {"type": "FixedLength", "length": 2}),
}  # fmt: skip


def t5_normalizer():
    """The normalizer of T5, with the usual character map."""
    table = base64.b64encode(normal_charsmap()).decode()
    steps = [
        {"type": "Precompiled", "precompiled_charsmap": table},
        {"type": "Strip", "strip_left": True, "strip_right": True},
    ]
    return {"type": "Sequence", "normalizers": steps}


@pytest.mark.skipif(native.module() is None, reason="the native module is missing")
@pytest.mark.parametrize("name", STEPWISE)
def test_the_native_engine_runs_steps_as_the_library_does(name, tmp_path):
    model, normalizer, pre = STEPWISE[name]
    if name == "T5":
        normalizer = t5_normalizer()
    path = write(tmp_path, document(model, normalizer=normalizer, pre_tokenizer=pre))
    library = tokenizers.Tokenizer.from_file(str(path))
    ours = load_tokenizer(path)
    assert ours.engine == "native"
    for text in ("ab ab", "AB a", " a\t b  ab ", "e\u0301 ab", "ﬁa字字b", "", "ab.,é!", "aab" * 9):
        expected = library.encode(text)
        spans = ours.spans(text, add_special=False)
        assert ours.encode(text) == [span.id for span in spans] == expected.ids, text
        assert [(span.start, span.stop) for span in spans] == expected.offsets, text


@pytest.mark.skipif(native.module() is None, reason="the native module is missing")
@pytest.mark.parametrize("length", [2**31, 2**63, 2**64 - 1])
def test_a_fixed_length_of_more_than_31_bits_is_left_to_the_library(length, tmp_path):
    pre = {"type": "FixedLength", "length": length}
    path = write(tmp_path, document(WORDS, pre_tokenizer=pre))
    assert load_tokenizer(path).engine == "portable"
