"""Grammars in llama.cpp's form allow the tokens that llama.cpp allows."""

import lzma
from pathlib import Path

import pytest
from engine_samplers import ask

from bitnet.base.errors import UsageError
from bitnet.runtime.gbnf import to_lark
from bitnet.runtime.structured import Grammars
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.load import load_spec

pytest.importorskip("llguidance")

VOCABULARY = Path(__file__).parents[1] / "data" / "vocab" / "ggml-vocab-gpt-2.gguf.xz"
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
# A grammar, and a text that follows it up to its end or to a token that is not allowed.
CASES = [
    (JSON, '{"name": "The \\u00e9", "n": [12, -3.5e4, true, null, {}]}'),
    ('root ::= "true" | [a-z]+', "trx"),
    ('root ::= ("a" | "ab") ("c" | "bc")', "abbc"),
    ('root ::= [a-z]+ "x"', "aax"),
    ('root ::= a b?\na ::= "x"{2,3}\nb ::= [^x]*', "xxx yz"),
    ('root ::= ("(" root ")")*', "(()())"),
    ('root ::= item+ # a comment\nitem ::= "- " [^\\r\\n]{1,5}\n  ', "- one"),
    ('root ::= (\n  "one"\n  | "two" # inside\n)', "two"),
    ('root ::= [ab-]{3} [\\]\\[^] "\\x41\\u00e9\\U0001F600"', "a-b]Aé"),
    ('root ::= .{2,4} "!"', "日本!"),
    ("root ::= <[64]> !<[65]> [x-z]", "aax"),
    ('root ::= "a"\nroot ::= "b"', "b"),
    ('root ::= ""', ""),
    ('root ::= "a" []', "a"),
    ('root ::= "a"{0} "b"', "b"),
    ('root ::= "c" ("a" | "b"){0,0} other{0,} "b"\nother ::= "x"', "cxb"),
]
# A grammar that is refused, and a part of the reason.
WRONG = [
    ("", "no rule root"),
    ('other ::= "a"', "no rule root"),
    ("root", "expected ::="),
    ('root ::= "a', "the text ends inside"),
    ("root ::= [a", "the text ends inside"),
    ('root ::= ("a"', "expected )"),
    ("root ::= missing", "no rule 'missing'"),
    ("root ::= *", "nothing before *"),
    ('root ::= "b" "a"{0}*', "nothing before *"),
    ('root ::= "b" ""+', "nothing before +"),
    ('root ::= "b" []{2}', "nothing before {"),
    ('root ::= "a"{x}', "expected a number of times"),
    ('root ::= "a"{2 3}', "expected a number of times"),
    ('root ::= "a"{}', "expected a number of times"),
    ('root ::= "a"{3,2}', "3 times at least"),
    ('root ::= "a"{5000}', "at most 2,000 times"),
    # More digits than Python reads as a number.
    ('root ::= "a"{' + "1" * 5000 + "}", "at most 2,000 times"),
    ('root ::= "a"{1,' + "1" * 5000 + "}", "at most 2,000 times"),
    ('root ::= "a"{' + "1" * 5000 + ",}", "at most 2,000 times"),
    ('root ::= (("a"{1000}){1000}){1000}', "at most 10,000 items"),
    (r'root ::= "\q"', "no such escape"),
    (r'root ::= "\x4"', "no such escape"),
    (r'root ::= "\uD800"', "not a character"),
    ("root ::= [z-a]", "no character"),
    ("root ::= <nothing>", "not one token"),
    ("root ::= <[50256]>", "ends an answer"),
    ("root ::= )", "expected the end of the line"),
    ('root ::= "a" "b"\n  "c"', "expected the name of a rule"),
    ("root ::= " + "(" * 200, "nested more than 100"),
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "gpt-2.gguf"
    path.write_bytes(lzma.decompress(VOCABULARY.read_bytes()))
    return path


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return Tokenizer.from_spec(load_spec(vocabulary))


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer)


def is_text(tokenizer, token):
    """True if *token* consists of whole characters and does not begin with NUL.

    Others are not compared: llama.cpp checks parts of characters less exactly, and accepts no token
    that begins with NUL.
    """
    try:
        return tokenizer.token_bytes(token).decode()[:1] not in ("", "\0")
    except UnicodeDecodeError:
        return False


def assert_follows(tokenizer, grammar, ids, rows):
    """Check that *grammar* allows before each of *ids* the tokens in *rows*, those of llama.cpp."""
    texts = {token for token in range(tokenizer.vocab_size) if is_text(tokenizer, token)}
    matcher = grammar.start()
    for place, row in enumerate(rows):
        allowed = set(matcher.next_ids().tolist()) if not matcher.finished else {*row}
        assert allowed & texts == {*row} & texts, place
        # 50256 is GPT-2's end of text, which is allowed where the grammar may end.
        assert matcher.finished or (50256 in allowed) == (50256 in row), place
        if place < len(ids) and ids[place] in row:
            matcher.accept(ids[place])


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(CASES[1:4], id="ambiguous"),
        pytest.param(CASES[-2:], id="zero times"),
        pytest.param(CASES, id="all", marks=pytest.mark.slow),
    ],
)
def test_a_grammar_allows_the_tokens_that_llama_cpp_allows(
    vocabulary, tokenizer, grammars, tmp_path, cases
):
    pytest.importorskip("xllamacpp")
    asked = [
        {"grammar": grammar, "ids": tokenizer.encode(text, add_special=False) if text else []}
        for grammar, text in cases
    ]
    for case, rows in zip(asked, ask("accept", vocabulary, asked, tmp_path), strict=True):
        assert rows is not None, case["grammar"]
        assert_follows(tokenizer, grammars.gbnf(case["grammar"]), case["ids"], rows)


@pytest.mark.parametrize(("text", "reason"), WRONG, ids=[text[:24] for text, _ in WRONG])
def test_a_wrong_grammar_is_refused_with_the_reason(tokenizer, text, reason):
    with pytest.raises(UsageError, match=r"^grammar: ") as refused:
        to_lark(text, lambda _: None, tokenizer.stop_ids)
    assert reason in refused.value.message
    assert refused.value.field == "grammar"


@pytest.mark.parametrize("times", ["{%s2}", "{%s2,}", "{%s1,%s3}"])
def test_zeros_before_a_number_of_times_change_nothing(times):
    zeros, plain = (
        to_lark(f'root ::= "a"{times.replace("%s", before)}', lambda _: None)
        for before in ("0" * 5000, "")
    )
    assert zeros == plain


@pytest.mark.parametrize("negation", ["", "!"])
@pytest.mark.parametrize("token", [50257, 99999999])
def test_a_token_that_the_model_does_not_have_is_refused_with_its_place(grammars, negation, token):
    with pytest.raises(
        UsageError, match=rf"line 2, column 13: there is no token {token}"
    ) as caught:
        grammars.gbnf(f'root ::= x\nx ::= "a" | {negation}<[{token}]>')
    assert caught.value.field == "grammar"


#: Reasons in WRONG of grammars that llama.cpp accepts, with another meaning or none.
OURS_ALONE = (
    "times at least", "at most 2,000", "at most 10,000", "not a character", "no character",
    "ends an answer", "nested", "name of a rule",
)  # fmt: skip


def test_llama_cpp_refuses_the_grammars_that_are_not_refused_by_us_alone(vocabulary, tmp_path):
    pytest.importorskip("xllamacpp")
    texts = [text for text, reason in WRONG if not any(words in reason for words in OURS_ALONE)]
    texts.remove("")  # no grammar at all, for llama.cpp
    asked = [{"grammar": text, "ids": []} for text in texts]
    for text, rows in zip(texts, ask("accept", vocabulary, asked, tmp_path), strict=True):
        assert rows is None, text  # no tokens: the grammar was not parsed


def test_a_grammar_in_the_form_of_the_library_passes_through(grammars, tokenizer):
    matcher = grammars.gbnf('%llguidance {}\nstart: "yes"').start()
    allowed = {tokenizer.decode([token]) for token in matcher.next_ids()}
    assert allowed
    assert allowed <= {"y", "ye", "yes"}
