"""What Prometheus is told: in few round trips, of what is live."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace.stats import Stats
from headrace.stats.prometheus import MOST, Scrape
from headrace.stats.resolutions import ALL

pytest.importorskip("prometheus_client")

Make = Callable[..., Stats]


def told(scrape: Scrape) -> dict[str, dict[str, float]]:
    """Values by family, then by label."""
    return {
        family.name: {sample.labels.get("label", ""): sample.value for sample in family.samples}
        for family in scrape.collect()
    }


@pytest.mark.parametrize("names", [1, 40])
def test_a_scrape_is_two_round_trips_however_many_labels_there_are(make_stats: Make, names: int) -> None:
    stats, now = make_stats(), time.time()
    for n in range(names):
        for label in (f"jobs/task{n}", f"queues/q{n}"):
            stats.add(label, {"started": n + 1}, now)
            stats.observe(label, {"run": 0.5, "wait": 2}, now - 60 * n)
        stats.of_workers().add(f"host:{n}", {"busy": n + 1})
    stats.flush()
    scrape = Scrape(stats, ALL)
    first = told(scrape)
    before = stats.client.store.round_trips
    assert told(scrape) == first
    assert stats.client.store.round_trips - before == 2
    assert first["headrace_stats"][f"jobs/task{names - 1}"] == names
    assert first["headrace_stats"][f"workers/host:{names - 1}"] == names
    assert set(first["headrace_stats_quantile"]) >= {"jobs", "queues", f"queues/q{names - 1}"}


def test_live_workers_are_told_however_many_there_were(make_stats: Make, caplog: pytest.LogCaptureFixture) -> None:
    stats, now = make_stats(), time.time()
    for n in range(MOST + 100):
        stats.of_workers().add(f"past:{n}", {"busy": 1}, now - 86400)
    stats.of_workers().add("live:1", {"busy": 7})
    stats.flush()
    scrape = Scrape(stats, ALL)
    for _ in range(2):
        found = told(scrape)["headrace_stats"]
        assert found["workers/live:1"] == 7
        assert len(found) <= MOST + 1
    assert caplog.text.count(f"only the {MOST} labels below") == 1


def test_the_root_is_told_without_what_workers_count_which_has_families_of_its_own(make_stats: Make) -> None:
    stats = make_stats()
    stats.add("views/shop", {"n": 3})
    stats.of_workers().add("host:1", {"busy": 5})
    stats.flush()
    assert told(Scrape(stats, [""]))["headrace_stats"] == {"views": 3}
    assert told(Scrape(stats, ["nothing"]))["headrace_stats"] == {}
