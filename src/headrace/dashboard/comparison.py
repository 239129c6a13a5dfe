"""Two courses side by side: the same figures of each and how far they are apart, and plots of one scale. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.dashboard import svg_plots
from headrace.dashboard.figures import Course, TaskFigures
from headrace.dashboard.svg_plots import Plot
from headrace.dashboard.wording import DASH, count, duration, percent

# How much earlier the other course may be: its word in a link, words for people, and seconds; 0: the range before.
EARLIER: Mapping[str, tuple[str, int]] = {
    "before": ("the range before", 0),
    "1d": ("a day before", 86400),
    "7d": ("a week before", 7 * 86400),
}


class ComparedFigure(msgspec.Struct, frozen=True):
    """A figure of both.

    Attributes:
        name: what it is.
        here, there: as texts.
        change: how much more or less it is here: ``+12 %``.
        tone: ``bad`` where it is worse by a tenth or more, ``good`` where it is better by that; else empty.
    """

    name: str
    here: str
    there: str
    change: str
    tone: str


def compared(here: TaskFigures, there: TaskFigures) -> list[ComparedFigure]:
    rows: list[tuple[str, float, float, Any, bool]] = [
        ("Starts", here.started, there.started, count, False),
        ("Failed", here.share, there.share, percent, True),
        ("Retried", here.retried, there.retried, count, True),
        ("Run p50", here.run[0], there.run[0], duration, True),
        ("Run p95", here.run[1], there.run[1], duration, True),
        ("Wait p50", here.wait[0], there.wait[0], duration, True),
        ("Wait p95", here.wait[1], there.wait[1], duration, True),
        ("Total run", here.total, there.total, duration, False),
    ]
    return [_figure(*row) for row in rows]


def _figure(name: str, here: float, there: float, say: Any, less_is_better: bool) -> ComparedFigure:
    if not here or not there:
        # From nothing no share of it leads to something; and where nothing ran, a time is unknown.
        change, tone = DASH, ""
    else:
        apart = here / there - 1
        change = f"{apart * 100:+,.0f} %" if abs(apart) >= 0.005 else "the same"
        tone = "" if not less_is_better or abs(apart) < 0.1 else "bad" if apart > 0 else "good"
    return ComparedFigure(name, say(here), say(there), change, tone)


def pairs_of_plots(here: Course, there: Course) -> list[tuple[Plot, Plot]]:
    """The plots of two courses, each pair with one scale."""
    most = max(svg_plots.most_ended(here), svg_plots.most_ended(there))
    pairs = [(svg_plots.throughput(here, most), svg_plots.throughput(there, most))]
    for field, title in (("wait", "Wait before a start"), ("run", "Run")):
        most = max(svg_plots.longest(here, field), svg_plots.longest(there, field))
        pairs.append((svg_plots.waits(here, field, title, most), svg_plots.waits(there, field, title, most)))
    return pairs
