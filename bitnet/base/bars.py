"""Bars of running operations on a terminal: a line for each, below everything else.

A message is written above them: :meth:`Bars.above` removes the bars, and draws them again below it.
A line leaves some columns free, so that the ``^C`` that a terminal shows does not break it.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TextIO

from bitnet.base.columns import (
    DEFAULT_COLUMNS,
    as_shown,
    clip,
    cut,
    ellipsis_for,
    terminal_width,
    width_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FREE_COLUMNS = 4  # at the end of a line, for ``^C``
_LEAST_LABEL = 8  # columns, of a label and of the bar itself
# ASCII, which the encoding of every locale has.
_FULL = "#"
_EMPTY = "-"


class Bar(Protocol):
    """An operation that is shown as a bar."""

    @property
    def label(self) -> str:
        """Name of the file or model that the operation works on."""

    def measures(self) -> tuple[str, ...]:
        """Texts about the operation, the most important first."""

    def share(self) -> float | None:
        """Part that is done, 0 to 1; None if the whole is unknown."""


class Bars:
    """The bars on one terminal; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bars: list[Bar] = []
        self._stream: TextIO | None = None
        self._drawn = 0  # lines on the screen

    def add(self, bar: Bar, stream: TextIO) -> None:
        """Show *bar* on *stream*, below the bars that are already shown."""
        with self._lock:
            self._clear()
            self._stream = stream
            self._bars.append(bar)
            self._draw()

    def remove(self, bar: Bar) -> None:
        """Take *bar* away."""
        with self._lock:
            if bar in self._bars:
                self._clear()
                self._bars.remove(bar)
                self._draw()

    def refresh(self) -> None:
        """Draw the bars again, in their present state."""
        with self._lock:
            self._clear()
            self._draw()

    def end(self) -> None:
        """Remove every bar for good: a thread that still runs does not draw its bar again."""
        with self._lock:
            self._clear()
            self._bars.clear()

    @contextmanager
    def above(self, stream: TextIO) -> Iterator[None]:
        """Hide the bars while the block writes to *stream*, and draw them below its output."""
        with self._lock:
            hides_bars = bool(self._bars) and stream.isatty()
            if hides_bars:
                self._clear()
            try:
                yield
            finally:
                if hides_bars:
                    self._draw()

    def _draw(self) -> None:
        # COLUMNS is ignored: a line that is longer than the screen could not be cleared.
        columns = (terminal_width(self._stream) or DEFAULT_COLUMNS) - FREE_COLUMNS
        self._drawn = len(self._bars)
        self._write("\n".join(render(bar, columns, self._stream) for bar in self._bars))

    def _clear(self) -> None:
        up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
        if self._drawn:
            self._write(f"{up}\r\x1b[J")
        self._drawn = 0

    def _write(self, text: str) -> None:
        if text and self._stream is not None:
            with suppress(OSError, ValueError):  # a terminal that is gone shows nothing
                self._stream.write(text)
                self._stream.flush()


def render(bar: Bar, columns: int, stream: TextIO | None = None) -> str:
    """*bar* in at most *columns* of *stream*: its label, then as many of its measures as fit.

    The first two measures are always shown; the label loses its middle to make room for them.
    """
    label = as_shown(bar.label, stream)
    measures = [as_shown(measure, stream) for measure in bar.measures()]
    text = "  ".join(measures[:2])
    for measure in measures[2:]:
        longer = f"{text}  {measure}"
        if width_of(f"{label}: {longer}") > columns:
            break
        text = longer
    room = max(_LEAST_LABEL, columns - width_of(f": {text}"))
    line = f"{cut(label, room, ellipsis_for(stream))}: {text}"
    share = bar.share()
    width = columns - width_of(f"{line}  []")
    if share is None or width < _LEAST_LABEL:
        return clip(line, columns)
    full = int(width * share)
    return f"{line}  [{_FULL * full}{_EMPTY * (width - full)}]"


BARS = Bars()  # of this process
