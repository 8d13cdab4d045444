"""Ollama's API, through its official client."""

import hashlib
import json
import math
import re

import numpy as np
import pytest
from bitnet_embeddings import folder
from reasoning_models import reasoning_gguf
from server_process import listening
from tiny_models import tiny_gguf
from tool_models import CITIES, WEATHER, tool_gguf

from bitnet import load
from bitnet.base.errors import UsageError
from bitnet.wire.ollama import CHAT, EMBED, EMBED_ONE, GENERATE
from bitnet.wire.routes import COMPUTED, ROUTES

ollama = pytest.importorskip("ollama")

ASK = [{"role": "user", "content": "abc"}]
GREEDY = {"temperature": 0, "num_predict": 8}


@pytest.fixture
def client(worker):
    client = ollama.Client(host=worker.address, verify=False)
    with client._client:  # older ones cannot be closed themselves
        yield client


#: Form, its field with the prompt, a prompt, and an empty one.
PROMPTS = [
    pytest.param(CHAT, "messages", ASK, [], id="chat"),
    pytest.param(GENERATE, "prompt", "abc", "", id="generate"),
    pytest.param(EMBED, "input", "abc", "", id="embed"),
    pytest.param(EMBED_ONE, "prompt", "abc", "", id="embeddings"),
]
VECTORS = (EMBED.name, EMBED_ONE.name)  # an empty text is answered: it has a vector, too


@pytest.mark.parametrize(("form", "field", "prompt", "empty"), PROMPTS)
@pytest.mark.parametrize(
    ("keep_alive", "idle_s"),
    [
        (None, None),
        (0, 0),
        ("0", 0),
        ("0s", 0),
        ("5m", 300),
        (-1, math.inf),
        ("-1s", math.inf),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("+.5m", 30),
        ("-1h30m", math.inf),
        (0.25, 0.25),
        (1e-5, 1e-5),
        (1e20, math.inf),
        (10**400, math.inf),
        ("9" * 5000, math.inf),
    ],
)
def test_a_body_without_a_prompt_loads_or_unloads(form, field, prompt, empty, keep_alive, idle_s):
    body = {"model": "tiny", "keep_alive": keep_alive}
    assert form.model_use(form.read(body | {field: prompt})) == ("answer", idle_s)
    without = form.read(body | {field: empty})
    if form.name in VECTORS:
        assert form.model_use(without) == ("answer", idle_s)
        return
    action = "unload" if idle_s == 0 else "load"
    assert form.model_use(without) == form.model_use(form.read(body)) == (action, idle_s)
    reply = form.empty_reply(without, action)
    assert (reply["model"], reply["done"], reply["done_reason"]) == ("tiny", True, action)


@pytest.mark.parametrize(("form", "field", "prompt", "empty"), PROMPTS)
def test_a_keep_alive_that_is_not_a_duration_is_refused(form, field, prompt, empty):
    for text in (prompt, empty):
        for wrong in ("soon", "", "h", "1h 30m", "1d", "--5m", "5m-", "inf"):
            body = form.read({"model": "tiny", "keep_alive": wrong, field: text})
            with pytest.raises(UsageError, match="keep_alive"):
                form.model_use(body)


def test_every_form_with_a_keep_alive_is_tested_here():
    """A form that accepts ``keep_alive`` must also act on it."""
    names = {form.name for form in ROUTES.values() if "keep_alive" in form.fields}
    assert names == {parameter.values[0].name for parameter in PROMPTS}
    assert not [path for path, form in COMPUTED.items() if "keep_alive" in form.fields]


def test_a_chat_is_what_the_model_writes(client, path):
    reply = client.chat("tiny", ASK, options=GREEDY)
    with load(path) as model:
        assert reply.message.content == model.chat(ASK, max_tokens=8)
    assert (reply.done, reply.done_reason, reply.eval_count) == (True, "length", 8)
    assert reply.prompt_eval_count == len("user.abc.assistant.")
    assert reply.total_duration >= reply.eval_duration > 0


def test_a_stream_is_the_whole_answer(client):
    whole = client.chat("tiny:latest", ASK, options=GREEDY)
    *parts, last = client.chat("tiny", ASK, options=GREEDY, stream=True)
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert not any(part.done for part in parts)
    assert (last.done, last.done_reason, last.eval_count) == (True, "length", 8)


def test_a_prompt_is_answered_in_the_template_or_raw(client, path):
    with load(path) as model:
        messages = [{"role": "system", "content": "b"}, {"role": "user", "content": "abc"}]
        chat = model.chat(messages, max_tokens=8)
        plain = model.generate("abc", max_tokens=8)
    assert client.generate("tiny", "abc", system="b", options=GREEDY).response == chat
    assert client.generate("tiny", "abc", raw=True, options=GREEDY).response == plain
    parts = client.generate("tiny", "abc", raw=True, options=GREEDY, stream=True)
    assert "".join(part.response for part in parts) == plain


def test_options_change_the_answer(client):
    def text(**options):
        return client.generate("tiny", "abc", raw=True, options=GREEDY | options).response

    plain = text()
    assert text(stop=[plain[3:5]]) == plain[: plain.index(plain[3:5])]
    hot = {"temperature": 50, "top_k": 0, "top_p": 1}
    # At this temperature draws are nearly uniform, so that two seeds give two texts.
    assert text(**hot, seed=7) == text(**hot, seed=7) != text(**hot, seed=8)
    assert text(num_thread=1, num_ctx=2048) == plain
    assert text(tfs_z=1.0, penalize_newline=False) == plain  # which turn them off
    assert text(num_ctx=2048.0, top_k=1.0) == text(top_k=1)  # as Go reads it


@pytest.mark.parametrize(
    ("route", "body"),
    [("/api/chat", {"messages": ASK}), ("/api/generate", {"prompt": "a"}),
     ("/api/embed", {"input": "a"}), ("/api/embeddings", {"prompt": "a"})],
)  # fmt: skip
def test_a_context_other_than_the_models_is_named_as_ignored(worker, route, body):
    """Aider sends one that it computes from the length of its text."""
    name = "options.num_ctx"
    for num_ctx, expected in ((64, name), (2048, None), (None, None), (10_752, name)):
        reply = worker.post(route, {"model": "tiny", "options": {"num_ctx": num_ctx}} | body)
        assert reply.status_code == 200
        assert reply.headers.get("bitnet-ignored") == expected


def test_a_request_without_a_prompt_loads_the_model(client):
    assert client.generate("tiny").done_reason == "load"
    assert client.chat("tiny", []).done_reason == "load"


def test_tools_are_called_with_objects(client):
    pytest.importorskip("llguidance")
    # The only answer that this schema allows is a call.
    form = {"type": "object", "properties": {"name": {"const": "weather"}, "arguments":
            WEATHER["function"]["parameters"]}, "required": ["name", "arguments"],
            "additionalProperties": False}  # fmt: skip
    options = {"tools": [WEATHER], "options": {"temperature": 0, "num_predict": 200}}
    reply = client.chat("tiny", ASK, **options, format=form)
    calls = reply.message.tool_calls
    assert calls
    streamed = [
        call
        for part in client.chat("tiny", ASK, **options, format=form, stream=True)
        for call in part.message.tool_calls or []
    ]
    assert [call.function for call in streamed] == [call.function for call in calls]
    for call in calls:
        assert call.function.name == "weather"
        assert call.function.arguments["city"] in CITIES


def test_an_answer_follows_a_format(client):
    pytest.importorskip("llguidance")
    form = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
            "additionalProperties": False}  # fmt: skip
    options = {"temperature": 0, "num_predict": 100}
    reply = client.generate("tiny", "abc", format=form, options=options)
    assert json.loads(reply.response) == {"a": 1}


def test_vectors_have_length_one(client):
    reply = client.embed("tiny", ["ab", "cd", "ab"])
    first, second, third = reply.embeddings
    assert first == pytest.approx(third, abs=1e-6)  # NumPy: rows of a pass differ in the last bit
    assert first != pytest.approx(second, abs=1e-3)
    assert math.isclose(sum(x * x for x in first), 1, abs_tol=1e-5)
    long = "a" * 5000
    assert len(client.embed("tiny", long).embeddings) == 1
    with pytest.raises(ollama.ResponseError, match="the input has 5,001 tokens"):  # with BOS
        client.embed("tiny", long, truncate=False)


def test_a_text_that_is_cut_keeps_the_end_token_that_is_pooled(tmp_path):
    keys = {"tokenizer.ggml.add_eos_token": True, "llama.pooling_type": 3}  # last token
    path = tiny_gguf(tmp_path / "last.gguf", **keys)
    with listening(path) as worker:
        reply = worker.post("/api/embed", {"model": "tiny", "input": "ab" * 300}).json()
    with load(path) as model:
        *ids, end = model.tokenizer.encode("ab" * 300)
        assert end == model.tokenizer.eos_id
        whole = [*ids[: model.context - 1], end]
        assert reply["embeddings"] == model.embed([whole]).tolist()
        assert reply["embeddings"] != model.embed([ids[: model.context]]).tolist()
    assert reply["prompt_eval_count"] == model.context


def test_texts_get_the_models_default_prompt(tmp_path):
    path = folder(tmp_path / "model", "qwen3")
    settings = {"prompts": {"query": "ab", "plain": ""}, "default_prompt_name": "query"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with listening(path, name="vectors") as worker, load(path) as model:
        body = {"model": "vectors", "input": ["c", "abc"]}
        rows = worker.post("/api/embed", body).json()["embeddings"]
        # The default prompt "ab" is written before each text.
        expected = [model.embed(text, prompt_name="plain")[0] for text in ("abc", "ababc")]
    for row, vector in zip(rows, expected, strict=True):
        assert row == pytest.approx(vector.tolist(), abs=1e-5)


def test_the_model_is_listed_and_described(client, worker, path):
    (listed,) = client.list().models
    assert (listed.model, listed.size) == ("tiny", path.stat().st_size)
    assert (listed.details.format, listed.details.family) == ("gguf", "llama")
    assert listed.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert re.fullmatch(r"\d+\.\d[KM]", listed.details.parameter_size)
    assert listed.details.quantization_level == "F32"
    assert [one.model for one in client.ps().models] == ["tiny"]
    shown = client.show("tiny")
    # With "embedding" in the list, Ollama's own client would not chat with it.
    assert shown.capabilities == ["completion", "tools"]
    assert "assistant." in shown.template
    assert shown.modelinfo["llama.context_length"] == 2048
    assert worker.http.get("/api/version").json()["version"]


def test_a_model_is_described_to_the_program_ollama(worker):
    """Its client, in Go, sends every field that it knows."""
    empty = {"system": "", "template": "", "verbose": False, "options": None, "name": ""}
    reply = worker.post("/api/show", {"model": "tiny"} | empty)
    assert reply.status_code == 200, reply.text
    assert reply.json()["details"]["format"] == "gguf"


def test_what_a_model_can_do_is_listed(tmp_path):
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    for path, expected in (
        (reasoning_gguf(tmp_path / "m.gguf"), ["completion", "tools", "thinking"]),
        (tool_gguf(tmp_path / "gaps.gguf", control=marks), ["completion", "tools", "insert"]),
        (folder(tmp_path / "vectors", "qwen3"), ["embedding"]),
    ):
        with listening(path) as worker:
            reply = worker.post("/api/show", {"model": "tiny"})
            assert reply.json()["capabilities"] == expected


@pytest.mark.parametrize(
    ("route", "fields", "words"),
    [
        ("/api/chat", {"think": "much"}, "think: expected one of low, medium, high"),
        ("/api/chat", {"options": {"tfs_z": 0.5}}, "options.tfs_z is not served"),
        ("/api/chat", {"options": {"mirostat": 3}}, "options.mirostat is 3"),
        ("/api/chat", {"options": {"penalize_newline": True}}, "options.penalize_newline is not"),
        ("/api/chat", {"options": {"num_ctx": -5}}, "options.num_ctx is -5, expected at least 1"),
        ("/api/chat", {"options": {"num_ctx": 0}}, "options.num_ctx is 0, expected at least 1"),
        ("/api/chat", {"options": {"num_ctx": 9.5}}, "options.num_ctx: expected a whole number"),
        ("/api/chat", {"options": {"num_ctx": "9"}}, "options.num_ctx: expected a whole number"),
        ("/api/chat", {"options": {"top_k": 4.5}}, "options.top_k"),
        ("/api/chat", {"options": {"top_k": True}}, "options.top_k"),
        ("/api/chat", {"options": {"top_p": 3.0}}, "options.top_p is 3.0"),
        ("/api/chat", {"options": {"num_predict": 0}}, "options.num_predict is 0"),
        ("/api/chat", {"options": {"num_predict": "x"}}, "options.num_predict is of type str"),
        ("/api/chat", {"options": {"stop": ["a"] * 17}}, "options.stop has more than 16"),
        ("/api/chat", {"format": "yaml"}, "format is neither"),
        ("/api/chat", {"messages": [{"role": "user", "content": "", "images": ["x"]}]},
         "messages.0.images is not served: only text"),
        ("/api/chat", {"unknown": 1}, "unknown: this field is not known"),
        ("/api/chat", {"top_logprobs": 21}, "top_logprobs is 21"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, "this model has no tokens"),
        ("/api/generate", {"prompt": "a", "template": "b"}, "template is not served"),
        ("/api/generate", {"prompt": "a", "raw": True, "system": "b"}, "system: a raw prompt"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_in_ollamas_form(worker, route, fields, words):
    asked = {"messages": ASK} if route == "/api/chat" else {}
    reply = worker.post(route, {"model": "tiny"} | asked | fields)
    assert reply.status_code == 400
    assert reply.json()["error"].startswith(words)


def test_another_model_is_not_shown(client):
    with pytest.raises(ollama.ResponseError, match="no model 'other'") as error:
        client.show("other")
    assert error.value.status_code == 404


def test_the_older_routes_and_names_are_done(worker, client):
    (row,) = client.embed("tiny", "abc").embeddings
    raw = np.array(client.embeddings("tiny", "abc").embedding)  # not scaled to length 1
    assert abs(np.linalg.norm(raw) - 1) > 0.01
    np.testing.assert_allclose(raw / np.linalg.norm(raw), row, rtol=1e-5)
    named = (worker.post("/api/show", {field: "tiny"}).json() for field in ("name", "model"))
    assert len({json.dumps(facts) for facts in named}) == 1


@pytest.mark.parametrize(
    ("more", "status"),  # further headers of the request
    [
        ({}, 200),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 415),
        ({"Content-Type": "text/plain", "Sec-Fetch-Mode": "no-cors"}, 415),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_a_body_needs_a_json_content_type_only_from_a_browser(worker, more, status):
    body = json.dumps({"model": "tiny", "messages": ASK, "options": GREEDY, "stream": False})
    reply = worker.http.post("/api/chat", content=body.encode(), headers=more)
    assert reply.status_code == status, reply.text


@pytest.mark.parametrize("address", ["/api/chat", "/api/generate"])
def test_log_probabilities_stand_beside_the_text(worker, address):
    body = {"model": "tiny", "options": GREEDY, "logprobs": True, "top_logprobs": 2}
    body |= {"messages": ASK} if address == "/api/chat" else {"prompt": "abc"}
    # Later answers take the prompt from the prefix cache; NumPy then adds in another order.
    worker.post(address, body)
    whole = worker.post(address, body | {"stream": False}).json()
    text = whole["message"]["content"] if address == "/api/chat" else whole["response"]
    assert "".join(entry["token"] for entry in whole["logprobs"]) == text
    assert [len(entry["top_logprobs"]) for entry in whole["logprobs"]] == [2] * 8
    lines = [json.loads(line) for line in worker.post(address, body).text.splitlines()]
    assert [entry for line in lines for entry in line.get("logprobs", ())] == whole["logprobs"]
    assert (
        "logprobs" not in worker.post(address, body | {"logprobs": False, "top_logprobs": 0}).text
    )
    refused = worker.post(address, body | {"logprobs": False})
    assert (refused.status_code, "logprobs: true" in refused.json()["error"]) == (400, True)


def test_instructions_for_a_model_without_a_template_are_refused_as_such(tmp_path):
    with load(tiny_gguf(tmp_path / "tiny.gguf")) as model:
        body = GENERATE.read({"model": "tiny", "prompt": "a", "system": "b"})
        with pytest.raises(UsageError, match="system: a model without a template has no place"):
            GENERATE.requests(body, None, model)
