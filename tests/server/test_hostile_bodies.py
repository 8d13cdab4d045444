"""Bodies of every route, made by a seed: each ends with an answer or with a refusal of its own."""

import contextlib
import json
import random
import threading

import pytest
from hostile_bodies import FULL, VALID, bodies, with_wrong_values
from server_process import listening
from tiny_models import tiny_gguf
from tool_models import tool_gguf

from bitnet import load
from bitnet.base.errors import InvalidFormat, Unsupported, UsageError
from bitnet.runtime.request import EVERYTHING, Request
from bitnet.server.exchange import prepare_sequences
from bitnet.server.refusals import Refused
from bitnet.server.slot import Slot
from bitnet.wire.ollama import SHOW
from bitnet.wire.routes import COMPUTED, ROUTES

#: Body of a well-behaved client, whose answers must not change.
INNOCENT = {"prompt": "the innocent neighbour", "max_tokens": 20, "stream": True}
JSON = {"Content-Type": "application/json"}
EACH = 20  # bodies of a route with several wrong fields
SAMPLE = 100  # wrong values of a route that the fast test takes
FORMS = {form.name: form for form in (*ROUTES.values(), *COMPUTED.values(), SHOW)}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    template = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
    path = tiny_gguf(
        tmp_path_factory.mktemp("m") / "t.gguf", **{"tokenizer.chat_template": template}
    )
    with listening(path, name="tiny", deadline_s=60.0) as worker:
        yield worker


@pytest.fixture(scope="module")
def routes(worker):
    """The form of each route that takes a body."""
    page = worker.http.get("/openapi.json").json()
    found = {}
    for path, methods in page["paths"].items():
        if content := methods.get("post", {}).get("requestBody", {}).get("content"):
            found[path] = content["application/json"]["schema"]["title"]
    return found


def test_every_form_has_a_body_that_is_answered(worker, routes):
    assert set(routes.values()) == set(VALID) == set(FORMS)
    for path, name in routes.items():
        reply = worker.post(path, VALID[name])
        # This model has no tokens for gaps, and nothing that scores texts.
        expected = 400 if name in ("LlamaInfill", "RerankRequest", "ScoreRequest") else 200
        assert reply.status_code == expected, (path, reply.text)


@pytest.mark.parametrize("name", FORMS)
def test_every_field_gets_a_wrong_value_however_few_bodies_there_are(name):
    form = FORMS[name]
    every_body = b"".join(bodies(form, VALID[name], seed=1, count=0))
    assert [field for field in form.fields if f'"{field}": '.encode() not in every_body] == []


def test_bodies_of_every_route_end_with_an_answer_or_a_refusal(worker, routes):
    def innocent():
        """Stream the same answer until the fuzzer has ended."""
        while True:
            with worker.http.stream("POST", "/v1/completions", json=INNOCENT) as reply:
                lines = [line for line in reply.iter_lines() if line.startswith("data: {")]
            texts.append("".join(json.loads(line[6:])["choices"][0]["text"] for line in lines))
            if has_ended.is_set():
                return

    texts = []
    has_ended = threading.Event()
    failures = []
    statuses = set()
    neighbour = threading.Thread(target=innocent)
    neighbour.start()
    try:
        for path, name in routes.items():
            for body in bodies(FORMS[name], VALID[name], seed=1, count=EACH):
                reply = worker.http.post(path, content=body, headers=JSON)
                statuses.add(reply.status_code)
                if reply.status_code != 200 and not 400 <= reply.status_code < 500:
                    failures.append((path, body[:300], reply.status_code, reply.text[:300]))
    finally:
        has_ended.set()
        neighbour.join()
    assert not failures
    assert {200, 400} <= statuses  # the bodies are neither all valid nor all wrong
    assert 415 not in statuses  # none was refused for its content type
    assert len(set(texts)) == 1
    assert texts[0]
    assert worker.http.get("/health/ready").status_code == 200


RESULT = {"type": "tool_result", "tool_use_id": "1", "content": ["a"]}
INFINITE = "1e999"  # a number in JSON that is beyond the range of a float


def _messages(block):
    """A body of /v1/messages with one block of content."""
    return {"max_tokens": 2, "messages": [{"role": "user", "content": [block]}]}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/messages", _messages({"type": []}), "messages.0.content.0.type: expected a text"),
        ("/v1/messages", _messages({"type": None}), "messages.0.content.0.type: this field is req"),
        ("/v1/messages", _messages(RESULT), "messages.0.content.0.content.0: expected a JSON"),
        ("/v1/responses", {"input": "a", "tools": [{"type": []}]}, "tools.0.type: expected a text"),
        ("/v1/responses", {"input": [{"type": {}}]}, "input.0.type: expected a text"),
        ("/v1/responses", {"input": "a", "metadata": {"a": INFINITE}}, "1e999 is out of range"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"1": 10**400}}, "logit_bias is '1=1000"),
        ("/completion", {"prompt": "a", "t_max_predict_ms": 10**400}, "t_max_predict_ms is 1000"),
        ("/api/generate", {"model": "m", "prompt": "a", "options": {"num_ctx": True}},
         "options.num_ctx: expected a whole number"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_refused_by_its_place(worker, path, body, named):
    raw = json.dumps(body).replace(f'"{INFINITE}"', INFINITE)
    reply = worker.http.post(path, content=raw, headers=JSON)
    assert reply.status_code == 400, reply.text
    assert named in reply.text


@pytest.fixture(scope="module")
def slot(tmp_path_factory):
    """A slot with a model that calls functions and fills gaps; no test runs the model."""
    gap = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    path = tool_gguf(tmp_path_factory.mktemp("m") / "t.gguf", control=gap)
    slot = Slot("tiny", path, None, None)
    with load(path, allow_mock=True) as model:
        slot.fill(model, max_batch=8)
        yield slot
        slot.close()


def _prepare(path, raw, slot):
    """Process the bytes *raw* as the worker does before the model runs; 64 tokens at most."""
    form = (ROUTES | COMPUTED)[path]
    body = form.parse(raw)
    try:
        form.model_use(body)
        requests = form.requests(body, Request(fallback={"max_tokens": EVERYTHING}), slot.model)
        form.list_ignored(body, slot.model)
        if path in COMPUTED:
            form.compute(body, requests, slot.model)
        for request in requests:
            prepare_sequences(request, slot, body.get("n") or 1, 64, clamps=form.clamps)
    except UsageError as error:
        raise form.rename(error, body) from error


def _check_wrong_values(path, slot, chosen):
    """Prepare the *chosen* pairs of a wrong place and a body; only refusals may be raised."""
    current = None
    try:
        for current in chosen:
            with contextlib.suppress(UsageError, Unsupported, InvalidFormat, Refused):
                _prepare(path, current[1], slot)
    except Exception as error:
        raise AssertionError(f"{path}, {current[0]}: {current[1][:2000]}") from error


@pytest.mark.parametrize("path", FULL)
def test_a_wrong_value_at_any_place_is_taken_or_refused(path, slot):
    everything = [*with_wrong_values((ROUTES | COMPUTED)[path].fields, FULL[path])]
    draw = random.Random(path)
    _check_wrong_values(path, slot, draw.sample(everything, min(SAMPLE, len(everything))))


@pytest.mark.slow
@pytest.mark.parametrize("path", FULL)
def test_each_wrong_value_at_each_place_is_taken_or_refused(path, slot):
    assert set(FULL) == {*ROUTES, *COMPUTED}
    _check_wrong_values(path, slot, with_wrong_values((ROUTES | COMPUTED)[path].fields, FULL[path]))
