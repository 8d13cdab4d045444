"""Schemas of tools whose parts are of wrong types: refused by their field, or of no effect."""

import json

import pytest
from json_places import places_in, put
from tool_models import CLOCK, tool_gguf

from bitnet import load
from bitnet.base.errors import UsageError
from bitnet.runtime.request import Request
from bitnet.runtime.tool_calls import call_reader, write_calls
from bitnet.runtime.tool_formats import (
    FORMATS,
    FUNCTION_GEMMA,
    ID,
    INDEX,
    KEY,
    MINIMAX_M3,
    PYTHONIC,
    QWEN_CODER,
    TYPE,
    CallRules,
)
from bitnet.runtime.tool_grammar import write_grammar

ASK = [{"role": "user", "content": "a"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "enum": [1], "anyOf": [{"type": "string"}]},
        "o": {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]},
        "l": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["a"],
    "$defs": {"A": {"type": "string"}},
}
ARGUMENTS = {"a": 1, "o": {"b": "x"}, "l": ["x"]}
# Values of many types, to be put at every place of SCHEMA.
WRONG = (
    *(5, 1.5, "x", "", b"x", True, None, object(), [], [5], ["x"], [None], [["x"]], [{}]),
    *({}, {5: 5}, {"x": 5}, {"x": {"y": [1]}}, {("x", 1)}, float("nan"), 10**400, "\ud800"),
)


PLACES = list(places_in(SCHEMA))


def tool_with(schema, **more):
    """A tool whose function has the parameters *schema*."""
    return {"type": "function", "function": {"name": "f", "parameters": schema, **more}}


def check_tools(tools):
    Request(messages=ASK, tools=tools).check()


def refused_field(check, *arguments, **more):
    """The field that the error of *check* names; empty if there is no error."""
    try:
        check(*arguments, **more)
    except UsageError as error:
        return error.field
    return ""


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_a_part_of_a_wrong_type_is_refused_by_its_field_or_has_no_effect(place):
    forms = dict(FORMATS).values()
    for value in WRONG:
        schema = put(SCHEMA, place, value)
        field = refused_field(check_tools, [tool_with(schema)])
        # A schema that is not refused must still be usable in every format of calls.
        assert not field or field.startswith("tools")
        for form in () if field else forms:
            schemas = {"f": schema or {}}
            text = write_calls(form, [{"function": {"name": "f", "arguments": ARGUMENTS}}])
            _, calls = call_reader(CallRules(form, schemas)).read(text, final=True)
            assert [delta.name for delta in calls if delta.name] == ["f"]
            assert refused_field(write_grammar, form, schemas, {}, parallel=True) in ("", "tools")


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"properties": {"a": {"type": 5}}}, "properties.a.type"),
        ({"properties": {"a": {"type": [{}]}}}, "properties.a.type"),
        ({"properties": {"a": {"anyOf": 5}}}, "properties.a.anyOf"),
        ({"properties": {"a": {"anyOf": [{"type": 5}]}}}, "properties.a.anyOf.0.type"),
        ({"properties": {"a": {"items": {"enum": 5}}}}, "properties.a.items.enum"),
        ({"properties": {"a": 5}}, "properties.a"),
        ({"properties": ["a"]}, "properties"),
        ({"required": 5}, "required"),
        ({"required": [{}]}, "required"),
        ({"$defs": {"A": {"required": [5]}}}, "$defs.A.required"),
    ],
)
def test_the_error_names_the_part_of_the_schema(schema, field):
    with pytest.raises(UsageError) as caught:
        Request(messages=ASK, tools=[CLOCK, tool_with(schema)]).check()
    assert caught.value.field == f"tools.1.function.parameters.{field}"


@pytest.mark.parametrize("family", ["hermes", "qwen-coder", "functiongemma", "plain"])
def test_null_is_accepted_for_optional_parts_of_a_tool(tmp_path, family):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": None}},
        "required": None,
        "$defs": None,
    }
    with load(tool_gguf(tmp_path / "m.gguf", family)) as model:
        ids, _ = model.prepare(Request(messages=ASK, tools=[tool_with(schema, description=None)]))
        assert len(ids)


def test_a_property_may_be_required_as_in_an_older_draft():
    schema = {"type": "object", "properties": {"a": {"type": "object", "required": True}}}
    Request(messages=ASK, tools=[tool_with(schema)]).check()
    for form in dict(FORMATS).values():
        assert write_grammar(form, {"f": schema}, {}, parallel=True)


def grammar_and_call_of(form, text):
    """A grammar and a call in *form* with *text* as choice, key, value and id of the call."""
    key = "zq" if form is PYTHONIC else text  # a keyword of Python is a word
    schema = {"type": "object", "properties": {key: {"enum": [text]}}, "required": [key]}
    call = {"id": text, "function": {"name": "f", "arguments": {key: text}}}
    return write_grammar(form, {"f": schema}, {}, parallel=True), write_calls(form, [call])


@pytest.mark.parametrize("character", [ID, INDEX, KEY, TYPE])
@pytest.mark.parametrize("form", dict(FORMATS).values(), ids=lambda form: form.name)
def test_a_text_with_the_character_of_a_placeholder_stays_as_it_is(form, character):
    escaped = json.dumps(character)[1:-1]
    plain_grammar, plain_call = grammar_and_call_of(form, "zq")
    grammar, call = grammar_and_call_of(form, character)
    # "zq" has no meaning in any format: with it in place of the character, nothing differs.
    assert grammar.replace(escaped, "zq") == plain_grammar
    assert call.replace(escaped, "zq").replace(character, "zq") == plain_call


#: Families whose calls write a text without quotes, or with other quotes than JSON's.
RAW = ("dsml", "functiongemma", "gemma-4", "glimmer", "hunyuan", "key-lines", "keys", "kimi-k3",
       "ling", "minicpm", "minimax-m2", "minimax-m3", "qwen-coder", "seed")  # fmt: skip
DEFINITIONS = {"X": {"const": "x"}, "Text": {"type": "string"}, "Short": {"maxLength": 3}}
TO_X = {"$ref": "#/$defs/X"}
TO_TEXT = {"$ref": "#/$defs/Text"}


def object_of(properties, **more):
    """A schema of an object that requires all of its *properties*."""
    return {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False, **more,
    }  # fmt: skip


@pytest.mark.parametrize("family", ["hermes", "pythonic", *RAW])
def test_a_schema_with_references_guides_a_call(tmp_path, family):
    pytest.importorskip("llguidance")
    properties = {"a": TO_X, "b": {"allOf": [TO_X]}, "c": {"anyOf": [{"const": "x"}]}}
    function = tool_with(object_of(properties, **{"$defs": DEFINITIONS}))
    with load(tool_gguf(tmp_path / "m.gguf", family)) as model:
        answer = model.answer(
            Request(max_tokens=400, messages=ASK, tools=[function], tool_choice="required",
                    parallel_tool_calls=False)
        )  # fmt: skip
        list(answer)
    (call,) = answer.calls
    assert json.loads(call.arguments) == {"a": "x", "b": "x", "c": "x"}


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        (TO_TEXT, {"type": "string"}),
        ({"allOf": [TO_TEXT]}, {"type": "string"}),
        ({"anyOf": [{"type": "string"}]}, {"type": "string"}),
        ({"anyOf": [TO_TEXT, TO_X]}, {"type": "string"}),
        ({"type": ["string"]}, {"type": "string"}),
        ({"type": "string", "anyOf": [{"type": "integer"}, TO_X]}, {"enum": ["x"]}),
        ({"anyOf": [TO_X, {"enum": ["y", "x"]}]}, {"enum": ["x", "y"]}),
        ({"oneOf": [TO_X, {"enum": ["y", "x"]}]}, {"enum": ["y"]}),
        ({"allOf": [{"enum": ["x", "y"]}, TO_X]}, {"enum": ["x"]}),
        ({"enum": ["x", 1], "type": "string", "allOf": [TO_TEXT]}, {"enum": ["x"]}),
    ],
)
@pytest.mark.parametrize("form", [QWEN_CODER, MINIMAX_M3, FUNCTION_GEMMA], ids=lambda f: f.name)
def test_what_is_only_a_text_is_written_as_one(form, schema, plain):
    schema, plain = (
        {"f": object_of({"a": each}, **{"$defs": DEFINITIONS})} for each in (schema, plain)
    )
    written = write_grammar(form, schema, {}, parallel=True)
    assert written == write_grammar(form, plain, {}, parallel=True)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "allOf": [{"$ref": "#/$defs/Short"}]},
        {"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "a"}]},
        {"type": "string", "not": {"const": "x"}},
        {"type": "string", "$ref": "#/$defs/Missing"},
        {"type": "string", "$ref": 5},
        {"oneOf": [TO_TEXT, TO_X]},
        {"allOf": [TO_X, {"const": "y"}]},
        {"type": "string", "anyOf": [{"$ref": "#/properties/a"}]},
        {"enum": ["x\n</parameter>]<]minimax[>[</a><escape>"]},
        {"type": "object", "required": ["b"]},
        {"type": "object", "anyOf": [{"required": ["b"]}]},
        {"type": "object", "$ref": "#/$defs/X"},
        {"type": "object", "minProperties": 1},
        {"type": "array", "items": TO_X, "uniqueItems": True},
        {"type": "array", "items": TO_X, "allOf": [{"maxItems": 1}]},
    ],
)
@pytest.mark.parametrize("form", [QWEN_CODER, MINIMAX_M3, FUNCTION_GEMMA], ids=lambda f: f.name)
def test_what_a_grammar_cannot_guarantee_is_refused_inside_as_well(form, schema):
    if form is QWEN_CODER and schema.get("type") in ("object", "array"):
        pytest.skip("these are JSON, which the grammar library checks")
    schemas = {"f": object_of({"a": schema}, **{"$defs": DEFINITIONS})}
    assert refused_field(write_grammar, form, schemas, {}, parallel=True) == "tools"


KEYS = ("start-date", "a:b", "a b", " a", "a>b", "a<b", "a\nb", "", "item", 'a"b', "a=b", "}", "é")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("form", dict(FORMATS).values(), ids=lambda form: form.name)
def test_a_property_is_read_as_it_is_written_or_refused_by_its_name(form, key):
    schemas = {"f": object_of({key: {"type": "string"}})}
    if field := refused_field(write_grammar, form, schemas, {}, parallel=True):
        assert field == "tools"
        return
    text = write_calls(form, [{"function": {"name": "f", "arguments": {key: "x"}}}])
    _, calls = call_reader(CallRules(form, schemas)).read(text, final=True)
    assert [json.loads(delta.arguments) for delta in calls] == [{key: "x"}]


@pytest.mark.parametrize(
    ("form", "key"), [(PYTHONIC, "start-date"), (FUNCTION_GEMMA, "a:b"), (FUNCTION_GEMMA, " a")]
)
def test_a_property_that_a_call_cannot_name_is_refused(form, key):
    schema = object_of({key: {"type": "string"}})
    with pytest.raises(UsageError, match=f"the property {key!r}") as refused:
        write_grammar(form, {"f": schema}, {}, parallel=True)
    assert refused.value.field == "tools"
    # An object in Python's notation is JSON, which may have any key.
    inner = refused_field(write_grammar, form, {"f": object_of({"o": schema})}, {}, parallel=True)
    assert inner == ("" if form is PYTHONIC else "tools")


@pytest.mark.parametrize("kind", [{"type": "object"}, {}])
def test_a_parameter_that_is_called_item_is_not_a_list(kind):
    inner = {"properties": {"item": {"type": "string"}}, **kind}
    schema = {"properties": {"item": inner, "l": {"items": {"type": "string"}}}, **kind}
    for arguments in ({"item": {"item": "x"}}, {"item": {"item": "x"}, "l": ["x", "y"]}):
        text = write_calls(MINIMAX_M3, [{"function": {"name": "f", "arguments": arguments}}])
        _, calls = call_reader(CallRules(MINIMAX_M3, {"f": schema})).read(text, final=True)
        assert [json.loads(delta.arguments) for delta in calls] == [arguments]
