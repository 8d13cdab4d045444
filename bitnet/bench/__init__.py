"""Benchmarks of loading, prefill and decode on this machine.

    pp128   prefill of 128 tokens, up to the first generated token: tokens per second
    tg128   128 tokens generated one after the other, after a prompt of one
    tg32@4096, pp512@4096
            the same behind 4,096 positions, whose time does not count

Everything runs through the engine, as an answer does. Tests and thread counts alternate, so that a
temporary slowdown of the machine affects all of them.
"""

from __future__ import annotations

from bitnet.bench.measure import BenchPlan, Test, measure
from bitnet.bench.report import (
    BenchReport,
    Change,
    Machine,
    Measured,
    Spread,
    changes,
    describe_machine,
    read_report,
    slowdown,
)

__all__ = [
    "BenchPlan",
    "BenchReport",
    "Change",
    "Machine",
    "Measured",
    "Spread",
    "Test",
    "changes",
    "describe_machine",
    "measure",
    "read_report",
    "slowdown",
]
