"""SentencePiece models: read with the ids of their library, written back, or refused."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece_writer import sentencepiece_bytes

from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.library import library_engine
from bitnet.tokenizer.sentencepiece_model import check_charsmap, parse_model, write_model
from bitnet.tokenizer.spec import AddedToken, TokenType
from bitnet.tokenizer.tokenizer import Tokenizer

TINY = Path(__file__).parents[1] / "fixtures" / "spm" / "tiny.model"
CORPUS = [
    "The quick brown fox jumps over the lazy dog, 123 times!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "def main():\n    return  'hello   world'",
] * 10
# Kind, byte fallback, normalization, dummy prefix, and True to remove extra white space.
VARIANTS = [
    ("bpe", True, "identity", True, False),
    ("bpe", False, "nmt_nfkc", True, True),
    ("bpe", True, "nfkc", False, True),
    ("unigram", False, "nmt_nfkc", True, True),
    ("unigram", True, "identity", False, False),
    ("unigram", True, "nmt_nfkc_cf", True, False),
]
# What trips tokenizers: runs of spaces, U+2581, ligatures, marks, controls, user-defined pieces.
TRICKY = st.text(
    st.sampled_from(
        "aeT ho1.\u2581\u2581\u2581   \n\t\xa0\u3000\ufb01\u212b\uff21\u0301\u0308\u200b\xad"
        "\x00\x05Äß日語\U0001f600<u>"
    ),
    max_size=30,
)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda v: "-".join(map(str, v)))
def trained(request, tmp_path_factory):
    """A trained model in its library and in ours, and its specification."""
    kind, fallback, rule, prefix, trim = request.param
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type=kind,
        vocab_size=500,
        byte_fallback=fallback,
        normalization_rule_name=rule,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=trim,
        user_defined_symbols=["<u>", "\u2581\u2581", "\ufb01"],
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=3,
    )
    path = tmp_path_factory.mktemp("spm") / "tokenizer.model"
    path.write_bytes(model.getvalue())
    spec = spec_from_file(path)
    return (
        sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()),
        library_engine(spec),
        spec,
    )


@given(text=TRICKY | st.text(max_size=40))
def test_ids_are_those_of_the_sentencepiece_library(trained, text):
    oracle, engine, spec = trained
    expected = oracle.encode(text)
    assert engine.encode(text, parse_special=False) == expected
    tokenizer = Tokenizer.from_spec(spec)
    assert tokenizer.encode(text, add_special=False, parse_special=False) == expected


def test_a_written_model_is_the_same_to_the_library(trained):
    oracle, _, spec = trained
    again = sentencepiece.SentencePieceProcessor(model_proto=write_model(spec))
    assert again.vocab_size() == spec.vocab_size
    for text in CORPUS[:5]:
        assert again.encode(text) == oracle.encode(text)


def test_reading_what_was_written_changes_nothing():
    model = parse_model(TINY.read_bytes())
    assert parse_model(write_model(model)) == model


def test_a_bos_that_is_switched_off_is_written_and_read_as_none():
    model = replace(parse_model(TINY.read_bytes()), bos_id=None)
    assert parse_model(write_model(model)).bos_id is None


def test_pieces_that_the_library_does_not_know_are_written_as_control_tokens():
    model = parse_model(TINY.read_bytes())
    empty, untyped, unknown = (len(model.tokens) - back for back in (1, 2, 3))
    tokens, types = list(model.tokens), list(model.token_types)
    tokens[empty] = ""
    types[untyped] = len(TokenType) + 1
    types[unknown] = TokenType.UNKNOWN  # beside that of *unknown_id*
    written = write_model(replace(model, tokens=tokens, token_types=types))
    library = sentencepiece.SentencePieceProcessor(model_proto=written)
    for id in (empty, untyped, unknown):
        assert (model.token_types[id], library.is_control(id)) == (TokenType.NORMAL, True)
    assert [id for id in range(len(tokens)) if library.is_unknown(id)] == [model.unknown_id]


def test_spaces_of_an_added_token_are_written_as_its_own_text_has_them():
    model = parse_model(TINY.read_bytes())
    last = len(model.tokens) - 1
    # As in GGUF, where U+2581 of a token is a space.
    spaces = replace(model, tokens=[*model.tokens[:last], "a  b"])
    added = replace(spaces, added=(AddedToken(last, "a\u2581\u2581b"),))
    assert parse_model(write_model(added)).tokens[last] == "a\u2581\u2581b"
    assert parse_model(write_model(spaces)).tokens[last] == "a  b"


@given(data=st.data())
def test_damaged_models_end_in_our_own_errors(data):
    content = bytearray(TINY.read_bytes()[:400])
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        model = parse_model(bytes(content[: data.draw(st.integers(0, len(content)))]))
    except BitnetError:
        return
    assert len(model.tokens) == len(model.scores) == len(model.token_types)


def test_word_models_are_refused_by_name():
    # Kind 3 is WORD in SentencePiece's file format.
    data = sentencepiece_bytes(parse_model(TINY.read_bytes()), kind=3)
    with pytest.raises(Unsupported, match="word"):
        parse_model(data)


def test_a_model_without_pieces_is_damaged():
    with pytest.raises(InvalidFormat, match="no pieces"):
        parse_model(b"")


@pytest.mark.parametrize("blob", [b"", b"abc", b"\xff\xff\xff\xff" + bytes(8), bytes(8)])
def test_a_damaged_normalization_table_is_refused(blob):
    with pytest.raises(InvalidFormat, match="character map"):
        check_charsmap(blob)


def test_the_unknown_id_is_that_of_the_piece_whose_type_is_unknown():
    model = parse_model(TINY.read_bytes(), source="tiny")
    # Types 1 and 2 are normal and unknown pieces.
    moved = replace(model, unknown_id=model.token_types.index(1))
    again = parse_model(sentencepiece_bytes(moved), source="moved")
    assert again.unknown_id == model.token_types.index(2)


# The type of all normal and unknown pieces: normal, so that none is unknown, or unknown.
@pytest.mark.parametrize("changed", [1, 2])
def test_a_model_with_no_or_several_unknown_pieces_is_refused(changed):
    model = parse_model(TINY.read_bytes(), source="tiny")
    types = [changed if kind in (1, 2) else kind for kind in model.token_types]
    with pytest.raises(InvalidFormat, match="pieces for unknown text, expected 1"):
        parse_model(sentencepiece_bytes(replace(model, token_types=types)), source="changed")
