"""How safe work is when its verb returns: real primaries and replicas, stopped, killed and promoted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis
from redis.exceptions import ReadOnlyError, RedisError

from headrace import Every, Flow, Headrace
from headrace.errors import NotConfirmed, OptionsError, ServerError, StoreUnavailable
from headrace.model.ids import shard_for, shard_of
from headrace.protocol.durability import Durability, durability
from headrace.protocol.keys import keys_of
from headrace.protocol.overviews import overview
from headrace.protocol.script import Command
from headrace.settings import Settings
from headrace.store.reach import values
from headrace.store.verdict import not_applied, verdict
from tests.deadline import eventually
from tests.proxy import Proxy
from tests.servers import Server
from tests.store.twin import started

NewServer = Callable[..., Server]
PENDING = "ready:default"


@pytest.fixture(params=["", "a"], ids=["sync", "async"])
def twin(request: pytest.FixtureRequest) -> str:
    """The prefix of the verbs under test."""
    return str(request.param)


def do(twin: str, thing: Any, verb: str, *args: Any) -> Any:
    made = getattr(thing, twin + verb)(*args)
    if not twin:
        return made

    async def ask() -> Any:
        return await made

    return asyncio.run(ask())


def following(new_server: NewServer, primary: Server) -> Server:
    copy = new_server(tcp=True)
    if copy.clustered:
        copy.owner.execute_command("CLUSTER", "FLUSHSLOTS")
        copy.owner.execute_command("CLUSTER", "MEET", "127.0.0.1", primary.port)
    follow(copy, primary)
    eventually(lambda: copy.owner.info("replication")["master_link_status"] == "up", 60, what="the replica's link")
    # Else the first confirmation waits for the second in which a new replica reports.
    eventually(lambda: primary.owner.wait(1, 100), 60, what="the replica's first answer")
    return copy


def follow(copy: Server, primary: Server) -> None:
    if not copy.clustered:
        copy.owner.replicaof("127.0.0.1", str(primary.port))
        return
    id = primary.owner.execute_command("CLUSTER", "MYID")
    eventually(lambda: id in copy.owner.execute_command("CLUSTER", "NODES"), 60, what="a node that knows the primary")
    copy.owner.execute_command("CLUSTER", "REPLICATE", id)
    copy.owner.readonly()


@pytest.fixture
def primary(new_server: NewServer) -> Server:
    return new_server(tcp=True)


@pytest.fixture
def replica(new_server: NewServer, primary: Server) -> Iterator[Server]:
    copy = following(new_server, primary)
    yield copy
    if copy.running:
        os.kill(copy.pid, signal.SIGCONT)


Make = Callable[..., Headrace]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Headrace] = []

    def one(url: str, **settings: Any) -> Headrace:
        app = Headrace(url, **{"durability": "replicated", "timeout": 30.0} | settings)
        made.append(app)

        @app.task(name="work")
        def work(n: int = 0) -> int:
            return n

        return app

    yield one
    for app in made:
        app.close()


def work(app: Headrace) -> Any:
    return app.tasks["work"]


def ids(server: Server) -> list[str]:
    """Of the jobs that are ready, on all shards."""
    lines: list[Any] = [server.owner.zrange(key, 0, -1) for key in server.owner.scan_iter("{hr:?}:ready:default")]
    return [id.decode() for line in lines for id in line]


def hasten(app: Headrace, shards: slice = slice(None), seconds: float = 1.5) -> None:
    """From now on a confirmation may take so long, and the reply that tells of it still as long as a call may."""
    for store in (app.store, app.astore):
        for part in store.parts[shards]:
            part.confirm_time = int(seconds * 1000)


def key_of(id: str) -> str:
    return keys_of("hr", shard_of(id)).job(id)


def trips(app: Headrace) -> int:
    return app.store.round_trips + app.astore.round_trips


def calls(server: Server, command: str) -> int:
    found: Any = server.owner.info("commandstats")
    return int(found.get(f"cmdstat_{command}", {"calls": 0})["calls"])


# -- replicated -----------------------------------------------------------------------------------------------------


def test_a_replica_has_the_job_when_enqueue_returns(primary: Server, replica: Server, make: Make, twin: str) -> None:
    app = make(primary.tcp_url)
    for n in range(20):
        job = do(twin, work(app), "enqueue", n)
        assert replica.owner.exists(key_of(job.id))
    assert primary.owner.ttl(next(iter(primary.owner.scan_iter("{hr:?}:mark:*")))) in range(50, 61)


def test_one_round_trip_confirms_a_job(primary: Server, replica: Server, make: Make, twin: str) -> None:
    app = make(primary.tcp_url)
    do(twin, work(app), "enqueue")
    before = trips(app)
    do(twin, work(app), "enqueue")
    assert trips(app) == before + 1


def test_a_script_that_the_server_forgot_is_confirmed_too(
    primary: Server, replica: Server, make: Make, twin: str
) -> None:
    app = make(primary.tcp_url)
    do(twin, work(app), "enqueue")
    primary.owner.script_flush()
    job = do(twin, work(app), "enqueue")
    assert replica.owner.exists(key_of(job.id))


def test_a_stopped_replica_does_not_confirm_and_a_repeat_stores_nothing_twice(
    primary: Server, replica: Server, make: Make, twin: str
) -> None:
    app = make(primary.tcp_url)
    once = work(app).options(request_id="order-7")
    hasten(app)
    os.kill(replica.pid, signal.SIGSTOP)
    with pytest.raises(NotConfirmed, match=r"stored \w+, and within 1\.5 s 0 of 1 replicas confirmed it") as failed:
        do(twin, once, "enqueue", 7)
    with pytest.raises(NotConfirmed):
        do(twin, once, "enqueue", 7)
    assert list(failed.value.ids) == ids(primary)
    os.kill(replica.pid, signal.SIGCONT)
    app.override(timeout=60.0)
    job = do(twin, once, "enqueue", 7)
    assert [job.id] == ids(primary) == ids(replica)


def test_calls_in_line_behind_unconfirmed_ones_end_in_time_and_store_nothing(
    primary: Server, replica: Server, make: Make, twin: str
) -> None:
    app = make(primary.tcp_url, timeout=4.0, max_connections=1)
    do(twin, work(app), "enqueue")
    before = ids(primary)
    hasten(app, seconds=1.0)
    os.kill(replica.pid, signal.SIGSTOP)
    ended = list[BaseException]()

    async def all_at_once() -> None:
        ended.extend(await asyncio.gather(*(work(app).aenqueue(n) for n in range(24)), return_exceptions=True))

    def one(n: int) -> None:
        try:
            work(app).enqueue(n)
        except ServerError as error:
            ended.append(error)

    if twin:
        asyncio.run(all_at_once())
    else:
        for thread in [started(partial(one, n)) for n in range(24)]:
            thread.join(60)
    unsent = [error for error in ended if isinstance(error, StoreUnavailable)]
    unsure = [error for error in ended if isinstance(error, NotConfirmed)]
    assert len(unsent) + len(unsure) == 24
    assert unsent
    assert unsure
    for error in unsent:
        assert "all 1 connections of this process are in use: raise max_connections" in str(error)
        assert "enqueue+confirm was not sent, so it stored nothing" in str(error)
    assert sorted(set(ids(primary)) - set(before)) == sorted(id for error in unsure for id in error.ids)


def test_as_many_replicas_are_asked_for_as_the_call_says(
    new_server: NewServer, primary: Server, replica: Server, make: Make
) -> None:
    app = make(primary.tcp_url)
    two = work(app).options(replicas=2)
    hasten(app, seconds=3.0)
    with pytest.raises(NotConfirmed, match="1 of 2 replicas"):
        two.enqueue()
    following(new_server, primary)
    app.override(timeout=60.0)
    eventually(lambda: primary.owner.wait(2, 100) == 2, what="both replicas")
    two.enqueue()


def test_memory_sends_nothing_more(primary: Server, make: Make, twin: str) -> None:
    app = make(primary.tcp_url, durability="memory")
    do(twin, work(app), "enqueue")
    do(twin, app, "enqueue_many", [work(app).job(n) for n in range(10)])
    app = make(primary.tcp_url)
    do(twin, work(app).options(durability="memory"), "enqueue")
    do(twin, app, "enqueue_many", [work(app).options(durability="memory").job(n) for n in range(10)])
    assert not calls(primary, "wait")
    assert not list(primary.owner.scan_iter("{hr:?}:mark:*"))
    assert len(ids(primary)) == 22


# -- chunks ----------------------------------------------------------------------------------------------------------


def test_the_confirmation_of_a_chunk_travels_with_the_next(
    primary: Server, replica: Server, make: Make, twin: str
) -> None:
    app = make(primary.tcp_url)
    do(twin, work(app), "enqueue")
    waited, before = calls(primary, "wait"), trips(app)
    do(twin, app, "enqueue_many", (work(app).job(n) for n in range(3500)))
    # Four chunks, and the confirmation of the last.
    assert (calls(primary, "wait") - waited, trips(app) - before) == (4, 5)
    assert len(ids(replica)) == 3501


def test_jobs_in_order_are_confirmed_chunk_by_chunk(primary: Server, replica: Server, make: Make) -> None:
    app = make(primary.tcp_url)
    ordered = work(app).options(ordered=True, key="k")
    ordered.enqueue()
    waited, before = calls(primary, "wait"), trips(app)
    app.enqueue_many(ordered.job(n) for n in range(2500))
    assert (calls(primary, "wait") - waited, trips(app) - before) == (3, 3)


def test_a_chunk_is_as_safe_as_the_safest_of_its_jobs(primary: Server, replica: Server, make: Make) -> None:
    app = make(primary.tcp_url, durability="memory")
    waited = calls(primary, "wait")
    safe = work(app).options(durability="replicated")
    app.enqueue_many([work(app).job(1), safe.job(2), work(app).job(3)])
    assert calls(primary, "wait") - waited == 1


def test_jobs_whose_chunk_is_not_confirmed_are_asked_for_by_id(
    primary: Server, replica: Server, make: Make, twin: str
) -> None:
    app = make(primary.tcp_url)
    jobs = [work(app).job(n) for n in range(3500)]
    hasten(app, seconds=4.0)

    def stopped_after_two_chunks() -> Iterator[Any]:
        for n, job in enumerate(jobs):
            if n == 2500:
                os.kill(replica.pid, signal.SIGSTOP)
            yield job

    with pytest.raises(NotConfirmed, match=r"stored \w+ and 999 more") as failed:
        do(twin, app, "enqueue_many", stopped_after_two_chunks())
    assert failed.value.ids == tuple(job.id for job in jobs[1000:2000])
    # The second chunk is stored and not confirmed, the third was sent behind it.
    assert failed.value.__notes__ == ["enqueue_many had stored 1,000 jobs before this"]
    assert [job for job in jobs if not job.stored] == jobs[1000:]
    os.kill(replica.pid, signal.SIGCONT)
    app.override(timeout=60.0)
    assert do(twin, app, "enqueue_many", jobs[1000:]) == 500
    assert sorted(ids(primary)) == sorted(ids(replica)) == sorted(job.id for job in jobs)


def test_envelopes_are_confirmed(primary: Server, replica: Server, make: Make, twin: str) -> None:
    app = make(primary.tcp_url)
    receipts = do(twin, app, "enqueue_packed", [work(app).job(n).pack() for n in range(10)])
    assert sorted(receipt.id for receipt in receipts) == sorted(ids(replica))


# -- failovers -------------------------------------------------------------------------------------------------------


def promote(new: Server, *followers: Server) -> None:
    for server in (new, *followers):
        os.kill(server.pid, signal.SIGCONT)
    if new.clustered:
        new.owner.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
        eventually(lambda: new.owner.execute_command("ROLE")[0] == b"master", 60, what="a new primary")
    else:
        new.owner.replicaof("NO", "ONE")
    for server in followers:
        follow(server, new)
        eventually(lambda server=server: server.owner.info("replication")["master_link_status"] == "up", 60)
    if followers:
        eventually(lambda: new.owner.wait(len(followers), 100) == len(followers), 60)


def test_a_chunk_that_a_failover_loses_is_stored_again_once(
    new_server: NewServer, primary: Server, replica: Server, make: Make, twin: str
) -> None:
    other = following(new_server, primary)
    with Proxy(primary) as proxy:
        app = make(proxy.url)
        jobs = [work(app).job(n) for n in range(2500)]

        def over_a_failover() -> Iterator[Any]:
            for n, job in enumerate(jobs):
                if n == 900:
                    for server in (replica, other):
                        os.kill(server.pid, signal.SIGSTOP)
                    primary.owner.client_kill_filter(_type="replica")
                if n == 1100:
                    assert len(ids(primary)) == 1000
                    primary.kill()
                    promote(replica, other)
                    assert ids(replica) == []
                    proxy.lead_to(replica.port)
                yield job

        assert do(twin, app, "enqueue_many", over_a_failover()) == 2500
        assert sorted(ids(replica)) == sorted(job.id for job in jobs)


@pytest.mark.parametrize("word", ["memory", "replicated"])
def test_what_a_failover_loses_was_not_confirmed(primary: Server, replica: Server, make: Make, word: Any) -> None:
    with Proxy(primary) as proxy:
        app = make(proxy.url)
        task = work(app).options(durability=word)
        told = [task.enqueue(n).id for n in range(50)]
        eventually(lambda: len(ids(replica)) == 50)
        hasten(app)
        os.kill(replica.pid, signal.SIGSTOP)
        primary.owner.client_kill_filter(_type="replica")
        unsure = list[str]()
        for n in range(3):
            try:
                told.append(task.enqueue(n).id)
            except NotConfirmed as error:
                unsure += error.ids
        primary.kill()
        promote(replica)
        proxy.lead_to(replica.port)
        lost = set(told) - set(ids(replica))
        assert (len(lost), len(unsure)) == ((0, 3) if word == "replicated" else (3, 0))


# -- other verbs -----------------------------------------------------------------------------------------------------


def test_workflows_schedules_and_broadcasts_are_confirmed(
    primary: Server, replica: Server, make: Make, twin: str
) -> None:
    app = make(primary.tcp_url)
    task = work(app)

    @app.workflow(name="line")
    def line(flow: Flow, n: int) -> None:
        flow.run(task, n)

    run = do(twin, line, "create", 3)
    assert replica.owner.hget(keys_of("hr", shard_of(run.id)).flow(run.id), "st") == b"pending"
    do(twin, run, "start")
    assert len(ids(replica)) == 1
    do(twin, app.schedules, "put", "nightly", Every(timedelta(hours=1)), task)
    assert replica.owner.exists("{hr:0}:schedule:nightly")
    assert do(twin, task, "broadcast") == []


def test_a_workflow_whose_start_is_not_confirmed_runs(primary: Server, replica: Server, make: Make, twin: str) -> None:
    app = make(primary.tcp_url)
    task = work(app)

    @app.workflow(name="line")
    def line(flow: Flow, n: int) -> None:
        flow.run(task, n)

    run = do(twin, line, "create", 3)
    hasten(app)
    os.kill(replica.pid, signal.SIGSTOP)
    with pytest.raises(NotConfirmed, match=f"stored {run.id}, "):
        do(twin, run, "start")
    assert len(ids(primary)) == 1
    os.kill(replica.pid, signal.SIGCONT)
    app.override(timeout=60.0)
    do(twin, run, "start")
    assert len(ids(replica)) == 1


# -- fsync -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_the_disk_has_the_job_when_enqueue_returns(new_server: NewServer, make: Make, twin: str, policy: str) -> None:
    server = new_server(append_only=True, config={"appendfsync": policy})
    app = make(server.url, durability="fsync")
    job = do(twin, work(app), "enqueue")
    written = server.written
    server.forget(written)
    assert ids(server) == [job.id]


def test_a_server_that_never_syncs_confirms_nothing_and_is_told_why(new_server: NewServer, make: Make) -> None:
    server = new_server(append_only=True, config={"appendfsync": "no"})
    app = make(server.url, durability="fsync")
    hasten(app)
    with pytest.raises(NotConfirmed, match=r"write it to its disk \(with appendfsync no it never confirms that\)"):
        work(app).enqueue()


def test_a_server_without_a_file_is_refused_before_anything_is_stored(
    new_server: NewServer, make: Make, twin: str
) -> None:
    server = new_server(config={"appendfsync": "always"})
    app = make(server.url, durability="fsync")
    with pytest.raises(ServerError, match='has no append-only file for durability="fsync": set appendonly yes'):
        do(twin, work(app), "enqueue")
    assert ids(server) == []
    server.owner.config_set("appendonly", "yes")
    do(twin, work(app), "enqueue")


@pytest.mark.parametrize("name", ["redis-7.0", "redis-6.2"])
def test_a_server_that_is_too_old_is_refused_before_anything_is_stored(
    new_server: NewServer, make: Make, twin: str, name: str
) -> None:
    server = new_server(name, append_only=True)
    app = make(server.url, durability="fsync")
    with pytest.raises(ServerError, match='is too old for durability="fsync": upgrade it'):
        do(twin, work(app), "enqueue")
    with pytest.raises(ServerError, match="too old"):
        do(twin, app, "enqueue_many", [work(app).job()])
    assert ids(server) == []


# -- several shards --------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(new_server: NewServer) -> Iterator[list[tuple[Server, Server]]]:
    """Primary and replica of each of three shards."""
    primaries = [new_server(tcp=True) for _ in range(3)]
    pairs = [(one, following(new_server, one)) for one in primaries]
    yield pairs
    for _, copy in pairs:
        os.kill(copy.pid, signal.SIGCONT)


def stored(app: Headrace, copies: list[tuple[Server, Server]], kind: str, id: str) -> bool:
    """Whether the replica of the id's shard has it."""
    shard = shard_of(id)
    return bool(copies[shard][1].owner.exists(app.client.shards[shard](f"{kind}:{id}")))


def keyed(app: Headrace, shard: int) -> Any:
    return next(work(app).options(key=str(n)) for n in range(99) if shard_for(str(n), 3) == shard)


def test_each_shard_confirms_what_it_stores(shards: list[tuple[Server, Server]], make: Make, twin: str) -> None:
    app = make(" ".join(primary.tcp_url for primary, _ in shards))
    task = work(app)

    @app.workflow(name="line")
    def line(flow: Flow, n: int) -> None:
        flow.run(task, n)

    for n in range(20):
        assert stored(app, shards, "job", do(twin, task, "enqueue", n).id)
    drafts = [keyed(app, n % 3).job(n) for n in range(9)]
    assert do(twin, app, "enqueue_many", drafts) == 9
    assert all(stored(app, shards, "job", draft.stored) for draft in drafts)
    assert do(twin, app, "enqueue_many", (task.job(n) for n in range(5500))) == 5500
    assert sum(len(copy.owner.keys("*:job:*")) for _, copy in shards) == 5529
    for n in range(9):
        run = do(twin, line.options(key=str(n)), "create", n)
        assert stored(app, shards, "flow", run.id)
        do(twin, run, "start")
    assert sum(len(copy.owner.keys("*:job:*")) for _, copy in shards) == 5538


def test_the_shard_that_does_not_confirm_is_named_and_the_others_go_on(
    shards: list[tuple[Server, Server]], make: Make, twin: str
) -> None:
    app = make(" ".join(primary.tcp_url for primary, _ in shards))
    drafts = [keyed(app, n % 3).job(n) for n in range(30)]
    hasten(app, slice(1, 2))
    os.kill(shards[1][1].pid, signal.SIGSTOP)
    for n in (0, 2):
        do(twin, keyed(app, n), "enqueue", n)
    silent = rf"^shard 1 \({shards[1][0].tcp_url}\) stored \w+, and within \S+ s 0 of 1 replicas confirmed it"
    with pytest.raises(NotConfirmed, match=silent):
        do(twin, keyed(app, 1), "enqueue", 1)
    with pytest.raises(NotConfirmed, match=r"stored \w+ and 9 more") as failed:
        do(twin, app, "enqueue_many", drafts)
    assert {shard_of(id) for id in failed.value.ids} == {1}
    os.kill(shards[1][1].pid, signal.SIGCONT)
    app.override(timeout=60.0)
    # Home had stored its ten, the second shard its own; those of the third were not sent.
    assert do(twin, app, "enqueue_many", drafts) == 10
    assert app.jobs.count("ready") == 33
    assert all(stored(app, shards, "job", draft.stored) for draft in drafts)


def test_a_shard_without_a_file_is_refused_before_it_stores(new_server: NewServer, make: Make, twin: str) -> None:
    servers = [new_server(append_only=n != 1, config={"appendfsync": "always"}) for n in range(3)]
    app = make(" ".join(server.url for server in servers), durability="fsync")
    do(twin, keyed(app, 0), "enqueue")
    with pytest.raises(ServerError, match=f"^{servers[1].url} has no append-only file"):
        do(twin, keyed(app, 1), "enqueue")
    do(twin, keyed(app, 2), "enqueue")
    assert app.jobs.count("ready") == 2


def test_a_call_that_was_done_before_its_mark_was_refused_stays_where_it_is(primary: Server, make: Make) -> None:
    app = make(primary.tcp_url)
    call = overview(app.client.keys)
    mark = Command.of("SET", "mark", "1")
    refused = ReadOnlyError("You can't write against a read only replica.")
    with pytest.raises(RedisError) as first:
        values([call, mark], [refused, refused])
    with pytest.raises(RedisError) as behind:
        values([call, mark], [b"", refused])
    assert (not_applied(first.value), not_applied(behind.value)) == (True, False)
    assert verdict(behind.value, app.store.target, "enqueue") == "again"


# -- what may be asked for -------------------------------------------------------------------------------------------


def test_a_call_comes_before_its_task_and_a_task_before_the_settings() -> None:
    settings = Settings(durability="replicated", replicas=2)
    assert durability(Settings()) == Durability()
    assert durability(settings) == Durability(replicas=2)
    assert durability(settings, [("fsync", 0)]) == Durability(fsync=True)
    assert durability(settings, [("", 3)]) == Durability(replicas=3)
    assert durability(Settings(), [("replicated", 0), ("fsync", 0), ("", 0)]) == Durability(fsync=True, replicas=1)
    app = Headrace("redis://localhost:1", durability="fsync")

    @app.task(name="work", durability="replicated", replicas=2)
    def work() -> None: ...

    assert work.options(replicas=3).asked == (("replicated", 3),)
    assert work.options(durability="memory", replicas=None).asked == (("memory", 2),)


def test_what_cannot_be_is_refused_where_it_is_given(make: Make) -> None:
    app = make("redis://localhost:1", durability="memory")
    with pytest.raises(OptionsError, match="durability must be 'memory', 'fsync' or 'replicated', not 'disk'"):
        work(app).options(durability="disk")
    with pytest.raises(OptionsError, match="replicas must be a whole number from 1 to 100"):
        work(app).options(replicas=0)
    with pytest.raises(OptionsError, match="replicas=2 needs durability=\"replicated\", not 'memory'"):
        work(app).options(replicas=2).enqueue()
    with pytest.raises(OptionsError, match="it is stored with its workflow"):

        @app.workflow(name="line")
        def line(flow: Flow) -> None:
            flow.run(work(app), durability="fsync")

        line.graph()


def test_a_driver_error_is_no_confirmation(primary: Server, make: Make) -> None:
    app = make(primary.tcp_url, timeout=2.0)
    client: redis.Redis = primary.owner
    client.execute_command("ACL", "SETUSER", "default", "-wait")
    with pytest.raises(ServerError, match="does not permit"):
        work(app).enqueue()
    client.execute_command("ACL", "SETUSER", "default", "+wait")
