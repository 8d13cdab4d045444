"""Schemas of tools whose parts are of wrong types: refused by their field, or of no effect."""

import json

import pytest
from json_places import places_in, put
from tool_models import CLOCK, tool_gguf

from bitnet import load
from bitnet.base.errors import UsageError
from bitnet.runtime.request import Request
from bitnet.runtime.tool_calls import call_reader, write_calls
from bitnet.runtime.tool_formats import FORMATS, ID, INDEX, KEY, TYPE, CallRules
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
    schema = {"type": "object", "properties": {text: {"enum": [text]}}, "required": [text]}
    call = {"id": text, "function": {"name": "f", "arguments": {text: text}}}
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
