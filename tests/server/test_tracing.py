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
from bitnet.server.tracing import tracing_from_environment

PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "temperature": 0}


@pytest.fixture
def collector(monkeypatch):
    """Requests that a collector over HTTP gets, decoded, as they come."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    taken = queue.Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = service.ExportTraceServiceRequest.FromString(body)
            taken.put((self.path, dict(self.headers), request))
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
        yield taken
        server.shutdown()
        thread.join()


@pytest.fixture
def traced(collector, model_path):
    """Do something with a worker whose traces are sent; the spans by name, and one's resource.

    They are complete when the worker has ended: a client may have its answer before a span ends.
    """

    @contextlib.contextmanager
    def traced():
        tracing = tracing_from_environment()
        found = {}
        with listening(model_path, app_options={"tracing": tracing}) as worker:
            yield worker, found
        tracing.close()
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
    return {one.key: value_of(one.value) for one in holder.attributes}


def value_of(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    return getattr(value, kind)


def test_a_request_is_a_span_below_the_clients_with_its_steps_below_it(traced, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    trace, parent = PARENT
    with traced() as (worker, found):
        header = {"traceparent": f"00-{trace}-{parent}-01"}
        reply = worker.post("/v1/chat/completions", CHAT, headers=header).json()
        worker.http.get("/health/live")
    (span,) = found["chat tiny"]
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.kind) == (trace, parent, 2)
    assert span.status.code == 0
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "bitnet",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.seed": 3,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.stop_sequences": [],
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": reply["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }
    steps = [found[name][0] for name in ("prepare", "queue", "prefill", "decode")]
    assert {step.parent_span_id for step in steps} == {span.span_id}
    assert {step.trace_id.hex() for step in steps} == {trace}
    edges = [span.start_time_unix_nano, *(step.start_time_unix_nano for step in steps)]
    edges += [steps[-1].end_time_unix_nano, span.end_time_unix_nano]
    assert edges == sorted(edges)
    assert [step.end_time_unix_nano for step in steps[:-1]] == edges[2:5]
    assert found["resource"]["service.name"] == "bitnet"
    assert found["resource"]["deployment.environment.name"] == "test"
    assert set(found) == {"chat tiny", "resource", "prepare", "queue", "prefill", "decode"}


def test_streams_choices_vectors_and_refusals_are_traced(traced, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    with traced() as (worker, found):
        body = {"prompt": ["a", "ab"], "n": 2, "max_tokens": 3, "stream": True}
        with worker.http.stream("POST", "/v1/completions", json=body) as stream:
            stream.read()
        vectors = worker.post("/v1/embeddings", {"input": ["a", "b"]}).json()
        worker.post("/v1/embeddings", {"input": []})
        worker.post("/no/such/path", {})
    (text,) = found["text_completion tiny"]
    facts = attributes(text)
    assert facts["gen_ai.response.finish_reasons"] == ["length"] * 4
    assert facts["gen_ai.request.choice.count"] == 2
    assert facts["gen_ai.usage.output_tokens"] == 12
    assert sorted(attributes(one)["bitnet.choice"] for one in found["decode"]) == [0, 1, 2, 3]
    (vector,) = found["embeddings tiny"]
    facts = attributes(vector)
    assert facts["gen_ai.usage.input_tokens"] == vectors["usage"]["prompt_tokens"]
    assert "gen_ai.usage.output_tokens" not in facts
    (refused,) = found["POST /v1/embeddings"]
    assert attributes(refused)["http.response.status_code"] == 400
    (unknown,) = found["POST"]
    assert attributes(unknown)["http.response.status_code"] == 404
    assert found["resource"]["service.name"] == "mine"
    assert text.trace_id != vector.trace_id


def test_an_answer_that_fails_is_an_error_of_its_span(traced, monkeypatch):
    from bitnet.runtime.scheduler import Scheduler

    def broken(self):
        raise RuntimeError("boom")

    with traced() as (worker, found):
        monkeypatch.setattr(Scheduler, "step", broken)
        assert worker.post("/v1/chat/completions", CHAT).status_code == 500
    (span,) = found["chat tiny"]
    facts = attributes(span)
    assert (span.status.code, facts["error.type"]) == (2, "500")
    assert facts["http.response.status_code"] == 500


def test_nothing_is_traced_or_loaded_unless_it_is_asked_for(monkeypatch, serving):
    for name in [one for one in sys.modules if one.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    assert tracing_from_environment() is None
    endpoint = "http://127.0.0.1:9"
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        with monkeypatch.context() as also:
            also.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            also.setenv(name, value)
            assert tracing_from_environment() is None
    assert serving().post("/v1/chat/completions", CHAT).status_code == 200
    assert not any(name.startswith("opentelemetry") for name in sys.modules)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9", extra_command("otel")),
        ("OTEL_TRACES_EXPORTER", "otlp", extra_command("otel")),
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER is zipkin"),
    ],
)
def test_what_is_asked_for_and_not_there_is_said(monkeypatch, caplog, name, value, said):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)  # as if it were not installed
    for module in [one for one in sys.modules if one.startswith("opentelemetry.sdk.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setenv(name, value)
    assert tracing_from_environment() is None
    (record,) = caplog.records
    assert said in record.getMessage()


def test_a_variable_that_cannot_be_is_said(monkeypatch, caplog):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "999999")
    assert tracing_from_environment() is None
    assert "no traces: one of the variables" in caplog.text
    assert "max_export_batch_size" in caplog.text


def test_grpc_is_not_spoken(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert tracing_from_environment() is None
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is grpc" in caplog.text
