"""What workers count: under which labels, in which units, for how long."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace.errors import OptionsError
from headrace.stats import Stats
from headrace.stats.resolutions import WORKER_KEEP, layout_of, unit_of, workers_layout

Make = Callable[..., Stats]


def test_units_are_those_of_the_engines_labels_only() -> None:
    assert (unit_of("jobs/shop.fetch", "run"), unit_of("queues", "wait")) == ("seconds", "seconds")
    assert (unit_of("workers/h:1", "busy"), unit_of("workers", "memory")) == ("microseconds", "bytes")
    assert (unit_of("jobs", "started"), unit_of("views", "run"), unit_of("", "run")) == ("", "", "")


@pytest.mark.parametrize(
    ("keep", "short"),
    [
        ("minute=2d hour=60d day=2y month=20y", "minute=172800s hour=604800s"),
        ("second=1h day=2y", "second=3600s"),
        ("day=2y month=20y", "day=604800s"),
        ("month=1d", "month=86400s"),
    ],
)
def test_what_is_counted_of_a_worker_stays_a_week_at_most(keep: str, short: str) -> None:
    found = workers_layout(layout_of(keep))
    assert found.text == short
    assert found.slot == layout_of(keep).slot
    assert all(level.keep <= WORKER_KEEP for level in found.levels)
    assert layout_of(found.text).levels == found.levels


def test_a_worker_is_found_for_a_week_and_no_longer(make_stats: Make) -> None:
    stats, now = make_stats(), time.time()
    for days in range(9):
        stats.of_workers().add(f"host:{days}", {"busy": 1}, now - 86400 * days)
    stats.flush()
    found = stats.find("workers", now - 9 * 86400, every="hour")
    assert (found["busy"], found.total().exact) == (8, False)
    assert stats.find("workers/host:3", now - 3 * 86400, every="hour")["busy"] == 1
    # From above as well, and a range in which the resolutions of others would do with whole days.
    below = {child.label: child for child in stats.find("", now - 5 * 86400, every="hour").children()}
    assert below["workers"]["busy"] == 5 + 1
    assert {child.label for child in stats.find("workers", now).children()} == {f"workers/host:{n}" for n in range(8)}
    with pytest.raises(OptionsError, match="every='day' is not kept here: take one of minute, hour"):
        stats.find("workers", now, every="day")
    with pytest.raises(OptionsError, match="no resolution 'week': take one of minute, hour; a week is seven days"):
        stats.find("workers", now, every="week")  # type: ignore[arg-type]
    # A program's own label of that name below a scope is its own.
    stats.scope("mine").add("workers", {"n": 1}, now - 20 * 86400)
    stats.flush()
    assert stats.find("mine/workers", now - 30 * 86400, every="day")["n"] == 1
