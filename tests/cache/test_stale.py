"""Nothing that the server has invalidated is served, whichever connection dies and however reads and writes overlap."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis._parsers import BaseParser
from redis.exceptions import MovedError

from headrace import Headrace
from headrace.cache import Cache, listener
from headrace.cache.listener import PendingRead, Untracked, _accepted
from headrace.errors import StoreUnavailable
from headrace.store.url import parse
from tests import servers
from tests.clusters import Cluster, slot_of
from tests.proxy import Proxy
from tests.servers import Server, connect

SOON = 20.0


def links(client: redis.Redis, flag: str) -> list[str]:
    """Ids of connections with a flag: ``t`` tracks, ``P`` is subscribed."""
    return [one["id"] for one in client.client_list() if flag in one["flags"]]


def kept(cache: Cache, name: str, value: Any) -> bool:
    """Whether the process has its own copy, after a read."""
    return cache.get(name) == value and cache._values.get(name) == value


def fly(cache: Cache, name: str) -> PendingRead:
    """A read whose reply has come, and which nobody has looked at yet."""
    landed = threading.Event()
    flight = cache._listener.send_read(name, landed.set)
    assert flight is not None
    assert landed.wait(20)
    return flight


def test_a_killed_connection_empties_the_cache_before_it_can_be_wrong(
    cache: Cache, other: Cache, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    """CS1, CS2: what the dead connection had read would never be announced any more."""
    for n in range(20):
        other.set("a", n)
        eventually(lambda n=n: kept(cache, "a", n), SOON)
        epochs = cache.statistics().epochs
        (victim,) = links(client, "t")
        client.execute_command("CLIENT", "KILL", "ID", victim)
        other.set("a", n + 0.5)
        eventually(lambda n=n: cache.get("a") == n + 0.5, SOON)
        for _ in range(20):
            assert cache.get("a") == n + 0.5
        eventually(lambda: kept(cache, "a", cache.get("a")), SOON)
        assert cache.statistics().epochs == epochs + 1
        assert len(links(client, "t")) == 1


def test_all_connections_of_the_process_may_die_at_once(
    cache: Cache, other: Cache, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    for n in range(10):
        other.set("a", n)
        eventually(lambda n=n: kept(cache, "a", n), SOON)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        other.set("a", n + 0.5)
        eventually(lambda n=n: cache.get("a") == n + 0.5, SOON)


def test_a_read_that_was_overtaken_by_a_write_is_not_kept(
    cache: Cache, other: Cache, eventually: Callable[..., Any]
) -> None:
    """CS3: A reads the old value, it is invalidated, B reads and keeps the new one, then A wants to keep the old."""
    other.set("a", "old")
    cache.get("warm")
    slow = fly(cache, "a")
    announced = cache.statistics().announced
    other.set("a", "new")
    eventually(lambda: cache.statistics().announced > announced, SOON)
    assert cache.get("a") == "new"
    assert cache._values["a"] == "new"
    assert cache._steps._keep(slow) == "old", "the slow reader itself read before the write"
    assert cache.get("a") == "new"
    assert cache._values["a"] == "new"


def test_a_read_that_was_overtaken_is_not_kept_though_nobody_else_reads(
    cache: Cache, other: Cache, eventually: Callable[..., Any]
) -> None:
    for there in (True, False):
        if there:
            other.set("a", "old")
        cache.get("warm")
        slow = fly(cache, "a")
        announced = cache.statistics().announced
        other.set("a", "new")
        eventually(lambda announced=announced: cache.statistics().announced > announced, SOON)
        cache._steps._keep(slow)
        assert "a" not in cache._values
        assert "a" not in cache._listener.local.absent
        other.delete("a")


@pytest.mark.parametrize("how", ["set", "delete", "tag", "clear", "refresh"])
def test_a_read_from_before_an_own_write_is_not_kept(cache: Cache, how: str) -> None:
    """CS4: between our write and the server's announcement of it nothing old may come back."""
    cache.set("a", "old", tags=["x"])
    cache.get("warm")
    slow = fly(cache, "a")
    match how:
        case "set":
            cache.set("a", "new")
        case "delete":
            cache.delete("a")
        case "tag":
            cache.delete_tag("x")
        case "clear":
            cache.clear()
        case _:
            cache.refresh()
    cache._steps._keep(slow)
    assert "a" not in cache._values


def test_a_foreign_write_right_after_an_own_one_is_heard(
    cache: Cache, other: Cache, eventually: Callable[..., Any]
) -> None:
    """CS4: our write leaves nothing in the process, so nothing can go unannounced."""
    for n in range(200):
        cache.set("a", n)
        other.set("a", n + 0.5)
        assert cache.get("a") == n + 0.5


def test_a_read_over_a_lost_link_is_not_kept(
    cache: Cache, other: Cache, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    other.set("a", "old")
    cache.get("warm")
    slow = fly(cache, "a")
    epochs = cache.statistics().epochs
    for victim in links(client, "t"):
        client.execute_command("CLIENT", "KILL", "ID", victim)
    eventually(lambda: cache.statistics().epochs == epochs + 1, SOON)
    other.set("a", "new")
    cache._steps._keep(slow)
    assert "a" not in cache._values
    assert cache.get("a") == "new"


def test_a_server_that_restarts_is_read_anew(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], eventually: Callable[..., Any]
) -> None:
    """CS10: and the cache is whole again by itself, each time."""
    server = new_server()
    cache, other = new_app(server.url).cache, new_app(server.url).cache
    for n in range(3):
        other.set("a", n)
        eventually(lambda n=n: kept(cache, "a", n), SOON)
        server.restart()
        eventually(lambda: cache.get("a") is None, SOON)
        eventually(lambda: cache.statistics().healthy, SOON)


def test_while_the_server_is_away_readers_go_without_at_once(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], eventually: Callable[..., Any]
) -> None:
    """C08, CS10, CS16."""
    server = new_server()
    app, other = new_app(server.url, timeout=1.0), new_app(server.url).cache
    cache = app.cache
    other.set("a", 1)
    eventually(lambda: kept(cache, "a", 1))
    server.kill()
    eventually(lambda: cache.get("a", "gone") == "gone", SOON)
    eventually(lambda: cache._listener.unreachable, SOON)
    began = time.monotonic()
    assert [cache.get("a", n) for n in range(100)] == [*range(100)]
    assert cache.get("b", make=lambda: "computed") == "computed"
    assert time.monotonic() - began < 10, "nobody pays a time-out for each read"
    seen = cache.statistics()
    assert (seen.healthy, seen.used) == (False, 0)
    assert seen.faults >= 100
    assert seen.fault
    # A deletion that did not happen must not look as if it had.
    for write in (lambda: cache.delete("a"), lambda: cache.set("a", 2), cache.clear):
        with pytest.raises(StoreUnavailable):
            write()
    server.start()
    eventually(lambda: cache.statistics().healthy)
    cache.set("a", 3)
    eventually(lambda: kept(cache, "a", 3))
    server.kill()
    app.close()


def test_a_server_that_comes_late_is_found(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], eventually: Callable[..., Any]
) -> None:
    """CS9."""
    server = new_server()
    server.kill()
    cache = new_app(server.url).cache
    began = time.monotonic()
    assert cache.get("a", "default") == "default"
    assert time.monotonic() - began < 10
    assert not cache.statistics().healthy
    server.start()
    eventually(lambda: cache.statistics().healthy)
    cache.set("a", 1)
    eventually(lambda: kept(cache, "a", 1))


def test_a_network_that_fell_silent_is_noticed(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], eventually: Callable[..., Any]
) -> None:
    """CS20: half-open connections bring no end of file; only silence tells."""
    server = new_server(tcp=True)
    other = new_app(server.url).cache
    other.set("a", "old")
    with Proxy(server) as proxy:
        app = new_app(proxy.url, timeout=0.5, cache_heartbeat_timeout=0.4)
        cache = app.cache
        eventually(lambda: kept(cache, "a", "old"))
        proxy.mode = "swallow"
        other.set("a", "new")
        began = time.monotonic()
        eventually(lambda: not cache._values, SOON)
        assert time.monotonic() - began < 10
        assert cache.get("a", "default") == "default"
        proxy.mode = "pass"
        eventually(lambda: cache.statistics().healthy)
        eventually(lambda: kept(cache, "a", "new"), SOON)
        app.close()


def test_a_server_that_hangs_costs_a_read_one_time_out_and_not_a_second_over_another_connection(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], eventually: Callable[..., Any]
) -> None:
    with Proxy(new_server(tcp=True)) as proxy:
        app = new_app(proxy.url, timeout=5)
        app.cache.set("a", 1)
        eventually(lambda: kept(app.cache, "a", 1))
        proxy.mode = "swallow"
        before = app.store.round_trips
        assert app.cache.get("b", "default") == "default"
        assert app.store.round_trips == before
        proxy.mode = "pass"
        eventually(lambda: kept(app.cache, "a", 1))
        app.close()


def test_a_server_amid_a_failover_is_asked_again_soon(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], eventually: Callable[..., Any]
) -> None:
    """A replica that is to be promoted refuses the probe, and so does a master whose replicas are on their way."""
    server = new_server()
    cache, client = new_app(server.url).cache, server.client()
    refusals: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: client.replicaof("127.0.0.1", "1"), lambda: client.replicaof("NO", "ONE")),
        (lambda: client.config_set("min-replicas-to-write", 1), lambda: client.config_set("min-replicas-to-write", 0)),
    ]
    cache.get("a")
    for refuse, relent in refusals:
        eventually(lambda: cache.statistics().healthy, 10)
        refuse()
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        eventually(lambda: "refuses the read and the write of its probe" in cache.statistics().fault)
        relent()
    eventually(lambda: cache.statistics().healthy, 10)


def test_an_idle_cache_says_nothing_and_a_quiet_server_is_asked_now_and_then(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], eventually: Callable[..., Any]
) -> None:
    server = new_server(tcp=True)
    # Half of this is what an answer may take, and a busy machine lets the server wait, too.
    cache = new_app(server.tcp_url, cache_heartbeat_timeout=6).cache
    client = server.client()

    def pings() -> int:
        # The first is the read's.
        return int(client.info("commandstats").get("cmdstat_pttl", {}).get("calls", 1)) - 1  # type: ignore[union-attr]

    cache.get("a")
    # Twice, over each connection.
    eventually(lambda: pings() >= 2 * len(links(client, "t") + links(client, "P")) > 0)
    epochs = cache.statistics().epochs
    cache.refresh()
    last = [pings(), time.monotonic()]

    def quiet() -> bool:
        now = pings()
        if now != last[0]:
            last[:] = now, time.monotonic()
        return time.monotonic() - last[1] > 3.5

    eventually(quiet, every=0.05)
    assert cache.statistics().epochs == epochs == 1, "a server that answers is not given up"


def test_a_reply_that_never_comes_gives_the_link_up(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], eventually: Callable[..., Any]
) -> None:
    server = new_server(tcp=True)
    with Proxy(server) as proxy:
        app = new_app(proxy.url, timeout=0.3, cache_heartbeat_timeout=60)
        assert app.cache.get("a") is None
        proxy.mode = "swallow"
        assert app.cache.get("b", "default") == "default"
        assert app.cache._listener._pending == {}
        proxy.mode = "pass"
        eventually(lambda: app.cache.statistics().healthy)
        app.close()


def test_a_deaf_link_never_serves(
    new_app: Callable[..., Headrace], url: str, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CS22: a probe is written at the start, and its announcement required, whatever was said to be on."""
    monkeypatch.setattr(listener, "PROBE_TIMEOUT", 2.0)
    monkeypatch.setattr(listener.TrackingLink, "_track", lambda _: None)
    cache = new_app(url).cache
    for n in range(20):
        other.set("a", n)
        assert cache.get("a") == n
    seen = cache.statistics()
    assert (seen.healthy, seen.hits, seen.used) == (False, 0, 0)
    assert "not announced" in seen.fault


@pytest.mark.parametrize("denied", ["client|tracking", "subscribe"])
def test_a_server_that_permits_less_is_used_for_what_it_permits(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], monkeypatch: pytest.MonkeyPatch, denied: str,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    monkeypatch.setattr(listener, "RELUCTANT", 0.1)
    server = new_server(tcp=True)
    rules = ("ACL", "SETUSER", "some", "on", ">secret", "~*", "&*", "+@all", f"-{denied}")
    client: Any = server.client()
    client.execute_command(*rules)
    app = new_app(server.url_of("some:secret"))
    app.cache.set("a", 1)
    assert [app.cache.get("a") for _ in range(3)] == [1, 1, 1]
    if denied == "client|tracking":
        assert not app.cache.statistics().healthy
        assert "CLIENT TRACKING" in app.cache.statistics().fault
        client.execute_command("ACL", "SETUSER", "some", "+client|tracking")
    eventually(lambda: app.cache.statistics().healthy)
    eventually(lambda: kept(app.cache, "a", 1))


def test_where_there_is_no_resp3_no_copies_are_kept(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], tmp_path: Path
) -> None:
    (tmp_path / "conf").write_text('rename-command HELLO ""\n')
    server = new_server(config={"include": str(tmp_path / "conf")})
    cache, other = new_app(server.url).cache, new_app(server.url).cache
    for n in range(2):
        other.set("a", n)
        assert cache.get("a") == n
    assert not cache._values
    seen = cache.statistics()
    assert not seen.healthy
    assert "RESP3" in seen.fault


@pytest.mark.parametrize("name", servers.NAMES)
def test_each_server_announces_what_the_cache_relies_on(
    new_server: Callable[..., Server], new_app: Callable[..., Headrace], name: str,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    """CF1, CF3, CF11, CS7: creation of what was absent, each way to change or end a value, a full tracking table."""
    server = new_server(name, config={"tracking-table-max-keys": "20"})
    app, other = new_app(server.url), new_app(server.url).cache
    cache, key, client = app.cache, app.client.keys.cache("a"), server.client()
    changes: list[Callable[[], Any]] = [
        lambda: other.set("a", "old"),
        lambda: other.set("a", "new"),
        lambda: other.delete("a"),
        lambda: other.delete_tag("x"),
        lambda: client.pexpire(key, 5),
        lambda: client.exists(key) and client.rename(key, f"{key}:elsewhere"),
        client.flushdb,
        client.flushall,
    ]
    for change in changes:
        for before in ("absent", "old"):
            client.flushall()
            if before == "old":
                other.set("a", "old", tags=["x"])
            eventually(lambda before=before: cache.get("a", "absent") == before, SOON)
            announced = cache.statistics().announced
            change()
            after = other.get("a", "absent") if change in changes[:2] else "absent"
            eventually(lambda after=after: cache.get("a", "absent") == after, SOON)
            assert cache.statistics().announced >= announced
    for n in range(200):
        other.set(f"n{n}", n)
        assert cache.get(f"n{n}") == n
    for n in range(200):
        other.set(f"n{n}", -n)
    eventually(lambda: [cache.get(f"n{n}") for n in range(200)] == [-n for n in range(200)], SOON)


def test_waiting_costs_nothing(cache: Cache, other: Cache, client: redis.Redis) -> None:
    """CS20: the thread waits for its socket; it does not poll."""
    other.set("a", 1)
    assert kept(cache, "a", 1)
    (thread,) = [t for t in threading.enumerate() if t.name == "headrace-cache"]
    before = int(client.info("stats")["total_commands_processed"])  # type: ignore[index, arg-type]
    cpu = time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) if thread.ident else 0.0
    threading.Event().wait(0.5)
    assert int(client.info("stats")["total_commands_processed"]) == before + 1  # type: ignore[index, arg-type]
    assert time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) - cpu < 0.01  # type: ignore[arg-type]


def test_connections_of_others_are_left_alone(cache: Cache, url: str, client: redis.Redis) -> None:
    cache.get("a")
    with connect(url) as plain:
        plain.ping()
        cache.close()
        assert plain.ping()
    assert links(client, "t") == []


@pytest.mark.parametrize(
    ("text", "passes"),
    [("CLUSTERDOWN The cluster is down", True), ("LOADING data", True), ("MASTERDOWN Link", True),
     ("MOVED 13940 127.0.0.1:7303", True), ("ASK 13940 127.0.0.1:7303", True),
     ("TRYAGAIN Multiple keys request during rehashing of slot", True),
     ("ERR unknown command 'HELLO'", False), ("NOPROTO unsupported", False)],
)  # fmt: skip
def test_an_error_that_will_pass_does_not_keep_copies_away_for_long(text: str, passes: bool) -> None:
    with pytest.raises(Untracked) as raised:
        _accepted([BaseParser.parse_error(text)], "RESP3", parse("cluster://127.0.0.1:7301"))
    assert raised.value.passes is passes


def test_a_node_that_lost_the_slot_keeps_copies_away_for_a_moment_only(
    new_cluster: Callable[..., Cluster], new_app: Callable[..., Headrace]
) -> None:
    """The map of slots leads to a node that no longer has the slot: its refusal corrects the map."""
    cluster = new_cluster(2, 0)
    keys, target = new_app(cluster.url).client.keys, parse(cluster.url)
    listener.TrackingLink(target, 5.0, keys).close()  # the map is known
    cluster.move(slot_of(), cluster.other(cluster.serving(slot_of())))
    with pytest.raises(Untracked) as raised:
        listener.TrackingLink(target, 5.0, keys)
    assert isinstance(raised.value.__cause__, MovedError)
    assert raised.value.passes
    listener.TrackingLink(target, 5.0, keys).close()


@pytest.mark.parametrize("name", ["none", "some"])
def test_copies_of_a_node_that_lost_the_slot_end(
    new_cluster: Callable[..., Cluster],
    new_app: Callable[..., Headrace],
    eventually: Callable[..., Any],
    name: str,
) -> None:
    """It announces the keys that it gives away, and of a name that had no value nothing."""
    cluster = new_cluster(2, 0)
    cache, other = new_app(cluster.url, cache_heartbeat_timeout=1).cache, new_app(cluster.url).cache
    other.set("some", 1)
    assert kept(cache, "some", 1)
    eventually(lambda: cache.get("none", 0) == 0 and "none" in cache._listener.local.absent, SOON)
    cluster.move(slot_of(), cluster.other(cluster.serving(slot_of())))
    other.set(name, 2)
    eventually(lambda: cache.get(name) == 2, SOON)
