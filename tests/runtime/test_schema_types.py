"""Types that a schema allows: with references, and schemas that apply together."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.runtime.schema_types import items_of, properties_of, type_name, types_of
from bitnet.runtime.tool_calls import call_reader
from bitnet.runtime.tool_formats import PYTHONIC, QWEN_CODER, CallRules

# As pydantic writes the schemas of enumerations, of models within models, and of optional ones.
SCHEMA = {
    "type": "object",
    "properties": {
        "zip": {"$ref": "#/$defs/Zip"},
        "old": {"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]},
        "all": {"allOf": [{"$ref": "#/$defs/Zip"}], "description": "a code"},
        "days": {"$ref": "#/$defs/Days"},
        "far": {"$ref": "https://a.example/schema"},
        "loop": {"$ref": "#/properties/loop"},
    },
    "$defs": {"Zip": {"type": "string", "enum": ["1", "2"]}, "Days": {"type": "integer"}},
}
RAW = dict.fromkeys(SCHEMA["properties"], "1")
READ = {"zip": "1", "old": "1", "all": "1", "days": 1, "far": 1, "loop": 1}
VALUES = ["1", 1, 1.5, True, None, [], {}]


def read(form, text, schema):
    """The arguments of the only call in *text*."""
    plain, calls = call_reader(CallRules(form, {"f": schema})).read(text, final=True)
    assert plain == ""
    (call,) = calls
    return json.loads(call.arguments)


@pytest.mark.parametrize("schema", [SCHEMA, {"$ref": "#/$defs/All", "$defs": {"All": SCHEMA}}])
def test_values_behind_references_are_of_the_types_that_they_name(schema):
    if "$ref" in schema:
        schema = {**schema, "$defs": {**schema["$defs"], **SCHEMA["$defs"]}}
    elements = [f"<parameter={key}>\n{text}\n</parameter>" for key, text in RAW.items()]
    call = "\n".join(["<tool_call>\n<function=f>", *elements, "</function>\n</tool_call>"])
    assert read(QWEN_CODER, call, schema) == READ
    keywords = ", ".join(f"{key}={text}" for key, text in RAW.items())
    assert read(PYTHONIC, f"<|tool_call_start|>[f({keywords})]<|tool_call_end|>", schema) == READ


def test_parts_of_a_schema_are_found_behind_references():
    root = {"$defs": {"a/b~%": {"properties": {"p": 1, "q": 1}, "items": {"type": "null"}}}}
    schema = {"$ref": "#/$defs/a~1b~0%25", "properties": {"q": 2}, "allOf": [{"properties": {}}]}
    assert properties_of(schema, root) == {"p": 1, "q": 2}
    assert items_of(schema, root) == {"type": "null"}
    assert items_of({"$ref": "#/$defs/other"}, root) is None


@pytest.mark.parametrize("reference", ["#", "#/a", "#/b/0", "#/b/5", "#/c/d", "x", "#x", "#/t"])
def test_references_that_lead_to_no_type_say_nothing(reference):
    root = {"$ref": "#", "a": {"$ref": "#/b/0"}, "b": [{"$ref": "#/a"}], "c": 5, "t": [{}]}
    assert types_of({"$ref": reference}, root) == set()


def test_a_long_chain_and_many_branches_of_references_are_followed_in_time():
    chain = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(5000)}
    assert types_of({"$ref": "#/$defs/d0"}, {"$defs": chain}) == set()
    names = [{"$ref": f"#/$defs/n{at}"} for at in range(60)]
    definitions = {f"n{at}": {"anyOf": names} for at in range(60)}
    assert types_of(names[0], {"$defs": definitions}) <= set(map(type_name, VALUES))


_TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
_LEAVES = st.one_of(
    st.builds(lambda name: {"type": name}, _TYPES),
    st.builds(lambda names: {"type": names}, st.lists(_TYPES, min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, st.sampled_from(VALUES)),
    st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from(VALUES), min_size=1)),
    st.builds(lambda name: {"$ref": f"#/$defs/{name}"}, st.sampled_from("abc")),
    st.just({}),
)
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.builds(
        lambda word, parts, more: {**more, word: parts},
        st.sampled_from(["anyOf", "allOf"]), st.lists(inner, min_size=1, max_size=3), inner,
    ),
    max_leaves=8,
)  # fmt: skip


@given(schema=_SCHEMAS, definitions=st.fixed_dictionaries(dict.fromkeys("abc", _LEAVES)))
def test_a_value_that_the_library_accepts_is_of_one_of_the_types(schema, definitions):
    jsonschema = pytest.importorskip("jsonschema")
    # Definitions refer to later ones only: the library does not end otherwise.
    definitions = {
        name: {} if each.get("$ref", "#/$defs/z")[-1] <= name else each
        for name, each in definitions.items()
    }
    types = types_of(schema, {"$defs": definitions})
    validator = jsonschema.Draft202012Validator({"$defs": definitions, **schema})
    accepted = {type_name(value) for value in VALUES if validator.is_valid(value)}
    assert not types or accepted <= types
