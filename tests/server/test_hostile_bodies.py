"""Bodies of every route, made by a seed: each ends with an answer or with a refusal of its own."""

import json
import threading

import pytest
from hostile_bodies import VALID, bodies
from server_process import listening
from tiny_models import tiny_gguf

from bitnet.wire.ollama import SHOW
from bitnet.wire.routes import COMPUTED, ROUTES

INNOCENT = {"prompt": "the innocent neighbour", "max_tokens": 20, "stream": True}
JSON = {"Content-Type": "application/json"}
EACH = 60  # bodies of a route
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


def test_bodies_of_every_route_end_with_an_answer_or_a_refusal(worker, routes):
    def innocent():
        """Stream the same answer until the fuzzer has ended."""
        while True:
            with worker.http.stream("POST", "/v1/completions", json=INNOCENT) as reply:
                lines = [line for line in reply.iter_lines() if line.startswith("data: {")]
            texts.append("".join(json.loads(line[6:])["choices"][0]["text"] for line in lines))
            if done.is_set():
                return

    texts = []
    done = threading.Event()
    wrong = []
    statuses = set()
    alone = threading.Thread(target=innocent)
    alone.start()
    try:
        for path, name in routes.items():
            for body in bodies(FORMS[name], VALID[name], seed=1, count=EACH):
                reply = worker.http.post(path, content=body, headers=JSON)
                statuses.add(reply.status_code)
                if reply.status_code != 200 and not 400 <= reply.status_code < 500:
                    wrong.append((path, body[:300], reply.status_code, reply.text[:300]))
    finally:
        done.set()
        alone.join()
    assert not wrong
    assert {200, 400} <= statuses
    assert 415 not in statuses  # every body was read
    assert len(set(texts)) == 1
    assert texts[0]
    assert worker.http.get("/health/ready").status_code == 200
