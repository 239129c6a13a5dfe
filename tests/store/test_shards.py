"""An application with several shards: where its work lives, and what it tells of all of them as of one store."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import MovedError

from headrace import Concurrency, Every, Flow, Headrace, Unique
from headrace.dashboard import Dashboard, dashboard_site
from headrace.dashboard.mounting import PAGES
from headrace.errors import (
    DuplicateJob,
    EnvelopeError,
    JobNotFound,
    LaneFull,
    OptionsError,
    SchemaMismatch,
    SettingsError,
    StoreUnavailable,
)
from headrace.metrics import Exporter
from headrace.model.ids import shard_for, shard_of
from headrace.model.job import Outcome, State
from headrace.model.stacks import WorkerStacks
from headrace.protocol import consume, overviews
from headrace.protocol.index_pages import read_causes
from headrace.protocol.limit_verbs import declare_limits
from headrace.protocol.operations import JobFilter, tell_stacks, told
from headrace.store.reach import Reach
from headrace.store.shards import _Trip
from headrace.testing import violations
from tests.dashboard.asking import ask, operator
from tests.deadline import eventually
from tests.servers import Server

SHARDS = 3
_numbers = itertools.count(1)


def add(app: Headrace) -> Headrace:
    app.task(name="noop")(noop)
    app.task(name="other")(noop)
    app.task(name="sync", unique=Unique(by="n"))(noop)
    app.task(name="only", unique=Unique(by="n", clash="raise"))(noop)
    app.workflow(name="pair")(pair)
    return app


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20, shards=SHARDS) as app:
        yield add(app)


def noop(n: int = 0) -> None: ...


def pair(flow: Flow) -> None:
    flow.run("noop", 1)
    flow.run("noop", 2)


def one_a_shard(app: Headrace, **options: Any) -> list[Any]:
    """A job on each shard."""
    found: dict[int, Any] = {}
    while len(found) < SHARDS:
        job = app.tasks["noop"].options(**options).enqueue(len(found))
        if found.setdefault(shard_of(job.id), job) is not job:
            job.delete()
    return [found[shard] for shard in range(SHARDS)]


def run(app: Headrace, kind: Any, most: int = 1000) -> list[str]:
    """Start ready jobs of each shard, at most so many, and end them; ``running``: they go on."""
    ids = list[str]()
    store: Any = app.store
    for n, part in enumerate(store.parts):
        owner = f"worker-{n}"
        part.run(consume.register(part.keys, owner, 60_000_000, ["place", owner]))
        claims = part.run(consume.claim(part.keys, owner, next(_numbers), most, ["default"])).jobs
        if kind != "running":
            error = b'{"type":"Odd","message":"odd"}' if kind == "failed" else b""
            ends = [(Outcome(claim.id, claim.token, kind, error, 60_000_000), claim.ready) for claim in claims]
            part.run(consume.settle(part.keys, owner, next(_numbers), ends, 0))
        ids += [claim.id for claim in claims]
    return ids


def walked(page: Callable[..., Any], *args: Any, **query: Any) -> list[Any]:
    found = list[Any]()
    after = None
    while True:
        rows = page(*args, after=after, **query)
        found += rows
        after = rows.next
        if after is None:
            return found


# -- where work lives --------------------------------------------------------------------------------------------------


def test_jobs_spread_over_all_shards_and_are_told_as_of_one(app: Headrace) -> None:
    ids = [app.tasks["noop"].enqueue(n).id for n in range(60)]
    assert {shard_of(id) for id in ids} == {0, 1, 2}
    assert app.jobs.count("ready") == app.queues["default"].size == app.queues["default"].load().ready == 60
    assert [app.jobs.get(id).id for id in ids] == ids
    assert app.overview().states["ready"] == 60


def test_a_list_of_jobs_is_stored_whole(app: Headrace) -> None:
    noop = app.tasks["noop"]
    assert app.enqueue_many(noop.job(n) for n in range(2500)) == 2500
    assert app.enqueue_many(noop.options(request_id=f"r{n % 40}").job(n) for n in range(80)) == 40
    assert app.jobs.count("ready") == 2540
    assert {shard_of(record.id) for record in walked(app.jobs.page, "ready", limit=1000)} == {0, 1, 2}


def test_a_page_reads_no_more_jobs_of_several_shards_than_it_shows(new_server: Callable[..., Server]) -> None:
    server = new_server()
    with add(Headrace(server.url, timeout=20, shards=SHARDS)) as app:
        # Each list of a thousand lives on one shard, so a page is of one shard, or of all.
        app.enqueue_many(app.tasks["noop"].job(n) for n in range(1000))
        ids = [app.tasks["noop"].enqueue(n).id for n in range(90)]
        client: Any = server.owner
        for query in ({}, {"task": "noop"}):
            client.config_resetstat()
            page = app.jobs.page("ready", queue="default", **query)
            assert [record.id for record in page][:90] == ids[::-1]
            # Each shard looks at its queue with one, too.
            assert client.info("commandstats")["cmdstat_hgetall"]["calls"] <= len(page) + SHARDS == 100 + SHARDS


def test_packed_jobs_are_stored(app: Headrace) -> None:
    receipts = app.enqueue_packed([app.tasks["noop"].job(n).pack() for n in range(20)])
    assert len(receipts) == app.jobs.count("ready") == 20


def test_jobs_of_a_key_live_on_one_shard(app: Headrace) -> None:
    noop = app.tasks["noop"]
    by_key = {key: {shard_of(noop.options(key=key).enqueue(n).id) for n in range(4)} for key in "abcdefgh"}
    assert {len(found) for found in by_key.values()} == {1}
    assert len({min(found) for found in by_key.values()}) == SHARDS


def test_jobs_of_a_key_in_one_list_start_in_its_order(app: Headrace) -> None:
    """Their ids, which decide between jobs of one moment, were drawn at random."""
    noop = app.tasks["noop"].options(key="k")
    jobs = [noop.job(n) for n in range(50)]
    app.enqueue_many(jobs)
    assert run(app, "running") == [job.id for job in jobs]


def test_a_request_id_makes_one_job_by_every_verb(app: Headrace) -> None:
    noop = app.tasks["noop"]
    for name in ("order-1", "order-2", "order-3", "order-4", "order-5"):
        bound = noop.options(request_id=name)
        first = bound.enqueue(1)
        again = asyncio.run(_aenqueue(app, name))
        app.enqueue_many([bound.job(1)])
        assert first.id == again
        assert first.id in str(app.jobs.why(name))
    assert app.jobs.count("ready") == 5


async def _aenqueue(app: Headrace, name: str) -> str:
    job = await app.tasks["noop"].options(request_id=name).aenqueue(1)
    await app.client.aclose()
    return job.id


def test_a_unique_job_is_one_by_every_verb(app: Headrace) -> None:
    sync = app.tasks["sync"]
    for n in range(8):
        first = sync.enqueue(n)
        assert sync.enqueue(n).id == first.id
        app.enqueue_many([sync.job(n)])
    assert app.jobs.count("ready") == 8


def test_a_clash_says_that_other_shards_may_have_stored_jobs(app: Headrace) -> None:
    only = app.tasks["only"]
    only.enqueue(1)
    with pytest.raises(DuplicateJob) as caught:
        app.enqueue_many([only.job(n) for n in range(12)])
    assert str(caught.value).endswith("nothing of this call was stored on its shard")


def test_a_unique_job_with_a_key_is_refused(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="use one of the two"):
        app.tasks["sync"].options(key="k").enqueue(1)


# -- lists -------------------------------------------------------------------------------------------------------------


def test_a_schedule_whose_unique_name_lives_on_another_shard_is_refused(app: Headrace) -> None:
    """Its tick and a program each stored a job of the name."""
    for n in range(8):
        job = app.tasks["sync"].job(n)
        if shard_for(job.name, SHARDS):
            with pytest.raises(OptionsError, match="let the schedule run a task that enqueues the job"):
                app.schedules.put(f"s{n}", Every(3600), job)
        else:
            schedule = app.schedules.put(f"s{n}", Every(3600), job)
            app.tasks["sync"].enqueue(n)
            assert schedule.run() is None


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_cursor_shows_each_of_5000_jobs_once(app: Headrace, order: str) -> None:
    noop = app.tasks["noop"]
    app.enqueue_many(noop.job(n) for n in range(5000))
    for n in range(12):
        noop.enqueue(n)
    rows = walked(app.jobs.page, "ready", order=order, limit=333)
    assert len(rows) == len({row.id for row in rows}) == 5012
    places = [(row.due_us, row.id) for row in rows]
    assert places == sorted(places, reverse=order == "desc")


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_go_from_queue_to_queue_and_filter(app: Headrace, order: str, limit: int) -> None:
    made: Counter[str] = Counter()
    for n in range(30):
        task, queue = ("noop", "other")[n % 2], ("default", "low", "mail")[n % 3]
        made[app.tasks[task].options(queue=queue).enqueue(n).task] += 1
    for task, number in made.items():
        rows = walked(app.jobs.page, "ready", task=task, order=order, limit=limit)
        assert len(rows) == len({row.id for row in rows}) == number
    rows = walked(app.jobs.page, "ready", order=order, limit=limit)
    assert len(rows) == len({row.id for row in rows}) == 30
    assert [row.queue for row in rows] == sorted(row.queue for row in rows)


@pytest.mark.parametrize("limited", [1, 4])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_jobs_that_wait_behind_a_limit_are_on_one_page_each(
    app: Headrace, order: str, limit: int, limited: int
) -> None:
    app.limit("account", Concurrency(1), by="n")
    app.task(name="call", limits=["account"])(noop)
    store: Any = app.store
    assert app.overview().queues == []
    for part in store.parts:
        part.run(consume.register(part.keys, "w9", 10_000_000, ["place", "host:9"]))
        part.run(declare_limits(part.keys, "w9", app.tasks, app.limits.declared()))
        part.run(consume.retire(part.keys, "w9"))
    made = {app.tasks["call"].options(key=key).enqueue(n).id for key in "abcdef" for n in range(limited)}
    made |= {app.tasks["noop"].enqueue(n).id for n in range(6)}
    seen = walked(app.jobs.page, "ready", queue="default", order=order, limit=limit)
    assert len(seen) == len(made)
    assert {record.id for record in seen} == made


def test_ended_and_running_jobs_are_listed_by_time(app: Headrace) -> None:
    app.enqueue_many(app.tasks["noop"].options(key=str(n)).job(n) for n in range(40))
    done, running = run(app, "succeeded", 5), run(app, "running")
    rows = walked(app.jobs.page, "succeeded", limit=4)
    assert {row.id for row in rows} == set(done)
    assert [row.finished_us for row in rows] == sorted((row.finished_us for row in rows), reverse=True)
    assert {row.id for row in walked(app.jobs.page, "running", limit=4)} == set(running)
    assert len(done) + len(running) == 40
    assert len(app.overview().workers) == SHARDS


def test_causes_are_summed(app: Headrace) -> None:
    one_a_shard(app)
    assert len(run(app, "failed")) == SHARDS
    found = app.client.run(read_causes(app.client.keys))
    assert found.count == 1
    assert found.causes[0].number == len(found.causes[0].newest) == SHARDS


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_events_of_all_shards_are_told_in_their_order(app: Headrace, order: str) -> None:
    for n in range(30):
        app.tasks["noop"].options(key=str(n)).enqueue(n)
    run(app, "failed")
    rows = walked(app.events.page, ["failed"], order=order, limit=7)
    assert len(rows) == 30
    moments = [tuple(map(int, row.id.split("-"))) for row in rows]
    assert moments == sorted(moments, reverse=order == "desc")


def test_a_pause_is_one_event_and_holds_all_shards(app: Headrace) -> None:
    one_a_shard(app)
    queue = app.queues["default"]
    assert [queue.pause(note="why"), queue.paused, queue.pause()] == [True, True, False]
    assert run(app, "running") == []
    assert [queue.resume(), queue.paused, queue.resume()] == [True, False, False]
    assert [event.kind for event in app.events.page(["queue_paused", "queue_resumed"])] == [
        "queue_resumed",
        "queue_paused",
    ]
    assert len(run(app, "running")) == SHARDS


def test_a_worker_of_all_shards_is_told_of_once(app: Headrace) -> None:
    client, kept = app.client, 60_000_000
    for owner, why in (("w1", ""), ("w2", "its process died")):
        for keys in client.shards:
            client.run(consume.register(keys, owner, kept, ["place", f"host:{owner}"]))
        for keys in client.shards:
            client.run(consume.retire(keys, owner, kept, why))
    kinds = ["worker_started", "worker_stopped", "worker_started", "worker_lost"]
    assert [one.kind for one in app.events.page(order="asc")] == kinds
    assert len(client.run(told(client.keys, "deaths", 20)).rows) == 1


def test_a_worker_that_has_another_name_at_a_shard_that_lost_it_is_told_of_once(app: Headrace) -> None:
    """It was two, so that no verb found it by its process, and its slots counted twice."""
    client, facts = app.client, ["place", "host:7", "queues", "default", "sizes", "process:2"]
    for keys, owner in zip(client.shards, ("first", "second", "first"), strict=True):
        client.run(consume.register(keys, owner, 60_000_000, facts))
    (worker,) = app.overview().live
    assert (worker.owner, worker.slots) == ("first", 2)
    assert app.workers.get("host:7").owner == "first"


def test_a_worker_has_its_time_to_tell_stacks_while_a_shard_is_silent(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time ran from before the look for the worker, which waits for a silent shard."""
    servers = [new_server() for _ in range(SHARDS)]
    with Headrace(" ".join(server.url for server in servers), timeout=3) as app:
        client = app.client
        for keys in client.shards:
            client.run(consume.register(keys, "w1", 60_000_000, ["place", "host:7"]))
        ear = servers[0].client().pubsub(ignore_subscribe_messages=True)
        ear.subscribe(client.keys.mail("w1"))

        def answer(_: float) -> None:
            if (message := ear.get_message()) is not None:
                request = message["data"].decode().partition(":")[2]
                text = msgspec.json.encode(WorkerStacks(requests=[request], runners=[])).decode()
                client.run(tell_stacks(client.keys, "w1", text))

        monkeypatch.setattr("headrace.admin.workers.time", SimpleNamespace(sleep=answer))
        os.kill(servers[1].pid, signal.SIGSTOP)
        try:
            assert app.workers.stacks("host:7", timeout=2.9) == []
        finally:
            os.kill(servers[1].pid, signal.SIGCONT)


# -- verbs -------------------------------------------------------------------------------------------------------------


def test_verbs_reach_the_shard_of_their_job(app: Headrace) -> None:
    for job in one_a_shard(app, delay=600):
        assert app.jobs.why(job.id).state == "scheduled"
        job.move(queue="low")
        assert job.refresh().queue == "low"
        job.cancel()
        assert job.refresh().state is State.CANCELLED
        job.retry()
        assert job.refresh().state is State.READY
        assert app.jobs.again(job.id).id != job.id
        job.delete()
        with pytest.raises(JobNotFound):
            app.jobs.get(job.id)


def test_a_verb_on_many_jobs_reaches_all_shards(app: Headrace) -> None:
    ids = [job.id for job in one_a_shard(app)] + ["aaaaaaaaaaaaaaaaaaa0z"]
    assert [reply.done for reply in app.jobs.apply("delete", ids)] == [True] * SHARDS + [False]
    assert app.jobs.count("ready") == 0


def test_waits_hear_of_ends_on_all_shards(app: Headrace) -> None:
    jobs = one_a_shard(app)
    run(app, "succeeded")
    done, pending = app.wait(jobs, timeout=20)
    assert (len(done), list(pending)) == (SHARDS, [])


def test_changes_of_a_job_are_followed_on_its_shard(app: Headrace) -> None:
    """The listener of several shards could not follow a job."""
    for job in one_a_shard(app):
        events = job.events()
        assert next(events).state == "ready"
        job.cancel()
        assert [record.state for record in events][-1] == "cancelled"


def test_a_purge_empties_all_shards(app: Headrace, url: str) -> None:
    app.enqueue_many(app.tasks["noop"].options(key=str(n % 9)).job(n) for n in range(200))
    assert command(url, "queues", "purge", "default", "--yes").stdout.startswith("deleted 200 jobs")
    app.enqueue_many(app.tasks["noop"].options(key=str(n % 9)).job(n) for n in range(2200))
    assert app.queues["default"].purge() == 2200
    assert app.queues["default"].size == app.jobs.count("ready") == 0


# -- workflows ---------------------------------------------------------------------------------------------------------


def test_workflows_of_all_shards_are_one_list(app: Headrace) -> None:
    pair = app.workflow_definitions["pair"]
    made = [pair.options(key=f"k{n}").create().id for n in range(20)]
    assert {shard_of(id) for id in made} == {0, 1, 2}
    assert app.workflows.count() == 20
    for order in ("asc", "desc"):
        rows = walked(app.workflows.page, limit=3, order=order)
        assert len(rows) == 20
        assert {row.id for row in rows} == set(made)
        whole = [row.id for row in rows]
        assert app.workflows.ids(limit=20, order=order) == whole
        assert app.workflows.ids(limit=4, offset=5, order=order) == whole[5:9]
    with pytest.raises(OptionsError, match="go on by cursor"):
        app.workflows.ids(limit=100, offset=5000)


def test_verbs_of_a_workflow_reach_its_shard(app: Headrace) -> None:
    pair = app.workflow_definitions["pair"]
    for n in range(6):
        flow = pair.options(key=f"k{n}").create()
        assert [flow.start(), flow.stop(), flow.start()] == ["running", "stopped", "running"]
        assert len(list(flow.nodes())) == 2
        assert flow.cancel() == "cancelled"
        flow.expire(0)
        if n % 2:
            flow.delete()
    assert app.workflows.expire_due() == app.workflows.count() + 3 == 3


def test_a_key_of_a_workflow_is_held_once(app: Headrace) -> None:
    pair = app.workflow_definitions["pair"]
    for n in range(5):
        assert pair.options(key=f"k{n}").create().id == pair.options(key=f"k{n}").create().id


def test_a_program_does_a_bulk_operation_on_all_shards(app: Headrace) -> None:
    noop = app.tasks["noop"]
    app.enqueue_many(noop.job(n) for n in range(1500))
    which = JobFilter("ready", queue="default")
    counts = [app.bulk.count(verb, which) for verb in ("cancel", "delete")]
    assert [(one.matched, one.exact) for one in counts] == [(1500, True)] * 2
    steps = list(app.bulk.pieces("cancel", which))
    assert [step.ended for step in steps] == [0] * (len(steps) - 1) + [1]
    assert (steps[-1].done, app.jobs.count("cancelled"), app.jobs.count("ready")) == (1500, 1500, 0)


def test_a_bulk_operation_is_told_as_one_and_stopped_on_all_shards(app: Headrace) -> None:
    one_a_shard(app)
    run(app, "failed")
    started = [app.bulk.start("retry", JobFilter("failed"), who="me") for _ in range(2)]
    one = app.bulk.start("retry", JobFilter("failed"), who="me", id=started[0].id)
    assert (one.id, one.running, one.request.total) == (started[0].id, True, SHARDS)
    assert [one.id for one in app.bulk.page()] == [one.id for one in reversed(started)]
    assert not app.bulk.stop(one.id).running
    assert app.bulk.get(started[1].id).running
    with pytest.raises(JobNotFound):
        app.bulk.get("0" * 21)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_settings_put_above_others_keep_the_shards(app: Headrace) -> None:
    app.override(timeout=19.0)
    assert app.client.count == SHARDS
    one_a_shard(app)
    assert app.jobs.count("ready") == SHARDS


def test_an_envelope_whose_shard_is_not_that_of_its_name_is_refused(app: Headrace, url: str) -> None:
    job = app.tasks["sync"].job(1)
    good = job.pack()
    wrong = (shard_of(job.drawn) + 1) % SHARDS
    bad = good.replace(job.drawn.encode(), (job.drawn[:19] + "4" + str(wrong)).encode())
    with pytest.raises(EnvelopeError, match="names another shard"):
        app.enqueue_packed([bad])
    assert [receipt.id for receipt in app.enqueue_packed([good])] == [job.drawn]


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_another_number_of_shards_is_refused(app: Headrace, url: str, shards: int) -> None:
    one_a_shard(app)
    with (
        Headrace(url, timeout=5, shards=shards) as other,
        pytest.raises(
            SchemaMismatch, match=rf"3 shards, .* one of {shards}: write \?shards=3 .*; \?shards=3\+4 adds four"
        ),
    ):
        other.overview()


@pytest.mark.parametrize("first", [1, 3])
def test_shards_that_are_added_take_free_jobs_and_names_stay(
    url: str, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    def keyed(app: Headrace) -> list[int]:
        return [shard_of(app.tasks["noop"].options(key=str(n)).enqueue(n).id) for n in range(20)]

    with Headrace(url, timeout=20, shards=first) as app:
        before = keyed(add(app))
    with Headrace(url, timeout=20, shards=f"{first}+2") as app:
        assert keyed(add(app)) == before
        assert set(before) == set(range(first))
        free = {shard_of(app.tasks["noop"].enqueue(n).id) for n in range(120)}
        assert free >= {first, first + 1}
        assert app.jobs.count("ready") == 160
    assert "give it the same number" not in caplog.text
    with Headrace(url, timeout=20, shards=first) as app:
        assert keyed(add(app)) == before
    assert f"has {first}+2 shards, and this program uses the first {first}: give it the same number" in caplog.text
    for other in (f"{first}+1", f"{first}+3", first + 2):
        refused = pytest.raises(SchemaMismatch, match=rf"a store of {first}\+2 shards")
        with Headrace(url, timeout=5, shards=other) as app, refused:
            app.overview()
    with Headrace(url, timeout=20, shards=f"{first}+2+1") as app:
        assert app.jobs.count("ready") == 180


@pytest.mark.parametrize(
    "url",
    ["redis://a redis://b", "redis://a?shards=4", "redis://a?shards=x", "redis://a?shards=500", "redis://a?shards=2+1"],
)
def test_numbers_of_shards_that_contradict_are_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="shards must be one number"):
        Headrace(url, shards=3)


# -- several servers ---------------------------------------------------------------------------------------------------


def test_several_urls_are_several_servers(new_server: Callable[..., Server]) -> None:
    servers = [new_server() for _ in range(SHARDS)]
    with Headrace(" ".join(server.url for server in servers), timeout=20) as app:
        add(app)
        app.enqueue_many(app.tasks["noop"].options(key=str(n)).job(n) for n in range(60))
        for n, server in enumerate(servers):
            assert server.owner.exists(app.client.shards[n]("schema"))
            owner: Any = server.owner
            assert not owner.keys(app.client.shards[(n + 1) % SHARDS].prefix + "*")
        rows = walked(app.jobs.page, "ready", limit=7)
        assert len(rows) == len({row.id for row in rows}) == 60
        assert app.queues["default"].purge() == 60
    swapped = " ".join(server.url for server in reversed(servers))
    with Headrace(swapped, timeout=5) as app, pytest.raises(SchemaMismatch, match="URLs in the order in which"):
        app.overview()
    for place in (0, 2):
        assert not servers[place].owner.exists(app.client.shards[2 - place]("schema"))


def test_a_pause_holds_the_others_and_names_the_shard_that_is_away(new_server: Callable[..., Server]) -> None:
    servers = [new_server(append_only=True) for _ in range(SHARDS)]
    with Headrace(" ".join(server.url for server in servers), timeout=3) as app:
        one_a_shard(add(app))
        servers[1].kill()
        with pytest.raises(StoreUnavailable, match=r"^shard 1 \(.* did not answer"):
            app.queues["default"].pause()
        servers[1].start()
        # A dispatcher asks each shard by itself: two of them have the pause.
        eventually(lambda: app.overview().queues[0].size == SHARDS, 30)
        keys, store = app.client.shards, app.client.store
        paused = [store.run_at(n, overviews.overview(one)).queues[0].paused for n, one in enumerate(keys)]
        assert paused == [True, False, True]
        app.queues["default"].pause()
        paused = [store.run_at(n, overviews.overview(one)).queues[0].paused for n, one in enumerate(keys)]
        assert paused == [True, True, True]


async def test_lists_show_the_rest_while_a_shard_is_away(
    new_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    servers = [new_server(append_only=True) for _ in range(SHARDS)]
    with Headrace(" ".join(server.url for server in servers), timeout=20) as app:
        jobs = one_a_shard(add(app))
        servers[1].kill()
        assert app.overview().states["ready"] == app.jobs.count("ready") == 2
        assert {row.id for row in walked(app.jobs.page, "ready", limit=1)} == {jobs[0].id, jobs[2].id}
        assert f"shard 1 ({servers[1].url}) is away" in caplog.text
        page = await ask(Dashboard(app, operator), "/jobs?state=ready")
        assert [job.id in page.text for job in jobs] == [True, False, True]
        assert "Shard 1 does\nnot answer" in page.text
        await app.client.aclose()
        servers[1].start()
        eventually(lambda: app.jobs.count("ready") == 3, 30)


async def test_pages_show_the_rest_while_a_shard_is_silent(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page gives up sooner than the store, so the shard was never known to be away, and each page was refused."""
    monkeypatch.setattr(dashboard_site, "PATIENCE", 30.0)
    monkeypatch.setattr(dashboard_site, "SILENCE", 4.0)
    servers = [new_server() for _ in range(SHARDS)]
    with Headrace(" ".join(server.url for server in servers), timeout=20) as app:
        jobs = one_a_shard(add(app))
        dashboard = Dashboard(app, operator)
        os.kill(servers[1].pid, signal.SIGSTOP)
        try:
            for _ in range(2):
                page = await ask(dashboard, "/jobs?state=ready")
                assert [job.id in page.text for job in jobs] == [True, False, True]
                assert "Shard 1 does\nnot answer" in page.text
        finally:
            os.kill(servers[1].pid, signal.SIGCONT)
        await app.client.aclose()


def test_a_verb_on_many_jobs_says_of_each_whether_its_shard_is_away(new_server: Callable[..., Server]) -> None:
    """The error of one shard took the place of all replies, and jobs behind the first 500 were left out."""
    servers = [new_server() for _ in range(SHARDS)]
    with Headrace(" ".join(server.url for server in servers), timeout=3) as app:
        ids = [job.id for job in one_a_shard(add(app), delay=600)]
        servers[1].kill()
        replies = app.jobs.apply("cancel", [*ids, "foo"])
        assert [(one.id, one.done) for one in replies] == [*zip(ids, (True, False, True), strict=True), ("foo", False)]
        assert isinstance(replies[1].error, StoreUnavailable)


def test_shards_that_were_silent_one_after_the_other_are_left_out_together(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them was asked again by the next call: of eleven lists each waited for all but the last shard."""
    monkeypatch.setattr("headrace.store.shards.AWAY", 2.0)
    home, other = new_server(), new_server()
    with Headrace(f"{home.url} {other.url} {other.url}", timeout=3) as app:
        one_a_shard(add(app))
        os.kill(other.pid, signal.SIGSTOP)
        try:
            assert app.jobs.count("ready") == 1
            assert app.client.left_out == [1, 2]
            app.client.away.clear()
            told = {one.name: one.samples for one in Exporter(app.client, app.stats).collect()}
            assert [one.value for one in told["headrace_shards_away"]] == [2]
            assert sum(one.value for one in told["headrace_jobs"]) == 1
        finally:
            os.kill(other.pid, signal.SIGCONT)


def test_a_silent_server_of_several_shards_is_waited_for_once(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its shards was waited for in turn; and a new program waited once more for home to name the store."""
    asked = list[str]()
    give_up_or_wait = Reach.give_up_or_wait

    def noted(self: Reach, *told: Any) -> float:
        asked.append(self.place)
        return give_up_or_wait(self, *told)

    server = new_server()
    with Headrace(f"{server.url}?shards=3", timeout=20) as app:
        one_a_shard(add(app))
    monkeypatch.setattr(Reach, "give_up_or_wait", noted)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with Headrace(f"{server.url}?shards=3", timeout=0.5) as app:
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    app.jobs.count("ready")
            with pytest.raises(StoreUnavailable):
                app.queues["default"].pause()
            assert len({*asked}) == 1
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_thread_asks_all_servers_before_it_waits_for_one(new_server: Callable[..., Server]) -> None:
    """Over a network each page took the way to each shard in turn, and two silent servers were waited for in turn."""
    servers = [new_server() for _ in range(SHARDS)]
    with Headrace(" ".join(server.url for server in servers), timeout=20) as app, ThreadPoolExecutor(1) as thread:
        jobs = one_a_shard(add(app))
        assert app.jobs.count("ready") == SHARDS
        before = [_scripts(server) for server in servers]
        os.kill(servers[0].pid, signal.SIGSTOP)
        try:
            page = thread.submit(lambda: app.jobs.page("ready", queue="default"))
            for n in (1, 2):
                eventually(lambda n=n: _scripts(servers[n]) > before[n], 10, what="a call")
        finally:
            os.kill(servers[0].pid, signal.SIGCONT)
        assert {row.id for row in page.result(30)} == {job.id for job in jobs}


def _scripts(server: Server) -> int:
    return int(server.owner.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def test_a_list_that_is_enqueued_again_while_its_shard_is_left_out_is_stored_once(
    new_server: Callable[..., Server],
) -> None:
    """Jobs that may live anywhere leave such a shard; these may be stored there, so they wait for it."""
    servers = [new_server() for _ in range(SHARDS)]
    with Headrace(" ".join(server.url for server in servers), timeout=3) as app:
        one_a_shard(add(app))
        before = app.jobs.count("ready")
        drawn = [(one.pack(), shard_of(one.drawn)) for one in map(app.tasks["noop"].job, range(100)) if one.pack()]
        packed = [data for data, shard in drawn if shard == 1][:2]
        assert len(packed) == 2
        os.kill(servers[1].pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable):
                app.enqueue_packed(packed)
        finally:
            os.kill(servers[1].pid, signal.SIGCONT)
        assert app.client.left_out == [1]
        app.enqueue_packed(packed)
        app.client.away.clear()
        assert app.jobs.count("ready") == before + 2


def test_a_shard_that_moves_while_it_is_waited_for_makes_its_new_server_no_silent_one() -> None:
    """The server was noted when the wait was over: other shards there were not asked, though it answered."""
    with Headrace("cluster://127.0.0.1:1,127.0.0.1:2?shards=3") as app:
        store: Any = app.store
        calls = [overviews.overview(app.client.keys)]

        def move(shard: int, port: int) -> None:
            part = store.parts[shard]
            part.target.slots.learn(
                MovedError(f"{key_slot(part.keys.prefix.encode())} 127.0.0.1:{port}"), part.keys.prefix
            )

        move(0, 1)
        move(1, 2)
        trip = _Trip(store, calls)
        move(0, 2)
        trip.failed(0, StoreUnavailable("silent"))
        assert not trip.in_vain(1)
        trip = _Trip(store, calls)
        trip.failed(0, StoreUnavailable("silent"))
        assert trip.in_vain(1)


def test_a_new_store_is_made_whichever_shard_answers_first(new_server: Callable[..., Server]) -> None:
    servers = [new_server(append_only=True) for _ in range(SHARDS)]
    urls = " ".join(server.url for server in servers)
    with Headrace(urls, timeout=20) as app:
        store: Any = app.store
        assert store.run_at(2, overviews.overview(app.client.shards[2])).states["ready"] == 0
        assert servers[2].owner.get(app.client.shards[2]("shard")) is not None
    for server in servers:
        server.owner.flushall()
    servers[0].kill()
    with Headrace(urls, timeout=3) as app:
        assert app.jobs.count("ready") == 0
        assert not [*servers[1].owner.scan_iter(), *servers[2].owner.scan_iter()]
        servers[0].start()
        eventually(lambda: 0 not in app.client.left_out, 30)
        assert len(one_a_shard(add(app))) == SHARDS


def test_a_home_that_lost_everything_is_named_again_as_the_error_says(new_server: Callable[..., Server]) -> None:
    """The next program gave it another name, and from then on each was refused, with advice about the order of URLs."""
    servers = [new_server() for _ in range(SHARDS)]
    urls = " ".join(server.url for server in servers)
    with Headrace(urls, timeout=20) as app:
        one_a_shard(add(app))
    servers[0].owner.flushall()
    with Headrace(urls, timeout=5) as app, pytest.raises(SchemaMismatch, match="has lost its data") as caught:
        app.overview()
    key, value = re.findall("'(.+?)'", str(caught.value))
    servers[0].owner.set(key, value)
    with Headrace(urls, timeout=20) as app:
        assert app.jobs.count("ready") == SHARDS - 1


@pytest.mark.parametrize(("durability", "clustered"), [("memory", None), ("fsync", None), ("memory", True)])
@pytest.mark.parametrize("verb", ["enqueue", "aenqueue", "enqueue_many"])
def test_a_free_job_goes_to_another_shard_where_its_own_refuses(
    new_server: Callable[..., Server], verb: str, durability: Any, clustered: bool | None
) -> None:
    config = {"appendfsync": "always"}
    servers = [new_server(append_only=True, config=config, clustered=clustered) for _ in range(SHARDS)]
    with Headrace(" ".join(server.url for server in servers), timeout=20, durability=durability) as app:
        noop = add(app).tasks["noop"]
        one_a_shard(app)
        servers[2].kill()
        # A connection that is open could have carried the job: nothing can be said of it.
        app.client.store.parts[2].close()
        for n in range(30):
            if verb == "enqueue_many":
                job = noop.job(n)
                app.enqueue_many([job])
                assert app.jobs.get(job.drawn).state is State.READY
            else:
                job = noop.enqueue(n) if verb == "enqueue" else asyncio.run(_afree(app, n))
                assert job.refresh().state is State.READY
            app.client.away.pop(2, None)
        assert app.jobs.count("ready") == 32
        keyed = next(noop.options(key=str(n)) for n in range(99) if shard_for(str(n), SHARDS) == 2)
        with Headrace(app.settings.url, timeout=0.2) as other, pytest.raises(StoreUnavailable):
            add(other).tasks["noop"].options(key=keyed.form().key).enqueue(1)


async def _afree(app: Headrace, n: int) -> Any:
    job = await app.tasks["noop"].aenqueue(n)
    await app.client.aclose()
    return job


def test_a_full_limit_stores_nothing_on_any_shard(app: Headrace) -> None:
    app.limit("account", Concurrency(1), by="n", backlog=1)
    app.task(name="call", limits=["account"])(noop)
    store: Any = app.store
    for part in store.parts[:1]:
        part.run(consume.register(part.keys, "w9", 10_000_000, ["place", "host:9"]))
        part.run(declare_limits(part.keys, "w9", app.tasks, app.limits.declared()))
    before = app.jobs.count("ready")
    with pytest.raises(LaneFull):
        app.enqueue_many([*(app.tasks["call"].job(1) for _ in range(3)), *(app.tasks["noop"].job(n) for n in range(9))])
    assert app.jobs.count("ready") == before


# -- the command line --------------------------------------------------------------------------------------------------


def command(url: str, *words: str) -> Any:
    environ = {**os.environ, "HEADRACE_URL": url, "HEADRACE_SHARDS": str(SHARDS)}
    return subprocess.run(
        [sys.executable, "-m", "headrace", *words], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.any_server
def test_the_doctor_names_shards_that_no_worker_serves(app: Headrace, url: str) -> None:
    one_a_shard(app)

    def unserved() -> list[list[str]]:
        rows = map(json.loads, command(url, "doctor", "environment", "--json").stdout.splitlines())
        return [[said.partition(" (")[0] for said in row["evidence"]] for row in rows if row["id"] == "unserved-shards"]

    store: Any = app.store
    assert unserved() == []
    for n, part in enumerate(store.parts):
        part.run(consume.register(part.keys, "w9", 60_000_000, ["place", "host:9"]))
        assert unserved() == [[["shard 1", "shard 2"]], [["shard 2"]], []][n]


@pytest.mark.any_server
def test_the_doctor_finds_and_repairs_faults_of_each_shard(app: Headrace, url: str, client: redis.Redis) -> None:
    jobs = one_a_shard(app)
    sound = command(url, "doctor", "keyspace")
    assert (sound.returncode, sound.stdout) == (0, "nothing is wrong\n")
    for shard in (1, 2):
        client.zrem(app.client.shards[shard]("ready:default"), jobs[shard].id)
    (row,) = map(json.loads, command(url, "doctor", "keyspace", "--json").stdout.splitlines())
    assert (row["id"], row["count"]) == ("misplaced", 2)
    assert [said.partition(": job")[0] for said in row["evidence"]] == ["shard 1", "shard 2"]
    assert "repaired 2 faults" in command(url, "doctor", "--repair", "--yes").stderr
    assert app.jobs.count("ready") == SHARDS


@pytest.mark.mangles
@pytest.mark.any_server
def test_an_id_of_another_shard_is_found(app: Headrace, url: str, client: redis.Redis) -> None:
    job = one_a_shard(app)[1]
    keys: Any = [shard(f"job:{job.id}") for shard in app.client.shards]
    client.restore(keys[2], 0, client.dump(keys[1]))
    found = map(json.loads, command(url, "doctor", "keyspace", "--json").stdout.splitlines())
    assert [row["evidence"] for row in found if row["id"] == "other-shard"] == [
        [f"shard 2: job {job.id}: is on shard 2"]
    ]
    assert f"job {job.id}: is on shard 2" in violations(client)


@pytest.mark.any_server
def test_migrate_leads_each_shard_home_last(app: Headrace, url: str) -> None:
    one_a_shard(app)
    assert [line.count("0 migrations applied") for line in command(url, "migrate").stdout.splitlines()] == [1] * SHARDS
    rows = [json.loads(line) for line in command(url, "migrate", "--to", "1", "--json").stdout.splitlines()]
    assert [(row["shard"], row["from"], row["schema"]) for row in rows] == [(2, 2, 1), (1, 2, 1), (0, 2, 1)]
    with Headrace(url, shards=SHARDS) as other, pytest.raises(SchemaMismatch, match="headrace migrate"):
        other.jobs.count("ready")
    assert command(url, "migrate").stdout.count("1 migration applied; shard") == SHARDS
    assert app.jobs.count("ready") == SHARDS
    assert "moves a store with one shard" in command(url, "migrate", "--to-url", "redis://127.0.0.1:1").stderr


@pytest.mark.any_server
def test_access_rules_are_for_all_shards(app: Headrace, url: str, server: Server) -> None:
    owner: Any = server.owner
    rules = command(url, "acl", "relay").stdout.split()
    assert not [rule for rule in rules if ":0}" in rule]
    owner.execute_command("ACL", "SETUSER", "relay", "reset", "on", ">secret", *rules)
    try:
        place = url.replace("unix://", "unix://relay:secret@")
        with Headrace(place, timeout=20, shards=SHARDS) as relay:
            add(relay)
            relay.enqueue_many(relay.tasks["noop"].options(key=str(n)).job(n) for n in range(30))
    finally:
        owner.execute_command("ACL", "DELUSER", "relay")
    assert app.jobs.count("ready") == 30


# -- the dashboard -----------------------------------------------------------------------------------------------------


async def test_each_page_of_the_dashboard_shows_all_shards(app: Headrace) -> None:
    app.limit("account", Concurrency(1), by="n")
    app.task(name="call", limits=["account"])(noop)
    app.cron("0 3 * * *", app.tasks["noop"], name="nightly")
    jobs = one_a_shard(app)
    run(app, "failed")
    flows = [app.workflow_definitions["pair"].options(key=str(n)).create() for n in range(9)]
    waiting = [*one_a_shard(app), app.tasks["call"].enqueue(1)]
    app.queues["default"].pause(note="why")
    dashboard = Dashboard(app, operator)
    paths = [path for path in PAGES if "{" not in path and path != "/bulk/new"] + ["/bulk/new?verb=retry&state=failed"]
    paths += [f"/jobs/{job.id}" for job in jobs + waiting] + [f"/workflows/{flow.id}" for flow in flows]
    paths += [f"/jobs?state={state}" for state in State] + ["/queues/default", "/tasks/noop"]
    paths += [f"/activity?show={show}" for show in ("acts", "events", "failures")] + ["/jobs?q=task:noop"]
    for path in paths:
        answer = await ask(dashboard, path)
        assert answer.status == 200, (path, answer.text[:300])
    failed = (await ask(dashboard, "/jobs?state=failed")).text
    assert [job.id in failed for job in jobs] == [True] * SHARDS
    await app.client.aclose()
