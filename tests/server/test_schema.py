"""Bodies that schemathesis makes from the OpenAPI description, valid and invalid ones."""

import json
import os

import httpx
import pytest
from waiting import PATIENCE_S

schemathesis = pytest.importorskip(
    "schemathesis", reason="pip install 'bitnet-xtask[server-test]' for the tests from the schema"
)
hypothesis = pytest.importorskip("hypothesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

# Bodies per route and mode, at most.
EXAMPLES = int(os.environ.get("BITNET_TEST_GARBAGE", "20"))
MODEL = "tiny"
#: Checks that the description has the status of a reply, its content type and its schema.
DESCRIBED = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
#: Routes whose bodies are generated.
ROUTES = (
    "/v1/inference",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/completion",
    "/apply-template",
    "/api/chat",
    "/api/generate",
    "/tokenize",
    "/detokenize",
)


@pytest.mark.parametrize("path", ROUTES)
def test_no_body_breaks_the_worker(worker, path):
    description = worker.http.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(description)
    operation = schema[path]["POST"]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    statuses = {}
    with httpx.Client(base_url=worker.address, timeout=PATIENCE_S) as http:
        for mode in modes:

            @hypothesis.settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def ask(case):
                body = _bounded(case.body)
                try:
                    content = json.dumps(body).encode()
                except (TypeError, ValueError):  # not a JSON value: send its text
                    content = bytes(str(body), "utf-8", "replace")
                reply = http.post(
                    path, content=content, headers={"Content-Type": "application/json"}
                )
                statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
                case.validate_response(reply, checks=DESCRIBED)
                assert reply.status_code in (200, 400, 404, 413), (content[:500], reply.text)
                if reply.status_code != 200:
                    error = reply.json()["error"]
                    message = error if path.startswith("/api/") else error["message"]
                    assert message
                    if not path.startswith(("/api/", "/v1/messages")):
                        assert error["type"] == "invalid_request_error"
                if reply.status_code == 404:
                    assert "there is no model" in message
                    assert body["model"] != MODEL

            ask()
    assert set(statuses) & {400, 413}  # some of the invalid bodies were refused
    assert worker.http.get("/health/ready").status_code == 200
    assert worker.slot.open_jobs == 0


def _bounded(body):
    """*body* with at most four tokens to generate, and our model in place of any named one."""
    if isinstance(body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"):
            if isinstance(body.get(name), int) and body[name] > 4:
                body[name] = 4
        if isinstance(body.get("model"), str) and body["model"]:
            body["model"] = MODEL
    return body


def test_the_description_is_one_of_openapi(worker):
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(worker.http.get("/openapi.json").json())


def test_every_address_describes_its_refusals_and_its_content_types(worker):
    paths = worker.http.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            replies = operation["responses"]
            assert {"200", "401", "403"} <= replies.keys(), path
            assert "422" not in replies, path
            if method == "post":
                assert {"400", "404", "413", "415", "429", "503", "504"} <= replies.keys() or (
                    path == "/api/show"
                )
            for status, reply in replies.items():
                assert reply["description"], (path, status)
    streams = {
        path: [*operations["post"]["responses"]["200"]["content"]]
        for path, operations in paths.items()
        if "post" in operations
    }
    assert streams["/v1/chat/completions"] == ["application/json", "text/event-stream"]
    assert streams["/api/chat"] == ["application/json", "application/x-ndjson"]
    assert streams["/v1/embeddings"] == ["application/json"]
    assert [*paths["/metrics"]["get"]["responses"]["200"]["content"]] == ["text/plain"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny"),
        ("GET", "/v1/models/none"), ("GET", "/health/live"), ("GET", "/health/ready"),
        ("GET", "/props"), ("GET", "/slots"), ("GET", "/health"), ("GET", "/api/tags"),
        ("GET", "/api/ps"), ("GET", "/api/version"), ("POST", "/api/show"),
    ],
)  # fmt: skip
def test_a_reply_without_an_answer_is_as_described(worker, method, path):
    schema = schemathesis.openapi.from_dict(worker.http.get("/openapi.json").json())
    template = "/v1/models/{name}" if path.startswith("/v1/models/") else path
    names = {"name": path.rpartition("/")[2]} if template != path else {}
    case = schema[template][method].Case(path_parameters=names)
    body = {"json": {"model": MODEL}} if method == "POST" else {}
    reply = worker.http.request(method, path, **body)
    case.validate_response(reply, checks=DESCRIBED)
