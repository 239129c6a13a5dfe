"""Series as text: a sparkline in a table's cell, and a plot with an axis. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_NOTHING = "·"


def spark(values: Sequence[float]) -> str:
    """One character a value, from the least (0 at most) to the greatest; a dot for nothing."""
    return (
        "".join(_NOTHING if not value else block for value, block in zip(values, _rows(values, 1)[0], strict=True))
        if values
        else ""
    )


def plot(values: Sequence[float], left: str, right: str, width: int, height: int = 8) -> list[str]:
    """Bars over an axis, a line of text each; a value to the left of the top and the bottom.

    Args:
        left, right: what stands below the ends of the axis.
        width: columns that there are; neighbours share one when there are more values.
    """
    high, low = max(0.0, *values), min(0.0, *values)
    marks = [number(high), number(low)]
    margin = max(len(mark) for mark in marks)
    shown = squeeze(values, max(10, width - margin - 3))
    lines: list[str] = []
    for n, row in enumerate(_rows(shown, height)):
        mark = marks[0] if n == 0 else marks[1] if n == height - 1 else ""
        lines.append(f"{mark:>{margin}} │{''.join(row)}".rstrip())
    lines.append(f"{'':>{margin}} └{'─' * len(shown)}")
    gap = max(2, len(shown) - len(left) - len(right))
    lines.append(f"{'':>{margin}}  {left}{' ' * gap}{right}")
    return lines


def squeeze(values: Sequence[float], most: int) -> list[float]:
    """At most so many values: the greatest of neighbours stands for them, so that no peak is lost."""
    if len(values) <= most:
        return list(values)
    edges = [n * len(values) // most for n in range(most + 1)]
    return [max(values[first:last]) for first, last in pairwise(edges)]


def number(value: float) -> str:
    """A number for people, in few characters: ``1,234``, ``1.2M``, ``0.034``."""
    size = abs(value)
    for unit, factor in (("G", 1e9), ("M", 1e6)):
        if size >= factor:
            return f"{value / factor:.1f}{unit}"
    if value == int(value) or size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def _rows(values: Sequence[float], height: int) -> list[list[str]]:
    """Bars of blocks, the top row first."""
    low = min(0.0, *values)
    span = max(0.0, *values) - low
    eighths = [round((value - low) / span * height * 8) if span else 0 for value in values]
    # What is not nothing is to be seen.
    eighths = [max(n, 1) if value > low else n for n, value in zip(eighths, values, strict=True)]
    rows = [[_EIGHTHS[min(8, max(0, n - row * 8))] for n in eighths] for row in range(height - 1, -1, -1)]
    if height == 1:
        rows[0] = [block if block != " " else "▁" for block in rows[0]]
    return rows
