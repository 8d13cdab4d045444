"""Progress of long operations, on stderr only: a bar, a line every few seconds, or JSON events.

A :class:`Progress` counts bytes that are safely on disk. It never goes backwards: when a transfer
has to start over, the count stays where it was until the new bytes pass it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO

from bitnet.base import settings
from bitnet.base.bars import BARS
from bitnet.base.quantities import human_size, human_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Mode = Literal["auto", "bar", "lines", "json", "none"]

_INTERVALS_S = {"lines": 5.0, "json": 0.5, "bar": 0.1}  # least time between two displays
RATE_WINDOW_S = 10.0  # the rate is the mean of about this time
SLOW_S = 0.5  # after which a terminal shows what the user is waiting for


class Progress:
    """Bytes done of a total, shown in the form *mode*; use it as a context manager.

    *total* is ``None`` while unknown; *stream* is stderr by default. The mode ``auto`` shows a bar
    on a terminal and lines elsewhere; a process without stderr shows nothing.
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        *,
        mode: Mode = "auto",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self._before = 0  # bytes that were on disk before this run
        self._stream = stream if stream is not None else sys.stderr
        self._mode = self._form_of(mode)
        self._clock = clock
        self._started = self._last_shown = clock()
        self._window: list[tuple[float, int]] = []  # times and bytes done, to compute the rate
        if self._mode == "bar":
            BARS.add(self, self._stream)

    def _form_of(self, mode: Mode) -> Mode:
        """The form in which *mode* is shown on the stream, never ``auto``."""
        if self._stream is None:  # as with pythonw, or after `2>&-`
            return "none"
        if mode != "auto":
            return mode
        has_escapes = self._stream.isatty() and not settings.dumb_terminal()
        return "bar" if has_escapes else "lines"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.close(failed=kind is not None)

    def begin_at(self, done: int, total: int | None = None) -> None:
        """Count *done* bytes that an earlier run left: done, but not transferred by this one."""
        self._before = done
        self.reach(done, total)
        self._window = [(self._clock(), done)]

    def reach(self, done: int, total: int | None = None) -> None:
        """Record that *done* bytes are durably written, of *total*; a smaller *done* is ignored."""
        if total is not None and total != self.total:
            self.total = total
        if done <= self.done:
            return
        self.done = done
        now = self._clock()
        self._window.append((now, done))
        while len(self._window) > 2 and now - self._window[0][0] > RATE_WINDOW_S:
            self._window.pop(0)
        is_complete = self.done == self.total
        is_due = now - self._last_shown >= _INTERVALS_S.get(self._mode, 0.0)
        if self._mode == "bar" and (is_due or is_complete):
            self._last_shown = now
            BARS.refresh()
        elif self._mode != "bar" and is_due:
            self._last_shown = now
            self._print("progress", self._line)

    def close(self, *, failed: bool = False) -> None:
        """End the display: ``json`` prints a last event, ``lines`` a last line unless *failed*."""
        if self._mode == "bar":
            BARS.refresh()  # so that the last state is shown before the bar disappears
            BARS.remove(self)
        elif self._mode == "json" or (self.done and not failed):
            self._print("failed" if failed else "done", self._last_line)

    @property
    def rate(self) -> float:
        """Bytes per second over the last seconds, 0 while unknown."""
        if len(self._window) < 2:
            return 0.0
        first_s, first_bytes = self._window[0]
        last_s, last_bytes = self._window[-1]
        if last_s <= first_s:
            return 0.0
        return (last_bytes - first_bytes) / (last_s - first_s)

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the present rate, ``None`` while unknown."""
        if not self.total or not self.rate:
            return None
        return (self.total - self.done) / self.rate

    def share(self) -> float | None:
        """Part that is done, 0 to 1; None if the total is unknown."""
        return min(1.0, self.done / self.total) if self.total else None

    def measures(self) -> tuple[str, ...]:
        """Texts of a bar, the most important first: percent, rate, time left, and size."""
        rate = f"{human_size(self.rate)}/s"
        share = self.share()
        if share is None or self.total is None:
            return human_size(self.done), rate
        left = f"{human_time(self.eta_s)} left" if self.eta_s is not None else "starting"
        size = f"{human_size(self.done)} of {human_size(self.total)}"
        return f"{int(100 * share):>3}%", rate, left, size

    def _line(self) -> str:
        """Line about the present state, for the mode ``lines``."""
        share = f" of {human_size(self.total)} ({self.done / self.total:.0%})" if self.total else ""
        speed = f", {human_size(self.rate)}/s" if self.rate else ""
        left = f", {human_time(self.eta_s)} left" if self.eta_s is not None else ""
        return f"{self.label}: {human_size(self.done)}{share}{speed}{left}"

    def _last_line(self) -> str:
        """Line about the whole operation, for the mode ``lines``."""
        took = human_time(self._clock() - self._started)
        before = f" ({human_size(self._before)} from an earlier run)" if self._before else ""
        return f"{self.label}: {human_size(self.done - self._before)} in {took}{before}"

    def _print(self, event: str, line: Callable[[], str]) -> None:
        """Print *event* in the mode ``json``, *line* in the mode ``lines``, nothing in others."""
        if self._mode == "json":
            eta_s = self.eta_s
            values = {
                "event": event,
                "label": self.label,
                "done": self.done,
                "total": self.total,
                "rate": round(self.rate),
                "eta_s": None if eta_s is None else round(eta_s, 1),
            }
            print(json.dumps(values), file=self._stream, flush=True)
        elif self._mode == "lines":
            print(line(), file=self._stream, flush=True)


@dataclass(frozen=True)
class _Step:
    """A bar without a share, for a step whose progress is unknown."""

    label: str
    doing: str  # a word for the work, such as "loading"

    def measures(self) -> tuple[str, ...]:
        return (self.doing,)

    def share(self) -> None:
        return None


@contextmanager
def show_when_slow(
    label: str,
    doing: str,
    *,
    mode: Mode = "auto",
    stream: TextIO | None = None,
    after_s: float = SLOW_S,
) -> Iterator[None]:
    """Show *label* and what it is *doing* on a terminal if the block takes longer than *after_s*.

    Nothing is shown outside a terminal, or in a mode without bars.
    """
    stream = sys.stderr if stream is None else stream
    shows_bars = mode in ("auto", "bar") and stream is not None and stream.isatty()
    if not shows_bars or settings.dumb_terminal():
        yield
        return
    step = _Step(label, doing)
    lock = threading.Lock()
    has_ended = False

    def show() -> None:
        with lock:
            if not has_ended:
                BARS.add(step, stream)

    timer = threading.Timer(after_s, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            has_ended = True
            BARS.remove(step)
