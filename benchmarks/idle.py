"""Share of the machine that other processes used while something was measured (Linux)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TICKS = os.sysconf("SC_CLK_TCK")
#: Cores that other processes may use, on average, without changing a result noticeably.
MOST_CORES = 0.1


class Others:
    """Processor time of all processes but this one, its ended children, and *pids*.

    It counts from the creation of the object.
    """

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._pids = list(pids)
        self._started = time.perf_counter()
        self._before = self._seconds()

    def share(self) -> float:
        """Cores that others used since this object was made, on average; 0 if unknown."""
        if self._before is None:
            return 0.0
        after = self._seconds()
        assert after is not None, "it was known before"
        passed_s = time.perf_counter() - self._started
        return max(0.0, (after - self._before) / passed_s)

    def _seconds(self) -> float | None:
        """Processor seconds of others since the machine started; None if unknown."""
        try:
            fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
            own = sum(map(_seconds_of, self._pids))
        except OSError:
            return None
        user, nice, system, _idle, _waits, interrupts, soft, steal, *_ = map(int, fields)
        busy_s = (user + nice + system + interrupts + soft + steal) / TICKS
        return busy_s - own - sum(os.times()[:4])


def _seconds_of(pid: int) -> float:
    """Processor seconds of the process *pid*."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
