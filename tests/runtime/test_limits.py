"""Bounds of a request, within which no schema or text can crash the process."""

import json
import subprocess
import sys

import pytest

import bitnet
from bitnet.base.errors import UsageError
from bitnet.runtime import request_checks
from bitnet.runtime.request import Request

# Keywords of JSON Schema around an inner schema.
WRAPS = {
    "items": lambda inner: {"type": "array", "items": inner},
    "prefixItems": lambda inner: {"type": "array", "prefixItems": [inner]},
    "properties": lambda inner: {"type": "object", "properties": {"a": inner}},
    "additionalProperties": lambda inner: {"type": "object", "additionalProperties": inner},
    "patternProperties": lambda inner: {"type": "object", "patternProperties": {"^a": inner}},
    "anyOf": lambda inner: {"anyOf": [inner, {"type": "null"}]},
    "oneOf": lambda inner: {"oneOf": [inner]},
    "allOf": lambda inner: {"allOf": [inner]},
    "sibling": lambda inner: inner | {"description": "x"},
}
# Compiles or refuses each schema, and prints its name; a crash leaves the other names out.
COMPILE = """
import json, sys
import bitnet
from bitnet.base.errors import BitnetError
from bitnet.runtime.request import Request
with bitnet.load("bitnet-tiny") as model:
    for line in sys.stdin:
        name, schema = json.loads(line)
        try:
            _, request = model.prepare(Request(prompt="a", json_schema=schema))
            request.constraint.start().next_ids()
        except BitnetError as error:
            assert error.message
        print(name, flush=True)
"""


def chain(wrap, *, links, levels=1, ends={"type": "string"}):  # noqa: B006 - not changed
    """A schema of *links* definitions; each refers to the next one below *levels* of *wrap*."""
    definitions = {"last": ends}
    for link in range(links):
        inner = {"$ref": f"#/$defs/{link + 1 if link < links - 1 else 'last'}"}
        for _ in range(levels):
            inner = WRAPS[wrap](inner)
        definitions[str(link)] = inner
    return {"$ref": "#/$defs/0", "$defs": definitions}


def circle(links):
    """Objects that refer to the next one and back to the first."""
    own = {
        str(link): {
            "type": "object",
            "properties": {
                "next": {"$ref": f"#/$defs/{(link + 1) % links}"},
                "first": {"$ref": "#/$defs/0"},
            },
        }
        for link in range(links)
    }
    return {"$ref": "#/$defs/0", "$defs": own}


def deep(count):
    """A schema of arrays, nested *count* times."""
    inner = {"type": "string"}
    for _ in range(count):
        inner = {"items": inner}
    return inner


def test_no_schema_ends_the_process_that_compiles_or_refuses_it():
    pytest.importorskip("llguidance")
    schemas = {
        **{f"{wrap} x 40": chain(wrap, links=500, levels=40) for wrap in WRAPS},
        **{wrap: chain(wrap, links=request_checks.MAX_REFERENCES - 1) for wrap in WRAPS},
        "circle": circle(request_checks.MAX_REFERENCES),
        "3,000 references": chain("sibling", links=3000),
        "3,000 wrapped references": chain("anyOf", links=3000),
        "1,000 objects that refer back": circle(1000),
        "itself": {"$ref": "#"},
        "all of itself": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        "200 deep": deep(200),
        "99 deep": deep(99),
        "half a pair": {"const": "\ud800"},
    }
    lines = "".join(f"{json.dumps(each)}\n" for each in schemas.items())
    completed = subprocess.run(
        [sys.executable, "-c", COMPILE], input=lines, capture_output=True, text=True
    )
    assert (completed.returncode, completed.stdout.splitlines()) == (0, [*schemas]), (
        completed.stderr
    )


@pytest.mark.parametrize("of_references", [lambda count: chain("anyOf", links=count - 1), circle])
def test_a_schema_may_refer_to_as_many_definitions_as_the_bound_says(of_references):
    most = request_checks.MAX_REFERENCES
    request_checks.check_schema("json_schema", of_references(most))
    with pytest.raises(UsageError, match="512 definitions referred to"):
        request_checks.check_schema("json_schema", of_references(most + 1))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (chain("anyOf", links=3000), "512 definitions referred to"),
        (circle(1000), "512 definitions referred to"),
        (deep(200), "nested more than 100 deep"),
        ({"const": "x" * request_checks.MAX_GRAMMAR}, "262,144 characters"),
        ({"pattern": "a?" * 5000}, "4,096 repetitions"),
        ({"patternProperties": {"a*" * 5000: {}}}, "4,096 repetitions"),
        ({"properties": {str(at): {} for at in range(5000)}}, "4,096 properties"),
        ({"const": "\ud800"}, "half a surrogate pair at position 0"),
        ({"const": ["a\0"]}, "NUL character at position 1"),
    ],
)
def test_a_schema_beyond_a_bound_is_refused_with_the_bound(schema, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        request_checks.check_schema("json_schema", schema)
    assert caught.value.field == "json_schema"


# Lists that are nested one level deeper than MAX_DEPTH allows.
NESTED = json.loads("[" * 101 + "]" * 101)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("prompt", "a\0", "NUL"),
        ("prompt", "\udc00", "surrogate"),
        ("stop", ["a"] * 17, "more than 16"),
        ("stop", ["\ud800"], "surrogate"),
        ("regex", "(\ud800)", "surrogate"),
        ("regex", "a?" * 5000, "repetitions"),
        ("messages", [{"role": "user", "content": "a\0b"}], "NUL"),
        ("messages", [{"role": "user", "content": "a", "\ud800": 1}], "surrogate"),
        ("messages", [{"role": "user", "content": "a"}] * 5000, "more than 4,096"),
        ("messages", [{"role": "user", "content": "a", "x": NESTED}], "deep"),
        ("template_variables", {"x": NESTED}, "deep"),
    ],
)
def test_a_request_with_a_value_beyond_its_bound_is_refused_by_its_field(field, value, reason):
    with bitnet.load("bitnet-tiny") as model, pytest.raises(UsageError, match=reason) as caught:
        model.prepare(Request(**{"prompt": "a", field: value}))
    # An error about one message has its number behind the field.
    assert caught.value.field in (field, f"{field}.0")


def test_a_bias_of_more_tokens_than_any_client_needs_is_refused():
    with bitnet.load("bitnet-tiny") as model, pytest.raises(UsageError, match="more than 1,024"):
        model.generate("a", logit_bias=dict.fromkeys(range(1025), 1.0))
