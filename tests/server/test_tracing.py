"""OpenTelemetry traces, as a collector on loopback gets them."""

import contextlib
import gzip
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from server_process import listening
from waiting import PATIENCE_S

from bitnet.base.invocation import extra_command
from bitnet.server.metrics import trace_requests

#: Ids of a trace and of a span in it, as clients send them in ``traceparent``.
PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "temperature": 0}


@pytest.fixture
def collector(monkeypatch):
    """A queue of the path, headers and decoded request of everything that a collector receives."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    pytest.importorskip("opentelemetry.instrumentation.fastapi")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    traces = queue.Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = service.ExportTraceServiceRequest.FromString(body)
            traces.put((self.path, dict(self.headers), request))
            reply = service.ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        yield traces
        server.shutdown()
        thread.join()


@pytest.fixture
def traced(collector, model_path):
    """A context with a worker whose traces are sent, and a mapping that it fills at its end.

    The mapping has the spans by name, and the attributes of a resource under ``resource``. A client
    may have its answer before a span ends, so that spans are complete only once the worker ended.
    """

    @contextlib.contextmanager
    def traced():
        found = {}
        with listening(model_path) as worker:
            yield worker, found
        while not collector.empty():
            path, headers, request = collector.get(timeout=PATIENCE_S)
            assert (path, headers["x-key"]) == ("/v1/traces", "secret")
            for group in request.resource_spans:
                found["resource"] = attributes(group.resource)
                for scope in group.scope_spans:
                    for span in scope.spans:
                        found.setdefault(span.name, []).append(span)

    return traced


def attributes(holder):
    """Attributes of a span or a resource, by name."""
    return {one.key: value_of(one.value) for one in holder.attributes}


def value_of(value):
    """Python value of an attribute."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    return getattr(value, kind)


def test_the_span_of_a_request_is_a_child_of_the_clients_span(traced, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    trace, parent = PARENT
    with traced() as (worker, spans):
        header = {"traceparent": f"00-{trace}-{parent}-01"}
        reply = worker.post("/v1/chat/completions", CHAT, headers=header).json()
        worker.http.get("/health/live")
    (span,) = spans["POST /v1/chat/completions"]
    # Kind 2 is a server's span; status 0 is unset, and 2 an error.
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.kind) == (trace, parent, 2)
    assert span.status.code == 0
    facts = attributes(span)
    assert {name: facts[name] for name in facts if name.startswith("gen_ai")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "bitnet",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": reply["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 5,
    }
    assert spans["resource"]["service.name"] == "mine"
    assert set(spans) == {"POST /v1/chat/completions", "resource"}


def test_streams_vectors_and_refusals_are_traced(traced):
    with traced() as (worker, spans):
        body = {"prompt": ["a", "ab"], "n": 2, "max_tokens": 3, "stream": True}
        with worker.http.stream("POST", "/v1/completions", json=body) as stream:
            stream.read()
        worker.post("/v1/embeddings", {"input": ["a", "b"]})
        worker.post("/v1/embeddings", {"input": []})
    (text,) = spans["POST /v1/completions"]
    facts = attributes(text)
    assert facts["gen_ai.response.finish_reasons"] == ["length"] * 4
    assert facts["gen_ai.usage.output_tokens"] == 12  # two prompts, two choices, three tokens
    vector, refused = map(attributes, spans["POST /v1/embeddings"])
    assert vector["gen_ai.operation.name"] == "embeddings"
    assert "gen_ai.request.max_tokens" not in vector
    assert "gen_ai.operation.name" not in refused
    assert 400 in refused.values()


def test_an_answer_that_fails_is_an_error_of_its_span(traced, monkeypatch):
    from bitnet.runtime.scheduler import Scheduler

    def broken(self):
        raise RuntimeError("boom")

    with traced() as (worker, spans):
        monkeypatch.setattr(Scheduler, "step", broken)
        assert worker.post("/v1/chat/completions", CHAT).status_code == 500
    (span,) = spans["POST /v1/chat/completions"]
    assert span.status.code == 2
    assert 500 in attributes(span).values()


def test_opentelemetry_is_not_loaded_unless_it_is_configured(monkeypatch, serving):
    for name in [one for one in sys.modules if one.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    assert serving().post("/v1/chat/completions", CHAT).status_code == 200
    assert not any(name.startswith("opentelemetry") for name in sys.modules)


def test_a_missing_extra_for_traces_is_logged_with_its_command(monkeypatch, caplog):
    for module in [one for one in sys.modules if one.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # as if it were not installed
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9")
    trace_requests(None)()
    (record,) = caplog.records
    assert extra_command("otel") in record.getMessage()


def test_a_wrong_variable_of_opentelemetry_is_logged(monkeypatch, caplog):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    pytest.importorskip("opentelemetry.instrumentation.fastapi")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "999999")
    trace_requests(None)()
    assert "no traces: one of the variables" in caplog.text
    assert "max_export_batch_size" in caplog.text
