"""OpenTelemetry traces: spans of its FastAPI instrumentation, with its conventions for GenAI.

Off unless the standard variables name a collector, and then of the extra ``otel``; nothing of it is
imported before. Names are those of opentelemetry.io/docs/specs/semconv/gen-ai.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from bitnet.base import settings
from bitnet.base.invocation import extra_command
from bitnet.wire.openai import chat_finish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastapi import FastAPI

    from bitnet.runtime.answer import Answer

logger = logging.getLogger(__name__)


def trace_requests(app: FastAPI) -> Callable[[], object]:
    """Send a span for each request to *app*, if configured; a function that sends the last ones.

    An unsupported setting is a warning: a worker that cannot be traced still answers.
    """
    if not settings.otel_endpoint():
        return lambda: None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ModuleNotFoundError as error:
        logger.warning("no traces: %s is missing: %s", error.name, extra_command("otel"))
        return lambda: None
    except ValueError as error:
        logger.warning("no traces: one of the variables OTEL_... is wrong: %s", error)
        return lambda: None
    FastAPIInstrumentor.instrument_app(
        app, tracer_provider=provider, excluded_urls="/health,/metrics",
        exclude_spans=["receive", "send"],
    )  # fmt: skip
    return provider.shutdown


def describe_span(answers: Sequence[Answer], model: str) -> None:
    """Add facts about *answers* of *model* to the span of the request, if there is one."""
    if (trace := sys.modules.get("opentelemetry.trace")) is None:
        return
    request = answers[0].sequence.request
    operation = "embeddings" if request.embed else "chat" if request.messages else "text_completion"
    facts = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "bitnet",
        "gen_ai.response.model": model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.usage.input_tokens": sum(answer.prompt_tokens for answer in answers),
        "gen_ai.usage.output_tokens": sum(answer.tokens for answer in answers),
        "gen_ai.response.finish_reasons": [str(chat_finish(answer)) for answer in answers],
    }
    trace.get_current_span().set_attributes(facts)
