"""Forms of bodies: what is wrong is named as it was sent, at the first error, without a server."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bitnet
from bitnet.base.errors import InvalidFormat, Unsupported, UsageError
from bitnet.base.trust import encodable
from bitnet.runtime.request import EVERYTHING, SAMPLING, Request
from bitnet.wire import forms, openai, schemas
from bitnet.wire.fields import DIALECTS, NAMES
from bitnet.wire.routes import COMPUTED, ROUTES

FORMS = ROUTES | COMPUTED
#: A valid value of every field that a form may require.
MINIMAL = {
    "messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a", "model": "m",
    "max_tokens": 8, "content": "a", "tokens": [1], "input_prefix": "a", "input_suffix": "a",
    "query": "a", "documents": ["a"], "text_1": "a", "text_2": "a",
}  # fmt: skip
DEEP = json.loads("[" * 200 + "]" * 200)  # 200 lists in each other
#: Values of every type at and beyond their bounds, and text that UTF-8 cannot encode.
STRANGE = [
    None, True, False, 0, -1, -2, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "a", "\0",
    "\ud800", "x" * 300_000, [], [None], [[]], ["a"] * 5000, [-1], [2**40], [[[1]]], DEEP, {},
    {"type": "function"}, {"\udc00": 1}, {"a": DEEP}, {str(at): at for at in range(3000)},
    [{"role": "user"}], [{"role": "\0", "content": "a"}], [{"role": "user", "content": DEEP}],
    [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}],
    {"type": "json_schema", "json_schema": {"schema": {"const": "\ud800"}}}, {"1": float("inf")},
]  # fmt: skip


def _minimal(form):
    """The smallest body that *form* accepts, which has messages or documents if it knows them."""
    needed = {*form.required, "messages", "documents"} & set(form.fields)
    return {field: MINIMAL[field] for field in needed}


@pytest.fixture(scope="module")
def model():
    with bitnet.load("bitnet-tiny") as loaded:
        yield loaded


def _try(path, body, model):
    """The error about a field of *body*, as a client reads it.

    None if the body is accepted, or if this model does not support it. Any other exception is a
    failure of the test.
    """
    form = FORMS[path]
    fields = None
    try:
        fields = form.read(body)
        requests = form.requests(fields, Request(max_tokens=EVERYTHING), model)
        if path in COMPUTED:
            form.compute(fields, requests, model)
        for request in requests:
            request.check()
        form.list_ignored(fields, model)
    except UsageError as error:
        # An error of `read` has the client's name of the field.
        sent = error if fields is None else form.rename(error, fields)
        assert sent.message.encode()  # it can be sent: no half of a surrogate pair is in it
        return sent
    except (Unsupported, InvalidFormat):  # by this model; a status of 400 as well
        return None
    return None


@pytest.mark.parametrize("path", FORMS)
def test_a_strange_value_in_any_field_is_taken_or_refused_by_name(path, model):
    form = FORMS[path]
    for field in [*form.fields, "no_such_field", "\ud800"]:
        body = _minimal(form)
        names = {encodable(field)}
        if field == "texts":  # exactly one of texts and documents must be given
            del body["documents"]
            names.add("documents")
        for value in STRANGE:
            error = _try(path, body | {field: value}, model)
            assert error is None or error.field.split(".")[0] in names, error


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("path", FORMS)
@given(data=st.data())
def test_no_body_breaks_a_form(path, data, model):
    fields = st.sampled_from([*FORMS[path].fields, "other"])
    _try(path, data.draw(st.dictionaries(fields, VALUES, max_size=5)), model)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "no body"),
        (b"{", "not JSON: Expecting property name"),
        (b"[1]", "expected a JSON object"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"prompt": "\xff"}', "not JSON"),
        (b'{"temperature": NaN}', "not JSON: NaN is not a value"),
        (b'{"logit_bias": {"1": -Infinity}}', "not JSON: -Infinity is not a value"),
        (b'{"metadata": {"a": [1e999]}}', "1e999 is out of range"),
        (b'{"metadata": {"a": [-1.5E+400]}}', "-1.5E.400 is out of range"),
    ],
)
def test_bytes_that_are_not_an_object_are_refused_with_the_reason(raw, reason):
    with pytest.raises(UsageError, match=reason):
        openai.COMPLETION.parse(raw)


@pytest.mark.parametrize(
    ("body", "most"),  # the most checks of a value or searches for a similar name
    [
        # In each of the two kinds of lists that fit, one of the first two entries is wrong.
        ({"prompt": ["x", *range(5000)]}, 10),
        ({"prompt": "a"} | {f"k{at}": at for at in range(5000)}, 5),
    ],
    ids=["wrong ids", "unknown fields"],
)
def test_checking_ends_at_the_first_error(body, most, monkeypatch):
    checked = []

    def counted(function):
        return lambda *arguments: checked.append(arguments) or function(*arguments)

    # The check of a list or an object calls the one in schemas for each entry.
    find_problem = counted(schemas.find_problem)
    for module in (forms, schemas):
        monkeypatch.setattr(module, "find_problem", find_problem)
    monkeypatch.setattr(forms, "get_close_matches", counted(forms.get_close_matches))
    with pytest.raises(UsageError):
        openai.COMPLETION.parse(json.dumps(body).encode())
    assert 0 < len(checked) <= most, len(checked)


def test_each_field_of_sampling_has_a_name_for_each_dialect_in_the_table():
    assert {*SAMPLING} <= set(NAMES)
    assert all(len(names) == len(DIALECTS) for names in NAMES.values())
    assert set(NAMES) <= {*Request.__dataclass_fields__}


@pytest.mark.parametrize(
    ("path", "values", "expected"),  # the limit of tokens and the temperature
    [
        ("/v1/chat/completions", {"repeat_penalty": 1.5, "max_completion_tokens": 5}, (5, 1.0)),
        ("/v1/messages", {"max_tokens": 7}, (7, 1.0)),
        ("/completion", {"n_predict": 3}, (3, 0.8)),
        ("/api/chat", {"options": {"num_predict": 4, "temperature": 2}}, (4, 2.0)),
        ("/v1/responses", {"max_output_tokens": 6}, (6, 1.0)),
    ],
)
def test_a_dialects_name_sets_the_field(path, values, expected):
    form = FORMS[path]
    body = form.read(_minimal(form) | values)
    (request,) = form.requests(body, Request(max_tokens=EVERYTHING), None)
    # Where the body has no temperature, it is the dialect's default: 0.8 for llama.cpp's server,
    # 1 for OpenAI and Anthropic.
    assert (request.length_limit, request.sampling.temperature) == expected


#: A format that is refused: its schema has a NUL character.
OUTPUT = {"type": "json_schema", "schema": {"pattern": "\0"}}


@pytest.mark.parametrize(
    ("path", "values", "field"),
    [
        ("/api/chat", {"options": {"stop": ["a"] * 17}}, "options.stop"),
        ("/api/chat", {"options": {"num_predict": 0}}, "options.num_predict"),
        ("/v1/messages", {"output_config": {"format": OUTPUT}}, "output_config.format"),
        ("/completion", {"n_predict": -5}, "n_predict"),
        ("/v1/chat/completions", {"logit_bias": {str(at): 1 for at in range(2000)}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a\0"}]}, "messages.0"),
        ("/v1/messages", {"system": "a\0"}, "system"),
        ("/v1/rerank", {"documents": ["a", "b\0"]}, "documents"),
    ],
)  # fmt: skip
def test_an_error_has_the_clients_name_of_the_field(path, values, field, model):
    error = _try(path, _minimal(FORMS[path]) | values, model)
    assert error.field == field
    assert field in error.message


@pytest.mark.parametrize(
    "raw",
    [
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "logit_bias": {"1": 1, "1": 2}}',
        b'{"prompt": "a", "stream_options": {"include_usage": true, "include_usage": false}}',
    ],
)
def test_a_key_that_an_object_has_twice_is_refused(raw):
    with pytest.raises(UsageError, match="has this key twice"):
        openai.COMPLETION.parse(raw)


@pytest.mark.parametrize(
    ("path", "values", "message"),
    [
        ("/v1/completions", {"stop": ["a"] * 17}, "stop: 17 entries, expected at most 16"),
        ("/v1/completions", {"stop": 5}, "stop: expected a text or a list"),
        ("/v1/embeddings", {"input": []}, "input: the list is empty, expected at least one text"),
        ("/v1/responses", {"input": []}, "input: expected at least 1"),
        ("/v1/embeddings", {"input": ["a", 5]}, "input.1: expected a text"),
        ("/v1/completions", {"seed": 2**64}, "seed is 18446744073709551616, expected 0 to"),
        ("/v1/completions", {"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9, max_tokens is 8"),
    ],
)
def test_a_refusal_says_what_was_expected_of_this_value(path, values, message, model):
    error = _try(path, _minimal(FORMS[path]) | values, model)
    assert error.message.startswith(message)


def test_a_body_that_is_cut_off_is_refused_with_one_position():
    with pytest.raises(UsageError, match=r"starting at character 11$"):
        openai.COMPLETION.parse(b'{"prompt": "a')


FLAT = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json_object", "schema": FLAT}}),
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {
            "name": "n", "strict": True, "description": "d", "schema": FLAT}}}),
        ("/v1/responses", {"text": {"format": {
            "type": "json_schema", "name": "n", "strict": True, "schema": FLAT}}}),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": FLAT}}}),
        ("/api/chat", {"format": FLAT}),
        ("/completion", {"json_schema": FLAT}),
    ],
)  # fmt: skip
def test_a_schema_reaches_the_request_in_every_place_that_clients_put_it(path, values):
    form = FORMS[path]
    body = form.read(_minimal(form) | values)
    (request,) = form.requests(body, Request(max_tokens=EVERYTHING), None)
    assert request.json_schema == FLAT


@pytest.mark.parametrize(
    ("response_format", "field"),
    [
        ({"type": "text", "schema": FLAT}, "response_format.schema"),
        ({"type": "json_object", "json_schema": {"schema": FLAT}}, "response_format.json_schema"),
        ({"type": "json_schema", "schema": FLAT}, "response_format.schema"),
        ({"type": "json_schema", "json_schema": {"schema": FLAT, "strikt": True}},
         "response_format.json_schema.strikt"),
        ({"type": "json_object", "schema": []}, "response_format.schema"),
    ],
)  # fmt: skip
def test_nothing_below_the_response_format_is_dropped(response_format, field, model):
    path = "/v1/chat/completions"
    error = _try(path, _minimal(FORMS[path]) | {"response_format": response_format}, model)
    assert error.field == field


@pytest.mark.parametrize(
    ("path", "values", "field"),
    [
        ("/v1/chat/completions", {"response_format": {
            "type": "json_schema", "json_schema": {"schema": {"type": "wrong"}}}},
         "response_format"),
        ("/v1/completions", {"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs"),
        ("/v1/messages", {"output_config": {"format": {
            "type": "json_schema", "schema": {"type": "wrong"}}}}, "output_config.format"),
        ("/api/chat", {"format": {"type": "wrong"}}, "format"),
    ],
)  # fmt: skip
def test_a_grammar_that_cannot_be_compiled_is_named_as_the_client_gave_it(path, values, field):
    pytest.importorskip("llguidance")
    form = FORMS[path]
    body = form.read(_minimal(form) | values)
    (request,) = form.requests(body, Request(max_tokens=EVERYTHING), None)
    with bitnet.load("bitnet-tiny") as model, pytest.raises(UsageError) as raised:
        model.prepare(replace(request, messages=None, prompt="a"))
    assert form.rename(raised.value, body).field == field


#: Every entry of structured_outputs, with the value that requests nothing.
DUMPED = dict.fromkeys(("json", "regex", "choice", "grammar", "structural_tag"))
DUMPED |= {"json_object": False, "disable_any_whitespace": False}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, {}),
        ({"json": FLAT}, {"json_schema": FLAT}),
        ({"json": False}, {"json_schema": False}),
        ({"regex": "a|b"}, {"regex": "a|b"}),
        ({"choice": ["a.", "b"]}, {"regex": r"a\.|b"}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"json_object": True}, {"json_schema": {"type": "object"}}),
    ],
)
def test_entries_of_structured_outputs_that_ask_for_nothing_are_left_out(chosen, expected):
    assert openai.grammar_of({"structured_outputs": DUMPED | chosen})[1] == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("structural_tag", {"a": 1}), ("disable_any_whitespace", True), ("json_object", 1)],
)
def test_an_entry_of_structured_outputs_that_cannot_be_done_is_refused(name, value):
    with pytest.raises(UsageError) as raised:
        openai.grammar_of({"structured_outputs": DUMPED | {name: value}})
    assert raised.value.field == f"structured_outputs.{name}"


def test_of_several_unknown_entries_of_a_message_the_first_one_is_named(model):
    message = {"role": "user", "content": "a"} | {f"k{number}": 1 for number in range(30)}
    error = _try("/v1/chat/completions", {"messages": [message]}, model)
    assert error.field == "messages.0.k0"


@pytest.mark.parametrize("kind", ["text", None])
def test_the_type_of_a_part_may_be_null_where_it_may_be_left_out(kind, model):
    part = {"type": kind, "text": "a"}
    turn = {"role": "user", "content": [part]}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [part]}
    block_turn = {"role": "user", "content": [{"type": "text", "text": "a"}, result]}
    bodies = {
        "/v1/chat/completions": {"messages": [turn]},
        "/v1/messages": {
            "max_tokens": 2, "messages": [block_turn],
            "tools": [{"type": None, "name": "f", "input_schema": FLAT}],
        },
        "/v1/responses": {"input": [{"type": None, "role": "user", "content": "a"}]},
    }  # fmt: skip
    for path, body in bodies.items():
        assert _try(path, body, model) is None


def test_an_error_about_an_entry_that_became_no_message_keeps_its_name():
    form = FORMS["/v1/messages"]
    body = form.read({"max_tokens": 2, "system": "s", "messages": [
        {"role": "user", "content": [{"type": "image"}]}]})  # fmt: skip
    with pytest.raises(UsageError) as raised:
        form.requests(body, Request(), None)
    assert form.rename(raised.value, body) is raised.value
    assert raised.value.field == "messages.0.content.0"
