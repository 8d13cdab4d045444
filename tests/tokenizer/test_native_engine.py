"""The native engine against the portable one and against SentencePiece."""

import random
from dataclasses import replace

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from small_specs import BYTE_LEVEL_STEP, byte_level

from bitnet.base import native
from bitnet.base.errors import Unsupported
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.library import library_engine
from bitnet.tokenizer.spec import BYTE_TO_CHARACTER, Step, TokenizerSpec
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS, bpe_spec, pre_tokenizer

pytestmark = pytest.mark.skipif(native.module() is None, reason="the native module is missing")

# Pre-tokenizer steps before the ByteLevel step; "prefix" changes an option of that step.
STEPS = {
    "gpt2": [],
    "prefix": [],
    "digits": [Step("Digits", {"individual_digits": True})],
    "digit runs": [Step("Digits", {"individual_digits": False})],
    "punctuation": [Step("Punctuation", {"behavior": "Contiguous"})],
    "white space": [Step("WhitespaceSplit", {})],
    **{
        behavior: [
            Step("Split", {"pattern": {"Regex": r"[ab]"}, "behavior": behavior, "invert": False})
        ]
        for behavior in (
            "Removed",
            "Isolated",
            "MergedWithPrevious",
            "MergedWithNext",
            "Contiguous",
        )
    },
    "inverted": [
        Step("Split", {"pattern": {"String": "aa"}, "behavior": "MergedWithNext", "invert": True})
    ],
}
# Normalizers by name.
NORMALIZERS = {
    "none": (),
    "NFC": (Step("NFC", {}),),
    "NFKC": (Step("NFKC", {}),),
    "lower": (Step("Lowercase", {}),),
    "replace": (
        Step("Prepend", {"prepend": "a"}),
        Step("Replace", {"pattern": {"String": "b"}, "content": "aa"}),
    ),
}
# Texts of characters that the steps treat differently, and of any others.
texts = st.text(
    st.one_of(
        st.sampled_from(" aabbchelowr12.,!\n\tAHeé\u0301Å\u212b字ﬁ\u1100\u1161"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)
# Such texts with added tokens and words among them.
joined = st.lists(
    st.one_of(texts, st.sampled_from(["<s>", "</s>", "<|im|>", "word", "norm", " ", "hello"])),
    max_size=6,
).map("".join)
CORPUS = ["hello world, this is a test of segmentation", "the theory of the thing", "ABC abc 123"]

PARTS = [*CORPUS, "<sep>", "ell", "  "]


def normalizing(name):
    """A specification with the normalizer *name*.

    With "replace", the last added token is "anorm": the normalizer makes this text of "norm".
    """
    spec = byte_level(normalizer=NORMALIZERS[name])
    if name != "replace":
        return spec
    *others, last = spec.added
    return replace(spec, added=(*others, replace(last, text="anorm")))


def _same(spec, text, *, parse_special=True):
    """Assert that both engines give the same ids for *text*."""
    tokenizer = Tokenizer.from_spec(spec)
    assert tokenizer.engine == "native"
    portable = library_engine(spec)
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    assert ids == portable.encode(text, parse_special=parse_special)


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=40)
@given(text=joined, parse_special=st.booleans())
def test_every_pre_tokenizer_step_cuts_as_the_library_does(name, text, parse_special):
    last = Step("ByteLevel", BYTE_LEVEL_STEP.options | {"add_prefix_space": name == "prefix"})
    _same(byte_level(pre_tokenizer=(*STEPS[name], last)), text, parse_special=parse_special)


@pytest.mark.parametrize("name", NORMALIZERS)
@settings(max_examples=40)
@given(text=joined)
def test_every_normalizer_step_changes_what_the_library_changes(name, text):
    _same(normalizing(name), text)


def merging_all_pairs(name, characters):
    """A vocabulary for the pre-tokenizer *name* that joins each two bytes of *characters*.

    A cut between two of them changes the ids.
    """
    tokens = [*BYTE_TO_CHARACTER]
    used = sorted(set(characters.encode()))
    merges = [(left, right) for left in used for right in used]
    tokens += [tokens[left] + tokens[right] for left, right in merges]
    return bpe_spec(name, tokens=tokens, merges=merges, bos_id=None, eos_id=None)


# Apostrophes between letters of several kinds: what is cut depends on the neighbours.
_CONTRACTIONS = "l'\u00e9t\u00e9 S'il M'a \u5b57' 12\n\u00e9"


_BYTE_LEVEL = [name for name in PRE_TOKENIZERS if pre_tokenizer(name).byte_level]


@pytest.mark.parametrize("name", _BYTE_LEVEL)
def test_ids_of_a_text_do_not_depend_on_the_texts_before_it(name):
    spec = merging_all_pairs(name, _CONTRACTIONS)
    draws = random.Random(name)
    # Texts of one length may get the same address one after the other, which a cache must notice.
    texts = ["".join(draws.sample(_CONTRACTIONS, len(_CONTRACTIONS))) for _ in range(150)]
    try:
        portable = library_engine(spec)
        expected = [portable.encode(text, parse_special=True) for text in texts]
    except Unsupported:  # an expression that takes too long in the library
        expected = [Tokenizer.from_spec(spec).encode(text) for text in texts]
    tokenizer = Tokenizer.from_spec(spec)
    assert tokenizer.encode_batch(texts) == expected
    # A copy of each text is freed after its turn, and the next one may get its address.
    assert [tokenizer.encode("".join(list(text))) for text in texts] == expected


def test_an_added_token_is_found_in_the_text_that_a_normalizer_makes():
    spec = normalizing("replace")
    _same(spec, "norm")
    assert Tokenizer.from_spec(spec).encode("norm", add_special=False) == [spec.added[-1].id]


def test_the_library_refuses_an_added_token_that_the_normalizer_changes():
    with pytest.raises(Unsupported, match="'norm', which the normalizer changes"):
        library_engine(byte_level(normalizer=NORMALIZERS["replace"]))


@settings(max_examples=60)
@given(text=joined)
def test_byte_level_text_survives_a_round_trip(text):
    spec = byte_level(added=())
    tokenizer = Tokenizer.from_spec(spec)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@settings(max_examples=40)
@given(text=texts, lower=st.booleans())
def test_wordpiece_cuts_as_the_library_does(text, lower):
    tokens = ["[UNK]", "hello", "##lo", "he", "##l", "a", "##a", "b", "##b", "1", "2", ".", "字"]
    options = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    spec = TokenizerSpec(
        model="wordpiece",
        tokens=tokens,
        unknown_id=0,
        max_chars_per_word=8,
        normalizer=(Step("BertNormalizer", options | {"lowercase": lower}),),
        pre_tokenizer=(Step("BertPreTokenizer", {}),),
    )
    _same(spec, text)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request, tmp_path_factory):
    """A SentencePiece model with a character map and user-defined pieces, and our tokenizer."""
    prefix = tmp_path_factory.mktemp("model") / "tokenizer"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 20),
        model_prefix=str(prefix),
        vocab_size=320 if request.param == "bpe" else 300,
        model_type=request.param,
        byte_fallback=True,
        user_defined_symbols=["<sep>", "ell"],
        hard_vocab_limit=False,
        minloglevel=3,
    )
    path = prefix.with_suffix(".model")
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return oracle, Tokenizer.from_spec(spec_from_file(path))


@settings(max_examples=150)
@given(text=st.lists(st.one_of(texts, st.sampled_from(PARTS))).map(" ".join))
def test_sentencepiece_models_give_the_ids_of_sentencepiece(trained, text):
    oracle, tokenizer = trained
    assert tokenizer.engine == "native"
    found = tokenizer.encode(text, add_special=False, parse_special=False)
    assert found == oracle.encode(text)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [" ", "字", "1", "a", "\n", "<", "hello ", "\u0301"])
def test_a_megabyte_of_one_text_repeated_is_encoded_and_decoded(unit):
    text = unit * (1_000_000 // len(unit.encode()))
    tokenizer = Tokenizer.from_spec(byte_level())
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
