"""Answers under a grammar: a random model can only write what the grammar allows."""

import json
import math
import re
import sys
from types import MappingProxyType

import pytest
from builders import vocabulary
from tiny_keys import VOCAB
from tiny_models import letters, tiny_gguf

import bitnet
from bitnet.base.errors import Unsupported, UsageError
from bitnet.base.invocation import extra_command
from bitnet.runtime.structured import Grammars, with_ascii_classes
from bitnet.runtime.tool_formats import HERMES
from bitnet.runtime.tool_grammar import JSON_STYLE
from bitnet.runtime.tools import read_tools

pytest.importorskip("llguidance")

SPACE = "\u0120"  # a space in GPT-2's spelling of bytes
TOKENS = [
    *("<s>", "</s>", "<end>"),
    *'{}[]":,-.+0123456789abcdefghijklmnopqrstuvwxyz',
    *(SPACE, '{"', '":', ":" + SPACE, "," + SPACE, '"}', "true", "false", "null", "12", "ab"),
]
TOKENS += [f"Q{at}" for at in range(VOCAB - len(TOKENS))]
# Every property ends by itself, so that also a random model ends its answer.
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", None]}, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model that knows the characters of JSON; either of two ids ends its answers."""
    words = letters(TOKENS, eot_token_id=2)
    words["llama.context_length"] = 256
    path = tiny_gguf(tmp_path_factory.mktemp("json") / "tiny.gguf", tokenizer=False, **words)
    with bitnet.load(path) as model:
        yield model


def wild(seed, **more):
    """Options that sample at a high temperature, so that answers vary with *seed*."""
    return {"temperature": 4.0, "seed": seed, **more}


def is_person(value):
    """True if *value* follows the schema PERSON; written without a library for schemas."""
    return (
        list(value) == ["name", "age", "tags", "ok"]
        and len(value["name"]) <= 6
        and value["age"] in range(121)
        and len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "bc", None}
        and value["ok"] in (True, False)
    )


@pytest.mark.parametrize("lookup", [0, 8])
def test_sampled_answers_follow_the_schema(model, lookup):
    for seed in range(8):
        answer = model.stream("ab", max_tokens=99, **wild(seed), json_schema=PERSON, lookup=lookup)
        assert is_person(json.loads("".join(answer)))
        assert answer.finish_reason == "stop"


SHORT = {"type": "string", "maxLength": 4}
SCHEMAS = {
    "nested": {
        "type": "object",
        "properties": {
            "at": {
                "type": "object",
                "properties": {"x": {"type": "number", "minimum": -5, "maximum": 5}, "y": SHORT},
                "required": ["x"],
                "additionalProperties": False,
            }
        },
        "required": ["at"],
        "additionalProperties": False,
    },
    "alternatives": {"anyOf": [{"const": 12}, {"enum": ["a", None]}, {"type": "boolean"}]},
    "references": {
        "$defs": {
            "pair": {"type": "array", "prefixItems": [SHORT, {"type": "null"}], "items": False}
        },
        "type": "array",
        "items": {"$ref": "#/$defs/pair"},
        "minItems": 1,
        "maxItems": 2,
    },
    "recursive": {
        "$defs": {
            "list": {
                "anyOf": [
                    {"const": 1},
                    {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/list"}},
                ]
            }
        },
        "$ref": "#/$defs/list",
    },
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]$"},
    "number": {"type": "integer", "minimum": -20, "exclusiveMaximum": 100, "multipleOf": 5},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_sampled_answers_follow_every_kind_of_schema(model, name):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])
    # A random model rarely ends a list, so "]" is made more likely.
    closing = {"temperature": 4.0, "logit_bias": {TOKENS.index("]"): 8.0}}
    ended = 0
    for seed in range(8):
        answer = model.stream("ab", max_tokens=80, **closing, seed=seed, json_schema=SCHEMAS[name])
        text = "".join(answer)
        if answer.finish_reason == "stop":
            validator.validate(json.loads(text))
            ended += 1
    assert ended > 4  # of eight; the others reached max_tokens


def test_a_greedy_answer_follows_the_schema(model):
    assert is_person(json.loads(model.generate("ab", max_tokens=99, json_schema=PERSON)))


def test_drafts_do_not_change_a_structured_answer(model):
    for seed in range(8):
        options = {"max_tokens": 50, **wild(seed), "regex": "(abab|ab12|12){1,20}"}
        plain = model.stream("ababab12", **options)
        drafted = model.stream("ababab12", lookup=6, **options)
        assert (list(plain), plain.ids) == (list(drafted), drafted.ids)


def test_answers_to_a_schema_of_any_object_are_objects(model):
    # The signs that end strings and objects are more likely, so that most answers end in time.
    bias = {TOKENS.index(end): float(size) for end, size in (('"', 12), ('"}', 18), ("}", 9))}
    ended = 0
    for seed in range(12):
        answer = model.stream(
            "ab",
            max_tokens=60,
            **wild(seed, logit_bias=bias),
            json_schema={"type": "object"},
        )
        text = "".join(answer)
        assert text.startswith("{")
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(text), dict)
            ended += 1
    assert ended > 5


@pytest.mark.parametrize("schema", [True, "true"])
def test_the_schema_true_is_any_json(model, schema):
    bias = {TOKENS.index("1"): 90.0}
    answer = model.stream("ab", max_tokens=9, **wild(1, logit_bias=bias), json_schema=schema)
    # The bias makes every token "1", up to max_tokens.
    assert json.loads("".join(answer)) == 111_111_111


def test_an_answer_to_a_schema_of_any_object_begins_with_a_brace(model):
    matcher = model.grammars.json_schema({"type": "object"}).start()
    assert {TOKENS[token] for token in matcher.next_ids()} <= {"{", '{"'}


@pytest.mark.parametrize("pattern", ["[a-c]{2,9}", "(true|false)", r"-?\d{1,4}(\.\d\d)?"])
def test_the_whole_answer_matches_a_regex(model, pattern):
    for seed in range(8):
        text = model.generate("ab", max_tokens=40, **wild(seed), regex=pattern)
        assert re.fullmatch(pattern, text)


def test_an_answer_ends_as_soon_as_its_grammar_is_complete(model):
    answer = model.stream("ab", max_tokens=30, regex="true")
    assert ("".join(answer), answer.finish_reason) == ("true", "stop")
    # No pass is spent on a stop id.
    assert len(answer.ids) == answer.tokens == answer.sequence.passes
    assert not set(answer.ids) & model.tokenizer.stop_ids


def test_where_an_answer_may_end_every_stop_id_is_allowed(model):
    matcher = model.grammars.regex("a+").start()
    matcher.accept(TOKENS.index("a"))
    allowed = {TOKENS[token] for token in matcher.next_ids()}
    assert {"</s>", "<end>", "a"} <= allowed
    assert "<s>" not in allowed
    for stop in ("</s>", "<end>"):
        bias = {TOKENS.index(stop): 1e6}
        answer = model.stream("ab", max_tokens=50, logit_bias=bias, regex="a+")
        assert re.fullmatch("a+", "".join(answer))
        assert (answer.finish_reason, TOKENS[answer.sequence.ids[-1]]) == ("stop", stop)


def test_log_probabilities_are_the_models_own_under_a_grammar(model):
    unconstrained = model.stream("ab", max_tokens=1, logprobs=3)
    constrained = model.stream("ab", max_tokens=1, logprobs=3, regex="true")
    assert list(unconstrained)
    assert "true".startswith("".join(constrained))  # one token: "true", or a beginning of it
    assert constrained.logprobs[0].top == unconstrained.logprobs[0].top
    assert constrained.logprobs[0].logprob <= unconstrained.logprobs[0].logprob


def test_penalties_and_bias_work_within_the_grammar(model):
    forced = {"logit_bias": {TOKENS.index("b"): 1e6, TOKENS.index("q"): 1e8}}
    # "q" has the highest bias, but the grammar does not allow it.
    assert model.generate("ab", max_tokens=30, **forced, regex="[abc]{5}") == "bbbbb"


def test_a_regex_that_no_token_can_spell_is_refused(model):
    with pytest.raises(Unsupported, match="no token of the model continues"):
        model.generate("ab", regex="\u65e5")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "the JSON schema is not JSON: "),
        ("[1]", r"a JSON schema is an object or true, not \[1\]"),
        ({"type": "foo"}, "the JSON schema cannot be used: Invalid type: foo"),
        ({"type": "string", "pattern": "(["}, "unclosed character class"),
        ({"$ref": "http://example.com/x"}, "http://example.com/x"),
        ({"not": {}}, "Unimplemented keys"),
        (False, "is an object or true, not false"),
        (MappingProxyType({}), "is an object or true, not .*mappingproxy"),
        ({"enum": {1}}, "the JSON schema is not JSON: .*set"),
        ({"const": math.nan}, "the JSON schema is not JSON: "),
    ],
)
def test_a_wrong_schema_is_refused_before_the_model_runs(model, schema, message):
    with pytest.raises(UsageError, match=message) as refused:
        model.stream("ab", json_schema=schema)
    assert refused.value.field == "json_schema"


_BIG = 123456789012345679


def test_the_library_rounds_numbers_as_a_float_does(model):
    """If this fails, :func:`check_numbers` may be removed."""
    compile_schema = model.grammars._library.LLMatcher.grammar_from_json_schema
    text = json.dumps({"enum": [_BIG], "x-guidance": JSON_STYLE})
    grammar = model.grammars._grammar_of("json_schema", compile_schema(text, JSON_STYLE))
    ids = [model.tokenizer.encode(digit, add_special=False)[0] for digit in str(_BIG)]
    assert grammar.count_valid(ids) < len(ids)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [_BIG]},
        {"const": {"a": [_BIG]}},
        {"type": "integer", "minimum": -_BIG},
        {"properties": {"a": {"anyOf": [{"type": "integer", "exclusiveMaximum": 10**400}]}}},
        {"$defs": {"A": {"items": {"multipleOf": _BIG}}}},
    ],
)
def test_a_number_that_the_library_would_round_is_refused(model, schema):
    with pytest.raises(UsageError, match="is a number that the grammar library rounds") as caught:
        model.stream("ab", json_schema=schema)
    assert caught.value.field == "json_schema"
    schema = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    tools = read_tools([tool], "required")
    with pytest.raises(UsageError, match="is a number that the grammar library rounds") as caught:
        tools.grammar(HERMES, model.tokenizer)
    assert caught.value.field == "tools"


def test_numbers_that_a_float_holds_and_those_that_restrict_nothing_are_accepted(model):
    exact = {"enum": [2**53, 2**60, 1.5, True], "default": _BIG}
    model.grammars.json_schema({"properties": {"minimum": {"title": "a", "default": _BIG}}})
    model.grammars.json_schema(exact)


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "[z-a]"])
def test_a_wrong_regex_is_refused_before_the_model_runs(model, pattern):
    with pytest.raises(UsageError, match="the regex cannot be used: "):
        model.stream("ab", regex=pattern)


def test_a_schema_together_with_a_regex_is_refused(model):
    with pytest.raises(UsageError, match="both given"):
        model.stream("ab", regex="a", json_schema={})


def test_without_the_library_the_hint_installs_it(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(Unsupported, match="llguidance, which is not installed") as refused:
        Grammars(model.tokenizer)
    assert refused.value.hint == extra_command("structured")


def test_an_answer_without_stop_ids_ends_when_the_grammar_is_complete(tmp_path):
    words = vocabulary(
        TOKENS, merges=[], token_types=[3, 1, 1, *[1] * (VOCAB - 3)], pre="gpt-2", bos_token_id=0
    )
    path = tiny_gguf(tmp_path / "endless.gguf", tokenizer=False, **words)
    with bitnet.load(path) as endless:
        endless.tokenizer.stop_ids = frozenset()
        answer = endless.stream("ab", max_tokens=30, regex="(ab){3}")
        assert ("".join(answer), answer.finish_reason) == ("ababab", "stop")


def test_answers_of_a_real_model_follow_the_schema(test_models):
    with bitnet.load(test_models / "SmolLM2-135M-Instruct.Q4_1.gguf") as model:
        question = [{"role": "user", "content": "Bob is 42. Who is it? Answer in JSON."}]
        schema = {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
        plain = model.chat(question, json_schema=schema, max_tokens=40)
        assert json.loads(plain) == {"name": "Bob", "age": 42}
        assert model.chat(question, json_schema=schema, max_tokens=40, lookup=8) == plain
        sampled = {"temperature": 1.5, "seed": 4}
        text = model.chat(question, json_schema=PERSON, max_tokens=90, **sampled)
        assert is_person(json.loads(text))


def test_an_answer_of_a_sentencepiece_model_matches_the_regex(test_models):
    with bitnet.load(test_models / "gemma-3-270m-q4_k_m.gguf") as model:
        text = model.generate("The capital of France is", regex=" [A-Z][a-z]{2,8}\\.")
        assert re.fullmatch(" [A-Z][a-z]{2,8}\\.", text)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\d\D\w\W", r"[[:digit:]][[:^digit:]][[:word:]][[:^word:]]"),
        (r"[\d_]+\\d", r"[[:digit:]_]+\\d"),
        (r"[^\w]\[\d", r"[^[:word:]]\[[[:digit:]]"),
        (r"[]\d]\d", r"[][:digit:]][[:digit:]]"),
        (r"[a&&[\d]]\d", r"[a&&[[:digit:]]][[:digit:]]"),
        (r"[[:alpha:]\d]\d", r"[[:alpha:][:digit:]][[:digit:]]"),
    ],
)
def test_character_classes_of_a_regex_are_rewritten_as_ascii_classes(pattern, expected, model):
    assert with_ascii_classes(pattern) == expected
    model.grammars.regex(pattern)  # the library compiles it


def test_digits_of_other_scripts_do_not_match_a_regex():
    with bitnet.load("bitnet-tiny") as model:
        arabic = model.tokenizer.encode("\u0663", add_special=False)
        # U+0663 is the Arabic digit three, which Python's \d matches.
        assert model.grammars.regex(r"\D+").start().count_valid(arabic) == len(arabic)
        assert model.grammars.regex(r"\d+").start().count_valid(arabic) == 0


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        (r"(a)\1", "backreferences are not supported"),
        (r"\bfoo", r"word boundaries (\b) are not supported"),
    ],
)
def test_a_regex_that_is_not_supported_is_refused_with_the_reason(pattern, reason, model):
    with pytest.raises(UsageError, match=re.escape(reason)):
        model.grammars.regex(pattern)


def test_options_of_the_grammar_library_in_a_clients_schema_have_no_effect(model):
    """The library reads options from the key ``x-guidance`` of a schema."""
    strict = {"type": "object", "unevaluatedProperties": False}
    for options in ({"lenient": True}, {"coerce_one_of": True, "lenient": True}):
        with pytest.raises(UsageError, match="unevaluatedProperties"):
            model.grammars.json_schema(strict | {"x-guidance": options})
    # With the client's separator, the grammar would accept this text completely.
    spaced = {"const": [1, 2], "x-guidance": {"item_separator": "    ,"}}
    ids = model.tokenizer.encode("[1    ,2]", add_special=False)
    assert model.grammars.json_schema(spaced).start().count_valid(ids) < len(ids)
