"""Scatter plots as SVG: logarithmic upwards, with titles, ticks, borders and bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.crossval.judge import Kind

__all__ = ["Line", "Point", "scatter", "shape"]

_WIDTH, _HEIGHT = 860, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 24, 48
_LEAST = 1e-9  # the bottom of logarithmic axes
_TICKS = 8


@dataclass(frozen=True)
class Point:
    """A mark.

    Attributes:
        x: position on the linear axis.
        y: position on the logarithmic axis.
        kind: determines shape and colour.
        told: description, shown as a tooltip.
    """

    x: float
    y: float
    kind: Kind
    told: str


@dataclass(frozen=True)
class Line:
    """A dashed line at a value, with its name."""

    value: float
    name: str


def shape(kind: Kind) -> str:
    """The mark of *kind* alone, for a legend."""
    return f'<svg viewBox="0 0 14 14" aria-hidden="true">{_mark(7, 7, kind)}</svg>'


def scatter(
    points: Sequence[Point],
    x_name: str,
    y_name: str,
    *,
    across: Line | None = None,
    down: Line | None = None,
    borders: Sequence[tuple[float, str]] = (),
) -> str:
    """*points* in a frame.

    Args:
        points: at least one.
        x_name: title of the linear axis.
        y_name: title of the logarithmic one.
        across: a horizontal line.
        down: a vertical line.
        borders: beginning and name of each part; they replace the grid lines.
    """
    logs = [math.log10(max(point.y, _LEAST)) for point in points]
    if across:
        logs.append(math.log10(across.value))
    low, top = math.floor(min(logs)), math.ceil(max(logs))
    top = max(top, low + 1)
    widest = max(*(point.x for point in points), down.value if down else 0.0, 1e-9)
    frame = _Frame(low, top, widest)
    marks = [*frame.axes(x_name, y_name, has_borders=bool(borders)), *frame.borders(borders)]
    if across:
        marks += frame.across(across)
    if down:
        marks += frame.down(down)
    for point in points:
        x, y = frame.place(point.x, math.log10(max(point.y, _LEAST)))
        marks.append(f"<g>{_mark(x, y, point.kind)}<title>{escape(point.told)}</title></g>")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(y_name)} by {escape(x_name)}">{"".join(marks)}</svg>'
    )


@dataclass(frozen=True)
class _Frame:
    """Axes from 0 to *widest* and from 10 to the power of *low* to that of *top*."""

    low: int
    top: int
    widest: float

    def place(self, x: float, log_y: float) -> tuple[float, float]:
        tall = _HEIGHT - _TOP - _BOTTOM
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / self.widest
        return across, _TOP + tall * (self.top - log_y) / (self.top - self.low)

    def axes(self, x_name: str, y_name: str, *, has_borders: bool) -> Iterator[str]:
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        for power in range(self.low, self.top + 1, max(1, (self.top - self.low) // 6)):
            _, y = self.place(0, power)
            yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>'
            yield _text(_LEFT - 8, y + 4, f"1e{power}", "end")
        for value in _ticks(self.widest):
            x, _ = self.place(value, self.low)
            if not has_borders:
                yield f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>'
            yield f'<path class="axis" d="M{x:.1f} {bottom}v5"/>'
            yield _text(x, bottom + 17, f"{value:g}")
        yield f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'
        middle = (_TOP + bottom) / 2
        yield _text((_LEFT + right) / 2, _HEIGHT - 10, escape(x_name), style="title")
        yield (
            f'<text class="title" text-anchor="middle" transform="translate(14 {middle:.0f}) '
            f'rotate(-90)">{escape(y_name)}</text>'
        )

    def borders(self, borders: Sequence[tuple[float, str]]) -> Iterator[str]:
        for at, name in borders:
            x, _ = self.place(at, self.low)
            yield f'<path class="border" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
            yield _text(x + 3, _TOP - 6, escape(name), "start")

    def across(self, line: Line) -> Iterator[str]:
        _, y = self.place(0, math.log10(line.value))
        yield f'<path class="bound" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        yield _text(_WIDTH - _RIGHT - 4, y - 5, f"{escape(line.name)} {line.value:g}", "end")

    def down(self, line: Line) -> Iterator[str]:
        x, _ = self.place(line.value, self.low)
        yield f'<path class="bound" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
        yield _text(x + 5, _TOP + 10, f"{escape(line.name)} {line.value:g}", "start")


def _ticks(widest: float) -> list[float]:
    """Round numbers from 0 to *widest*."""
    rough = widest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= rough)
    return [number * step for number in range(math.floor(widest / step) + 1)]


def _text(x: float, y: float, text: str, anchor: str = "middle", style: str = "") -> str:
    name = f' class="{style}"' if style else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _mark(x: float, y: float, kind: Kind) -> str:
    """A disc, a triangle, a diamond or a cross: kinds differ in shape, not in colour alone."""
    if kind == "same":
        return f'<circle class="same" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'
    paths = {
        "tie": "m0-4.5 4.3 7.5h-8.6z",
        "excused": "m0-5 5 5-5 5-5-5z",
        "wrong": "m-4-4 8 8m0-8-8 8",
    }
    return f'<path class="{kind}" d="M{x:.1f} {y:.1f}{paths[kind]}"/>'
