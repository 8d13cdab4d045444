"""Forms of bodies: what is wrong is named as it was sent, at the first error, without a server."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.base.errors import UsageError
from bitnet.runtime.request import SAMPLING, Request
from bitnet.wire import anthropic, llama_server, ollama, openai, responses, worker
from bitnet.wire.fields import DIALECTS, NAMES

CONTEXT = 64
#: Every form, with what makes requests of a body that it has read.
FORMS = {
    "chat": (openai.CHAT, openai.chat_requests),
    "completion": (openai.COMPLETION, lambda body: openai.completion_requests(body, Request())),
    "embedding": (openai.EMBEDDING, openai.embedding_requests),
    "response": (responses.RESPONSE, responses.response_requests),
    "message": (anthropic.MESSAGE, anthropic.message_requests),
    "count": (anthropic.COUNT, anthropic.message_requests),
    "llama": (llama_server.COMPLETION, llama_server.completion_requests),
    "ollama chat": (ollama.CHAT, lambda body: ollama.chat_requests(body, CONTEXT)),
    "ollama generate": (
        ollama.GENERATE,
        lambda body: ollama.generate_requests(body, CONTEXT, chats=True),
    ),
    "inference": (worker.INFERENCE, lambda body: worker.inference_requests(body, Request())),
    "tokenize": (worker.TOKENIZE, lambda _: []),
    "detokenize": (worker.DETOKENIZE, lambda _: []),
}
MINIMAL = {
    "messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a", "model": "m",
    "max_tokens": 8, "content": "a", "tokens": [1],
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


def _try(name, body):
    """The error of *body*, as a client reads it; ``None`` where it is taken."""
    form, requests_of = FORMS[name]
    try:
        for request in requests_of(form.read(body)):
            request.check()
    except UsageError as error:
        renamed = form.rename(error)
        assert renamed.message.encode()
        return renamed
    return None


@pytest.mark.parametrize("name", FORMS)
def test_a_strange_value_in_any_field_is_taken_or_refused_by_name(name):
    form, _ = FORMS[name]
    body = _minimal(form)
    for field in [*form.openapi()["properties"], "no_such_field", "\ud800", *form.unserved]:
        for value in STRANGE:
            _try(name, body | {field: value})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_no_body_breaks_a_form(name, data):
    form, _ = FORMS[name]
    fields = st.sampled_from([*form.openapi()["properties"], "other"])
    _try(name, data.draw(st.dictionaries(fields, VALUES, max_size=5)))


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
    ("name", "values", "expected"),
    [
        ("chat", {"repeat_penalty": 1.5, "max_completion_tokens": 5}, (5, 1.0)),
        ("message", {"max_tokens": 7}, (7, 1.0)),
        ("llama", {"n_predict": 3}, (3, 0.8)),
        ("ollama chat", {"options": {"num_predict": 4, "temperature": 2}}, (4, 2.0)),
        ("response", {"max_output_tokens": 6}, (6, 1.0)),
    ],
)
def test_a_dialects_name_sets_the_field(name, values, expected):
    form, requests_of = FORMS[name]
    (request,) = requests_of(form.read(_minimal(form) | values))
    assert (request.max_tokens, request.temperature) == expected


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("ollama chat", {"options": {"stop": ["a"] * 17}}, "options.stop"),
        ("ollama chat", {"options": {"num_predict": 0}}, "options.num_predict"),
        ("message", {"output_format": {"type": "json_schema", "schema": {"pattern": "\0"}}},
         "output_format"),
        ("llama", {"n_predict": 0}, "n_predict"),
        ("chat", {"logit_bias": {str(at): 1 for at in range(2000)}}, "logit_bias"),
        ("chat", {"messages": [{"role": "user", "content": "a\0"}]}, "messages"),
    ],
)  # fmt: skip
def test_an_error_has_the_clients_name_of_the_field(name, values, field):
    error = _try(name, _minimal(FORMS[name][0]) | values)
    assert error.field == field
    assert field in error.message
