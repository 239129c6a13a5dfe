"""Headrace on a cluster: slots move, nodes die, and each job still runs once.

The primaries are kept on different nodes: a key of another slot on the same node would work in silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.errors import StoreUnavailable
from headrace.model.job_record import Record
from headrace.protocol import consume, produce
from headrace.protocol.consume import claim
from headrace.tasks.job_handle import Job
from headrace.testing import Kit
from tests.clusters import Cluster, slot_of
from tests.deadline import eventually
from tests.system.fleet import Fleet

NewCluster = Callable[..., Cluster]
NewFleet = Callable[..., Fleet]
LEASE = 3.0
SLOT = slot_of()


def records(fleet: Fleet, jobs: list[Job[float]]) -> list[Record | None]:
    found: list[Record | None] = []
    for first in range(0, len(jobs), 500):
        ids = [job.id for job in jobs[first : first + 500]]
        found += fleet.app.client.run(produce.read(fleet.app.client.keys, ids))
    return found


def assert_each_ran_once(fleet: Fleet, jobs: list[Job[float]]) -> None:
    """By the ledger, not by the product's own counts: none lost, none twice, no start charged."""
    starts, ends = fleet.ledger.counts("S"), fleet.ledger.counts("E")
    lost = [job.id for job in jobs if not ends[job.id]]
    assert not lost, f"{len(lost)} of {len(jobs)} jobs never ran: {lost[:5]}"
    twice = [job.id for job in jobs if starts[job.id] > 1]
    assert not twice, f"{len(twice)} of {len(jobs)} jobs ran twice: {twice[:5]}"
    assert all(record is not None and not record.crashes for record in records(fleet, jobs))


def test_a_claim_does_nothing_while_some_keys_are_on_another_node(new_cluster: NewCluster) -> None:
    cluster = new_cluster(3, 0)
    with Headrace(cluster.url, timeout=5) as app:
        run, keys = app.client.run, app.client.keys
        jobs = {app.by_name("tasks.add").enqueue(n).id for n in range(21)}
        run(consume.register(keys, "w1", 60_000_000, ["place", "here:1"]))
        jobs -= {claim.id for claim in run(claim(keys, "w1", 1, 1, ["default"])).jobs}
        source = cluster.serving(SLOT)
        # What a claim sends stays until the end, and by that alone a server cannot tell that other keys are gone.
        move = cluster.move_by_keys(SLOT, cluster.other(source), each=15, last=rb"}:(?!job)")
        assert [next(move), next(move)] == [0, 15]
        ready = source.ask("ZCARD", keys("ready:default"))
        with pytest.raises(StoreUnavailable):
            run(claim(keys, "w1", 2, 10, ["default"]))
        assert source.ask("ZCARD", keys("ready:default")) == ready == 20
        assert sum(move) > 15
        assert {one.id for one in run(claim(keys, "w1", 3, 100, ["default"])).jobs} == jobs


def test_a_slot_that_moves_key_by_key_under_load_loses_no_job(new_cluster: NewCluster, new_fleet: NewFleet) -> None:
    cluster = new_cluster(3, 0)
    fleet = new_fleet(cluster.url, lease=60.0)
    fleet.worker(processes=2)
    jobs: list[Job[float]] = []
    for _ in range(2):
        target = cluster.other(cluster.serving(SLOT))
        jobs += fleet.enqueue_many("process.nap", [(0.001,)] * 400)
        for _ in cluster.move_by_keys(SLOT, target, each=50):
            # Scripts come between the pieces.
            time.sleep(0.01)
        assert cluster.serving(SLOT) is target
        jobs.append(fleet.enqueue("process.nap", 0.001))
        fleet.started(jobs[-1])
    fleet.drained()
    assert_each_ran_once(fleet, jobs)
    fleet.check()


@pytest.mark.parametrize("clock", [-3600, 3600], ids=["behind", "ahead"])
def test_tokens_grow_on_a_new_primary_whose_clock_is_off(
    new_cluster: NewCluster, new_fleet: NewFleet, tmp_path: Path, clock: int
) -> None:
    cluster = new_cluster(3, 1, clock=clock)
    fleet = new_fleet(cluster.url, lease=60.0)
    for _ in range(2):
        fleet.worker(processes=1)
    gates = [fleet.enqueue("process.gate", str(tmp_path / "open")) for _ in range(2)]
    for gate in gates:
        fleet.started(gate)
    heir = cluster.fail_over(cluster.serving(SLOT))
    assert abs(int(heir.ask("TIME")[0]) - time.time() - clock) < 600
    jobs = fleet.enqueue_many("process.nap", [(0.0,)] * 20)
    (tmp_path / "open").touch()
    fleet.drained()
    assert_each_ran_once(fleet, [*gates, *jobs])
    last = max(line.token for gate in gates for line in fleet.ledger.starts(gate.id))
    assert all(line.token > last for job in jobs for line in fleet.ledger.starts(job.id))
    fleet.check()


def test_tokens_that_a_dead_primary_gave_to_another_worker_are_outrun(
    new_cluster: NewCluster, new_fleet: NewFleet
) -> None:
    cluster = new_cluster(3, 1, clock=-3600)
    fleet = new_fleet(cluster.url, lease=60.0)
    first, _ = fleet.worker(queues="first"), fleet.worker(queues="second")
    fleet.ended(fleet.enqueue("process.nap", 0.0, queue="second"))
    primary = cluster.serving(SLOT)
    heir = cluster.lose_replication(primary)
    forgotten = fleet.enqueue("process.nap", 0.0, queue="first")
    fleet.ended(forgotten)
    first.kill("worker")
    primary.kill()
    heir.thaw()
    eventually(lambda: heir.ask("ROLE")[0] == b"master", what="a failover")
    later = fleet.enqueue("process.nap", 0.0, queue="second")
    assert fleet.ended(later).crashes == 0
    (before,), (after,) = fleet.ledger.starts(forgotten.id), fleet.ledger.starts(later.id)
    assert after.token > before.token


def test_cached_values_and_statistics_follow_the_slot(new_cluster: NewCluster) -> None:
    cluster = new_cluster(3, 0)
    # Other seeds make another map, so that each has to learn by itself.
    seeds = cluster.url_of(cluster.nodes[:2])
    with Headrace(seeds, timeout=60) as reader, Headrace(cluster.url, timeout=60) as writer:
        writer.cache.set("colour", "red")
        assert reader.cache.get("colour") == "red"
        eventually(lambda: reader.cache.get("colour") and reader.cache.statistics().used, what="a copy")
        cluster.move(SLOT, cluster.other(cluster.serving(SLOT)))
        writer.cache.set("colour", "blue")
        eventually(lambda: reader.cache.get("colour") == "blue", what="the new value")
        writer.stats.add("views", {"n": 3})
        writer.stats.flush()
        cluster.move(SLOT, cluster.other(cluster.serving(SLOT)))
        writer.stats.add("views", {"n": 4})
        writer.stats.flush()
        assert reader.stats.find("views", datetime.now(UTC) - timedelta(hours=1)).total()["n"] == 7


def test_the_test_kit_uses_a_cluster_that_it_is_given(new_cluster: NewCluster) -> None:
    cluster = new_cluster(3, 0)
    app = Headrace()
    add = app.task(name="add")(lambda a, b: a + b)
    with Kit(app, url=cluster.url):
        job = add.enqueue(2, 3)
        assert app.jobs.get(job.id).state == "ready"
