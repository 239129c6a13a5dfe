"""What Prometheus is told: the families of the table, in few round trips, of a bounded number of labels."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Headrace
from headrace.errors import StoreUnavailable
from headrace.metrics import (
    BOUNDS,
    FAMILIES,
    MOST,
    Exporter,
    FoldedHistogram,
    MetricSnapshot,
    SharedReading,
    fold,
)  # fmt: skip
from headrace.model.form import Form
from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import consume, operations, overviews, produce, ticks
from headrace.protocol.limit_verbs import read_limits
from headrace.settings import load
from headrace.stats import Stats
from headrace.stats.resolutions import bucket_of
from headrace.store.client import Client
from tests.deadline import eventually
from tests.schedules.bench_of_ticks import put, row
from tests.scripts.limited_stage import change, declare
from tests.scripts.limited_stage import put as put_limited
from tests.scripts.stage import SECOND, Stage
from tests.servers import Server

prometheus_client = pytest.importorskip("prometheus_client")

LEASE = 60_000_000


@pytest.fixture
def stage(client: Any) -> Any:
    """Short verbs on the same server, with the server's own clock."""
    made = Stage(client, guarded=False)
    made.now = time.time_ns() // 1000
    yield made
    made.close()


def told(app: Headrace) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by the name of the sample, then by labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in Exporter(app.client, app.stats).collect():
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def count(app: Headrace, names: int) -> None:
    for n in range(names):
        for label in (f"jobs/task{n}", f"queues/q{n}"):
            app.stats.add(label, {"started": n + 1, "succeeded": n + 1, "enqueued": 1})
            app.stats.observe(label, {"run": 0.5, "wait": 2})
    app.stats.flush()


def samples(exporter: Exporter) -> dict[tuple[str, ...], float]:
    """What an exporter tells, by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in exporter.collect()
        for sample in family.samples
    }


@pytest.mark.parametrize("names", [1, 40])
def test_a_scrape_is_three_round_trips_however_many_labels_there_are(app: Headrace, names: int) -> None:
    count(app, names)
    told(app)
    before = app.client.store.round_trips
    found = told(app)
    assert app.client.store.round_trips - before == 3
    assert found["headrace_task_jobs_total"][f"task{names - 1}", "succeeded"] == names
    # A counter that begins with its first burst has not grown for Prometheus.
    assert found["headrace_task_jobs_total"][f"task{names - 1}", "failed"] == 0
    assert found["headrace_queue_enqueued_total"][(f"q{names - 1}",)] == 1


def test_only_labels_that_changed_are_read_again(app: Headrace, client: Any) -> None:
    now = [time.time()]
    exporter = Exporter(app.client, app.stats, lambda: now[0])

    def scrape() -> int:
        """Round trips of a scrape, which tells what an exporter without a memory does."""
        now[0] += 2
        before = app.client.store.round_trips
        found = samples(exporter)
        taken = app.client.store.round_trips - before
        fresh = samples(Exporter(app.client, app.stats, lambda: now[0]))
        assert {key for key, value in found.items() if value != fresh[key] and "memory" not in key[0]} == set()
        return taken

    count(app, 20)
    # The server learns the scripts, each of which costs a trip more the first time.
    told(app)
    # New labels are read once more.
    assert [scrape() for _ in range(4)] == [3, 3, 2, 2]
    app.stats.add("jobs/task3", {"started": 1, "failed": 1})
    app.stats.observe("jobs/task3", {"run": 7.0})
    app.stats.flush()
    read = client.info("commandstats").get("cmdstat_hgetall", {}).get("calls", 0)
    assert [scrape() for _ in range(4)] == [3, 3, 2, 2]
    assert client.info("commandstats")["cmdstat_hgetall"]["calls"] - read < 4 * 50
    # Counters that arrive behind those that say that something changed are told, too.
    app.stats.add("jobs/task5", {"started": 1})
    app.stats.flush()
    assert scrape() == 3
    app.stats.observe("jobs/task5", {"run": 9.0})
    app.stats.flush()
    assert [scrape() for _ in range(2)] == [3, 2]
    # Labels that are gone are forgotten.
    client.flushall()
    assert [scrape() for _ in range(3)] == [3, 3, 2]


def test_statistics_on_a_server_of_their_own_cost_one_more(app: Headrace, url: str) -> None:
    client = Client(load(os.environ, url=url, namespace="other", stats_flush_interval=3600))
    stats = Stats(client, client.settings)
    stats.add("jobs/mail", {"succeeded": 2})
    stats.flush()
    list(Exporter(app.client, stats).collect())
    before = app.client.store.round_trips, client.store.round_trips
    found = {family.name: family for family in Exporter(app.client, stats).collect()}
    assert (app.client.store.round_trips - before[0], client.store.round_trips - before[1]) == (1, 3)
    assert found["headrace_task_jobs"].samples[0].labels == {"task": "mail", "outcome": "succeeded"}
    stats.close()
    client.close()


def test_scrapes_within_a_second_share_one_reading(app: Headrace) -> None:
    now = [1000.0]
    exporter = Exporter(app.client, app.stats, lambda: now[0])
    list(exporter.collect())
    before = app.client.store.round_trips
    now[0] += 0.9
    list(exporter.collect())
    assert app.client.store.round_trips == before
    now[0] += 0.2
    list(exporter.collect())
    assert app.client.store.round_trips > before


def test_scrapes_that_wait_for_one_that_fails_fail_with_it(new_server: Callable[..., Server]) -> None:
    """Each asked the silent server for itself, one after the other, and more came than went."""
    server, reads, go, failed = new_server(), list[int](), threading.Event(), list[Exception]()
    with Headrace(server.url, timeout=3) as app:
        exporter = Exporter(app.client, app.stats)
        assert list(exporter.collect())
        read = exporter._shared._read

        def counted() -> MetricSnapshot:
            reads.append(1)
            go.wait(60)
            return read()

        def scrape() -> None:
            try:
                exporter.collect()
            except StoreUnavailable as error:
                failed.append(error)

        exporter._shared = SharedReading(counted, time.time)
        threads = [threading.Thread(target=scrape) for _ in range(4)]
        os.kill(server.pid, signal.SIGSTOP)
        for thread in threads:
            thread.start()
        eventually(lambda: reads and sum(_stands_in(thread, "get") for thread in threads) == 3)
        go.set()
        for thread in threads:
            thread.join()
        assert (len(reads), len(failed)) == (1, 4)
        os.kill(server.pid, signal.SIGCONT)
        assert list(exporter.collect())
        assert len(reads) == 2


def _stands_in(thread: threading.Thread, name: str) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == name


def test_it_tells_of_jobs_queues_and_workers(app: Headrace, stage: Stage) -> None:
    facts = ["place", "host:1", "queues", "mail,low", "runners", "process:2 async:1", "sizes", "process:2 async:50"]
    facts += ["busy", "process:1 async:0"]
    app.client.run(consume.register(app.client.keys, "w1", LEASE, facts))
    stage.put(3, queue="mail")
    stage.now += 5_000_000
    stage.take("w1", limit=1, queues=["mail"])
    stage.put(2, queue="low", delay=30_000_000)
    stage.put(1, queue="unserved")
    app.client.run(operations.pause(app.client.keys, "low"))
    found = told(app)
    assert found["headrace_jobs"]["ready",] == 3
    assert found["headrace_queue_ready"] == {("mail",): 2, ("low",): 0, ("unserved",): 1}
    assert found["headrace_queue_running"] == {("mail",): 1, ("low",): 0, ("unserved",): 0}
    assert found["headrace_queue_due"] == {("mail",): 0, ("low",): 2, ("unserved",): 0}
    assert found["headrace_queue_paused"]["low",] == 1
    assert found["headrace_queue_workers"] == {("mail",): 1, ("low",): 1, ("unserved",): 0}
    assert found["headrace_queue_delay_seconds"]["low",] == 0
    assert found["headrace_runners"] == {("process",): 2, ("async",): 1}
    assert found["headrace_runner_slots"] == {("process",): 2, ("async",): 50}
    assert found["headrace_runners_busy"] == {("process",): 1, ("async",): 0}
    assert found["headrace_worker_running"] == {("host:1",): 1}
    assert found["headrace_server_memory_used_bytes"][()] > 0


@pytest.mark.parametrize("priority", [0, 3, -1])
def test_the_delay_is_the_true_one_whatever_the_priority(app: Headrace, stage: Stage, priority: int) -> None:
    stage.put(priority=priority)
    assert 0 <= told(app)["headrace_queue_delay_seconds"]["default",] < 60


def test_a_limit_that_holds_everything_is_seen(app: Headrace, stage: Stage) -> None:
    """A paused limit, and fifty jobs that wait for it: the queue had a delay of 0, and no metric named the limit."""
    declare(
        stage,
        {
            "call": [LimitRule("api", concurrency=Concurrency(2))],
            "other": [LimitRule("free", concurrency=Concurrency(9))],
        },
    )
    change(stage, "api", paused=True)
    put_limited(stage, *range(50))
    stage.now += 300_000_000
    put_limited(stage, 1, task="other")
    limits, seen = stage.run(read_limits(stage.keys, limit=9)), stage.run(overviews.overview(stage.keys))
    (queue,) = seen.queues
    assert (queue.size, queue.held, queue.waited(stage.now)) == (51, 50, 300)
    assert {one.name: (one.waiting, one.opens, one.paused) for one in limits.rows} == {
        "api": (50, None, True), "free": (1, 0, False),
    }  # fmt: skip
    found = told(app)
    assert found["headrace_queue_held"] == {("default",): 50}
    assert found["headrace_limit_waiting"] == {("api",): 50, ("free",): 1}
    assert found["headrace_limit_open"] == {("api",): 0, ("free",): 1}
    assert found["headrace_limit_paused"] == {("api",): 1, ("free",): 0}
    change(stage, "api", gone=["paused"])
    assert len(stage.take(limit=9)) == 3
    assert told(app)["headrace_queue_held"] == {("default",): 48}


def test_workers_whose_lease_is_over_have_no_series(app: Headrace) -> None:
    client = app.client
    for owner, lease in (("live", LEASE), ("gone", 1)):
        client.run(consume.register(client.keys, owner, lease, ["place", f"host:{owner}"]))
        app.stats.of_workers().add(f"host:{owner}", {"busy": 2_000_000})
    app.stats.flush()
    found = told(app)
    assert (found["headrace_workers"], found["headrace_workers_silent"]) == ({(): 1}, {(): 1})
    assert found["headrace_worker_busy_seconds_total"] == {("host:live",): 2}
    assert found["headrace_lapsed_lease_seconds"][()] > 0
    client.run(consume.retire(client.keys, "gone", 0))


def test_the_names_used_most_have_series_and_the_rest_are_summed(app: Headrace) -> None:
    for n in range(MOST + 20):
        app.stats.add(f"jobs/t{n:04}", {"started": n + 1, "succeeded": n + 1})
        app.stats.observe(f"jobs/t{n:04}", {"run": 0.02})
        app.client.run(operations.pause(app.client.keys, f"q{n:04}"))
    app.stats.flush()
    found = told(app)
    jobs = found["headrace_task_jobs_total"]
    assert len({task for task, _ in jobs}) == MOST + 1
    assert {outcome for _, outcome in jobs} == {"succeeded", "failed", "crashed", "quarantined"}
    assert jobs["other", "succeeded"] == sum(range(1, 21))
    assert jobs[f"t{MOST + 19:04}", "succeeded"] == MOST + 20
    assert found["headrace_task_run_seconds_count"]["other",] == 20
    paused = found["headrace_queue_paused"]
    assert (len(paused), paused["other",]) == (MOST + 1, 1)
    assert all(len(series) <= (MOST + 1) * 15 for series in found.values())


def test_what_was_broadcast_has_no_series_of_its_own_for_each_worker(app: Headrace, stage: Stage) -> None:
    stage.register("w1", LEASE)
    stage.run(produce.broadcast(stage.keys, Form("add"), b"\x90", [("w1", "0" * 21)]))
    stage.take("w1", queues=["@w1"])
    assert [labels for labels in told(app)["headrace_queue_running"] if labels[0].startswith("@")] == []


def test_histograms_are_folded_to_the_same_bounds(app: Headrace) -> None:
    for value in (0.001, 0.2, 2, 7200):
        app.stats.observe("queues/mail", {"wait": value})
    app.stats.flush()
    found = told(app)
    buckets = found["headrace_queue_wait_seconds_bucket"]
    assert [bound for _, bound in buckets] == [*map(str, BOUNDS), "+Inf"]
    assert buckets["mail", "0.005"] == 1
    assert buckets["mail", "0.25"] == 2
    assert buckets["mail", "5.0"] == 3
    assert buckets["mail", "3600.0"] == 3
    assert buckets["mail", "+Inf"] == found["headrace_queue_wait_seconds_count"]["mail",] == 4
    assert found["headrace_queue_wait_seconds_sum"]["mail",] == pytest.approx(7202.2, rel=0.02)


def test_folded_histograms_add_up() -> None:
    held = {f"run~{bucket_of(0.02)}": 3, f"run~{bucket_of(9000)}": 1, f"wait~{bucket_of(1)}": 5}
    one = fold(held, "run")
    assert one is not None
    assert sum(one.counts) == 4
    assert (one + one).counts == tuple(2 * n for n in one.counts)
    assert (one + one).total == 2 * one.total
    assert fold({}, "run") is None
    assert len(FoldedHistogram((0,) * 15, 0.0).counts) == len(BOUNDS) + 1 == 15


def exposition(app: Headrace) -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(Exporter(app.client, app.stats))  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def test_promtool_finds_no_fault_with_a_scrape(app: Headrace) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on this machine")
    count(app, 3)
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=exposition(app), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_table_is_well_formed() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert family.name.startswith("headrace_")
        assert (family.type == "counter") == family.name.endswith("_total")
        assert family.help.endswith("."), family.name


def test_it_tells_what_became_of_ticks(app: Headrace, stage: Any, url: str) -> None:
    put(stage, row("daily", overlap="skip"), row("quiet"))
    for tick in (stage.now, stage.now + SECOND):
        stage.run(ticks.run_schedule(stage.keys, f"sender-{tick}", "daily", [tick]))
    expected = {("daily", "ran"): 1, ("daily", "skipped"): 1}
    assert told(app)["headrace_schedule_ticks_total"] == expected
    # Schedules are with the jobs, wherever the statistics are.
    with Headrace(url, stats_url=url, stats_flush_interval=3600) as other:
        assert other.stats.client is not other.client
        assert told(other)["headrace_schedule_ticks_total"] == expected
