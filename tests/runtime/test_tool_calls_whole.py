"""Calls whose parts do not all fit into arguments: the block stays text, and loses nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.runtime.tool_arguments import read_arguments, write_arguments
from bitnet.runtime.tool_calls import call_reader
from bitnet.runtime.tool_formats import FORMATS, HARMONY, HERMES, CallRules

FORMS = {form.name: form for _, form in FORMATS}
SCHEMAS = {"f": {}}
HARMONY_HEAD = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


def read(form, text, size):
    """Text and calls in *text*, which the reader gets in parts of *size* characters."""
    reader = call_reader(CallRules(form, SCHEMAS))
    parts = [reader.read(text[at : at + size]) for at in range(0, len(text), size)]
    parts.append(reader.read("", final=True))
    calls = [(delta.name, delta.arguments) for _, deltas in parts for delta in deltas]
    return "".join(part for part, _ in parts), calls


def hermes(call):
    """The JSON text *call* in the format of Hermes."""
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('{"name": "f", "arguments": null, "parameters": {"x": 1}}', {"x": 1}),
        ('{"name": "f", "parameters": {"x": 1}, "id": "1", "type": "function"}', {"x": 1}),
        ('{"name": "f", "arguments": "{\\"x\\": 1} "}', {"x": 1}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"name": "f", "id": "1"}', {}),
    ],
)
def test_arguments_are_read_from_the_key_that_has_them(call, arguments, size):
    assert read(HERMES, hermes(call), size) == ("", [("f", json.dumps(arguments))])


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "call",
    [
        '{"name": "f", "args": {"x": 1}}',
        '{"name": "f", "city": "Rome"}',
        '{"name": "f", "arguments": null, "city": "Rome"}',
        *(f'{{"name": "f", "arguments": {empty}}}' for empty in ("[]", '""', "0", "false")),
        '{"name": "f", "arguments": "{\\"x\\": 1}{\\"x\\": 2}"}',
        '{"name": "f", "arguments": "{\\"x\\": 1} and more"}',
    ],
)
def test_a_call_with_other_contents_than_arguments_stays_text(call, size):
    assert read(HERMES, hermes(call), size) == (hermes(call), [])


@pytest.mark.parametrize(
    "arguments",
    [
        '{"x": 1e5}', '{"x": -0}', '{"x":1,"x" : 2}', '{"x": 12345678901234567890.10}',
        '{ "x": "\\u00e9\\/" }', '{"x": {"arguments": [1E+2]}}', "{}",
    ],
)  # fmt: skip
def test_arguments_in_json_stay_as_the_model_wrote_them(arguments):
    call = f'{{"name": "f", "arguments": {arguments}}}'
    quoted = f'{{"name": "f", "arguments": {json.dumps(arguments)}}}'
    calls = f"[{call} , {quoted}]"
    assert read(HERMES, hermes(call), 7) == ("", [("f", arguments)])
    assert read(HERMES, hermes(calls), 7) == ("", [("f", arguments)] * 2)
    assert read(HARMONY, f"{HARMONY_HEAD}{arguments}<|call|>", 7) == ("", [("f", arguments)])


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
def test_a_call_with_numbers_that_json_does_not_have_stays_text(number):
    call = hermes(f'{{"name": "f", "arguments": {{"x": {number}}}}}')
    assert read(HERMES, call, 7) == (call, [])


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("after", ['{"a": 2}', " trailing", "]"])
def test_a_message_that_goes_on_behind_its_arguments_stays_text(after, size):
    text = f'{HARMONY_HEAD}{{"a": 1}}{after}<|call|>'
    assert read(HARMONY, text, size) == (text, [])


def test_spaces_behind_the_arguments_of_a_message_are_not_text():
    assert read(HARMONY, f'{HARMONY_HEAD}{{"a": 1}} \n<|call|>', 1) == ("", [("f", '{"a": 1}')])


NOTATIONS = {form.notation: form.name for form in FORMS.values() if form.notation.kind != "json"}
_KEYS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4)


@pytest.mark.parametrize("notation", NOTATIONS, ids=NOTATIONS.get)
@given(keys=_KEYS)
def test_a_key_that_is_there_twice_is_refused_in_every_notation(notation, keys):
    # Written under names of their own, so that the writer keeps all of them, and then renamed.
    own = {f"key{number}": f"text{number}" for number in range(len(keys))}
    written = write_arguments(notation, own)
    for number, key in enumerate(keys):
        written = written.replace(f"key{number}", key)
    ended = written + (")" if notation.kind == "keywords" else "")
    if len(set(keys)) < len(keys):
        with pytest.raises(ValueError, match="is there twice"):
            read_arguments(notation, ended, 0, {})
    else:
        arguments, _ = read_arguments(notation, ended, 0, {})
        assert sorted(json.loads(arguments).values()) == sorted(own.values())


def test_an_inner_key_that_is_there_twice_is_refused():
    nested, braces = (
        next(each for each in NOTATIONS if each.kind == kind) for kind in ("nested", "braces")
    )
    for notation in (nested, braces):
        written = write_arguments(notation, {"o": {"p": "x", "q": "y"}})
        assert json.loads(read_arguments(notation, written, 0, {})[0])["o"] == {"p": "x", "q": "y"}
        doubled = written.replace("q", "p")
        with pytest.raises(ValueError, match="is there twice"):
            read_arguments(notation, doubled, 0, {})
