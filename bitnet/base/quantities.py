"""Sizes, counts and durations as people read them."""

from __future__ import annotations


def human_size(size_bytes: float) -> str:
    """*size_bytes* in decimal units, as on download pages: ``98.4 MB``."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.95:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def human_count(count: int | None) -> str:
    """*count* with three significant digits, ``817``, ``494 M``, ``1.72 B`` (10^9), or ``?``."""
    if count is None:
        return "?"
    value = float(count)
    for unit in ("", " k", " M"):
        if value < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g} B"


def human_time(duration_s: float) -> str:
    """*duration_s* as ``7s``, ``3m05s`` or ``2h07m``."""
    seconds = max(0, round(duration_s))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
