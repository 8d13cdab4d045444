"""Figures for Prometheus, in a registry of their own.

What vLLM and llama.cpp's server count as well stands there under their names too, so that
dashboards made for them work: docs.vllm.ai/en/latest/usage/metrics, and llama-server's README.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.runtime.answer import Answer

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Watched(Protocol):
    """The state of a worker that is read together with its metrics."""

    @property
    def open_jobs(self) -> int:
        """Answers that wait or are being written."""

    @property
    def running(self) -> int:
        """Answers that are being written."""

    @property
    def kv_usage(self) -> float:
        """Share of the memory for keys and values that is taken, 0 to 1."""


class _Alias(Collector):
    """A metric under another name, with more labels."""

    def __init__(
        self, original: Counter | Gauge | Histogram, name: str, labels: dict[str, str]
    ) -> None:
        self._original = original
        self._name = name
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """The original's samples as they are now, renamed."""
        for metric in self._original.collect():
            renamed = Metric(self._name, metric.documentation, metric.type)
            for sample in metric.samples:
                name = self._name + sample.name.removeprefix(metric.name)
                renamed.add_sample(name, {**self._labels, **sample.labels}, sample.value)
            yield renamed


class Metrics:
    """Counters and histograms of one worker."""

    def __init__(self, model: str = "") -> None:
        """Nothing counted yet.

        Args:
            model: its name, in figures that vLLM has by model.
        """
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "bitnet_http_requests", "HTTP requests by route and status", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self.refused = Counter(
            "bitnet_refused", "requests refused because the queue was full", registry=registry
        )
        self.answers = Counter(
            "bitnet_answers", "answers by how they ended", ["finish"], registry=registry
        )
        self.prompt_tokens = Counter(
            "bitnet_prompt_tokens", "ids of the prompts of ended answers", registry=registry
        )
        self.tokens = Counter("bitnet_tokens", "ids generated", registry=registry)
        self.first_token = Histogram(
            "bitnet_time_to_first_token_seconds", "from acceptance to the first id",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.duration = Histogram(
            "bitnet_answer_seconds", "from acceptance to the end of the answer",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._open = Gauge(
            "bitnet_open_answers", "answers that wait or are being written", registry=registry
        )
        self._running = Gauge(
            "llamacpp:requests_processing", "answers that are being written", registry=registry
        )
        self._waiting = Gauge("llamacpp:requests_deferred", "answers that wait", registry=registry)
        self._kv_usage = Gauge(
            "vllm:kv_cache_usage_perc", "share of --kv-memory, 0 to 1", ["model_name"],
            registry=registry,
        ).labels(model)  # fmt: skip
        self._hits = Counter(
            "vllm:prefix_cache_hits", "ids of prompts computed before", ["model_name"],
            registry=registry,
        ).labels(model)  # fmt: skip
        self._between = Histogram(
            "vllm:inter_token_latency_seconds", "from one id to the next", ["model_name"],
            buckets=_SECONDS, registry=registry,
        ).labels(model)  # fmt: skip
        self._run = Counter(
            "llamacpp:prompt_tokens", "ids of prompts that were run", registry=registry
        )
        self._run_s = Counter("llamacpp:prompt_seconds", "seconds they took", registry=registry)
        self._predicted_s = Counter(
            "llamacpp:tokens_predicted_seconds", "seconds after the first id", registry=registry
        )
        for figure, name in (
            (self._running, "num_requests_running"),
            (self._waiting, "num_requests_waiting"),
            (self.prompt_tokens, "prompt_tokens"),
            (self.prompt_tokens, "prefix_cache_queries"),
            (self.tokens, "generation_tokens"),
            (self.first_token, "time_to_first_token_seconds"),
            (self.duration, "e2e_request_latency_seconds"),
        ):
            registry.register(_Alias(figure, f"vllm:{name}", {"model_name": model}))
        registry.register(_Alias(self.tokens, "llamacpp:tokens_predicted", {}))

    def watch(self, worker: Watched) -> None:
        """Ask *worker* for its state whenever the metrics are read."""
        self._open.set_function(lambda: worker.open_jobs)
        self._running.set_function(lambda: worker.running)
        self._waiting.set_function(lambda: max(0, worker.open_jobs - worker.running))
        self._kv_usage.set_function(lambda: worker.kv_usage)

    def token(self, since_last_s: float | None) -> None:
        """Count an id that was generated.

        Args:
            since_last_s: seconds since the one before; ``None``: it is the first.
        """
        self.tokens.inc()
        if since_last_s is not None:
            self._between.observe(since_last_s)

    def finished(self, answer: Answer) -> None:
        """Count *answer*, which has ended."""
        stats = answer.stats
        self.answers.labels(answer.finish_reason or "error").inc()
        self.prompt_tokens.inc(stats.prompt_tokens)
        self._hits.inc(stats.reused_tokens)
        self._run.inc(stats.prompt_tokens - stats.reused_tokens)
        self._run_s.inc(stats.prefill_s)
        self._predicted_s.inc(stats.decode_s)
        if stats.tokens:
            self.first_token.observe(stats.prefill_s)
        self.duration.observe(stats.prefill_s + stats.decode_s)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
