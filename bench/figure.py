"""What a benchmark says: a figure, its reference in the same run, and the bar that it must reach.

Pure: no clock, no server, no terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise about a figure: its value, or its ratio to the reference, keeps to one side of ``limit``."""

    side: Literal["at least", "at most"]
    limit: float
    of: Literal["value", "ratio"] = "value"

    def met(self, measured: float) -> bool:
        return measured >= self.limit if self.side == "at least" else measured <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.side == "at least" else "≤"
        return f"{sign} {self.limit:g}" + (" x reference" if self.of == "ratio" else "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    Attributes:
        name: what was measured, of whom; the same in every repetition.
        value: the measurement, in ``unit``; None where this machine cannot measure it.
        against: what the reference is, or empty.
        reference: the reference's measurement in the same run, in the same unit.
        bar: what must be reached, or None for a figure that only informs.
        note: why there is no value, or what a reader must know.
    """

    name: str
    value: float | None
    unit: str
    against: str = ""
    reference: float | None = None
    bar: Bar | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        if self.value is None or not self.reference:
            return None
        return self.value / self.reference

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached; None without a bar or without the measurement that it needs."""
        measured = self.value if self.bar is None or self.bar.of == "value" else self.ratio
        if self.bar is None or measured is None:
            return None
        return self.bar.met(measured)

    def as_dict(self) -> dict[str, Any]:
        bar = None if self.bar is None else {"side": self.bar.side, "limit": self.bar.limit, "of": self.bar.of}
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "against": self.against,
            "reference": self.reference,
            "ratio": self.ratio,
            "bar": bar,
            "met": self.met,
            "note": self.note,
        }


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def medians(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """One figure for each name: the median of its values, beside the median of its references."""
    named: dict[str, list[Figure]] = {}
    for figure in (figure for run in runs for figure in run):
        named.setdefault(figure.name, []).append(figure)
    return [
        replace(same[0], value=_middle(f.value for f in same), reference=_middle(f.reference for f in same))
        for same in named.values()
    ]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all values do not exceed (nearest rank)."""
    ranked = sorted(values)
    rank = max(1, -(-len(ranked) * percent // 100))
    return ranked[int(rank) - 1]
