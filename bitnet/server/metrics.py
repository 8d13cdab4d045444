"""Figures for Prometheus, in a registry of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.runtime.answer import Answer

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Counters and histograms of one worker."""

    def __init__(self) -> None:
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

    def watch(self, open_jobs: Callable[[], int]) -> None:
        """Ask *open_jobs* for the number of open answers whenever somebody reads the figures."""
        self._open.set_function(open_jobs)

    def finished(self, answer: Answer) -> None:
        """Count *answer*, which has ended."""
        stats = answer.stats
        self.answers.labels(answer.finish_reason or "error").inc()
        self.prompt_tokens.inc(stats.prompt_tokens)
        if stats.tokens:
            self.first_token.observe(stats.prefill_s)
        self.duration.observe(stats.prefill_s + stats.decode_s)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
