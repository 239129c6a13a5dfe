"""One suite over Store and AsyncStore: what both promise while servers, scripts and connections come and go."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from headrace import errors
from headrace.model.form import Form, NewJob
from headrace.model.ids import make_id
from headrace.model.job import State
from headrace.protocol import consume, index_pages, keys, operations, overviews, produce
from headrace.protocol.script import Call, load
from headrace.settings import Settings
from headrace.store import end_listener
from headrace.store.store import AsyncStore, Slots, Store
from tests.deadline import eventually
from tests.scripts.stage import KEEP, Stage
from tests.servers import Server
from tests.store.twin import GREETING, KINDS, Twin, bulk, says, started, stub

Make = Callable[..., Twin]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make a store of the kind under test: ``make(url, timeout=0.5)``."""
    made: list[Twin] = []

    def one(url: str, **settings: object) -> Twin:
        made.append(Twin(request.param, url, **settings))
        return made[-1]

    yield one
    for twin in made:
        twin.close()


@pytest.fixture
def stage(client: redis.Redis) -> Iterator[Stage]:
    stage = Stage(client)
    yield stage
    stage.close()


def enqueue(stage: Stage, count: int = 1) -> Call[produce.Accepted]:
    return produce.enqueue(stage.keys, [stage.job() for _ in range(count)], "s", stage.next()).at(stage.now)


def size(stage: Stage, queue: str = "default") -> Call[index_pages.IndexPage]:
    return index_pages.page(stage.keys, f"ready:{queue}")


# Calls and their round trips.


def test_a_call_is_one_round_trip(make: Make, url: str, stage: Stage) -> None:
    twin = make(url)
    assert twin.run(enqueue(stage)).word == "ok"
    before = twin.store.round_trips
    for _ in range(10):
        twin.run(enqueue(stage))
    assert twin.store.round_trips - before == 10
    assert len(stage.ready()) == 11


def test_many_calls_are_one_round_trip_in_order(make: Make, url: str, stage: Stage) -> None:
    twin = make(url)
    twin.run_all([enqueue(stage), size(stage)])
    before = twin.store.round_trips
    replies = twin.run_all([enqueue(stage), size(stage), enqueue(stage), size(stage)])
    assert twin.store.round_trips - before == 1
    assert (replies[1].count, replies[3].count) == (2, 3)
    assert twin.run_all([]) == []


def test_a_schema_is_left_in_an_empty_store(make: Make, url: str, client: redis.Redis) -> None:
    make(url).run(overviews.overview(keys.Keys()))
    assert client.get(keys.Keys()("schema")) == str(keys.SCHEMA).encode()


def test_a_newer_schema_is_refused(make: Make, url: str, client: redis.Redis) -> None:
    client.set(keys.Keys()("schema"), keys.SCHEMA + 1)
    with pytest.raises(errors.SchemaMismatch, match="upgrade"):
        make(url).run(overviews.overview(keys.Keys()))


def test_an_older_schema_is_refused_until_it_is_migrated(make: Make, url: str, client: redis.Redis) -> None:
    client.set(keys.Keys()("schema"), keys.OLDEST - 1)
    with pytest.raises(errors.SchemaMismatch, match="run headrace migrate"):
        make(url).run(overviews.overview(keys.Keys()))


def test_a_schema_that_no_headrace_wrote_is_refused_and_stays(make: Make, url: str, client: redis.Redis) -> None:
    client.set(keys.Keys()("schema"), "three")
    with pytest.raises(errors.SchemaMismatch, match=r"has something in .*schema that no Headrace wrote"):
        make(url).run(overviews.overview(keys.Keys()))
    assert client.get(keys.Keys()("schema")) == b"three"


def test_a_store_between_two_schemas_is_refused(make: Make, url: str, client: redis.Redis) -> None:
    client.set(keys.Keys()("schema"), keys.SCHEMA)
    client.hset(keys.Keys()("migration"), "version", "2")
    with pytest.raises(errors.SchemaMismatch, match="goes on where it was"):
        make(url).run(overviews.overview(keys.Keys()))
    client.delete(keys.Keys()("migration"))


# Scripts that the server has forgotten.


def test_a_flushed_script_is_loaded_again(make: Make, url: str, stage: Stage) -> None:
    twin = make(url)
    for _ in range(3):
        stage.client.script_flush()
        assert twin.run(enqueue(stage)).word == "ok"
    assert len(stage.ready()) == 3


def test_a_script_that_is_missing_in_the_middle_is_applied_once(make: Make, url: str, stage: Stage) -> None:
    twin = make(url)
    for missing in ("enqueue", "page", "pause"):
        twin.run(overviews.overview(stage.keys))
        stage.client.script_flush()
        for name in {"enqueue", "page", "pause"} - {missing}:
            stage.client.script_load(load(name).text)
        calls = [enqueue(stage), operations.pause(stage.keys, missing), size(stage), enqueue(stage)]
        one, paused, page, other = twin.run_all(calls)
        assert (one.word, paused, other.word) == ("ok", True, "ok")
        assert isinstance(page, index_pages.IndexPage)
    assert len(stage.ready()) == 6


def test_a_thousand_calls_after_a_flush(make: Make, url: str, stage: Stage) -> None:
    twin = make(url)
    twin.run(enqueue(stage))
    stage.client.script_flush()
    before = twin.store.round_trips
    calls = [call for _ in range(300) for call in (enqueue(stage), size(stage))]
    answers = twin.run_all(calls)
    assert {answer.word for answer in answers[::2]} == {"ok"}
    # A page is of what was enqueued before it, as it was asked for.
    assert [page.count for page in answers[1::2]] == list(range(2, 302))
    assert len(stage.ready()) == 301
    assert twin.store.round_trips == before + 2


# Errors of single calls.


@pytest.mark.mangles
def test_an_error_in_the_middle_leaves_the_connection_in_step(make: Make, url: str, stage: Stage) -> None:
    stage.client.set(stage.keys("paused"), "alien")
    twin = make(url)
    twin.run_all([enqueue(stage), size(stage)])
    for _ in range(3):
        with pytest.raises(errors.ServerError, match=r"pause.*WRONGTYPE"):
            twin.run_all([size(stage), operations.pause(stage.keys, "q"), size(stage), enqueue(stage)])
        assert isinstance(twin.run(size(stage)), index_pages.IndexPage)
    with pytest.raises(errors.ServerError, match="WRONGTYPE"):
        twin.run(operations.pause(stage.keys, "q"))
    assert twin.run(size(stage)).count == 4


def test_a_user_without_the_right_is_told(make: Make, url: str, client: redis.Redis) -> None:
    client.execute_command("ACL", "SETUSER", "mere", "on", ">pw", "~*", "&*", "+@all", "-sadd")
    try:
        twin = make(url.replace("://", "://mere:pw@"))
        with pytest.raises(errors.ServerError, match="permit"):
            twin.run(operations.pause(keys.Keys(), "q"))
        with pytest.raises(errors.ServerError, match="permit"):
            client.execute_command("ACL", "SETUSER", "mere", "-evalsha")
            twin.run(operations.pause(keys.Keys(), "q"))
    finally:
        client.execute_command("ACL", "DELUSER", "mere")


def test_a_waiter_without_the_right_to_listen_is_told(make: Make, url: str, stage: Stage) -> None:
    stage.client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "resetchannels", "+@all")
    try:
        (id,) = stage.put()
        with pytest.raises(errors.ServerError, match="permit"):
            make(url.replace("://", "://deaf:pw@")).wait_final(id, 30)
    finally:
        stage.client.execute_command("ACL", "DELUSER", "deaf")


# Connections and servers that come and go.


def test_a_killed_connection_is_replaced(make: Make, url: str, stage: Stage) -> None:
    twin = make(url)
    for _ in range(3):
        assert twin.run(enqueue(stage)).word == "ok"
        assert stage.client.client_kill_filter(_type="normal", skipme=True) >= 1
    assert len(stage.ready()) == 3


@pytest.mark.any_server
def test_a_restarted_server_is_found_again(make: Make, server_name: str, new_server: Callable[..., Server]) -> None:
    server = new_server(server_name, append_only=True)
    stage, twin = Stage(server.client()), make(server.url)
    twin.run(enqueue(stage))
    server.restart()
    assert twin.run(enqueue(stage)).word == "ok"
    server.kill()
    thread = started(server.start)
    assert twin.run(enqueue(stage)).word == "ok"
    thread.join(30)
    assert len(stage.ready()) == 3


def test_a_server_that_stays_away_ends_in_an_error_in_time(make: Make, new_server: Callable[..., Server]) -> None:
    server = new_server()
    twin = make(server.url, timeout=2.0)
    twin.run(overviews.overview(keys.Keys()))
    server.kill()
    begun = time.monotonic()
    with pytest.raises(errors.StoreUnavailable, match=r"within 2 s.*repeated"):
        twin.run(overviews.overview(keys.Keys()))
    assert 1.9 < time.monotonic() - begun < 20


@pytest.mark.any_server
def test_a_replica_is_asked_again_until_it_is_the_master(
    make: Make, server_name: str, new_server: Callable[..., Server]
) -> None:
    master, server = new_server(server_name, tcp=True), new_server(server_name, tcp=True)
    stage, twin = Stage(server.client()), make(server.url, timeout=60.0)
    twin.run(enqueue(stage))
    admin_client = server.client()
    admin_client.execute_command("REPLICAOF", "127.0.0.1", master.port)
    short = make(server.url, timeout=2.0)
    with pytest.raises(errors.StoreUnavailable, match=r"(?i)read.?only"):
        short.run(enqueue(stage))
    attempts = twin.store.round_trips
    thread = started(lambda: promote_after(lambda: twin.store.round_trips > attempts + 1, admin_client))
    assert twin.run(enqueue(stage)).word == "ok"
    thread.join(30)


def promote_after(condition: Callable[[], bool], client: redis.Redis) -> None:
    eventually(condition)
    client.execute_command("REPLICAOF", "NO", "ONE")


def test_the_old_master_is_left_for_the_new_one(make: Make) -> None:
    """Each attempt connects anew: an address that names another server by now is followed."""
    seen: list[int] = []

    def demoted(_: list[bytes]) -> bytes:
        seen.append(1)
        return GREETING if len(seen) in (1, 3, 5, 6) else b"-READONLY You can't write against a read only replica.\r\n"

    with stub(says("7.0.0", then=demoted)) as url:
        twin = make(url)
        assert twin.run(operations.pause(keys.Keys(), "q"))
        assert len(seen) == 6


@pytest.mark.parametrize(
    "refusal",
    [
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "READONLY You can't write against a read only replica. script: f_x, on @user_script:1.",
        "ERR Error running script (call to f_x): @user_script:1: @user_script: 1: -READONLY You can't write against "
        "a read only replica. ",
    ],
)
def test_a_server_that_is_not_ready_is_asked_again(make: Make, refusal: str) -> None:
    times = [3]

    def later(_: list[bytes]) -> bytes:
        times[0] -= 1
        return b"-%s\r\n" % refusal.encode() if times[0] >= 0 else GREETING

    with stub(says("7.0.0", then=later)) as url:
        assert make(url).run(operations.pause(keys.Keys(), "q"))
        times[0] = 10**6
        begun = time.monotonic()
        with pytest.raises(errors.StoreUnavailable):
            make(url, timeout=0.05).run(operations.pause(keys.Keys(), "q"))
        assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'. script: x, on @user_script:1.", errors.StoreFull),
        ("ERR Error running script (call to f_x): @user_script:1: @user_script: 1: -OOM command not", errors.StoreFull),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to", errors.StoreFull),
        ("ERR Error running script (call to f_x): @user_script:1: @user_script: 1: -MISCONF Errors writing to the "
         "AOF file: No space left on device", errors.StoreFull),
        ("NOPERM this user has no permissions to run the 'evalsha' command", errors.ServerError),
        ("ERR something that nobody has seen before", errors.ServerError),
    ],
)  # fmt: skip
def test_a_refusal_that_lasts_is_said_at_once(make: Make, refusal: str, error: type[Exception]) -> None:
    seen: list[int] = []

    def refuse(command: list[bytes]) -> bytes:
        seen.append(1)
        return GREETING if len(seen) == 1 else b"-%s\r\n" % refusal.encode()

    with stub(says("7.0.0", then=refuse)) as url, pytest.raises(error) as caught:
        make(url).run(operations.pause(keys.Keys(), "q"))
    assert type(caught.value) is error
    assert len(seen) == 2


def test_what_is_no_reply_is_told_as_that(make: Make) -> None:
    greeting = iter([True])

    def garble(_: list[bytes]) -> bytes:
        return GREETING if next(greeting, False) else b"HTTP/1.1 400 Bad Request\r\n\r\n"

    with (
        stub(says("7.0.0", then=garble)) as url,
        pytest.raises(errors.ServerError, match=r"does not speak the protocol of Redis .*a web server"),
    ):
        make(url).run(operations.pause(keys.Keys(), "q"))


# Servers that are refused.


@pytest.mark.parametrize(("version", "valkey"), [("6.0.16", ""), ("5.0.3", ""), ("7.2.4", "7.0.9"), ("6.1.240", "")])
def test_an_old_server_is_refused(make: Make, version: str, valkey: str) -> None:
    with stub(says(version, valkey=valkey)) as url, pytest.raises(errors.ServerError, match=valkey or version):
        make(url).run(operations.pause(keys.Keys(), "q"))


@pytest.mark.parametrize(("version", "valkey"), [("6.2.0", ""), ("8.0.1", ""), ("7.2.4", "7.2.0"), ("10.0.0", "")])
def test_a_new_enough_server_is_taken(make: Make, version: str, valkey: str) -> None:
    with stub(says(version, valkey=valkey)) as url:
        assert make(url).run(operations.pause(keys.Keys(), "q"))


def test_an_evicting_server_is_refused_unless_accepted(
    make: Make, server_name: str, new_server: Callable[..., Server]
) -> None:
    server = new_server(server_name, config={"maxmemory-policy": "allkeys-lru"})
    with pytest.raises(errors.EvictingServer, match=r"allkeys-lru.*noeviction.*HEADRACE_ALLOW_EVICTION"):
        make(server.url).run(operations.pause(keys.Keys(), "q"))
    assert server.client().dbsize() == 0
    assert make(server.url, allow_eviction=True).run(operations.pause(keys.Keys(), "q"))


def test_a_wrong_password_is_said_without_showing_it(
    make: Make, server_name: str, new_server: Callable[..., Server]
) -> None:
    server = new_server(server_name, password="right-one")
    assert make(server.url).run(operations.pause(keys.Keys(), "q"))
    for url in (
        f"unix://:wrong-one@{server.socket}",
        f"unix://{server.socket}",
        f"unix://me:wrong-one@{server.socket}",
    ):
        begun = time.monotonic()
        with pytest.raises(errors.UrlError, match="credentials") as caught:
            make(url).run(operations.pause(keys.Keys(), "q"))
        assert "wrong-one" not in str(caught.value)
        assert time.monotonic() - begun < 20


def test_a_database_that_does_not_exist(make: Make, url: str) -> None:
    with pytest.raises(errors.HeadraceError, match=r"(?i)db index"):
        make(f"{url}?db=99").run(operations.pause(keys.Keys(), "q"))


@pytest.mark.parametrize(
    "url", ["redis://no-such-host.invalid", "redis://127.0.0.1:1", "unix:///no/such/socket", "redis://[::1]:1"]
)
def test_a_server_that_is_not_there(make: Make, url: str) -> None:
    with pytest.raises(errors.StoreUnavailable, match="is the server running"):
        make(url, timeout=0.2).run(operations.pause(keys.Keys(), "q"))


# Memory that is full.


def test_a_full_server_takes_no_jobs_and_lets_those_that_run_end(
    make: Make, server_name: str, new_server: Callable[..., Server]
) -> None:
    server = new_server(server_name)
    stage, twin = Stage(server.client()), make(server.url)
    twin.run(overviews.overview(stage.keys))
    stage.register("w2")
    stage.put(40)
    retry, ok, stop, snooze, crash, again, park, held = stage.take(limit=8)
    waiting, due = stage.put(2, delay=1)
    parked = stage.running(task="later.on", queue="p")
    stage.end(parked, "parked")
    stage.client.config_set("maxmemory", 1)
    with pytest.raises(errors.StoreFull, match="full"):
        twin.run(enqueue(stage))
    now, k = stage.now, stage.keys
    assert twin.run(consume.renew(k, "w1", KEEP, ["load", "1"]).at(now)).alive
    assert twin.run(consume.register(k, "w3", KEEP, ["place", "x"]).at(now)) == 0
    assert twin.run(produce.cancel(k, stop.id, KEEP).at(now)) == "asked"
    assert twin.run(produce.cancel(k, waiting, KEEP).at(now)) == "cancelled"
    assert twin.run(produce.watch(k, ok.id, KEEP).at(now)).state is State.RUNNING
    outcomes = [
        (stage.outcome(retry, "retry", b"{}", 0), 0),
        (stage.outcome(ok, "succeeded", b"result"), 0),
        (stage.outcome(stop, "cancelled", b"{}"), 0),
        (stage.outcome(snooze, "snoozed", b"", KEEP), 0),
        (stage.outcome(crash, "crashed", b"{}"), 0),
        (stage.outcome(again, "released"), 0),
        (stage.outcome(park, "parked"), 0),
    ]
    assert twin.run(consume.settle(k, "w1", 90, outcomes, 0).at(now)).stale == []
    assert twin.run(consume.settle(k, "w1", 91, outcomes, 0).at(now)).stale == [o.id for o, _ in outcomes]
    assert twin.run(consume.note(k, "w1", [consume.Note(held.id, held.token, 0.5, "", ("line",))], request=1)) == 1
    assert twin.run(consume.promote(k, 10).at(now + 1))[0] == 1
    assert stage.state(due) == "ready"
    assert twin.run(consume.unpark(k, "later.on", 10, ["p"]).at(now)) == 1
    assert len(twin.run(consume.claim(k, "w2", 1, 5, ["default"]).at(now)).jobs) == 5
    assert twin.run(consume.claim(k, "w2", 2, 5, []).at(now)).alive
    assert twin.run(consume.reclaim(k, "w2", True, 500, KEEP).at(now)) == ("done", 5)
    assert twin.run(consume.retire(k, "w3"))
    assert twin.run(consume.sweep(k, 10, 0, 10**9).at(now))[0] == 3
    assert twin.run(operations.purge(k, "default", 1000).at(now))[0] > 0
    stage.client.config_set("maxmemory", 0)
    assert twin.run(enqueue(stage)).word == "ok"


# Waiting for a job's end.


def test_a_waiter_wakes_at_once(make: Make, url: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_listener, "RECHECK", 60)
    claim = stage.running()
    twin, other = make(url), stage.client
    ended = [0.0]

    def finish() -> None:
        eventually(lambda: other.exists(stage.keys("waited")))
        ended[0] = time.monotonic()
        stage.end(claim, "succeeded", b"told", 0)

    thread = started(finish)
    before = twin.store.round_trips
    seen = twin.wait_final(claim.id, 50)
    took = time.monotonic() - ended[0]
    thread.join(30)
    assert (seen.state, seen.result) == (State.SUCCEEDED, b"told")
    assert took < 30, "by an announcement: a look comes each minute only"
    assert twin.store.round_trips - before <= 8


def test_a_finished_job_is_not_waited_for(make: Make, url: str, stage: Stage) -> None:
    id = stage.finished(data=b"told")
    seen = make(url).wait_final(id, None)
    assert (seen.state, seen.result) == (State.SUCCEEDED, b"told")
    assert make(url).wait_final("0" * 21, None).state is None


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_wait_ends_in_time(make: Make, url: str, stage: Stage, timeout: float) -> None:
    (id,) = stage.put()
    begun = time.monotonic()
    seen = make(url).wait_final(id, timeout)
    assert seen.state is State.READY
    assert timeout <= time.monotonic() - begun < timeout + 15


def test_a_wait_survives_the_loss_of_its_connection(make: Make, url: str, stage: Stage) -> None:
    claim = stage.running()
    killed: list[int] = []

    def meddle() -> None:
        for _ in range(3):
            eventually(lambda: stage.client.pubsub_numsub(stage.keys.done(claim.id))[0][1])
            killed.append(stage.client.client_kill_filter(_type="pubsub"))
        eventually(lambda: stage.client.pubsub_numsub(stage.keys.done(claim.id))[0][1])
        stage.end(claim, "succeeded", b"told")

    thread = started(meddle)
    assert make(url).wait_final(claim.id, 60).result == b"told"
    thread.join(30)
    assert sum(killed) >= 3


@pytest.mark.any_server
def test_a_wait_survives_a_restart(make: Make, server_name: str, new_server: Callable[..., Server]) -> None:
    server = new_server(server_name, append_only=True)
    stage = Stage(server.client())
    claim = stage.running()

    def meddle() -> None:
        eventually(lambda: server.client().exists(stage.keys("waited")))
        server.restart()
        # A new stage: the server forgot the user as whom the first one runs its calls.
        Stage(server.client()).end(claim, "succeeded", b"told")

    thread = started(meddle)
    assert make(server.url).wait_final(claim.id, 60).result == b"told"
    thread.join(30)


def test_many_wait_for_one_job(make: Make, url: str, stage: Stage) -> None:
    claim = stage.running()
    twins, results = [make(url) for _ in range(5)], list[bytes | None]()
    threads = [
        threading.Thread(target=lambda twin=twin: results.append(twin.wait_final(claim.id, 30).result))
        for twin in twins
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: stage.client.pubsub_numsub(stage.keys.done(claim.id))[0][1] == 5)
    eventually(lambda: stage.client.exists(stage.keys("waited")))
    stage.end(claim, "succeeded", b"told", 0)
    for thread in threads:
        thread.join(30)
    assert results == [b"told"] * 5


# Processes, threads, loops.


def in_child(function: Callable[[], object]) -> int:
    """Run ``function`` in a forked child; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_anew(url: str, stage: Stage) -> None:
    store = Store(url, Settings())
    store.run(enqueue(stage))

    def child() -> None:
        for n in range(20):
            job = NewJob(make_id(stage.now // 1000, 10_000 + n), b"", Form("add"))
            assert store.run(produce.enqueue(stage.keys, [job], "child", n)).word == "ok"
        store.close()

    before = {c["id"] for c in stage.client.client_list()}
    assert in_child(child) == 0
    for _ in range(20):
        assert store.run(enqueue(stage)).word == "ok"
    assert len(stage.ready()) == 41
    assert before <= {c["id"] for c in stage.client.client_list()}
    store.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_child_forked_inside_a_loop_leaves_its_parent_hearing(url: str, stage: Stage) -> None:
    store = AsyncStore(url, Settings())
    await store.run(enqueue(stage))

    def child() -> None:
        async def main() -> None:
            for n in range(5):
                job = NewJob(make_id(stage.now // 1000, 10_000 + n), b"", Form("add"))
                assert (await store.run(produce.enqueue(stage.keys, [job], "child", n))).word == "ok"
            await store.close()

        asyncio.run(main())

    assert in_child(child) == 0
    for _ in range(5):
        async with asyncio.timeout(30):
            assert (await store.run(enqueue(stage))).word == "ok"
    assert len(stage.ready()) == 11
    await store.close()


def test_slots_are_not_shared_with_a_child() -> None:
    slots = Slots()
    name, number = slots.take()
    assert number == 1
    slots.answered(name, number)
    assert slots.take() == (name, 2)
    slots.answered(name, 2)

    def child() -> None:
        other, number = slots.take()
        assert (other != name, number) == (True, 1)

    assert in_child(child) == 0


def test_a_slot_whose_request_failed_is_not_used_again() -> None:
    slots = Slots()
    name, _ = slots.take()
    other, number = slots.take()
    assert (other != name, number) == (True, 1)


def test_threads_share_a_store(url: str, stage: Stage) -> None:
    store = Store(url, Settings())
    jobs = [[stage.job() for _ in range(50)] for _ in range(8)]

    def produce_all(mine: list[NewJob]) -> None:
        for job in mine:
            sender, number = store.slots.take()
            assert store.run(produce.enqueue(stage.keys, [job], sender, number)).word == "ok"
            store.slots.answered(sender, number)

    threads = [threading.Thread(target=produce_all, args=(mine,)) for mine in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(stage.ready()) == 400
    assert len(stage.client.client_list()) < 16
    store.close()


async def test_coroutines_share_a_store(url: str, stage: Stage) -> None:
    store = AsyncStore(url, Settings())

    async def one() -> None:
        sender, number = store.slots.take()
        assert (await store.run(produce.enqueue(stage.keys, [stage.job()], sender, number))).word == "ok"
        store.slots.answered(sender, number)

    await asyncio.gather(*(one() for _ in range(100)))
    assert len(stage.ready()) == 100
    await store.close()


async def test_a_cancelled_coroutine_leaves_no_reply_behind(url: str, stage: Stage) -> None:
    store = AsyncStore(url, Settings())
    await store.run(size(stage))
    for _ in range(5):
        stage.client.client_pause(60_000, all=False)
        try:
            task = asyncio.create_task(store.run(enqueue(stage)))
            for _ in range(5):  # until it waits for its reply, which the server keeps back
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            stage.client.client_unpause()
        assert isinstance(await store.run(size(stage)), index_pages.IndexPage)
    await store.close()


async def test_a_coroutine_that_is_cancelled_at_any_moment_ends(url: str, stage: Stage) -> None:
    """Whoever repeats its calls until it is cancelled would go on for ever, had one call kept that to itself."""
    store = AsyncStore(url, Settings())
    await store.run(size(stage))
    cancelled = 0
    for steps in range(30):
        task = asyncio.create_task(store.run(enqueue(stage)))
        for _ in range(steps):
            await asyncio.sleep(0)
        if task.cancel():
            cancelled += 1
            with pytest.raises(asyncio.CancelledError):
                await task
    assert cancelled > 2
    await store.close()


def test_each_loop_has_connections_of_its_own_and_takes_them_along(url: str, stage: Stage) -> None:
    store, before = AsyncStore(url, Settings()), connections(stage.client)
    for _ in range(3):
        assert asyncio.run(store.run(enqueue(stage))).word == "ok"
    assert len(stage.ready()) == 3
    eventually(lambda: connections(stage.client) <= before)


def test_a_closed_store_may_be_used_again(make: Make, url: str, stage: Stage) -> None:
    twin = make(url)
    twin.run(enqueue(stage))
    twin._do(twin.store.close())
    assert twin.run(enqueue(stage)).word == "ok"


def test_a_refused_server_leaves_no_connection(make: Make, url: str, client: redis.Redis) -> None:
    client.set(keys.Keys()("schema"), keys.SCHEMA + 1)
    twin, before = make(url), connections(client)
    for _ in range(3):
        with pytest.raises(errors.SchemaMismatch):
            twin.run(overviews.overview(keys.Keys()))
    eventually(lambda: connections(client) <= before)


def connections(client: redis.Redis) -> set[str]:
    """Those of stores, also of earlier tests whose garbage is not collected yet."""
    return {one["id"] for one in client.client_list() if one["name"] == "headrace"}


# The pair.


def public(kind: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(member).parameters)
        for name, member in vars(kind).items()
        if callable(member) and not name.startswith("_")
    }


def test_both_stores_have_the_same_names_and_arguments() -> None:
    assert public(Store) == public(AsyncStore)
    assert public(Store).keys() >= {"run", "run_all", "close"}
    for name in public(AsyncStore):
        assert inspect.iscoroutinefunction(getattr(AsyncStore, name))
        assert not inspect.iscoroutinefunction(getattr(Store, name))


def test_a_bulk_reply_of_the_stub_is_what_servers_send() -> None:
    assert bulk("ab") == b"$2\r\nab\r\n"


def test_a_connection_reads_nothing_of_the_driver_from_the_disk(
    make: Make, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version was looked up once: at each connection that took longer than all else."""

    def look_up(name: str) -> str:
        raise AssertionError(f"the version of {name} is looked up again")

    monkeypatch.setattr("importlib.metadata.version", look_up)
    make(url).run(operations.paused(keys.Keys()))
