"""The dispatcher's way to the store, with a real server behind it."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import time
from typing import Any

import pytest
import redis

from headrace.model.job import Outcome
from headrace.protocol import consume, operations
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, load
from headrace.store.url import parse
from headrace.worker.dispatcher import store_links
from headrace.worker.dispatcher.dispatcher_events import CallRefused, Connected, Event, Replied, Step, Woken
from headrace.worker.dispatcher.runner_links import Selectors
from headrace.worker.dispatcher.store_session import StoreSession
from tests.proxy import Proxy
from tests.servers import connect


class Loop:
    """A dispatcher's loop with nothing but an exchange in it."""

    def __init__(self, url: str, namespace: str, patience: float = 5.0) -> None:
        self.keys = Keys(namespace)
        self.watched = Selectors()
        self.answered: list[str] = []
        self.refused: list[CallRefused] = []
        self.inbox: list[Event] = []
        # What goes out first on each connection.
        self.first: list[Step] = []
        self.exchange = StoreSession(parse(url), patience, self.watched, self.inbox)

    def step(self, name: str) -> Step:
        call: Call[Any] = consume.holds(self.keys, name, 0, 1)
        return call, lambda reply: self.answered.append(name)

    def turn(self) -> None:
        self.exchange.keep(time.monotonic())
        for handler in self.watched.select(0.01, 0.0):
            handler()
        for event in self.inbox:
            if isinstance(event, Replied | Woken):
                event.read(event.reply)
            elif isinstance(event, CallRefused):
                self.refused.append(event)
            elif isinstance(event, Connected) and self.first:
                self.exchange.send_first(self.first)
        self.inbox.clear()
        self.exchange.send_next()

    def connecting(self) -> Any:
        """Have a connection made, and return what the loop has not seen of it yet."""
        connector: Any = self.exchange.links._connector
        while connector._result is None:
            self.exchange.links.keep(time.monotonic())
        return connector._result

    def close(self) -> None:
        ends: list[Any] = [
            self.exchange.links.made,
            self.exchange.links._connector._ear,
            self.exchange.links._connector._bell,
        ]
        for end in (*ends, self.watched.all, self.watched.urgent):
            if end is not None:
                end.close()


def test_a_server_that_learns_a_settle_anew_learns_the_note_before_it(
    url: str, namespace: str, eventually: Any
) -> None:
    loop = Loop(url, namespace)
    try:
        eventually(lambda: loop.turn() or loop.exchange.idle)
        with connect(url) as client:
            client.script_flush()
            call: Call[Any] = consume.settle(loop.keys, "none", 1, [], 0)
            loop.exchange.send([(call, lambda _: loop.answered.append("settled"))])
            eventually(lambda: loop.turn() or loop.answered)
            assert client.script_exists(load("note").sha) == [True]
    finally:
        loop.close()


def test_what_is_under_way_outlives_a_connection_that_ends_as_it_begins(
    url: str, namespace: str, eventually: Any
) -> None:
    loop = Loop(url, namespace)
    exchange = loop.exchange
    exchange.channel = loop.keys.mail("w1")
    loop.first = [loop.step("first")]
    eventually(lambda: loop.turn() or exchange.idle)
    loop.answered.clear()
    # The server goes with a request under way, and the next connection is gone before it is used.
    links: Any = exchange.links.made
    links.main._sock.shutdown(socket.SHUT_RDWR)
    exchange.send([loop.step("under way")])
    eventually(lambda: loop.turn() or exchange.links.made is None)
    loop.connecting().mail._sock.shutdown(socket.SHUT_RDWR)
    eventually(lambda: loop.turn() or "under way" in loop.answered)
    loop.close()


def test_a_private_server_that_refuses_the_password_is_not_told_as_a_wrong_password(
    new_server: Any, namespace: str, caplog: Any, eventually: Any
) -> None:
    """It is another one, in a directory that was made anew: a look there says where it is and how to get in."""
    server = new_server(password="theirs")
    loop = Loop(server.url.replace("theirs", "ours"), namespace)
    loop.exchange.links.revive = lambda: server.url
    with caplog.at_level("INFO", "headrace.worker"):
        eventually(lambda: loop.turn() or loop.exchange.idle)
    assert loop.exchange.links.target.shown == parse(server.url).shown
    assert "s.sock does not answer" in caplog.text
    assert "refused the credentials" not in caplog.text
    loop.close()


def test_the_end_of_a_sleep_that_the_server_never_saw_is_waited_for_as_long_as_any_answer(
    new_server: Any, namespace: str, eventually: Any
) -> None:
    with Proxy(new_server(tcp=True)) as proxy:
        asked: list[bytes] = []

        def is_lost(data: bytes) -> bool:
            asked.append(data)
            return b"BZPOPMIN" in data

        proxy.lost_request = is_lost
        loop = Loop(proxy.url, namespace, patience=2.0)
        exchange = loop.exchange
        eventually(lambda: loop.turn() or exchange.idle)
        exchange.arm([loop.keys.wake("default")], loop.step("claim"))
        exchange.disarm()
        # The sleep itself would be over after two minutes.
        eventually(lambda: loop.turn() or "claim" in loop.answered)
        assert exchange.armed is None
        assert 1 < sum(b"UNBLOCK" in data for data in asked) < 1000
        loop.close()


def test_nothing_is_overdue_that_is_on_its_way(new_server: Any, namespace: str, eventually: Any) -> None:
    """Results and arguments that took longer over a slow line than a reply may were sent again, from the start."""
    server = new_server()
    loop = Loop(server.url, namespace, patience := 60.0)
    exchange = loop.exchange
    eventually(lambda: loop.turn() or exchange.idle)
    main: Any = exchange.links.made and exchange.links.made.main
    large = b"x" * (4 << 20)
    rows = [(Outcome("a", 1, "succeeded", large), 0)]
    exchange.send([(consume.settle(loop.keys, "w1", 1, rows, 1), lambda _: loop.answered.append("told"))])
    assert main.deadline > time.monotonic() + patience
    eventually(lambda: loop.turn() or loop.answered == ["told"])
    logs = operations.logs(loop.keys, "a", 1)
    with connect(server.url) as client:
        client.rpush(loop.keys("log:a"), large)
        client.script_load(logs.script.text)
    exchange.send([(logs, lambda _: loop.answered.append("heard"))])
    due = main.deadline
    eventually(lambda: select.select([main], [], [], 0)[0])
    os.kill(server.pid, signal.SIGSTOP)
    loop.turn()
    assert due < main.deadline < math.inf
    os.kill(server.pid, signal.SIGCONT)
    eventually(lambda: loop.turn() or loop.answered == ["told", "heard"])
    loop.close()


def test_what_came_while_the_process_was_stopped_is_seen_before_anything_counts_as_overdue() -> None:
    """A wait that was interrupted, and whose time is over then, ends in Python without a look."""
    watched, (here, there) = Selectors(), socket.socketpair()
    watched.watch(here, bool)
    end = time.monotonic() + 0.1

    def stopped(*_: object) -> None:
        there.send(b"a reply")
        while time.monotonic() < end:
            pass

    before = signal.signal(signal.SIGALRM, stopped)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert watched.select(0.08, 0.0) == [bool]
    finally:
        signal.signal(signal.SIGALRM, before)
        for one in (here, there, watched.all, watched.urgent):
            one.close()


def test_a_fault_that_lasts_is_told_from_time_to_time(
    url: str, namespace: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(url, namespace)
    links = loop.exchange.links

    def lines(text: str, times: int = 3) -> int:
        caplog.clear()
        for _ in range(times):
            links.fail(ConnectionError(text), "answer")
        return len(caplog.records)

    # A server that is half away fails in two or three ways by turns.
    assert (lines("gone"), lines("gone"), lines("slow"), lines("gone"), lines("slow")) == (1, 0, 1, 0, 0)
    links.on_any_answer()
    assert lines("gone") == 1
    monkeypatch.setattr(store_links, "AGAIN_AFTER", 0.0)
    links.on_any_answer()
    assert lines("gone") == 3
    loop.close()


def connections(client: redis.Redis) -> int:
    return int(client.info("stats")["total_connections_received"])


@pytest.mark.parametrize("fault", ["full", "forbidden", "wrong type"])
def test_a_refusal_answers_one_call_and_the_connection_stays(
    fault: str, new_server: Any, namespace: str, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """All calls of the trip were sent again, the refused one first, on one new connection after the other."""
    server = new_server()
    client = server.client()
    client.execute_command("ACL", "SETUSER", "worker", "on", "nopass", "allcommands", "allkeys", "allchannels")
    loop = Loop(server.url_of("worker:any"), namespace)
    exchange = loop.exchange
    eventually(lambda: loop.turn() or exchange.idle)
    before = connections(client)
    call: Call[Any] = operations.logs(loop.keys, "a", 1)
    if fault == "full":
        call = operations.greet(loop.keys, 1)
        client.config_set("maxmemory", 1)
    elif fault == "forbidden":
        client.execute_command("ACL", "SETUSER", "worker", "resetkeys", "~*owner:*", "~*claims:*")
    else:
        client.set(loop.keys("log:a"), "no list")
    step: Step = (call, lambda _: loop.answered.append("refused"))
    exchange.send([loop.step("before"), step, loop.step("behind")])
    eventually(lambda: loop.turn() or loop.refused)
    assert loop.answered == ["before", "behind"]
    assert [event.step for event in loop.refused] == [step]
    assert exchange.idle
    assert connections(client) == before
    exchange.send([step])
    eventually(lambda: loop.turn() or len(loop.refused) == 2)
    assert len(caplog.records) == 1
    client.config_set("maxmemory", 0)
    client.execute_command("ACL", "SETUSER", "worker", "allkeys")
    client.delete(loop.keys("log:a"))
    exchange.send([step])
    with caplog.at_level("INFO", "headrace.worker"):
        eventually(lambda: loop.turn() or "refused" in loop.answered)
    assert f"accepts {call.script.name} again" in caplog.text
    loop.close()


@pytest.mark.parametrize("refused", ["bzpopmin", "client|unblock", "client|id", "subscribe", "connections"])
def test_where_a_worker_may_not_sleep_or_listen_it_asks_for_jobs_on_the_same_connections(
    refused: str, new_server: Any, namespace: str, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each answer to a request cleared the pause of the other connections: up to 85 new ones a second."""
    server = new_server()
    client = server.client()
    client.execute_command("ACL", "SETUSER", "worker", "on", "nopass", "+@all", "allkeys", "allchannels")
    if refused != "connections":
        client.execute_command("ACL", "SETUSER", "worker", f"-{refused}")
    loop = Loop(server.url_of("worker:any"), namespace)
    exchange = loop.exchange
    exchange.channel = loop.keys.mail("w1")
    eventually(lambda: loop.turn() or exchange.idle)
    if refused == "connections":
        # It ends each that sleeps; requests are answered in between.
        for _ in range(3):
            exchange.links.on_any_answer()
            exchange.links.fail(ConnectionError("closed"), "answer", "waker")
        eventually(lambda: loop.turn() or exchange.idle)
    before = connections(client)
    for _ in range(3):
        exchange.arm([loop.keys.wake("default")], loop.step("claim"))
        exchange.send([loop.step("request")])
        eventually(lambda: loop.turn() or (exchange.idle and "request" in loop.answered))
        exchange.disarm()
        eventually(lambda: loop.turn() or (exchange.armed is None and "claim" in loop.answered))
        loop.answered.clear()
    # Where a sleep cannot be ended, its connection is.
    assert connections(client) - before == (3 if refused == "client|unblock" else 0)
    assert len(caplog.records) <= 3
    assert ("twice a second" in caplog.text) == (refused != "subscribe")
    loop.close()
