"""What a worker counts of its jobs, before it is sent. No server."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import msgspec
import pytest

from headrace.model.job import Claim
from headrace.stats.resolutions import LONGEST, bucket_of, label_of, middle_of
from headrace.worker.dispatcher.endings import EVERY, JobCounts, coarse, middle

SECOND = 1_000_000
NOW = 105.5
CLAIM = Claim("j", 100 * SECOND + 250_000, "low", 100 * SECOND, "pay", b"")


class Counts:
    """Adds up what is passed on."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, float | None], dict[str, int]] = {}

    def absorb(self, label: str, counts: Mapping[str, int], at: float | None = None) -> None:
        self.all.setdefault((label, at), {}).update(counts)


class Strict(Counts):
    """Takes labels only, as statistics do."""

    def absorb(self, label: str, counts: Mapping[str, int], at: float | None = None) -> None:
        super().absorb(label_of(label), counts, at)


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def tally(counts: Counts) -> JobCounts:
    return JobCounts(counts, counts, "host:1")


def test_a_jobs_life_is_counted_for_its_task_and_its_queue(tally: JobCounts, counts: Counts) -> None:
    assert tally.next == float("inf")
    tally.ended(CLAIM, "succeeded", 7.0, 5_000)
    assert tally.next == 7.0 + EVERY
    tally.pass_on(NOW)
    expected = {"started": 1, "succeeded": 1, f"run~{bucket_of(0.005)}": 1, f"wait~{bucket_of(0.25)}": 1}
    assert counts.all == {
        ("jobs/pay", NOW): expected,
        ("queues/low", NOW): expected,
        ("jobs/pay", 100): {"enqueued": 1},
        ("queues/low", 100): {"enqueued": 1},
        ("host:1", NOW): {"busy": 5_000},
    }
    assert tally.next == float("inf")


@pytest.mark.parametrize(
    ("kind", "word"),
    [("retry", "retried"), ("crashed", "crashed"), ("failed", "failed"), ("cancelled", "cancelled"),
     ("grown", "succeeded"), ("corrupt", "quarantined"), ("skipped", "skipped"), ("snoozed", "snoozed")],
)  # fmt: skip
def test_each_end_has_its_word(tally: JobCounts, counts: Counts, kind: str, word: str) -> None:
    tally.ended(CLAIM, kind, 0.0)
    tally.pass_on(NOW)
    assert counts.all["jobs/pay", NOW][word] == 1


def test_what_was_taken_back_was_no_start(tally: JobCounts, counts: Counts) -> None:
    tally.ended(CLAIM, "released", 0.0)
    tally.pass_on(NOW)
    assert counts.all == {}


def test_a_job_came_once_however_often_it_starts(tally: JobCounts, counts: Counts) -> None:
    tally.ended(CLAIM, "retry", 0.0)
    tally.ended(msgspec.structs.replace(CLAIM, failures=1), "succeeded", 0.0)
    tally.pass_on(NOW)
    assert counts.all["jobs/pay", 100] == {"enqueued": 1}
    assert counts.all["jobs/pay", NOW]["started"] == 2


def test_sums_start_anew_after_they_were_passed_on(tally: JobCounts, counts: Counts) -> None:
    for _ in range(3):
        tally.ended(CLAIM, "succeeded", 0.0)
    tally.pass_on(NOW)
    counts.all.clear()
    tally.pass_on(NOW)
    assert counts.all == {}


@pytest.mark.parametrize("microseconds", [0, 1, 31, 32, 63, 64, 65, 127, 128, 999, 1000, 1234, 99_999, 10**9 + 7])
def test_rounding_stays_within_what_a_histogram_tells(microseconds: int) -> None:
    (half,) = coarse(array("f", [microseconds]))
    assert middle(half) == pytest.approx(microseconds, rel=1 / 256)
    if microseconds:
        told = middle_of(bucket_of(middle(half) / 1e6))
        assert told == pytest.approx(microseconds / 1e6, rel=0.025)


def test_rounding_keeps_the_order_and_counts_all() -> None:
    told = [middle(half) for half, count in coarse(array("f", range(20_000))).items() for _ in range(count)]
    assert len(told) == 20_000
    assert told == sorted(told)


def test_a_clock_that_was_set_back_makes_no_negative_wait(tally: JobCounts, counts: Counts) -> None:
    tally.ended(msgspec.structs.replace(CLAIM, ready=CLAIM.token + SECOND), "succeeded", 0.0)
    tally.pass_on(NOW)
    assert counts.all["jobs/pay", NOW]["wait~z"] == 1


@pytest.mark.parametrize("before", ["crashes", "interruptions"])
def test_a_start_that_keeps_its_place_has_not_waited_while_it_ran(
    tally: JobCounts, counts: Counts, before: str
) -> None:
    claim = msgspec.structs.replace(CLAIM, **{before: 1})
    assert (CLAIM.waited, claim.waited) == (250_000, None)
    tally.ended(claim, "succeeded", 0.0)
    tally.pass_on(NOW)
    assert counts.all["jobs/pay", NOW] == {"started": 1, "succeeded": 1}
    assert ("jobs/pay", 100) not in counts.all


@pytest.mark.parametrize("name", ["a\x1bb", "x" * 600, "half \ud800", "a/\n"])
def test_a_stored_name_that_is_no_label_is_counted_escaped_and_stops_no_other(name: str) -> None:
    """The loop ended with the refusal, and what ran beside that job counted a crash."""
    strict = Strict()
    tally = JobCounts(strict, strict, "host:1")
    tally.ended(msgspec.structs.replace(CLAIM, task=name), "failed", 7.0)
    tally.ended(msgspec.structs.replace(CLAIM, queue=name, task="other"), "succeeded", 7.0)
    tally.ended(CLAIM, "succeeded", 7.0)
    tally.pass_on(NOW)
    assert strict.all["jobs/pay", NOW]["succeeded"] == 1
    assert strict.all[f"jobs/{ascii(name)[1:-1]}"[:LONGEST], NOW]["failed"] == 1
    assert strict.all[f"queues/{ascii(name)[1:-1]}"[:LONGEST], NOW]["succeeded"] == 1


def test_a_job_that_is_parked_has_not_started_and_comes_once(tally: JobCounts, counts: Counts) -> None:
    tally.ended(CLAIM, "parked", 7.0)
    tally.ended(CLAIM, "succeeded", 7.0, 5_000)
    tally.pass_on(NOW)
    found = counts.all["jobs/pay", NOW]
    assert (found["started"], found["parked"], found["succeeded"]) == (1, 1, 1)
    assert counts.all["jobs/pay", 100] == {"enqueued": 1}
