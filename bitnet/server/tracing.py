"""OpenTelemetry traces: a span for each request, with the words of its conventions for GenAI.

Off unless the standard variables ask for it, and then of the extra ``otel``; nothing of it is
imported before. Names are those of opentelemetry.io/docs/specs/semconv/gen-ai.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from bitnet import __version__
from bitnet.base import settings
from bitnet.base.invocation import extra_command
from bitnet.wire.openai import chat_finish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.runtime.answer import Answer

logger = logging.getLogger(__name__)

NANO = 10**9
_SAMPLING = ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")


def tracing_from_environment() -> Tracing | None:
    """Tracing as configured in the environment; ``None`` if it is off.

    An unsupported setting is a warning: a worker that cannot be traced still answers.
    """
    exporter = settings.otel_traces_exporter() or ("otlp" if settings.otel_endpoint() else "none")
    if exporter == "none" or settings.otel_disabled().lower() == "true":
        return None
    if exporter != "otlp":
        logger.warning("no traces: OTEL_TRACES_EXPORTER is %s, only otlp is served", exporter)
        return None
    protocol = settings.otel_protocol()
    if protocol not in ("", "http/protobuf"):
        logger.warning(
            "no traces: OTEL_EXPORTER_OTLP_PROTOCOL is %s, only http/protobuf is served", protocol
        )
        return None
    try:
        return Tracing()
    except ModuleNotFoundError as error:
        command = extra_command("otel")
        logger.warning("no traces: the package %s is missing: %s", error.name, command)
    except ValueError as error:
        logger.warning("no traces: one of the variables OTEL_... is wrong: %s", error)
    return None


class Tracing:
    """Sends spans to the collector that the environment names."""

    def __init__(self) -> None:
        """Start sending."""
        from opentelemetry import propagate, trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "bitnet"}))
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("bitnet", __version__)
        self._trace = trace
        self._extract = propagate.extract

    def close(self) -> None:
        """Send what is left, for as long as ``OTEL_BSP_EXPORT_TIMEOUT`` and the like allow."""
        self._provider.shutdown()

    def begin(self, scope: Mapping[str, Any]) -> RequestSpan:
        """The span of the request in *scope*, below that which its headers name."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        kind = self._trace.SpanKind.SERVER
        span = self._tracer.start_span(
            scope["method"], self._extract(headers), kind, attributes=attributes
        )
        return RequestSpan(self._tracer, self._trace, span)


class RequestSpan:
    """The span of one request while it is worked on."""

    def __init__(self, tracer: Any, trace: Any, span: Any) -> None:
        """Made by :meth:`Tracing.begin`."""
        self._tracer, self._trace, self._span, self._is_named = tracer, trace, span, False
        # Clocks of answers count from some moment of their own.
        self._epoch_ns = time.time_ns() - int(time.perf_counter() * NANO)

    def record(
        self,
        answers: Sequence[Answer],
        model: str,
        body: Mapping[str, Any],
        began_at: float,
        error: str = "",
    ) -> None:
        """Record the *answers* of *model* to *body*, work on which began at ``perf_counter``.

        *error* is a word for what went wrong.
        """
        if not self._span.is_recording():
            return
        named = _facts(answers, model, body)
        self._span.set_attributes(named)
        self._span.update_name(f"{named['gen_ai.operation.name']} {named['gen_ai.request.model']}")
        self._is_named = True
        if error:
            self._record_error(error)
        parent = self._trace.set_span_in_context(self._span)
        for index, answer in enumerate(answers):
            first = answer.begun_at + answer.prefill_s
            admitted = answer.sequence.admitted_at or first
            steps = [
                ("prepare", began_at, answer.begun_at),
                ("queue", answer.begun_at, admitted),
                ("prefill", admitted, first),
            ]
            if answer.tokens:
                steps.append(("decode", first, first + answer.decode_s))
            for name, start_s, end_s in steps:
                begun, facts = self._at(start_s), {"bitnet.choice": index}
                span = self._tracer.start_span(name, parent, start_time=begun, attributes=facts)
                span.end(self._at(max(start_s, end_s)))

    def end(self, route: str, method: str, status: int) -> None:
        """End it with the status that the client got."""
        self._span.set_attribute("http.response.status_code", status)
        if route:
            self._span.set_attribute("http.route", route)
            if not self._is_named:
                self._span.update_name(f"{method} {route}")
        if status >= 500:
            self._record_error(str(status))
        self._span.end()

    def _record_error(self, error: str) -> None:
        self._span.set_attribute("error.type", error)
        self._span.set_status(self._trace.StatusCode.ERROR)

    def _at(self, moment_s: float) -> int:
        return self._epoch_ns + int(moment_s * NANO)


def _facts(
    answers: Sequence[Answer], model: str, body: Mapping[str, Any]
) -> dict[str, str | int | float | list[str]]:
    choices = body.get("n") or 1
    request, firsts = answers[0].sequence.request, answers[::choices]
    operation = "embeddings" if request.embed else "chat" if request.messages else "text_completion"
    facts: dict[str, str | int | float | list[str]] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "bitnet",
        "gen_ai.request.model": body["model"] or model,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": sum(answer.prompt_tokens for answer in firsts),
    }
    if request.embed:
        return facts
    for name in _SAMPLING:
        if (value := getattr(request, name)) is not None:
            facts[f"gen_ai.request.{name}"] = value
    return facts | {
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.stop_sequences": list(request.stop),
        "gen_ai.request.choice.count": choices,
        "gen_ai.usage.output_tokens": sum(answer.tokens for answer in answers),
        "gen_ai.usage.cache_read.input_tokens": sum(
            answer.sequence.reused_tokens for answer in firsts
        ),
        "gen_ai.response.finish_reasons": [str(chat_finish(answer)) for answer in answers],
    }
