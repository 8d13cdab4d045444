"""OpenAI's interface and our own, as clients use them: over HTTP, and by the official client."""

import base64
import json

import numpy as np
import openai
import pytest
from server_process import listening
from tiny_models import TOKENS
from tool_models import LISTING

from bitnet import load

TEXT = {"role": "user", "content": "a"}
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
LONG = {"llama.context_length": 1024}  # described tools do not fit the tiny model's 64 positions


def events(response):
    """Events of a stream in OpenAI's form, without its end."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def _prompt_tokens(worker, body):
    """Number of tokens in the prompt of the chat *body*."""
    return worker.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"]


def _count(worker, prompt):
    """Number of tokens of the text *prompt*."""
    return len(worker.post("/tokenize", {"content": prompt}).json()["tokens"])


def test_inference_continues_a_prompt(worker, model_path):
    reply = worker.post("/v1/inference", {"prompt": "ab", "max_tokens": 10})
    assert reply.status_code == 200
    facts = reply.json()
    with load(model_path) as model:
        assert facts["text"] == model.generate("ab", max_tokens=10)
    assert facts["tokens_generated"] == 10
    assert facts["finish_reason"] == "length"
    assert facts["worker_id"] == "w1"
    assert facts["request_id"] == reply.headers["x-request-id"]


def test_inference_streams_the_same_text(worker):
    body = {"prompt": "ab", "max_tokens": 10}
    whole = worker.post("/v1/inference", body).json()
    *parts, last = events(worker.post("/v1/inference", body | {"stream": True}))
    assert "".join(part["text"] for part in parts) == whole["text"] == last["text"]
    assert last["done"] is True


def test_chat_writes_what_the_model_writes_after_its_template(client, model_path):
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "abc"}], max_tokens=8, temperature=0
    )
    with load(model_path) as model:
        expected = model.chat([{"role": "user", "content": "abc"}], max_tokens=8)
    (choice,) = reply.choices
    assert choice.message.content == expected
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert reply.usage.completion_tokens == 8
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 8


def test_a_streamed_chat_is_the_whole_one_in_pieces(client):
    request = {"model": "tiny", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 8}
    whole = client.chat.completions.create(**request, temperature=0)
    chunks = list(
        client.chat.completions.create(
            **request, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-1].usage.completion_tokens == 8
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_seed_fixes_the_answer_and_choices_differ(client, monkeypatch):
    monkeypatch.delenv("BITNET_SEED")
    # At this temperature draws are nearly uniform.
    request = {"model": "tiny", "prompt": "ab", "max_tokens": 12, "temperature": 50, "n": 3}
    first = [c.text for c in client.completions.create(**request, seed=7).choices]
    again = [c.text for c in client.completions.create(**request, seed=7).choices]
    other = [c.text for c in client.completions.create(**request, seed=8).choices]
    assert first == again
    assert len(set(first)) == 3
    assert first != other
    unseeded = {client.completions.create(**request).choices[0].text for _ in range(3)}
    assert len(unseeded) > 1


def test_several_prompts_are_answered_in_their_order(client):
    def texts(prompt):
        reply = client.completions.create(model="tiny", prompt=prompt, max_tokens=6, temperature=0)
        return [choice.text for choice in reply.choices]

    prompts = ["ab", "cde", "f"]
    together = texts(prompts)
    assert together == [text for prompt in prompts for text in texts(prompt)]
    assert len(set(together)) == 3


def test_a_stop_string_ends_the_answer_before_it(client):
    request = {"model": "tiny", "prompt": "ab", "max_tokens": 20, "temperature": 0}
    text = client.completions.create(**request).choices[0].text
    stop = text[4:6]
    reply = client.completions.create(**request, stop=[stop]).choices[0]
    assert reply.text == text[: text.index(stop)]
    assert reply.finish_reason == "stop"


def test_logprobs_have_openais_two_forms(client):
    chat = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "a"}], max_tokens=4, temperature=0,
        logprobs=True, top_logprobs=3,
    )  # fmt: skip
    content = chat.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == chat.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob < 0
        assert bytes(entry.bytes).decode() == entry.token
    text = client.completions.create(
        model="tiny", prompt="ab", max_tokens=4, temperature=0, logprobs=2
    ).choices[0]
    assert "".join(text.logprobs.tokens) == text.text
    assert len(text.logprobs.token_logprobs) == len(text.logprobs.text_offset) == 4
    assert all(len(top) == 2 for top in text.logprobs.top_logprobs)


def test_a_bias_decides_and_penalties_change_the_answer(client):
    request = {"model": "tiny", "prompt": "ab", "max_tokens": 6, "temperature": 0}
    biased = client.completions.create(**request, logit_bias={str(TOKENS.index("q")): 100})
    assert biased.choices[0].text == "q" * 6
    with_penalty = client.completions.create(
        **request, logit_bias={str(TOKENS.index("q")): 100}, presence_penalty=100
    )
    assert with_penalty.choices[0].text.count("q") < 6


def test_tools_reach_the_template(serving):
    worker = serving(LONG | {"tokenizer.chat_template": LISTING})
    tool = {"type": "function", "function": {"name": "zz", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    plain = _prompt_tokens(worker, body)
    with_tool = body | {"tools": [tool]}
    text = worker.post("/apply-template", with_tool).json()["prompt"]
    written = text.removeprefix("user.a.").removesuffix("assistant.")
    assert json.loads(written) == [tool]
    assert _prompt_tokens(worker, with_tool) == _count(worker, text) > plain
    assert _prompt_tokens(worker, with_tool | {"tool_choice": "none"}) == plain


def test_tools_that_a_template_does_not_write_are_explained_in_a_message(serving):
    worker = serving(LONG)
    tool = {"type": "function", "function": {"name": "zz", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    plain = _prompt_tokens(worker, body)
    with_tool = body | {"tools": [tool]}
    text = worker.post("/apply-template", with_tool).json()["prompt"]
    assert text.startswith("system.")
    assert text.count(json.dumps(tool["function"])) == 1
    assert text.endswith("user.a.assistant.")
    assert _prompt_tokens(worker, with_tool) == _count(worker, text) > plain
    assert _prompt_tokens(worker, with_tool | {"tool_choice": "none"}) == plain


def test_the_result_of_a_tool_reaches_the_template(serving):
    worker = serving(LONG | {"tokenizer.chat_template": LISTING})

    def prompt_tokens(*more):
        body = {"messages": [{"role": "user", "content": "a"}, *more], "max_tokens": 1}
        return _prompt_tokens(worker, body)

    call = {"id": "1", "type": "function", "function": {"name": "zz", "arguments": "{}"}}
    call_turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    result_turn = {"role": "tool", "tool_call_id": "1", "content": "xyz"}
    assert prompt_tokens(call_turn, result_turn) == prompt_tokens(call_turn) + len("tool.xyz.")


def test_ids_that_an_earlier_request_computed_are_counted(worker):
    body = {"prompt": "abcdefghij", "max_tokens": 2, "temperature": 0}
    cached = [
        worker.post("/v1/completions", body | {"prompt": prompt}).json()["usage"][
            "prompt_tokens_details"
        ]["cached_tokens"]
        for prompt in ("abcdefghij", "abcdefghij", "abcdefgxyz", "qrs")
    ]
    # The last id of a prompt is always run, so of ten letters nine are cached, and seven of the
    # third prompt; the fourth shares only BOS, if any.
    assert cached[0] == 0
    assert cached[1] == cached[2] + 2
    assert cached[3] <= 1


def test_the_model_is_listed(client):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")


def test_embeddings_have_length_one_and_differ(client):
    rows = [
        entry.embedding
        for entry in client.embeddings.create(model="tiny", input=["ab", "cd", "ab"]).data
    ]
    assert rows[0] == rows[2] != rows[1]
    assert sum(x * x for x in rows[0]) == pytest.approx(1, abs=1e-5)


def test_vectors_are_returned_in_fewer_dimensions_unnormalized_or_as_bits(worker, model_path):
    def vectors(**fields):
        body = {"input": ["ab", "cd"]} | fields
        return [one["embedding"] for one in worker.post("/v1/embeddings", body).json()["data"]]

    with load(model_path) as model:
        whole = model.embed(["ab", "cd"])
        short = model.embed(["ab", "cd"], dimensions=16)
        plain = model.embed(["ab", "cd"], normalize=False)
    np.testing.assert_allclose(vectors(), whole, atol=1e-6)
    np.testing.assert_allclose(vectors(dimensions=16), short, atol=1e-6)
    np.testing.assert_allclose(vectors(normalize=False), plain, atol=1e-5)
    bits = np.packbits(short > 0, axis=-1)
    assert vectors(dimensions=16, output_dtype="ubinary") == bits.tolist()
    encoded = vectors(dimensions=16, output_dtype="binary", encoding_format="base64")
    # Type binary has the bytes of ubinary minus 128.
    decoded = [np.frombuffer(base64.b64decode(one), np.int8).astype(int) + 128 for one in encoded]
    assert np.array_equal(decoded, bits)


def test_text_to_ids_and_back(worker):
    ids = worker.post("/tokenize", {"content": "abc", "add_special": False}).json()["tokens"]
    assert worker.post("/detokenize", {"tokens": ids}).json() == {"content": "abc"}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/inference", {"prompt": ""}, "the prompt is empty"),
        ("/v1/inference", {"prompt": "a\0b"}, "NUL"),
        ("/v1/inference", {"max_tokens": 3}, "prompt: this field is required"),
        ("/v1/inference", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("/v1/inference", {"prompt": "a", "max_tokens": True}, "max_tokens"),
        ("/v1/inference", {"prompt": "a", "max_tokens": "3"}, "max_tokens"),
        ("/v1/inference", {"prompt": "a", "max_tokens": 1000}, "at most 48"),
        ("/v1/inference", {"prompt": "a" * 200}, "the context holds 64"),
        ("/v1/completions", {"prompt": [999]}, "ids outside"),
        ("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"x": 1}}, "expected a token id"),
        ("/v1/completions", {"prompt": []}, "the list is empty"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [IMAGE]}, "only text"),
        ("/v1/chat/completions", {"messages": [TEXT], "chat_template_kwargs": {"messages": []}},
         "cannot be set"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "this model has no tokens"),
        ("/v1/completions", {"prompt": "a", "best_of": 2}, "best_of is not served"),
        ("/v1/completions", {"prompt": "a", "echo": True}, "echo is not served"),
        ("/v1/completions", {"prompt": "a", "stream_options": {}}, "stream_options is for stream"),
        ("/v1/chat/completions", {"messages": [TEXT], "top_logprobs": 1}, "top_logprobs is for"),
        ("/v1/chat/completions", {"messages": [TEXT], "tool_choice": "required"},
         "tool_choice: there are no tools"),
        ("/v1/chat/completions", {"messages": [TEXT], "functions": [{"name": "f"}]},
         "functions is not served"),
        ("/detokenize", {"tokens": [12345]}, "not in the vocabulary"),
        ("/v1/embeddings", {"input": [[]]}, "the input has no tokens"),
        ("/v1/embeddings", {"input": "a", "dimensions": 257}, "of this model have 256"),
        ("/v1/embeddings", {"input": "a", "prompt_name": "query"}, "no prompt called 'query'"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "binary", "dimensions": 7},
         "8 dimensions into a byte"),
        ("/v1/completions", {"prompt": ["a"] * 20, "n": 8}, "160 answers in one request"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_told_what_is_wrong(worker, path, body, words):
    reply = worker.post(path, body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("/v1/completions", {"prompt": ""}, "prompt", "the prompt is empty"),
        ("/v1/completions", {"prompt": ["a", ""]}, "prompt", "the prompt is empty"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]},
         "messages.0.content", "messages.0.content: expected a text or a list"),
        ("/v1/chat/completions", {"messages": [TEXT, {"role": "user"}]}, "messages.1",
         "messages.1: content is missing; only an assistant's message may be without"),
        ("/v1/chat/completions", {"messages": [{}]}, "messages.0.role",
         "messages.0.role: this field is required"),
        ("/v1/chat/completions", {"messages": [1]}, "messages.0",
         "messages.0: expected a JSON object"),
        ("/v1/chat/completions", {"messages": [TEXT], "stop": {"a": 1}}, "stop",
         "stop: expected a text or a list"),
        ("/v1/completions", {"prompt": ["a", 1]}, "prompt.1",
         "prompt.1: expected a text"),
        ("/v1/completions", {"prompt": [-1]}, "prompt.0",
         "prompt.0 is -1, expected 0 to 2,147,483,647"),
        ("/v1/completions", {"prompt": "a", "best_of": 2}, "best_of",
         "best_of is not served"),
        ("/v1/embeddings", {"input": []}, "input",
         "input: the list is empty, expected at least one text"),
        ("/v1/completions", ["a"], None, "expected a JSON object"),
    ],
)  # fmt: skip
def test_the_field_that_is_wrong_is_named_as_it_was_sent(worker, path, body, field, message):
    error = worker.post(path, body).json()["error"]
    assert (error["param"], error["message"]) == (field, message)


@pytest.mark.parametrize(
    ("content", "kind", "status", "message"),
    [
        (b'{"prompt": ', "application/json", 400,
         "the body is not JSON: Expecting value at character 11"),
        (b"", "application/json", 400, "the request has no body"),
        (b'{"prompt": "a"}', "application/x-www-form-urlencoded", 415,
         "send the header Content-Type: application/json"),
    ],
)  # fmt: skip
def test_a_body_that_is_not_json_is_refused_with_the_reason(worker, content, kind, status, message):
    reply = worker.http.post("/v1/inference", content=content, headers={"Content-Type": kind})
    error = reply.json()["error"]
    assert (reply.status_code, error["message"], error["param"]) == (status, message, None)


def test_a_conversation_with_calls_of_tools_can_go_on(serving, openai_client):
    client = openai_client(serving(LONG))
    called = {"name": "f", "arguments": '{"a": 1}'}
    calls = [{"id": "c1", "type": "function", "function": called}]
    reply = client.chat.completions.create(
        model="tiny",
        messages=[
            TEXT,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": "b"},
        ],
        max_tokens=2,
    )
    assert reply.usage.completion_tokens == 2


def test_a_head_request_has_the_headers_and_no_body(worker):
    for path in ("/", "/health/live", "/health/ready"):
        reply = worker.http.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
        assert reply.headers["content-length"] == worker.http.get(path).headers["content-length"]
    assert worker.http.head("/v1/inference").status_code == 405


def test_an_unknown_path_or_method_has_the_same_shape_of_error(worker):
    assert worker.http.get("/nothing").json()["error"]["type"] == "invalid_request_error"
    assert worker.http.get("/v1/inference").status_code == 405


def test_the_description_lists_every_route(worker):
    paths = worker.http.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/api/chat",
        "/api/embed",
        "/api/embeddings",
        "/api/generate",
        "/api/ps",
        "/api/show",
        "/api/tags",
        "/api/version",
        "/v1/inference",
        "/v1/rerank",
        "/v1/score",
        "/completion",
        "/embedding",
        "/infill",
        "/props",
        "/slots",
        "/apply-template",
        "/health",
        "/v1/messages",
        "/v1/responses",
        "/v1/messages/count_tokens",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{name}",
        "/tokenize",
        "/detokenize",
        "/health/live",
        "/health/ready",
        "/metrics",
    }


def test_the_metrics_count_what_happened(worker):
    worker.post("/v1/inference", {"prompt": "ab", "max_tokens": 5})
    worker.post("/v1/inference", {"prompt": ""})
    text = worker.http.get("/metrics").text
    assert 'bitnet_answers_total{finish="length",model_name="tiny"} 1.0' in text
    assert 'vllm:generation_tokens_total{model_name="tiny"} 5.0' in text
    assert 'bitnet_http_requests_total{route="/v1/inference",status="400"} 1.0' in text
    assert 'bitnet_open_answers{model_name="tiny"} 0.0' in text


def test_lines_of_the_log_name_the_request(worker):
    reply = worker.post("/v1/inference", {"prompt": "ab", "max_tokens": 2})
    line = next(line for line in worker.lines if 'action="inference_complete"' in line)
    assert f'request_id="{reply.headers["x-request-id"]}"' in line
    assert 'actor="http-server"' in line
    assert 'worker_id="w1"' in line


def test_an_answer_follows_a_json_schema(test_models):
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    body = {"messages": [{"role": "user", "content": "Pick a colour."}], "max_tokens": 40}
    with listening(test_models / "SmolLM2-135M-Instruct.Q4_1.gguf") as worker:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        reply = worker.post("/v1/chat/completions", body | {"response_format": form}).json()
        answer = json.loads(reply["choices"][0]["message"]["content"])
        assert answer["colour"] in ("red", "blue")
        assert reply["choices"][0]["finish_reason"] == "stop"
        form = {"type": "json_object"}
        reply = worker.post("/v1/chat/completions", body | {"response_format": form}).json()
        assert reply["choices"][0]["message"]["content"].lstrip().startswith("{")
        form = {"type": "json_schema", "json_schema": {"name": "x"}}
        reply = worker.post("/v1/chat/completions", body | {"response_format": form})
        assert reply.status_code == 400
        assert "schema" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "a" * 900}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 900}]},
         "messages"),
        ("/v1/responses", {"input": "a" * 900}, "input"),
    ],
)  # fmt: skip
def test_a_prompt_that_does_not_fit_the_context_is_named(worker, path, body, param):
    reply = worker.post(path, body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == param


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/embeddings", "input"), ("/api/embed", "input"), ("/embedding", "content")],
)
def test_2048_texts_are_embedded_with_a_queue_of_two_and_2049_are_refused(serving, path, field):
    worker = serving(max_batch=4, queue=2)
    texts = ["abcdefgh"[number % 8] for number in range(2048)]
    reply = worker.post(path, {"model": "tiny", field: texts})
    assert reply.status_code == 200, reply.text
    facts = reply.json()
    rows = facts if isinstance(facts, list) else facts.get("data") or facts["embeddings"]
    assert len(rows) == 2048
    vectors = [row["embedding"] if isinstance(row, dict) else row for row in rows]
    assert vectors[:10] == vectors[2000:2010]  # texts repeat every eight
    assert vectors[0] != vectors[1]
    too_many = worker.post(path, {"model": "tiny", field: [*texts, "a"]})
    assert too_many.status_code == 400
    assert "2,049 texts, expected at most 2,048" in too_many.text
