"""Thousands of strange bodies, made from our own description of the interface."""

import json
import os

import httpx
import pytest
from waiting import PATIENCE_S

schemathesis = pytest.importorskip(
    "schemathesis", reason="pip install 'bitnet-xtask[server-test]' for the tests from the schema"
)
hypothesis = pytest.importorskip("hypothesis")

# 10,000 in all with BITNET_TEST_GARBAGE=850; fewer in every run.
EXAMPLES = int(os.environ.get("BITNET_TEST_GARBAGE", "20"))
MODEL = "tiny"
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
    seen = {}
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
                except (TypeError, ValueError):  # not a JSON value: as it is
                    content = bytes(str(body), "utf-8", "replace")
                reply = http.post(
                    path, content=content, headers={"Content-Type": "application/json"}
                )
                seen[reply.status_code] = seen.get(reply.status_code, 0) + 1
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
    assert set(seen) & {400, 413}
    assert worker.http.get("/health/ready").status_code == 200
    assert worker.slot.open_jobs == 0


def _bounded(body):
    """*body* with few tokens to write, so that the time goes into bodies, mostly for our model."""
    if isinstance(body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"):
            if isinstance(body.get(name), int) and body[name] > 4:
                body[name] = 4
        if isinstance(body.get("model"), str) and body["model"]:
            body["model"] = MODEL
    return body
