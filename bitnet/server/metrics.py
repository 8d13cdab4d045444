"""Figures for Prometheus, in a registry of their own.

What vLLM and llama.cpp's server count as well stands there under their names too, so that
dashboards made for them work: docs.vllm.ai/en/latest/usage/metrics, and llama-server's README.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from bitnet.runtime.answer import Answer

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Watched(Protocol):
    """What is asked for figures whenever they are read."""

    @property
    def open_jobs(self) -> int:
        """Answers that wait or are being written."""

    @property
    def running(self) -> int:
        """Answers that are being written."""

    @property
    def kv_usage(self) -> float:
        """Share of the memory for keys and values that is taken, 0 to 1."""


class Metrics:
    """Counters and histograms of one worker."""

    def __init__(self, model: str = "") -> None:
        """Nothing counted yet.

        Args:
            model: its name, in figures that vLLM has by model.
        """
        self._model = model
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

        self._add_vllm()
        self._add_llama()

    def _add_vllm(self) -> None:
        def labelled(kind: Any, name: str, about: str, **more: Any) -> Any:
            made = kind(f"vllm:{name}", about, ["model_name"], registry=self.registry, **more)
            return made.labels(self._model)

        self._running = labelled(Gauge, "num_requests_running", "answers that are being written")
        self._waiting = labelled(Gauge, "num_requests_waiting", "answers that wait")
        self._kv_usage = labelled(Gauge, "kv_cache_usage_perc", "share of --kv-memory, 0 to 1")
        self._queries = labelled(Counter, "prefix_cache_queries", "ids of prompts")
        self._hits = labelled(Counter, "prefix_cache_hits", "those computed before")
        self._vllm_prompt = labelled(Counter, "prompt_tokens", "ids of prompts")
        self._vllm_tokens = labelled(Counter, "generation_tokens", "ids generated")
        self._vllm_first = labelled(
            Histogram, "time_to_first_token_seconds", "to the first id", buckets=_SECONDS
        )
        self._between = labelled(
            Histogram, "inter_token_latency_seconds", "from one id to the next", buckets=_SECONDS
        )
        self._whole = labelled(
            Histogram, "e2e_request_latency_seconds", "to the last id", buckets=_SECONDS
        )

    def _add_llama(self) -> None:
        def made(kind: Any, name: str, about: str) -> Any:
            return kind(f"llamacpp:{name}", about, registry=self.registry)

        self._processing = made(Gauge, "requests_processing", "answers that are being written")
        self._deferred = made(Gauge, "requests_deferred", "answers that wait")
        self._llama_prompt = made(Counter, "prompt_tokens", "ids of prompts that were run")
        self._prompt_s = made(Counter, "prompt_seconds", "seconds they took")
        self._predicted = made(Counter, "tokens_predicted", "ids generated")
        self._predicted_s = made(Counter, "tokens_predicted_seconds", "seconds after the first")

    def watch(self, worker: Watched) -> None:
        """Ask *worker* what runs and waits whenever the figures are read."""

        def waiting() -> int:
            return max(0, worker.open_jobs - worker.running)

        self._open.set_function(lambda: worker.open_jobs)
        for gauge in (self._running, self._processing):
            gauge.set_function(lambda: worker.running)
        for gauge in (self._waiting, self._deferred):
            gauge.set_function(waiting)
        self._kv_usage.set_function(lambda: worker.kv_usage)

    def token(self, since_last_s: float | None) -> None:
        """Count an id that was generated.

        Args:
            since_last_s: seconds since the one before; ``None``: it is the first.
        """
        for counter in (self.tokens, self._vllm_tokens, self._predicted):
            counter.inc()
        if since_last_s is not None:
            self._between.observe(since_last_s)

    def finished(self, answer: Answer) -> None:
        """Count *answer*, which has ended."""
        stats = answer.stats
        for counter in (self._queries, self._vllm_prompt):
            counter.inc(stats.prompt_tokens)
        self._hits.inc(stats.reused_tokens)
        self._llama_prompt.inc(stats.prompt_tokens - stats.reused_tokens)
        self._prompt_s.inc(stats.prefill_s)
        self._predicted_s.inc(stats.decode_s)
        self._whole.observe(stats.prefill_s + stats.decode_s)
        self.answers.labels(answer.finish_reason or "error").inc()
        self.prompt_tokens.inc(stats.prompt_tokens)
        if stats.tokens:
            for histogram in (self.first_token, self._vllm_first):
                histogram.observe(stats.prefill_s)
        self.duration.observe(stats.prefill_s + stats.decode_s)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
