"""Every field that a client sends is done, refused by its name, or named as ignored."""

import re

import pytest
from server_process import listening
from tiny_models import TOKENS, tiny_gguf

from bitnet.runtime.request import SAMPLING
from bitnet.wire.routes import ROUTES

CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "temperature": 0}
TEXT = {"prompt": "ab", "max_tokens": 8, "temperature": 0}
EOS = {str(TOKENS.index("</s>")): 1e6}  # a bias that makes the end the likeliest token
TOOL = {"type": "function", "function": {"name": "zz", "parameters": {"type": "object"}}}


def answer(worker, path, body):
    """Text of the only choice in the reply to *body*."""
    reply = worker.post(path, body)
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    return choice.get("text", (choice.get("message") or {}).get("content"))


@pytest.mark.parametrize(
    "field",
    ["grammar", "guided_grammar", "no_such_field", "functions", "mirostat",
     "typical_p", "dry_multiplier", "samplers", "prediction", "thinking", "best"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/inference"])
def test_a_field_that_is_not_done_is_refused_by_its_name(worker, path, field):
    body = CHAT if "chat" in path else TEXT
    reply = worker.post(path, body | {field: "low"})
    assert reply.status_code == 400
    assert field in reply.json()["error"]["message"]


def test_what_changes_nothing_is_taken(worker):
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto",
        "safety_identifier": "s", "prompt_cache_key": "k", "parallel_tool_calls": True,
        "modalities": ["text"], "cache_prompt": True, "reasoning_effort": None, "functions": [],
    }  # fmt: skip
    assert answer(worker, "/v1/chat/completions", CHAT | harmless)


def test_minus_one_means_the_default_as_in_other_servers(worker):
    assert answer(worker, "/v1/completions", TEXT | {"seed": -1})
    without = worker.post("/v1/chat/completions", CHAT | {"max_tokens": None}).json()
    with_minus_one = worker.post("/v1/chat/completions", CHAT | {"max_tokens": -1}).json()
    by_other_name = worker.post("/v1/chat/completions", CHAT | {"max_completion_tokens": -1}).json()
    assert with_minus_one["choices"] == without["choices"]
    assert by_other_name["usage"]["completion_tokens"] == 8  # of max_tokens, which is 8
    for field in ("top_k", "max_tokens"):
        assert worker.post("/v1/completions", TEXT | {field: -2}).json()["error"]["param"] == field


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_a_top_k_of_minus_one_means_all_tokens_as_in_vllm_and_llama_cpp(path):
    """Also where a dialect has another default, or the model's files recommend one."""
    form = ROUTES[path]
    body = {"messages": CHAT["messages"]} if "chat" in path else {"prompt": "a"}
    (request,) = form.requests(form.read(body | {"top_k": -1}), None, None)
    assert request.states("top_k")
    assert request.sampling.top_k == 0


@pytest.mark.parametrize(
    ("path", "body", "is_ollamas"),
    [
        ("/v1/completions", {"prompt": "ab", "max_tokens": 8, "temperature": 1}, False),
        ("/completion", {"prompt": "ab", "n_predict": 8}, False),
        ("/api/generate", {"model": "tiny", "prompt": "ab", "raw": True, "stream": False}, True),
    ],
)
def test_a_negative_seed_is_that_of_an_unsigned_number(worker, path, body, is_ollamas):
    def text(seed):
        options = {"options": {"seed": seed, "num_predict": 8}} if is_ollamas else {"seed": seed}
        reply = worker.post(path, body | options)
        assert reply.status_code == 200, reply.text
        return _text_of(reply.json())

    assert text(-5) == text(2**64 - 5) != text(-6)


def _text_of(facts):
    """The answer in *facts*, a reply of any of three dialects."""
    if "choices" in facts:
        return facts["choices"][0]["text"]
    return facts["response"] if "response" in facts else facts["content"]


def test_options_of_sampling_are_described_with_bounds_and_refused_beyond(worker):
    page = worker.http.get("/openapi.json").json()["paths"]["/v1/chat/completions"]
    content = page["post"]["requestBody"]["content"]["application/json"]
    for name, low, high in (
        ("temperature", 0, 100), ("top_p", 0, 1), ("min_p", 0, 1), ("top_k", 0, 2**31),
        ("repetition_penalty", 0.001, 100), ("frequency_penalty", -100, 100),
        ("presence_penalty", -100, 100), ("seed", None, 2**64 - 1),
    ):  # fmt: skip
        assert name in SAMPLING
        number, _ = content["schema"]["properties"][name]["anyOf"]  # the other one is null
        # FastAPI describes bounds as floats.
        assert (number.get("minimum"), number["maximum"]) == (low, float(high))
        reply = worker.post("/v1/completions", TEXT | {name: high * 2 + 1})  # beyond the bound
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
        # The message names the field of the body, not an option of the command line.
        assert not re.search("--", reply.json()["error"]["message"])


def test_an_answer_has_at_least_min_tokens_and_can_ignore_its_end(worker):
    ends = TEXT | {"logit_bias": EOS}
    assert answer(worker, "/v1/completions", ends) == ""
    reply = worker.post("/v1/completions", ends | {"min_tokens": 3}).json()
    assert reply["usage"]["completion_tokens"] == 4  # three tokens and the end
    reply = worker.post("/v1/completions", ends | {"ignore_eos": True}).json()
    assert reply["usage"]["completion_tokens"] == 8
    assert reply["choices"][0]["finish_reason"] == "length"


def test_repeat_penalty_is_the_repetition_penalty(worker):
    plain = answer(worker, "/v1/completions", TEXT)
    by_repeat_penalty = answer(worker, "/v1/completions", TEXT | {"repeat_penalty": 50.0})
    by_repetition_penalty = answer(worker, "/v1/completions", TEXT | {"repetition_penalty": 50.0})
    assert by_repeat_penalty == by_repetition_penalty != plain


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"structured_outputs": {"regex": "q{3}"}}, "qqq"),
        ({"structured_outputs": {"choice": ["k", "no"]}}, "k|no"),
        ({"json_schema": {"const": None}}, "null"),
        ({"structured_outputs": {"json": {"const": None}}}, "null"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/inference"])
def test_other_names_of_structured_answers_are_done(worker, path, fields, expected):
    pytest.importorskip("llguidance")
    reply = worker.post(path, (CHAT if "chat" in path else TEXT) | fields)
    assert reply.status_code == 200, reply.text
    facts = reply.json()
    text = facts.get("text")
    if text is None:
        (choice,) = facts["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert re.fullmatch(expected, text)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
        ({"json_schema": {"const": 1}, "response_format": {"type": "json_object"}}, "json_schema"),
    ],
)
def test_structured_answers_that_contradict_are_refused(worker, fields, param):
    reply = worker.post("/v1/chat/completions", CHAT | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_tools_are_described_where_the_template_drops_them(tmp_path):
    template = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
    path = tiny_gguf(
        tmp_path / "m.gguf",
        **{"tokenizer.chat_template": template, "llama.context_length": 1024},
    )
    with listening(path) as worker:

        def prompt_tokens(**more):
            reply = worker.post("/v1/chat/completions", CHAT | more)
            return reply.json()["usage"]["prompt_tokens"]

        plain = prompt_tokens()
        # The description has more than a hundred characters, and each is a token.
        assert prompt_tokens(tools=[TOOL]) > plain + 100
        assert prompt_tokens(tools=[TOOL], tool_choice="none") == plain


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT), ("/v1/inference", TEXT),
     ("/v1/embeddings", {"input": "a"})],
)  # fmt: skip
def test_another_models_name_is_taken_and_named_unless_names_are_strict(serving, path, body):
    reply = serving().post(path, body | {"model": "gpt-4"})
    assert (reply.status_code, reply.headers["bitnet-ignored"]) == (200, "model")
    assert reply.json().get("model", "tiny") == "tiny"
    strict = serving(strict_names=True)
    reply = strict.post(path, body | {"model": "gpt-4"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert strict.post(path, body | {"model": "tiny"}).status_code == 200


def test_what_cannot_change_an_answer_is_named_in_the_reply_and_once_in_the_events(serving):
    lines = []
    worker = serving({"llama.context_length": 1024}, lines=lines)
    body = CHAT | {"user": "u", "store": False, "reasoning_effort": "high"}
    body["tools"] = [{"type": "function", "function": {"name": "zz", "strict": True}}]
    for _ in range(2):
        reply = worker.post("/v1/chat/completions", body)
        assert reply.status_code == 200, reply.text
        named = reply.headers["bitnet-ignored"].split(", ")
        # store: false is what this worker does.
        assert named == ["tools.function.strict", "user", "reasoning_effort"]
    assert sum("field_ignored" in line and " user " in line for line in lines) == 1
    with worker.http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as stream:
        assert stream.headers["bitnet-ignored"].split(", ") == named
    assert "bitnet-ignored" not in worker.post("/v1/chat/completions", CHAT).headers


def cache_hints(parameters):
    """A value of each field about caching prompts that a type of the client library declares."""
    types = {name: str(kind) for name, kind in parameters.__annotations__.items()}
    return {
        name: "24h" if "str" in kind or "Literal" in kind else {"ttl": "24h"}
        for name, kind in types.items()
        if name.startswith("prompt_cache")
    }


def test_every_hint_about_caching_that_the_client_library_declares_is_accepted(worker):
    chat = pytest.importorskip("openai.types.chat")
    responses = pytest.importorskip("openai.types.responses")
    part = cache_hints(chat.ChatCompletionContentPartTextParam)
    body = cache_hints(chat.completion_create_params.CompletionCreateParamsBase)
    body["messages"] = [{"role": "user", "content": [{"type": "text", "text": "a", **part}]}]
    reply = worker.post("/v1/chat/completions", {"model": "tiny", "max_tokens": 2} | body)
    assert reply.status_code == 200, reply.text
    part = cache_hints(responses.ResponseInputTextParam)
    body = cache_hints(responses.response_create_params.ResponseCreateParamsBase)
    body["input"] = [{"role": "user", "content": [{"type": "input_text", "text": "a", **part}]}]
    reply = worker.post("/v1/responses", {"model": "tiny", "max_output_tokens": 2} | body)
    assert reply.status_code == 200, reply.text


def test_a_request_to_unload_the_only_model_is_refused(worker):
    reply = worker.post("/api/generate", {"model": "tiny", "keep_alive": 0})
    assert (reply.status_code, worker.slot.state) == (400, "loaded")
    assert reply.json()["error"].startswith("keep_alive: 'tiny' was loaded when the worker started")
    short = {"model": "tiny", "prompt": "a", "stream": False, "options": {"num_predict": 2}}
    reply = worker.post("/api/generate", short | {"keep_alive": 0})
    assert (reply.status_code, reply.headers["bitnet-ignored"]) == (200, "keep_alive")


@pytest.mark.parametrize(
    ("path", "more", "named"),
    [
        ("/v1/chat/completions", {"thinking_token_budget": 5}, "thinking_token_budget"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ("/v1/messages", {"thinking": {"type": "adaptive"}}, "thinking"),
        ("/v1/messages", {"thinking": {"budget_tokens": 1024}}, "thinking.budget_tokens"),
        ("/v1/messages", {"thinking": {"type": "disabled", "budget_tokens": 9}},
         "thinking.budget_tokens"),
        ("/v1/messages", {"output_config": {"effort": "high"}}, "output_config.effort"),
    ],
)  # fmt: skip
def test_fields_about_reasoning_are_ignored_by_name_without_it(worker, path, more, named):
    body = {name: value for name, value in CHAT.items() if name != "temperature"}
    reply = worker.post(path, body | more)
    assert (reply.status_code, reply.headers["bitnet-ignored"]) == (200, named), reply.text


def test_ollama_is_told_that_a_model_does_not_reason(worker):
    messages = CHAT["messages"]
    for think in (True, "high"):
        reply = worker.post("/api/chat", {"model": "tiny", "messages": messages, "think": think})
        assert (reply.status_code, reply.json()) == (
            400,
            {"error": "think: this model does not reason"},
        )
    plain = {"model": "tiny", "messages": messages, "think": False, "options": {"num_predict": 2}}
    assert worker.post("/api/chat", plain | {"stream": False}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_clients_of_chats_may_ask_for_more_tokens_than_there_is_room_for(worker, path):
    """As agents do, which ask for 32,000 tokens of any model."""
    body = {"messages": CHAT["messages"], "max_tokens": 64_000}
    reply = worker.post(path, body)
    assert (reply.status_code, reply.headers["bitnet-ignored"]) == (200, "max_tokens"), reply.text
    usage = reply.json()["usage"]
    # 48 is the limit of this worker, and 64 its context.
    assert usage.get("output_tokens", usage.get("completion_tokens")) <= 48
    asked = worker.post("/v1/completions", TEXT | {"max_tokens": 64_000})
    assert (asked.status_code, asked.json()["error"]["param"]) == (400, "max_tokens")
