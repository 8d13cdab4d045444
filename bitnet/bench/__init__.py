"""How fast a model loads, reads and writes on this machine, as numbers.

    pp128   a prompt of 128 tokens up to the first token it is answered with: tokens per second
    tg128   128 tokens, one after the other, behind a prompt of one

Everything goes through the engine, as an answer does. The numbers of threads and the tests take
turns, so that a machine which slows down for a while slows all of them.
"""

from __future__ import annotations

from bitnet.bench.machine import Machine, describe_machine
from bitnet.bench.measure import Plan, Test, measure
from bitnet.bench.report import Change, Measured, Report, Spread, changes, read_report, slowdown

__all__ = [
    "Change",
    "Machine",
    "Measured",
    "Plan",
    "Report",
    "Spread",
    "Test",
    "changes",
    "describe_machine",
    "measure",
    "read_report",
    "slowdown",
]
