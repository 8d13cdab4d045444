"""Every field of every body is done, refused by its name, or named as one without effect.

Bodies are generated from the forms: at every place of a body where a field may be, a field with an
unknown name is refused, and one with a known name changes the request or is named.
"""

import copy
import json
from dataclasses import fields

import pytest
from full_bodies import BODIES, CHAT, SCHEMA, TOOL
from tool_models import tool_gguf

import bitnet
from bitnet.base.errors import Unsupported, UsageError
from bitnet.runtime.request import EVERYTHING, Request
from bitnet.wire.routes import ROUTES
from bitnet.wire.schemas import REFUSED

#: Objects whose names are the client's own: schemas, arguments of calls, variables, metadata.
FREE = {"schema", "parameters", "input_schema", "input", "metadata", "chat_template_kwargs"}
GENERATING = (
    "/v1/chat/completions /v1/completions /v1/responses /v1/messages /api/chat /api/generate"
)
LLAMA_SERVER = "/completion /infill"
EMBEDDING = "/v1/embeddings /api/embed /api/embeddings"
#: Fields that change the reply instead of the request, and the addresses where they do.
OF_REPLY = {
    "model": f"{GENERATING} {LLAMA_SERVER} {EMBEDDING} /embedding /v1/inference /v1/rerank"
    " /v1/score",
    "n": "/v1/chat/completions /v1/completions",
    "stream": f"{GENERATING} {LLAMA_SERVER} /v1/inference",
    "stream_options": "/v1/chat/completions /v1/completions",
    "modalities": "/v1/chat/completions",
    "keep_alive": "/api/chat /api/generate /api/embed /api/embeddings",
    **dict.fromkeys(("t_max_predict_ms", "response_fields", "return_tokens"), LLAMA_SERVER),
    **dict.fromkeys(("encoding_format", "output_dtype", "normalize"), "/v1/embeddings"),
    "dimensions": "/v1/embeddings /api/embed",
    "options": "/api/embed /api/embeddings",
    **dict.fromkeys(("top_n", "return_documents", "return_text"), "/v1/rerank"),
}
#: Fields that a body needs besides those that its form requires.
NEEDED = {"/v1/rerank": ("documents",), "/api/embeddings": ("prompt",)}
#: Fields that replace a needed one, and that one.
INSTEAD = {"texts": "documents"}
#: Fields that have an effect only with another one, and that one.
TOGETHER = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "continue_final_message": {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    },
}
#: TOGETHER for the address /v1/responses.
OF_RESPONSES = {"top_logprobs": {"include": ["message.output_text.logprobs"]}}


GAP = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that calls functions and fills gaps."""
    path = tool_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", control=GAP)
    with bitnet.load(path, allow_mock=True) as loaded:
        yield loaded


def test_every_address_has_a_body():
    assert set(BODIES) == set(ROUTES)


def _objects(value, place=()):
    """Places of all objects in *value* that are not the client's own."""
    if isinstance(value, list):
        for at, entry in enumerate(value):
            yield from _objects(entry, (*place, at))
    elif isinstance(value, dict) and not (place and place[-1] in FREE):
        yield place
        for name, inner in value.items():
            yield from _objects(inner, (*place, name))


def _with(body, place, name, value):
    """*body* with one more entry in the object at *place*."""
    changed = copy.deepcopy(body)
    target = changed
    for part in place:
        target = target[part]
    target[name] = value
    return changed


def _requests(path, body, model):
    """Requests of *body*, and the names of its fields that are ignored."""
    form = ROUTES[path]
    fields = form.read(body)
    requests = form.requests(fields, Request(max_tokens=EVERYTHING), model)
    for request in requests:
        request.check()
    return requests, form.list_ignored(fields, model)


PLACES = [(path, place) for path, body in BODIES.items() for place in _objects(body)]


@pytest.mark.parametrize(("path", "place"), PLACES, ids=lambda each: str(each))
@pytest.mark.parametrize("name", ["no_such_field", "contents", "imges"])
def test_an_unknown_field_is_refused_at_every_place(path, place, name, model):
    _requests(path, BODIES[path], model)
    with pytest.raises(UsageError) as raised:
        _requests(path, _with(BODIES[path], place, name, "x"), model)
    assert name in raised.value.field


#: Values to try in each field; of some type, or a word that some field accepts.
SAMPLES = (
    "a", "low", "auto", "user", "json", "5m", 2, 3, 0.5, False, True, ["a"], ["top_k"],
    {"type": "json_object"}, {"type": "disabled"}, {"1": 2}, {"a": "b"}, [TOOL],
    [{"role": "user", "content": "other"}], {"regex": "a"}, {"format": {"type": "json_object"}},
    {"effort": "low"}, {"type": "none"}, [{"name": "g", "input_schema": SCHEMA}],
    {"format": {"type": "json_schema", "schema": SCHEMA}}, {"verbosity": "low"},
    [{"type": "function", "name": "g", "parameters": SCHEMA}], [{"text": "other"}],
    {"include_usage": True}, ["text"], "disabled", "float", {"seed": 5},
)  # fmt: skip


def _known(path):
    """Address and name of every field that the form of *path* serves."""
    return [(path, name) for name, schema in ROUTES[path].fields.items() if REFUSED not in schema]


@pytest.mark.parametrize(
    ("path", "name"), [each for path in BODIES for each in _known(path)], ids=str
)
def test_a_known_field_changes_the_request_or_is_named(path, name, model):
    """Of the samples that the field accepts, at least one changes the request or is named."""
    together = OF_RESPONSES if path == "/v1/responses" else TOGETHER
    names = [*ROUTES[path].required, *NEEDED.get(path, ())]
    plain = {key: BODIES[path][key] for key in names} | together.get(name, {})
    before, _ = _requests(path, plain, model)
    outcomes = set()
    left_out = INSTEAD.get(name, name)
    others = {key: value for key, value in plain.items() if key != left_out}
    for value in SAMPLES:
        try:
            after, named = _requests(path, others | {name: value}, model)
        except (UsageError, Unsupported):
            continue
        is_named = any(each.split(".")[0] == name for each in named)
        outcomes.add(is_named or _facts(after) != _facts(before))
    assert outcomes  # a sample is accepted
    assert (True in outcomes) != (path in OF_REPLY.get(name, "").split())


def _facts(requests):
    """All values of *requests* as one text, to compare them."""
    names = [entry.name for entry in fields(Request)]
    return json.dumps([[str(getattr(each, name)) for name in names] for each in requests])


@pytest.mark.parametrize(
    ("path", "message", "field"),
    [
        ("/v1/chat/completions", {"images": ["x"]}, "messages.0.images"),
        ("/v1/chat/completions", {"function_call": {"name": "f"}}, "messages.0.function_call"),
        ("/v1/chat/completions", {"audio": {"id": "a"}}, "messages.0.audio"),
        ("/v1/chat/completions", {"contents": "x"}, "messages.0.contents"),
        ("/v1/chat/completions", {"content": [{"type": "image_url", "image_url": {"url": "x"}}]},
         "messages.0.content.0"),
        ("/v1/chat/completions", {"content": [{"type": "text"}]}, "messages.0.content.0.text"),
        ("/v1/chat/completions", {"content": [{"type": "text", "text": "a", "image_url": {}}]},
         "messages.0.content.0.image_url"),
        ("/api/chat", {"images": ["x"]}, "messages.0.images"),
        ("/v1/messages", {"content": [{"type": "image", "source": {}}]}, "messages.0.content.0"),
        ("/v1/messages", {"contents": "x"}, "messages.0.contents"),
    ],
)  # fmt: skip
def test_what_a_message_has_besides_text_is_refused_by_its_place(path, message, field, model):
    body = {"model": "m", "messages": [{"role": "user", "content": "a"} | message]}
    if path == "/v1/messages":
        body["max_tokens"] = 8
    with pytest.raises(UsageError) as raised:
        _requests(path, body, model)
    assert raised.value.field == field
    # The template would say so; its message does not name the client's field.
    assert "only text is" not in raised.value.message


def test_what_a_message_says_in_other_fields_reaches_the_template(model):
    refusal = {"role": "assistant", "content": None, "refusal": "I will not."}
    body = {"messages": [*CHAT[:1], refusal, CHAT[0]]}
    ((request,), _) = _requests("/v1/chat/completions", body, model)
    assert request.messages[1] == {"role": "assistant", "content": "I will not."}
    parts = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    ((request,), _) = _requests("/v1/chat/completions", {"messages": [*CHAT[:1], parts]}, model)
    assert request.messages[1]["content"] == [{"type": "text", "text": "No."}]


def test_a_failed_tool_and_references_to_tools_reach_the_model(model):
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "no such file"}
    references = [{"type": "tool_reference", "tool_name": "read"}]
    messages = [
        {"role": "user", "content": [result | {"is_error": True}]},
        {"role": "user", "content": [result | {"content": references}]},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "go on"},
    ]
    body = {"max_tokens": 8, "messages": messages}
    ((request,), _) = _requests("/v1/messages", body, model)
    assert [turn["content"] for turn in request.messages] == [
        "Error: no such file", "read", "be brief", "go on"
    ]  # fmt: skip
    assert request.messages[2]["role"] == "system"


def test_entries_that_a_template_does_not_read_are_named(model):
    messages = [{"role": "user", "content": "a", "name": "ada"}]
    _, named = _requests("/v1/chat/completions", {"messages": messages}, model)
    assert named == ["messages.name"]
