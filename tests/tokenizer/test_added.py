import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken as LibraryToken
from tokenizers import Tokenizer, models

from bitnet.tokenizer.added import AddedTokens
from bitnet.tokenizer.spec import AddedToken

TOKENS = [
    AddedToken(10, "<s>"),
    AddedToken(11, "<s>x", special=False),
    AddedToken(12, "<l>", lstrip=True),
    AddedToken(13, "<r>", rstrip=True),
    AddedToken(14, "ab", special=False, single_word=True),
    AddedToken(15, "<b>", lstrip=True, rstrip=True),
]


@pytest.fixture(scope="module")
def library():
    """The same added tokens in the library, over a vocabulary of single characters."""
    characters = {char: id for id, char in enumerate("<>slrbxa \t")}
    oracle = Tokenizer(models.BPE(characters, [], unk_token="<"))
    ids = {}
    for token in TOKENS:
        oracle.add_special_tokens(
            [
                LibraryToken(
                    token.text,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    single_word=token.single_word,
                    normalized=False,
                )
            ]
        )
        ids[oracle.token_to_id(token.text)] = token.id
    return oracle, ids


@given(
    text=st.lists(
        st.sampled_from(["<s>", "<s>x", "<l>", "<r>", "<b>", "ab", "a", " ", "\t", "x", "<"])
    ).map("".join)
)
def test_cuts_are_those_of_the_library(library, text):
    oracle, ids = library
    wanted = [
        (ids[id], text[start:stop])
        for id, (start, stop) in zip(
            oracle.encode(text).ids, oracle.encode(text).offsets, strict=True
        )
        if id in ids
    ]
    parts = AddedTokens(TOKENS).split(text)
    assert [part for part in parts if isinstance(part, int)] == [id for id, _ in wanted]
    between = "".join(part for part in parts if isinstance(part, str))
    assert len(between) == len(text) - sum(len(cut) for _, cut in wanted)


def test_special_tokens_stay_text_unless_asked_for():
    added = AddedTokens(TOKENS)
    assert added.split("a<s>xb", parse_special=False) == ["a", 11, "b"]
    assert added.split("a<s>b", parse_special=False) == ["a<s>b"]


def test_the_longest_token_wins():
    assert AddedTokens(TOKENS).split("<s>x") == [11]


def test_stages_are_kept_apart():
    tokens = [AddedToken(1, "<a>"), AddedToken(2, "<b>", normalized=True)]
    assert AddedTokens(tokens).split("<a><b>") == [1, "<b>"]
    assert AddedTokens(tokens, normalized=True).split("<a><b>") == ["<a>", 2]


def test_a_vocabulary_without_added_tokens_leaves_text_alone():
    assert AddedTokens([]).split("<s>") == ["<s>"]
    assert AddedTokens([]).split("") == []
