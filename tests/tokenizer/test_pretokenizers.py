"""Pre-tokenizers by the names of llama.cpp: each cuts a text as its tokenizer does."""

import json

import pytest
from tokenizers import Tokenizer

from bitnet.base.errors import Unsupported
from bitnet.tokenizer.spec import BYTE_TO_CHARACTER, TokenizerSpec
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS, pre_tokenizer

FROM_BYTE_SPELLING = {char: byte for byte, char in enumerate(BYTE_TO_CHARACTER)}
# The normalizer that puts U+2581 in place of spaces.
SPM = pre_tokenizer("gemma4").normalizer


def spelled(name, text):
    """Pieces into which *name* cuts *text*, as the vocabulary spells it, by the library."""
    pre = pre_tokenizer(name)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [step(s) for s in pre.normalizer]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [step(s) for s in pre.steps]},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    library = Tokenizer.from_str(json.dumps(document))
    pieces_with_offsets = library.pre_tokenizer.pre_tokenize_str(
        library.normalizer.normalize_str(text)
    )
    return [piece for piece, _ in pieces_with_offsets]


def plain(name, piece):
    """The text of *piece*, which *name* may have spelled as bytes."""
    if not pre_tokenizer(name).byte_level:
        return piece
    return bytes(FROM_BYTE_SPELLING[char] for char in piece).decode("utf-8", "replace")


def pieces(name, text):
    """Pieces into which *name* cuts *text*."""
    return [plain(name, piece) for piece in spelled(name, text)]


def step(of):
    """A step as a ``tokenizer.json`` has it."""
    return {"type": of.type, **of.options}


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_the_pieces_of_every_pre_tokenizer_join_to_the_text(name):
    text = "Hello WORLD's  1234567 foo\n\n漢字 ひら\tÄß (x_y)|.,!?\u00a0end 1/2"
    joined_pieces = plain(name, "".join(spelled(name, text)))
    expected = text.replace(" ", "\u2581") if pre_tokenizer(name).normalizer == SPM else text
    if name == "mmbert":  # puts U+2581 before each part between empty lines, too
        expected = "\n\n".join(
            "\u2581" + line for line in text.replace(" ", "\u2581").split("\n\n")
        )
    if name == "whitespace":  # removes white space
        expected = "".join(text.split())
    assert joined_pieces == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama-bpe", "I'M 1234 a\n\n b", ["I", "'M", " ", "123", "4", " a", "\n\n", " b"]),
        ("qwen2", "I'm 12", ["I", "'m", " ", "1", "2"]),
        ("gpt-2", "I'M 1234  a", ["I", "'", "M", " 1234", " ", " a"]),
        ("starcoder", "x 12", ["x", " ", "1", "2"]),
        ("falcon", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
        ("deepseek-llm", "a1b 漢字x", ["a", "1", "b", " ", "漢字", "x"]),
        ("deepseek-coder", "a.b 12", ["a", ".", "b", " ", "1", "2"]),
        ("deepseek-v3", "x1234 漢字", ["x", "123", "4", " ", "漢字"]),
        ("gpt-4o", "HelloWORLD's 1234", ["Hello", "WORLD's", " ", "123", "4"]),
        ("tekken", "HelloWORLD's 12", ["Hello", "WORLD", "'s", " ", "1", "2"]),
        ("bloom", "Hi there, you", ["Hi", " there", ",", " you"]),
        ("kimi-k2", "漢字abc 漢", ["漢字", "abc", " ", "漢"]),
        ("afmoe", "1234567", ["1", "234", "567"]),
        ("tiny_aya", "1234567", ["1", "234", "567"]),
        ("superbpe", "of the 1234", ["of the ", "1", "234"]),
        ("ufakzeka", "Ali'nin", ["Ali", "'nin"]),
        ("exaone-moe", "two words", ["two words"]),
        ("gemma4", "a b\n\nc", ["a\u2581b", "\n\n", "c"]),
        ("mmbert", "a b\n\nc  d", ["\u2581a", "\u2581b", "\n\n", "\u2581c", "\u2581", "\u2581d"]),
    ],
)
def test_texts_are_cut_as_published(name, text, expected):
    assert pieces(name, text) == expected


def test_a_pre_tokenizer_normalizes_if_its_tokenizer_does():
    assert pieces("qwen2", "e\u0301") == ["\u00e9"]
    assert pieces("llama-bpe", "e\u0301") == ["e", "\u0301"]


def test_long_s_is_a_contraction_of_llama3_as_in_its_own_expression():
    assert pieces("llama-bpe", "a'\u017fb") == ["a", "'\u017f", "b"]


def test_letters_of_deepseek_are_those_of_its_expression_unnormalized():
    letters = next(s.options["pattern"]["Regex"] for s in pre_tokenizer("deepseek-llm").steps[1:2])
    # NFC would replace the first two, and the range would then begin at K.
    assert "\u1f7d" in letters
    assert "\u2126" in letters
    assert "\u212a-\u212d" in letters


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(Unsupported) as caught:
        pre_tokenizer("llama-9")
    assert "llama-bpe" in caught.value.hint


def test_names_are_usable_in_a_specification():
    pre = pre_tokenizer("llama-bpe")
    spec = TokenizerSpec(model="bpe", tokens=["a"], pre_tokenizer=pre.steps)
    assert spec.pre_tokenizer[0].type == "Split"
