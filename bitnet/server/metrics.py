"""Metrics for Prometheus, in their own registry.

Metrics that vLLM and llama.cpp's server have as well are also exported under their names, so that
existing dashboards work: docs.vllm.ai/en/latest/usage/metrics, and llama-server's README.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.runtime.answer import Answer

__all__ = ["Metrics", "ModelMetrics"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Watched(Protocol):
    """The state of a model that is read together with its metrics."""

    @property
    def state(self) -> str:
        """``loaded`` if it is in memory."""

    @property
    def open_jobs(self) -> int:
        """Number of answers that wait or are being generated."""

    @property
    def running(self) -> int:
        """Number of answers that are being generated."""

    @property
    def kv_usage(self) -> float:
        """Used share of the KV cache's memory, 0 to 1."""


class _Alias(Collector):
    """A metric under another name."""

    def __init__(self, original: Counter | Gauge | Histogram, name: str) -> None:
        self._original = original
        self._name = name

    def collect(self) -> Iterator[Metric]:
        """Current samples of the original, renamed."""
        for metric in self._original.collect():
            renamed = Metric(self._name, metric.documentation, metric.type)
            for sample in metric.samples:
                name = self._name + sample.name.removeprefix(metric.name)
                renamed.add_sample(name, sample.labels, sample.value)
            yield renamed


class Metrics:
    """Counters and histograms of one worker; :meth:`of` has those of one model."""

    def __init__(self) -> None:
        """Nothing counted yet."""
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "bitnet_http_requests", "HTTP requests by route and status", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        by_model: Any = {"labelnames": ["model_name"], "registry": registry}
        self._loaded = Gauge("bitnet_model_loaded", "1 for a model that is loaded", **by_model)
        self._refused = Counter(
            "bitnet_refused", "requests refused because the queue was full", **by_model
        )
        self._answers = Counter(
            "bitnet_answers", "answers by how they ended", ["model_name", "finish"],
            registry=registry,
        )  # fmt: skip
        self._prompt_tokens = Counter(
            "bitnet_prompt_tokens", "ids of the prompts of ended answers", **by_model
        )
        self._tokens = Counter("bitnet_tokens", "ids generated", **by_model)
        self._first_token = Histogram(
            "bitnet_time_to_first_token_seconds", "from acceptance to the first id",
            buckets=_SECONDS, **by_model,
        )  # fmt: skip
        self._duration = Histogram(
            "bitnet_answer_seconds", "from acceptance to the end of the answer",
            buckets=_SECONDS, **by_model,
        )  # fmt: skip
        self._open = Gauge(
            "bitnet_open_answers", "answers that wait or are being written", **by_model
        )
        self._running = Gauge(
            "llamacpp:requests_processing", "answers that are being written", **by_model
        )
        self._waiting = Gauge("llamacpp:requests_deferred", "answers that wait", **by_model)
        self._kv_usage = Gauge(
            "vllm:kv_cache_usage_perc", "share of --kv-memory, 0 to 1", **by_model
        )
        self._hits = Counter("vllm:prefix_cache_hits", "ids of prompts computed before", **by_model)
        self._between = Histogram(
            "vllm:inter_token_latency_seconds", "from one id to the next",
            buckets=_SECONDS, **by_model,
        )  # fmt: skip
        self._run = Counter("llamacpp:prompt_tokens", "ids of prompts that were run", **by_model)
        self._run_s = Counter("llamacpp:prompt_seconds", "seconds they took", **by_model)
        self._predicted_s = Counter(
            "llamacpp:tokens_predicted_seconds", "seconds after the first id", **by_model
        )
        for metric, name in (
            (self._running, "vllm:num_requests_running"),
            (self._waiting, "vllm:num_requests_waiting"),
            (self._prompt_tokens, "vllm:prompt_tokens"),
            (self._prompt_tokens, "vllm:prefix_cache_queries"),
            (self._tokens, "vllm:generation_tokens"),
            (self._first_token, "vllm:time_to_first_token_seconds"),
            (self._duration, "vllm:e2e_request_latency_seconds"),
            (self._tokens, "llamacpp:tokens_predicted"),
        ):
            registry.register(_Alias(metric, name))

    def of(self, model: str) -> ModelMetrics:
        """Metrics of the model *model*."""
        return ModelMetrics(self, model)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class ModelMetrics:
    """Counters and histograms of one model; they go on when it is unloaded and loaded again."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        """Those among *metrics* that have the label *model*."""
        self._answers = partial(metrics._answers.labels, model)
        self.refused = metrics._refused.labels(model)
        self._prompt_tokens = metrics._prompt_tokens.labels(model)
        self._tokens = metrics._tokens.labels(model)
        self._first_token = metrics._first_token.labels(model)
        self._duration = metrics._duration.labels(model)
        self._loaded = metrics._loaded.labels(model)
        self._open = metrics._open.labels(model)
        self._running = metrics._running.labels(model)
        self._waiting = metrics._waiting.labels(model)
        self._kv_usage = metrics._kv_usage.labels(model)
        self._hits = metrics._hits.labels(model)
        self._between = metrics._between.labels(model)
        self._run = metrics._run.labels(model)
        self._run_s = metrics._run_s.labels(model)
        self._predicted_s = metrics._predicted_s.labels(model)

    def watch(self, model: Watched) -> None:
        """Ask *model* for its state whenever the metrics are read."""
        self._loaded.set_function(lambda: model.state == "loaded")
        self._open.set_function(lambda: model.open_jobs)
        self._running.set_function(lambda: model.running)
        self._waiting.set_function(lambda: max(0, model.open_jobs - model.running))
        self._kv_usage.set_function(lambda: model.kv_usage)

    def token(self, since_last_s: float | None) -> None:
        """Count a generated token.

        Args:
            since_last_s: seconds since the previous one; ``None``: it is the first.
        """
        self._tokens.inc()
        if since_last_s is not None:
            self._between.observe(since_last_s)

    def count_answer(self, answer: Answer) -> None:
        """Count *answer*, which has ended."""
        stats = answer.stats
        self._answers(answer.finish_reason or "error").inc()
        self._prompt_tokens.inc(stats.prompt_tokens)
        self._hits.inc(stats.reused_tokens)
        self._run.inc(stats.prompt_tokens - stats.reused_tokens)
        self._run_s.inc(stats.prefill_s)
        self._predicted_s.inc(stats.decode_s)
        if stats.tokens:
            self._first_token.observe(stats.prefill_s)
        self._duration.observe(stats.prefill_s + stats.decode_s)
