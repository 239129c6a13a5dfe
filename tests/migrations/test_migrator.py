"""From one layout to another: the real step on real stores, and the way there ended anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import Headrace
from headrace.errors import MigrationRefused, SchemaMismatch, ServerError, StoreUnavailable
from headrace.migrations import STEPS, Leg, Migrator, Piece, Progress, Step
from headrace.migrations.migrator import MigrationLink
from headrace.migrations.step import Command, Reads
from headrace.model.ids import milliseconds_of, node_id
from headrace.protocol import graph
from headrace.protocol.consume import renew
from headrace.protocol.index_pages import Slice
from headrace.protocol.keys import Keys
from headrace.settings import Settings
from headrace.store.url import parse
from headrace.testing import assert_invariants
from tests import servers
from tests.golden import dump, flows
from tests.scripts.stage import Stage
from tests.servers import Server

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
KEYS = Keys()
HOUR = 3600 * 10**6
NewServer = Callable[..., Server]


def migrator(server: Server | str, steps: Any = STEPS, **options: Any) -> Migrator:
    url = server if isinstance(server, str) else server.url
    return Migrator(parse(url), Settings(timeout=5.0), steps, **options)


def migrate(server: Server | str, to: int | None = None, **options: Any) -> list[Progress]:
    with migrator(server, **options) as one:
        return one.run(to)


def everything(client: Any) -> list[str]:
    return list(dump.dump(client))


def lasting(lines: list[str]) -> list[str]:
    """All but what a migration changes on purpose: leases that had ended are given up."""
    return [line for line in lines if not line.startswith(('"PEXPIRE"', f'"ZADD" "{KEYS("owners")}"'))]


@pytest.fixture(params=servers.NAMES)
def golden(request: pytest.FixtureRequest, new_server: NewServer) -> Iterator[Server]:
    """Each server with the store that the release before workflows left."""
    server = new_server(request.param)
    assert dump.load(server.client(), GOLDEN / "schema-1.txt") > 80
    yield server
    assert_invariants(server.client())


def test_a_released_store_is_led_up_and_back(golden: Server) -> None:
    client: Any = golden.client()
    before = everything(client)
    assert [(done.changed, done.leg.leads_to) for done in migrate(golden)] == [(2, 2)]
    assert_invariants(client)
    assert client.zrange(KEYS.wake("default"), 0, -1) == [b""]
    assert client.get(KEYS("schema")) == b"2"
    assert not client.exists(KEYS("migration"))
    assert [(back.changed, back.leg.leads_to) for back in migrate(golden, 1)] == [(2, 1)]
    assert lasting(everything(client)) == lasting(before)
    migrate(golden)


def test_indexes_come_back_as_they_were(client: redis.Redis, url: str) -> None:
    some, others = flows.make(client, 60), flows.make(client, 30, "shop.refund", ttl=HOUR, apart=11)
    flows.run(client, graph.start(KEYS, some[3]))
    flows.run(client, graph.start(KEYS, some[4]))
    flows.run(client, graph.stop(KEYS, some[4]))
    flows.run(client, graph.cancel(KEYS, others[5]))
    while flows.run(client, graph.tend(KEYS, 60_000_000))[0]:
        pass
    client.set(KEYS("schema"), 2)
    before, whole = flows.views(client), everything(client)
    assert {"|", "|pending", "|running", "|stopped", "|cancelled", "shop.order|", "shop.refund|cancelled"} <= set(
        before
    )
    flows.forget(client)
    (done,) = migrate(url, 2, piece=10)
    assert flows.views(client) == before
    assert everything(client) == whole
    assert done.changed == 90


def test_the_order_of_creation_is_kept(client: redis.Redis, url: str) -> None:
    """Neither the walk's order nor that of the ids is; the ids' own times serve where a record has none."""
    ids = flows.make(client, 200)
    bare = flows.make(client, 3, "shop.old", apart=10_000)
    flows.forget(client, bare, ["created"])
    migrate(url, piece=10)
    page = flows.run(client, graph.flow_page(KEYS, "shop.order", piece=Slice(200, desc=False)))
    assert [record.id for record in page.rows] == ids
    assert [record.created_us for record in page.rows] == [flows.MADE + 7 * n for n in range(200)]
    old = flows.run(client, graph.flow_page(KEYS, "shop.old", piece=Slice(10)))
    assert [(record.id, record.created_us) for record in old.rows] == [
        (id, milliseconds_of(id) * 1000) for id in reversed(bare)
    ]


@pytest.mark.mangles
def test_old_workflows_get_no_end_that_nobody_asked_for(client: redis.Redis, url: str) -> None:
    """A native time to live becomes the retention that it meant, for the record and its jobs alike."""
    kept, mine, dying, young = flows.make(client, 4)
    flows.forget(client, [kept, mine, dying, young], ["ttl"])
    for id in (kept, mine, dying):
        client.hset(KEYS.flow(id), "st", "failed")
    client.zadd(KEYS("lapses"), {mine: flows.MADE + HOUR})
    client.pexpire(KEYS.flow(dying), 600_000)
    client.pexpire(KEYS.job(node_id(dying, 1)), 600_000)
    client.pexpire(KEYS.flow(young), 600_000)
    migrate(url)
    assert client.hmget(KEYS.flow(kept), "ttl") == client.hmget(KEYS.flow(dying), "ttl") == [b"-1"]
    assert 590_000_000 < int(client.hget(KEYS.flow(young), "ttl") or 0) <= 600_000_000
    lapses: dict[bytes, float] = dict(client.zrange(KEYS("lapses"), 0, -1, withscores=True))
    assert set(lapses) == {mine.encode(), dying.encode()}
    assert lapses[mine.encode()] == flows.MADE + HOUR
    now = client.time()[0]
    assert now + 590 < lapses[dying.encode()] / 1e6 <= now + 601
    for key in (KEYS.flow(dying), KEYS.flow(young), KEYS.job(node_id(dying, 1))):
        assert client.pttl(key) == -1


@pytest.mark.mangles
def test_old_forms_of_records_load(client: redis.Redis, url: str) -> None:
    """Records that lack what came later are filled in; what is no record of ours is left as it is."""
    bare, unsealed, alien, foreign = flows.make(client, 4)
    flows.forget(client)
    client.delete(*(KEYS.flow(id) for id in (bare, unsealed, alien, foreign)))
    client.hset(KEYS.flow(bare), "arguments", "x")
    client.hset(KEYS.flow(unsealed), "definition", "shop.order")
    client.zadd(KEYS("chores"), {f"abandon:{unsealed}": 1})
    client.hset(KEYS.flow(alien), "st", "of another kind")
    client.set(KEYS.flow(foreign), "not a hash")
    client.set(KEYS("flow:not-an-id"), "x")
    client.set(KEYS("flow:\xff"), "x")
    migrate(url)
    assert flows.views(client) == {view: [(bare, milliseconds_of(bare) * 1000)] for view in ("|", "|pending")}
    (record,) = flows.run(client, graph.read_flows(KEYS, [bare]))
    assert (record.state, record.ttl, record.definition) == ("pending", -1, "")
    assert client.hgetall(KEYS.flow(unsealed)) == {b"definition": b"shop.order"}
    assert client.hgetall(KEYS.flow(alien)) == {b"st": b"of another kind"}


def test_down_waits_for_workflows_that_older_programs_would_tear(client: redis.Redis, url: str) -> None:
    client.set(KEYS("schema"), 2)
    (id,) = flows.make(client, 1)
    flows.run(client, graph.start(KEYS, id))
    with pytest.raises(MigrationRefused, match="1 workflows run"):
        migrate(url, 1)
    flows.run(client, graph.stop(KEYS, id))
    with pytest.raises(MigrationRefused, match="1 are stopped"):
        migrate(url, 1)
    flows.run(client, graph.cancel(KEYS, id))
    if client.zcard(KEYS("chores")):
        with pytest.raises(MigrationRefused, match=r"workflows run|chores"):
            migrate(url, 1)
        while flows.run(client, graph.tend(KEYS, 60_000_000))[0]:
            pass
    before = flows.views(client)
    migrate(url, 1)
    assert flows.views(client) == {}
    migrate(url)
    assert flows.views(client) == before


def marking(version: int, log: list[str] | None = None) -> Step:
    """A step in three pieces, each of which leaves a mark."""

    def go(way: str) -> Callable[[Keys, str, int], Reads]:
        def move(keys: Keys, cursor: str, size: int) -> Reads:
            piece = int(cursor or 0)
            (found,) = yield [("SMEMBERS", keys("queues"))]
            if log is not None:
                log.append(f"{version} {way} {piece}")
            names = [f"v{version}.{piece}"]
            write: Command = ("SADD" if way == "up" else "SREM", keys("queues"), *names)
            return Piece([write], str(piece + 1) if piece < 2 else "", len(found), 1, (piece + 1) / 3)

        return move

    return Step(version, f"mark {version}", go("up"), go("down"))


def marks(client: Any) -> set[str]:
    return {name.decode() for name in client.smembers(KEYS("queues"))}


def test_many_steps_run_in_order_each_once(client: redis.Redis, url: str) -> None:
    client.set(KEYS("schema"), 1)
    log: list[str] = []
    steps = [marking(version, log) for version in (4, 2, 5, 3)]
    heard: list[Progress] = []
    with migrator(url, steps) as one:
        done = one.run(4, heard.append)
        assert one.look().schema == 4
        assert [one.leg.leads_to for one in done] == [2, 3, 4]
        assert one.run(4) == []
        assert [progress.share for progress in heard] == [0.0, 1 / 3, 2 / 3, 1.0] * 3
        assert [one.leg.leads_to for one in one.run()] == [5]
        assert one.run() == []
    assert log == [f"{version} up {piece}" for version in (2, 3, 4, 5) for piece in range(3)]
    assert len(marks(client)) == 12
    log.clear()
    migrate(url, 2, steps=steps)
    assert log == [f"{version} down {piece}" for version in (5, 4, 3) for piece in range(3)]
    assert marks(client) == {"v2.0", "v2.1", "v2.2"}


class ProgramEnded(BaseException):
    """The program's end, at some exchange with a server."""


def cut_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """End the program before the replies to the ``number``-th exchange are read: for a store, before the next."""
    real, count = MigrationLink.exchange, [0]

    def exchange(self: MigrationLink, commands: Any) -> list[Any]:
        count[0] += 1
        if count[0] > number:
            self.close()
            raise ProgramEnded
        replies = real(self, commands)
        if count[0] == number:
            raise ProgramEnded
        return replies

    monkeypatch.setattr(MigrationLink, "exchange", exchange)


@pytest.mark.slow
def test_an_end_at_any_exchange_is_gone_on_from(client: redis.Redis, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up and back: what is there afterwards is what an undisturbed run leaves, and no piece is lost."""
    flows.make(client, 13)
    client.sadd(KEYS("queues"), "default")
    flows.forget(client)
    client.rpush(KEYS.wake("default"), 1)
    low = everything(client)
    migrate(url, 2, piece=5)
    high = everything(client)
    migrate(url, 1)
    resumed = 0
    for target, start, wanted in ((2, low, high), (1, high, low)):
        number, ended = 0, False
        while not ended:
            number += 1
            restore(client, start)
            with monkeypatch.context() as patch:
                cut_at(patch, number)
                try:
                    migrate(url, target, piece=5)
                    ended = True
                except ProgramEnded:
                    pass
            schema = int(client.get(KEYS("schema")) or 0)
            assert schema == target or client.exists(KEYS("migration")) or everything(client) == start
            if client.exists(KEYS("migration")):
                client.hset(KEYS("migration"), "until", 1)  # as if the lease had ended by itself
            done = migrate(url, target, piece=5)
            resumed += any(progress.leg.cursor for progress in done)
            assert everything(client) == wanted, (target, number)
        assert number > 15
    assert resumed > 10
    migrate(url)


def restore(client: Any, lines: list[str]) -> None:
    client.flushdb()
    for line in lines:
        client.execute_command(*(dump._bytes(word) for word in dump._WORD.findall(line)))


@pytest.mark.parametrize("target", [1, 2])
def test_what_was_interrupted_can_be_taken_back_instead(client: redis.Redis, url: str, target: int) -> None:
    flows.make(client, 60)
    flows.forget(client)
    low = everything(client)

    def stop_half_way(progress: Progress) -> None:
        if progress.share > 0.4:
            raise ProgramEnded

    with migrator(url, piece=10) as one:
        with pytest.raises(ProgramEnded):
            one.run(2, stop_half_way)
        sight = one.look()
        assert sight.unfinished is not None
        assert (sight.schema, sight.unfinished.version, sight.until) == (1, 2, 0)
    with pytest.raises(SchemaMismatch, match="is being migrated"):
        Headrace(url).overview()
    (done,) = migrate(url, target)
    assert isinstance(done.leg, Leg)
    assert (done.leg.direction, bool(done.leg.cursor)) == (("down", False) if target == 1 else ("up", True))
    assert client.get(KEYS("schema")) == str(target).encode()
    if target == 1:
        assert everything(client) == low
        migrate(url)
    else:
        assert client.zcard(KEYS.flows("|")) == 60


def test_a_cursor_is_not_taken_to_another_run_of_the_server(new_server: NewServer) -> None:
    """A restart arranges the table anew: a walk that went on would pass by what it has not seen."""
    server = new_server(append_only=True)
    client = server.client()
    flows.make(client, 300)
    flows.forget(client)

    def stop_half_way(progress: Progress) -> None:
        if progress.share > 0.5:
            raise ProgramEnded

    with migrator(server, piece=10) as one, pytest.raises(ProgramEnded):
        one.run(None, stop_half_way)
    server.restart()
    (done,) = migrate(server)
    assert done.leg.cursor == ""
    assert server.client().zcard(KEYS.flows("|")) == 300


def test_a_server_that_goes_away_is_named_and_the_rest_is_done_later(new_server: NewServer) -> None:
    server = new_server(append_only=True)
    flows.make(server.client(), 50)
    flows.forget(server.client())

    def kill(progress: Progress) -> None:
        if progress.share > 0.3:
            server.kill()

    with pytest.raises(StoreUnavailable, match="run headrace migrate again"), migrator(server, piece=10) as one:
        one.run(None, kill)
    server.restart()
    server.client().hset(KEYS("migration"), "until", 1)
    migrate(server)
    assert server.client().zcard(KEYS.flows("|")) == 50


def test_the_rights_that_programs_need_are_enough(new_server: NewServer) -> None:
    server = new_server()
    rights = ("+@all", "-@dangerous", "+info", "+client|unblock", "~{hr:*", "&{hr:*")
    assert all(right.strip("~&") in (GOLDEN.parent.parent / "docs" / "server.md").read_text() for right in rights)
    server.client().execute_command("ACL", "SETUSER", "app", "on", ">secret", *rights)
    flows.make(server.client(), 10)
    flows.forget(server.client())
    migrate(server.url_of("app:secret"))
    assert server.client().zcard(KEYS.flows("|")) == 10


def test_one_migration_at_a_time(client: redis.Redis, url: str) -> None:
    client.set(KEYS("schema"), 1)
    steps = [marking(2)]
    said: list[str] = []

    def meanwhile(progress: Progress) -> None:
        if progress.share == 1 / 3:
            with pytest.raises(MigrationRefused, match="another migration is at it") as caught:
                migrate(url, steps=steps)
            said.append(str(caught.value))

    with migrator(url, steps) as one:
        one.run(None, meanwhile)
    assert len(said) == 1
    assert re.search(r"its lease ends in ([1-9]|10) s", said[0])
    assert len(marks(client)) == 3


def test_who_was_held_up_for_longer_than_its_lease_writes_no_more(client: redis.Redis, url: str) -> None:
    client.set(KEYS("schema"), 1)
    steps = [marking(2)]

    def meanwhile(progress: Progress) -> None:
        if progress.share == 1 / 3:
            client.hset(KEYS("migration"), "until", 1)
            migrate(url, steps=steps)
            migrate(url, 1, steps=steps)

    with migrator(url, steps) as one, pytest.raises(MigrationRefused, match="lease was lost"):
        one.run(None, meanwhile)
    assert marks(client) == set()
    assert client.get(KEYS("schema")) == b"1"
    assert not client.exists(KEYS("migration"))


def test_the_lease_may_be_lost_between_a_look_and_the_write(client: redis.Redis, url: str) -> None:
    client.set(KEYS("schema"), 1)

    def slow(keys: Keys, cursor: str, size: int) -> Reads:
        yield []
        client.hset(KEYS("migration"), "owner", "somebody else")
        return Piece([("SADD", keys("queues"), "mine")])

    with pytest.raises(MigrationRefused, match="lease was lost"):
        migrate(url, steps=[Step(2, "slow", slow, slow)])
    assert marks(client) == set()
    assert client.hget(KEYS("migration"), "owner") == b"somebody else"
    client.delete(KEYS("migration"))


def test_live_workers_are_refused_at_the_start_and_on_the_way(client: redis.Redis, url: str) -> None:
    client.set(KEYS("schema"), 1)
    now = client.time()[0] * 10**6
    client.hset(KEYS("owner:w1"), "place", "here")
    client.zadd(KEYS("owners"), {"w1": now + HOUR})
    with pytest.raises(MigrationRefused, match=r"workers use .*: w1"):
        migrate(url)
    assert not client.exists(KEYS("migration"))
    client.zadd(KEYS("owners"), {"w1": now - HOUR})
    steps = [marking(2)]

    def meanwhile(progress: Progress) -> None:
        if progress.share == 1 / 3:
            client.zadd(KEYS("owners"), {"w1": now + HOUR})

    with migrator(url, steps) as one, pytest.raises(MigrationRefused, match="workers use"):
        one.run(None, meanwhile)
    client.zadd(KEYS("owners"), {"w1": now - HOUR})
    assert [progress.leg.cursor for progress in migrate(url, steps=steps)] == ["1"]


def test_a_worker_that_was_held_up_meanwhile_must_register_and_is_refused(client: redis.Redis, url: str) -> None:
    stage = Stage(client)
    owner = stage.register()
    stage.now += HOUR
    client.zadd(KEYS("owners"), {owner: 1})
    migrate(url, 1)
    assert not stage.run(renew(KEYS, owner, HOUR)).alive
    with pytest.raises(redis.ResponseError, match="it has schema 1"):
        stage.register()
    migrate(url)
    stage.register()
    client.flushall()
    stage.close()


@pytest.mark.parametrize("schema", ["three", "-1", b"\xff"])
def test_a_schema_that_no_headrace_wrote_is_told(client: redis.Redis, url: str, schema: Any) -> None:
    client.set(KEYS("schema"), schema)
    with pytest.raises(ServerError, match=r"has something in .*schema or .*migration that no Headrace wrote"):
        migrate(url)
    client.delete(KEYS("schema"))


@pytest.mark.parametrize(
    "facts", [{"a": "b"}, {"version": "x"}, {"version": "1"}, {"version": "-7"}, {"until": "soon"}]
)
def test_a_mark_that_no_headrace_wrote_is_told(client: redis.Redis, url: str, facts: dict[str, str]) -> None:
    whole = {"owner": "a", "until": "1", "server": "s", "version": "2", "direction": "up", "cursor": ""}
    client.set(KEYS("schema"), 1)
    client.hset(KEYS("migration"), mapping=facts if "a" in facts else whole | facts)
    with pytest.raises(ServerError, match="that no Headrace wrote"):
        migrate(url)
    client.delete(KEYS("schema"), KEYS("migration"))


def test_a_migration_that_a_newer_headrace_began_is_left_to_it(client: redis.Redis, url: str) -> None:
    whole = {"owner": "a", "until": "1", "server": "s", "version": "99", "direction": "up", "cursor": ""}
    client.set(KEYS("schema"), 2)
    client.hset(KEYS("migration"), mapping=whole)
    with pytest.raises(SchemaMismatch, match=r"on its way to schema 99, .* newer Headrace"):
        migrate(url)
    client.delete(KEYS("schema"), KEYS("migration"))
