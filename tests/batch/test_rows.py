"""OpenAI's batch files: rows of each address, answered as `bitnet serve` answers them."""

import base64
import json
import random

import numpy as np
import pytest
from hostile_bodies import FULL, with_wrong_values
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from tiny_models import tiny_gguf
from tool_models import CITIES, WEATHER, tool_gguf

from bitnet import load
from bitnet.batch.rows import PLAIN, URLS, BatchRow, answers
from bitnet.runtime.answer import Answer
from bitnet.runtime.scheduler import Scheduler

TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
ASK = [{"role": "user", "content": "a"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
VECTORS = "/v1/embeddings"
ITEMS = "/v1/responses"


@pytest.fixture
def model_path(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": TEMPLATE})


def line(custom_id, url, **body):
    """A row in the form of OpenAI's batch files."""
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


@pytest.fixture
def answered(bitnet, tmp_path):
    """A function that runs a batch; returns the ended command and the rows of its output."""

    def run(model, rows, *more):
        source = tmp_path / "in.jsonl"
        target = tmp_path / "out.jsonl"
        source.write_text("\n".join(map(json.dumps, rows)))
        done = bitnet("batch", "--model", model, "--input", source, "--output", target,
                      "--ordered", *more)  # fmt: skip
        return done, [json.loads(row) for row in target.read_text().splitlines()]

    return run


def bodies(answers):
    """The bodies of *answers*, none of which may be an error."""
    assert [answer["error"] for answer in answers] == [None] * len(answers)
    assert {answer["response"]["status_code"] for answer in answers} == {200}
    return [answer["response"]["body"] for answer in answers]


def test_one_batch_may_have_rows_of_every_address(answered, model_path):
    rows = [
        line("chat", CHAT, model="any", messages=ASK, max_completion_tokens=4, temperature=0,
             logprobs=True),
        {"id": "own", "prompt": "ab", "max_tokens": 3},
        line("text", TEXT, prompt=["ab", "cde"], max_tokens=5, temperature=0, logprobs=1),
        line("vectors", VECTORS, input=["ab", "cde"]),
        line("items", ITEMS, input="a", instructions="b", max_output_tokens=4, temperature=0),
    ]  # fmt: skip
    done, replies = answered(model_path, rows)
    assert done.code == 0, done.err
    assert [row.get("custom_id", row["id"]) for row in replies] == [
        "chat", "own", "text", "vectors", "items",
    ]  # fmt: skip
    chat, text, vectors, items = bodies([replies[0], *replies[2:]])
    with load(model_path) as model:
        reply = ChatCompletion.model_validate(chat, strict=True)
        assert reply.choices[0].message.content == model.chat(ASK, max_tokens=4)
        assert len(reply.choices[0].logprobs.content) == reply.usage.completion_tokens == 4
        assert replies[1]["text"] == model.generate("ab", max_tokens=3)
        reply = Completion.model_validate(text, strict=True)
        expected = [model.generate(prompt, max_tokens=5) for prompt in ("ab", "cde")]
        assert [choice.text for choice in reply.choices] == expected
        assert [choice.index for choice in reply.choices] == [0, 1]
        assert len(reply.choices[0].logprobs.tokens) == 5
        reply = CreateEmbeddingResponse.model_validate(vectors, strict=True)
        embeddings = np.array([entry.embedding for entry in reply.data], dtype=np.float32)
        assert np.array_equal(embeddings, model.embed(["ab", "cde"]))
        messages = [{"role": "system", "content": "b"}, *ASK]
        reply = Response.model_validate(items)
        assert reply.output_text == model.chat(messages, max_tokens=4)
        assert (reply.status, reply.usage.output_tokens) == ("incomplete", 4)


def test_a_row_for_another_model_is_answered_and_names_the_model_that_did(answered, model_path):
    rows = [
        line("wrong", CHAT, model="other", messages=ASK, max_completion_tokens=1),
        line("right", CHAT, model=model_path.stem, messages=ASK, max_completion_tokens=1),
    ]
    done, replies = answered(model_path, rows)
    assert done.code == 0
    assert replies[0]["response"]["ignored"] == [f"model 'other': {model_path.stem} answers"]
    assert "ignored" not in replies[1]["response"]


def test_a_strict_batch_refuses_rows_for_another_model(answered, model_path):
    rows = [line("wrong", CHAT, model="other", messages=ASK)]
    _, (found,) = answered(model_path, rows, "--strict-model-name")
    assert found["response"] is None
    assert found["error"]["message"].startswith("body.model: 'other' is not the model")


def test_a_row_may_have_several_choices(answered, model_path):
    # --max-batch 2 is less than the number of choices.
    rows = [
        line("chat", CHAT, messages=ASK, n=3, max_tokens=9, temperature=9.0, seed=1),
        line("text", TEXT, prompt=["ab", "c"], n=2, max_tokens=9, temperature=9.0,
             seed=1),
    ]  # fmt: skip
    _, replies = answered(model_path, rows, "--max-batch", 2)
    chat, text = bodies(replies)
    assert len({choice["message"]["content"] for choice in chat["choices"]}) == 3
    assert [choice["index"] for choice in text["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in text["choices"]]
    assert texts[0] != texts[1]
    prompts = [text["usage"]["prompt_tokens"], chat["usage"]["prompt_tokens"]]
    with load(model_path) as model:
        ids = [model.tokenizer.encode("ab"), model.tokenizer.encode("c")]
        assert prompts == [len(ids[0]) + len(ids[1]), len(model.encode_chat(ASK))]


def test_vectors_have_the_requested_dimensions_encoding_and_type(answered, model_path):
    rows = [
        line("short", VECTORS, input="ab", dimensions=8, normalize=False),
        line("base64", VECTORS, input=[[3, 4], [5]], encoding_format="base64"),
        line("bits", VECTORS, input=[3, 4], output_dtype="ubinary"),
    ]
    _, replies = answered(model_path, rows)
    short, packed, bits = bodies(replies)
    with load(model_path) as model:
        expected = model.embed("ab", dimensions=8, normalize=False)[0]
        assert np.array_equal(np.float32(short["data"][0]["embedding"]), expected)
        raw = [base64.b64decode(entry["embedding"]) for entry in packed["data"]]
        expected = model.embed([[3, 4], [5]])
        assert np.array_equal(np.frombuffer(b"".join(raw), "<f4"), expected.ravel())
        bytes_of = np.packbits(model.embed([[3, 4]])[0] > 0)
        assert bits["data"][0]["embedding"] == bytes_of.tolist()


def test_rows_of_responses_and_completions_may_have_functions_and_schemas(answered, tmp_path):
    pytest.importorskip("llguidance")
    model = tool_gguf(tmp_path / "tools.gguf")
    tool = {"type": "function", **WEATHER["function"]}
    schema = {"const": {"a": 1}}
    form = {"type": "json_schema", "name": "x", "schema": schema}
    choice = {"type": "function", "name": "weather"}
    rows = [
        line("call", ITEMS, input=ASK, tools=[tool], tool_choice=choice, max_output_tokens=300),
        line("schema", ITEMS, input="a", text={"format": form}, max_output_tokens=300),
        line("guided", TEXT, prompt="a", structured_outputs={"json": schema}, max_tokens=300),
    ]
    done, replies = answered(model, rows)
    assert done.code == 0, done.err
    call, items, text = bodies(replies)
    (item,) = Response.model_validate(call).output
    assert item.name == "weather"
    assert json.loads(item.arguments)["city"] in CITIES
    assert json.loads(Response.model_validate(items).output_text) == {"a": 1}
    assert json.loads(text["choices"][0]["text"]) == {"a": 1}


DEEP = json.loads('{"not": ' * 200 + "{}" + "}" * 200)
# A row, and a part of the error that it gets instead of an answer.
WRONG = [
    (line("", CHAT, messages=ASK, max_tokens=0), "body.max_tokens is 0, expected at least 1"),
    (line("", "/v1/images", prompt="a"), "url is '/v1/images', expected one of"),
    (line("", CHAT, messages=ASK) | {"method": "GET"}, "method is 'GET', expected 'POST'"),
    (line("", CHAT, messages=ASK) | {"more": 1}, "more is not a field of a line"),
    (line("", CHAT) | {"body": [1]}, "body: expected a JSON object"),
    (line("", CHAT, messages=ASK, n=10**6), "body.n is 1000000, expected 1 to 8"),
    (line("", CHAT, messages=ASK, structured_outputs={"regex": "\ud800"}), "body.structured"),
    (line("", TEXT, prompt="a", json_schema={"const": "\ud800"}), "body.json_schema has half a"),
    (line("", TEXT, prompt="a", json_schema=DEEP), "body.json_schema is nested more than 100"),
    (line("", TEXT, prompt="\0"), "body.prompt has a NUL character"),
    (line("", CHAT, messages=ASK, n=0), "body.n is 0, expected 1 to 8"),
    (line("", CHAT, messages=ASK, n=True), "body.n: expected a whole number"),
    (line("", CHAT, messages=ASK, stream=True), "body.stream is not for a batch"),
    (line("", CHAT, messages=ASK, grammar="low"), "grammar: line 1, column 4: expected ::="),
    (line("", CHAT, messages=ASK, top_logprobs=1), "body.top_logprobs is for logprobs"),
    (line("", CHAT, messages=ASK, tools=[1]), "body.tools.0: expected a JSON object"),
    (line("", CHAT, messages=ASK, chat_template_kwargs={"tools": 1}),
     "body.chat_template_kwargs: tools cannot be set"),
    (line("", CHAT, messages=[{"role": 3}]), "body.messages.0.role: expected a text"),
    (line("", CHAT, messages=ASK, response_format={"type": "xml"}), "body.response_format is none"),
    (line("", CHAT, input="a"), "body.messages: this field is required"),
    (line("", TEXT, messages=ASK), "body.prompt: this field is required"),
    (line("", TEXT, prompt=[]), "body.prompt: the list is empty"),
    (line("", TEXT, prompt=["a", 1]), "body.prompt.1: expected a text"),
    (line("", TEXT, prompt=["a", ""]), "body.prompt: the prompt is empty"),
    (line("", TEXT, prompt="a", logprobs=True), "body.logprobs: expected a whole number"),
    (line("", TEXT, prompt="a", echo=True), "body.echo is not served"),
    (line("", TEXT, prompt="a", best_of=2), "body.best_of is not served"),
    (line("", TEXT, prompt="a", ignore_eos=1), "body.ignore_eos: expected true or false"),
    (line("", TEXT, prompt=[1, 10**6]), "token ids outside the model's vocabulary"),
    (line("", VECTORS, input="a", dimensions=10**6), "1,000,000 dimensions, the vectors of this"),
    (line("", VECTORS, input="a", output_dtype="int4"), "body.output_dtype: expected one of float"),
    (line("", VECTORS, input="a", encoding_format="hex"), "body.encoding_format: expected one of"),
    (line("", VECTORS, input="a", prompt_name="zz"), "no prompt called 'zz'"),
    (line("", VECTORS, input={"a": 1}), "body.input: expected a text"),
    (line("", VECTORS, input="a" * 300), "the context holds 64"),
    (line("", ITEMS, input="a", max_output_tokens=0), "body.max_output_tokens is 0"),
    (line("", ITEMS, input="a", previous_response_id="x"), "body.previous_response_id is not"),
    (line("", ITEMS, input="a", text={"format": {"type": "xml"}}), "body.text.format is none of"),
    (line("", ITEMS, input=[3]), "body.input.0: expected a JSON object"),
    (line("", ITEMS, input=[{"type": "image"}]), "body.input.0: an item of type 'image'"),
    (line("", ITEMS, input="a", tools=[{"type": "mcp"}]), "body.tools.0: only tools of"),
    (line("", ITEMS, input="a", background=True), "body.background is not served"),
    (line("", ITEMS, input="a", truncation="no"), "body.truncation: expected one of auto"),
    (line("", ITEMS, input="a", tools=[{"type": []}]), "body.tools.0.type: expected a text"),
    (line("", ITEMS, input="a", max_tokens=1), "body.max_tokens: this field is not known here"),
    (line("", ITEMS, **{"messages.0": 1}, input=5), "body.messages.0: this field is not known"),
    (line("", TEXT, prompt="a", logit_bias={"1": 10**400}), "body.logit_bias is '1=1000"),
    (line("", TEXT, prompt="a") | {"\ud800": 1}, "? is not a field of a line"),
]  # fmt: skip


def test_a_row_that_cannot_be_answered_has_an_error_and_affects_no_other_row(answered, model_path):
    rows = [row | {"custom_id": str(number)} for number, (row, _) in enumerate(WRONG)]
    done, replies = answered(model_path, [*rows, line("good", VECTORS, input="a")])
    assert done.code == 24  # some rows failed
    for (row, expected), answer in zip(WRONG, replies, strict=False):
        assert answer["response"] is None, row
        assert expected in answer["error"]["message"], row
    assert "row '0': body.max_tokens is 0" in done.err
    assert bodies(replies[-1:])[0]["data"][0]["embedding"]
    again, _ = answered(model_path, [*rows, line("good", VECTORS, input="a")], "--json")
    facts = json.loads(again.out)
    assert (again.code, facts["answered_before"], facts["failed"]) == (24, len(replies), len(WRONG))


@pytest.mark.parametrize(("field", "value"), [("dimensions", 10**6), ("output_dtype", "int4")])
def test_vectors_of_an_unknown_form_are_refused_before_the_model_runs(
    model_path, monkeypatch, field, value
):
    monkeypatch.setattr(Scheduler, "step", lambda self: pytest.fail("the model runs"))
    row = BatchRow.parse(json.dumps(line("v", VECTORS, input="a", **{field: value})), 1)
    with load(model_path) as model:
        ((_, answer),) = answers([row], model)
    assert f"body.{field}" in answer["error"]


def test_a_model_of_vectors_answers_the_rows_that_request_vectors(answered, tmp_path):
    path = tiny_gguf(tmp_path / "both.gguf", **{"llama.attention.causal": False})
    rows = [line("text", TEXT, prompt="a"), line("vector", VECTORS, input="a")]
    done, (text, vector) = answered(path, rows)
    assert done.code == 24
    assert "makes vectors of texts and does not write any" in text["error"]["message"]
    assert vector["error"] is None


def test_a_field_without_effect_is_logged_once_for_all_rows(model_path, caplog):
    fields = {"messages": ASK, "user": "u", "model": "gpt-4", "max_tokens": 2}
    rows = [
        BatchRow.parse(json.dumps(line(str(number), CHAT, **fields)), number) for number in range(3)
    ]
    with load(model_path) as model:
        assert all("body" in facts for _, facts in answers(rows, model))
    assert [record.getMessage() for record in caplog.records] == [
        "rows have a field that changes nothing: user",
        "rows have a field that changes nothing: model 'gpt-4': tiny answers",
    ]


#: Rows of every kind, with an object at every place where clients may put one.
ROWS = [
    {"id": "a", "stop": ["a"], "logit_bias": {"1": 1}, "samplers": ["top_k"]}
    | {name: FULL[CHAT][name] for name in ("messages", "tools", "response_format")},
    *(
        line("a", url, **{name: value for name, value in FULL[url].items() if "stream" not in name})
        for url in URLS
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.get("url", "own"))
def test_a_wrong_value_at_any_place_of_a_row_never_raises(row):
    form = URLS.get(row.get("url"), PLAIN)
    variants = [*with_wrong_values(form.fields if form is PLAIN else (), row)]
    for _, raw in random.Random(1).sample(variants, min(200, len(variants))):
        # It is accepted, or it is the problem of the row, which is written to the output.
        parsed = BatchRow.parse(raw.decode(), 3)
        assert json.dumps(parsed.output({"error": parsed.problem}))


def test_a_row_whose_answer_cannot_be_taken_affects_no_other_row(model_path, monkeypatch):
    rows = [
        BatchRow.parse(json.dumps(line(name, CHAT, messages=ASK, max_tokens=2)), number)
        for number, name in enumerate(("bad", "good"))
    ]
    take = Answer.take
    failing = []

    def fail_first(answer, piece):
        failing.append(answer)
        if answer is failing[0]:
            raise ValueError("a broken schema")
        return take(answer, piece)

    monkeypatch.setattr(Answer, "take", fail_first)
    with load(model_path) as model:
        facts = {row.id: facts for row, facts in answers(rows, model)}
    assert [facts["bad"].get("error"), "body" in facts["good"]] == ["a broken schema", True]
