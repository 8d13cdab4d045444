"""Metrics for Prometheus, in their own registry, and traces for OpenTelemetry.

Metrics that vLLM or llama.cpp's server have as well are named as there, so that existing dashboards
work: docs.vllm.ai/en/latest/usage/metrics, and llama-server's README.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bitnet.base import settings
from bitnet.base.invocation import extra_command
from bitnet.wire.openai import chat_finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fastapi import FastAPI

    from bitnet.runtime.answer import Answer

logger = logging.getLogger(__name__)

#: Upper bounds of the buckets of the histograms.
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

#: Metrics of each model: our name, the kind, the exported name and its meaning, other names.
_OF_MODEL: tuple[tuple[str, Any, str, str, tuple[str, ...]], ...] = (
    ("loaded", Gauge, "bitnet_model_loaded", "1 for a model that is loaded", ()),
    ("refused", Counter, "bitnet_refused", "requests refused because the queue was full", ()),
    ("prompt_tokens", Counter, "vllm:prompt_tokens", "ids of the prompts of ended answers",
     ("vllm:prefix_cache_queries",)),
    ("tokens", Counter, "vllm:generation_tokens", "ids generated", ("llamacpp:tokens_predicted",)),
    ("first_token_s", Histogram, "vllm:time_to_first_token_seconds",
     "from acceptance to the first id", ()),
    ("answer_s", Histogram, "vllm:e2e_request_latency_seconds",
     "from acceptance to the end of the answer", ()),
    ("open", Gauge, "bitnet_open_answers", "answers that wait or are being written", ()),
    ("running", Gauge, "vllm:num_requests_running", "answers that are being written",
     ("llamacpp:requests_processing",)),
    ("waiting", Gauge, "vllm:num_requests_waiting", "answers that wait",
     ("llamacpp:requests_deferred",)),
    ("kv_usage", Gauge, "vllm:kv_cache_usage_perc", "share of --kv-memory, 0 to 1", ()),
    ("hits", Counter, "vllm:prefix_cache_hits", "ids of prompts computed before", ()),
    ("between_s", Histogram, "vllm:inter_token_latency_seconds", "from one id to the next", ()),
    ("run_tokens", Counter, "llamacpp:prompt_tokens", "ids of prompts that were run", ()),
    ("run_s", Counter, "llamacpp:prompt_seconds", "seconds they took, without the queue", ()),
    ("decode_s", Counter, "llamacpp:tokens_predicted_seconds", "seconds after the first id", ()),
)  # fmt: skip


class _Alias(Collector):
    """A metric under another name."""

    def __init__(self, original: Counter | Gauge | Histogram, name: str) -> None:
        self._original = original
        self._name = name

    def collect(self) -> Iterator[Metric]:
        for metric in self._original.collect():
            renamed = Metric(self._name, metric.documentation, metric.type)
            for sample in metric.samples:
                name = self._name + sample.name.removeprefix(metric.name)
                renamed.add_sample(name, sample.labels, sample.value)
            yield renamed


class Metrics:
    """Counters and histograms of one worker; :meth:`of` returns those of one model."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "bitnet_http_requests", "HTTP requests by route and status", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self._answers = Counter(
            "bitnet_answers", "answers by how they ended", ["model_name", "finish"],
            registry=registry,
        )  # fmt: skip
        self._of_model: dict[str, Any] = {}
        for own, kind, name, meaning, aliases in _OF_MODEL:
            options = {"buckets": _SECONDS} if kind is Histogram else {}
            metric = kind(name, meaning, ["model_name"], registry=registry, **options)
            self._of_model[own] = metric
            for alias in aliases:
                registry.register(_Alias(metric, alias))

    def of(self, model: str) -> dict[str, Any]:
        """Metrics of *model* by our names, and the counter ``answers`` by finish reason.

        They keep their values when the model is unloaded and loaded again.
        """
        metrics = {name: metric.labels(model) for name, metric in self._of_model.items()}
        return metrics | {"answers": partial(self._answers.labels, model)}

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def count_answer(metrics: dict[str, Any], answer: Answer) -> None:
    """Count *answer*, which has ended, in the *metrics* of its model."""
    metrics["answers"](answer.finish_reason or "error").inc()
    metrics["prompt_tokens"].inc(answer.prompt_tokens)
    metrics["hits"].inc(answer.sequence.reused_tokens)
    if answer.sequence.passes:  # else it ended in the queue
        metrics["run_tokens"].inc(answer.prompt_tokens - answer.sequence.reused_tokens)
        metrics["run_s"].inc(answer.prefill_s)
    metrics["decode_s"].inc(answer.decode_s)
    first_s = answer.queue_s + answer.prefill_s
    if answer.tokens:
        metrics["first_token_s"].observe(first_s)
    metrics["answer_s"].observe(first_s + answer.decode_s)


# --- traces -------------------------------------------------------------------------------------


def trace_requests(app: FastAPI) -> Callable[[], object]:
    """Have *app* send a span for each request, if configured; return a function that flushes them.

    The extra ``otel`` is imported only then. Without it the worker logs a warning and serves
    untraced.
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
    """Add facts about *answers* of *model* to the span of the request, if there is one.

    Names are those of opentelemetry.io/docs/specs/semconv/gen-ai.
    """
    if (trace := sys.modules.get("opentelemetry.trace")) is None:
        return
    request = answers[0].sequence.request
    operation = "chat" if request.messages else "text_completion"
    options = {
        "gen_ai.request.max_tokens": request.length_limit,
        "gen_ai.request.temperature": request.sampling.temperature,
    }
    if request.embed:
        operation = "embeddings"
        options = {}  # those of an answer
    facts = {
        **options,
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "bitnet",
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": sum(answer.prompt_tokens for answer in answers),
        "gen_ai.usage.output_tokens": sum(answer.tokens for answer in answers),
        "gen_ai.response.finish_reasons": [str(chat_finish(answer)) for answer in answers],
    }
    trace.get_current_span().set_attributes(facts)
