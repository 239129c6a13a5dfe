"""Histograms that can be added up: a count per bucket, buckets that grow by a constant factor.

Pure. A value falls into the bucket ``ceil(log(value) / log(growth))``, and is told again as the bucket's middle, which
is at most ``ERROR`` of the value away, whatever the value. So two histograms are added by adding their counts: over any
range, any set of labels and any set of processes. The idea is DDSketch's (Masson, Rim, Lee: VLDB 2019).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from headrace.errors import OptionsError

# The most that a percentile is off, as a share of the value.
ERROR = 0.02
_GROWTH = (1 + ERROR) / (1 - ERROR)
_PER_LOG = 1 / math.log(_GROWTH)
_MIDDLE = 2 / (1 + _GROWTH)


def bucket_of(value: float) -> str:
    """The bucket of a value: its number, after an ``n`` for negative values, or ``z`` for zero. Raises OptionsError: it
    is not finite.
    """
    try:
        if value > 0:
            return str(math.ceil(math.log(value) * _PER_LOG))
        if value < 0:
            return f"n{math.ceil(math.log(-value) * _PER_LOG)}"
        if value == value:  # noqa: PLR0124 - only NaN is not itself
            return "z"
    except (TypeError, ValueError, OverflowError):
        pass
    raise OptionsError(f"{value!r} cannot be observed: give a finite number")


@lru_cache(4096)
def middle_of(bucket: str) -> float:
    if bucket == "z":
        return 0.0
    try:
        size = _GROWTH ** int(bucket.lstrip("n")) * _MIDDLE
    except OverflowError:
        # The last bucket reaches beyond what a float holds, and integers are observed that do.
        size = sys.float_info.max
    return -size if bucket.startswith("n") else size


class Histogram(msgspec.Struct, frozen=True):
    """How many values fell where.

    Attributes:
        counts: by the middle of the bucket, in ascending order.
    """

    counts: Mapping[float, int]

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Their mean, at most 2 % off when they have one sign; 0 when there is none."""
        count = self.count
        return sum(value * n for value, n in self.counts.items()) / count if count else 0.0

    def percentile(self, percent: float) -> float:
        """The value that ``percent`` of all do not exceed (nearest rank), at most 2 % off; 0 when there is none.

        Raises:
            OptionsError: ``percent`` is not between 0 and 100.
        """
        if not 0 <= percent <= 100:
            raise OptionsError(f"a percentile is between 0 and 100, not {percent!r}")
        rank = max(1, math.ceil(self.count * percent / 100))
        for value, n in self.counts.items():
            rank -= n
            if rank <= 0:
                return value
        return 0.0

    def __add__(self, other: Histogram) -> Histogram:
        return histogram_of(
            {value: self.counts.get(value, 0) + other.counts.get(value, 0) for value in {*self.counts, *other.counts}}
        )


def histogram_of(counts: Mapping[float, int]) -> Histogram:
    """A histogram of counts by value; what is not above 0 is left out."""
    return Histogram({value: counts[value] for value in sorted(counts) if counts[value] > 0})
