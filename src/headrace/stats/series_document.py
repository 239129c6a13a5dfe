"""The course of a label as a document for programs: of ``headrace stats --json``, and of ``.json`` pages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.stats.engine_labels import unit_of
from headrace.stats.reading import Bucket

PERCENTS = (50, 90, 99)


def series_document(label: str, every: str, total: Bucket, series: Sequence[Bucket]) -> dict[str, Any]:
    """A label within a range: the sum, and each bucket in the order of time."""
    return {
        "label": label,
        "every": every,
        "exact": total.exact,
        "start": total.start,
        "end": total.end,
        "counts": dict(total.counts),
        "observed": _percentiles(total),
        "units": {field: unit for field in (*total.counts, *total.histograms) if (unit := unit_of(label, field))},
        "series": [
            {"start": bucket.start, "counts": dict(bucket.counts), "observed": _percentiles(bucket)}
            for bucket in series
        ],
    }


def _percentiles(bucket: Bucket) -> dict[str, dict[str, float]]:
    return {
        name: {"count": found.count, "mean": found.mean} | {f"p{p}": found.percentile(p) for p in PERCENTS}
        for name, found in bucket.histograms.items()
    }
