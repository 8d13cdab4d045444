"""Forms of bodies: what is wrong is named as it was sent, at the first error, without a server."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bitnet
from bitnet.base.errors import InvalidFormat, Unsupported, UsageError
from bitnet.runtime.request import EVERYTHING, SAMPLING, Request
from bitnet.wire import openai
from bitnet.wire.fields import DIALECTS, NAMES
from bitnet.wire.routes import COMPUTED, ROUTES

FORMS = ROUTES | COMPUTED
MINIMAL = {
    "messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a", "model": "m",
    "max_tokens": 8, "content": "a", "tokens": [1], "input_prefix": "a", "input_suffix": "a",
}  # fmt: skip
DEEP = json.loads("[" * 200 + "]" * 200)
STRANGE = [
    None, True, False, 0, -1, -2, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "a", "\0",
    "\ud800", "x" * 300_000, [], [None], [[]], ["a"] * 5000, [-1], [2**40], [[[1]]], DEEP, {},
    {"type": "function"}, {"\udc00": 1}, {"a": DEEP}, {str(at): at for at in range(3000)},
    [{"role": "user"}], [{"role": "\0", "content": "a"}], [{"role": "user", "content": DEEP}],
    [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}],
    {"type": "json_schema", "json_schema": {"schema": {"const": "\ud800"}}}, {"1": float("inf")},
]  # fmt: skip


def _minimal(form):
    """The least that *form* takes."""
    needed = {*form.required, "messages"} & set(form.fields)
    return {field: MINIMAL[field] for field in needed}


@pytest.fixture(scope="module")
def model():
    with bitnet.load("bitnet-tiny") as loaded:
        yield loaded


def _try(path, body, model):
    """The error of *body*, as a client reads it; ``None`` where it is taken."""
    form = FORMS[path]
    try:
        fields = form.read(body)
        if path in COMPUTED:
            form.compute(fields, model)
            return None
        for request in form.requests(fields, Request(max_tokens=EVERYTHING), model):
            request.check()
    except UsageError as error:
        renamed = form.rename(error)
        assert renamed.message.encode()
        return renamed
    except (Unsupported, InvalidFormat):  # by this model; a status of 400 as well
        return None
    return None


@pytest.mark.parametrize("path", FORMS)
def test_a_strange_value_in_any_field_is_taken_or_refused_by_name(path, model):
    form = FORMS[path]
    body = _minimal(form)
    for field in [*form.openapi()["properties"], "no_such_field", "\ud800", *form.unserved]:
        for value in STRANGE:
            _try(path, body | {field: value}, model)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("path", FORMS)
@given(data=st.data())
def test_no_body_breaks_a_form(path, data, model):
    fields = st.sampled_from([*FORMS[path].openapi()["properties"], "other"])
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
    ],
)
def test_bytes_that_are_not_an_object_are_told_apart(raw, reason):
    with pytest.raises(UsageError, match=reason):
        openai.COMPLETION.parse(raw)


def test_checking_ends_at_the_first_error():
    """A million wrong entries take no longer than reading them."""
    ids = json.dumps({"prompt": ["x", *range(250_000)]}).encode()
    unknown = json.dumps({"prompt": "a"} | {f"k{at}": at for at in range(60_000)}).encode()
    for raw in (ids, unknown):
        begun = time.process_time()
        with pytest.raises(UsageError):
            openai.COMPLETION.parse(raw)
        checked_s = time.process_time() - begun
        begun = time.process_time()
        json.loads(raw)
        # Bounds of the order alone: collecting every error took hundreds of times as long.
        assert checked_s < 20 * (time.process_time() - begun) + 0.1


def test_each_field_of_sampling_has_its_names_in_the_table():
    assert {*SAMPLING} <= set(NAMES)
    assert all(len(names) == len(DIALECTS) for names in NAMES.values())
    assert set(NAMES) <= {*Request.__dataclass_fields__}


@pytest.mark.parametrize(
    ("path", "values", "expected"),
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
    assert (request.max_tokens, request.temperature) == expected


OUTPUT = {"type": "json_schema", "schema": {"pattern": "\0"}}


@pytest.mark.parametrize(
    ("path", "values", "field"),
    [
        ("/api/chat", {"options": {"stop": ["a"] * 17}}, "options.stop"),
        ("/api/chat", {"options": {"num_predict": 0}}, "options.num_predict"),
        ("/v1/messages", {"output_config": {"format": OUTPUT}}, "output_config.format"),
        ("/completion", {"n_predict": 0}, "n_predict"),
        ("/v1/chat/completions", {"logit_bias": {str(at): 1 for at in range(2000)}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a\0"}]}, "messages"),
    ],
)  # fmt: skip
def test_an_error_has_the_clients_name_of_the_field(path, values, field, model):
    error = _try(path, _minimal(FORMS[path]) | values, model)
    assert error.field == field
    assert field in error.message
