"""Events: what fails or changes is told once, in pages and as it happens; what succeeds is not."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace import Headrace
from headrace.errors import OptionsError
from headrace.model.activity import KINDS
from headrace.model.job_record import cause_id
from headrace.protocol.operations import tell
from headrace.testing import Kit
from tests.deadline import eventually
from tests.servers import Server


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        yield app


def test_a_failure_and_its_cause_are_told_and_success_is_not(url: str) -> None:
    app = Headrace(url)

    @app.task(name="good")
    def good() -> None: ...

    @app.task(name="bad", retries=0)
    def bad(n: int) -> None:
        raise ValueError(f"no {n}")

    with Kit(app, url=url) as kit:
        good.enqueue()
        jobs = [bad.enqueue(n) for n in range(3)]
        kit.drain(raises=False)
        told = app.events.page(["failed", "cause_new"], order="asc").rows
        assert [event.kind for event in told] == ["failed", "cause_new", "failed", "failed"]
        assert {event.facts["job"] for event in told} == {job.id for job in jobs}
        assert {event.facts["cause"] for event in told} == {cause_id("bad", jobs[0].refresh().error)}
        assert told[0].facts["error"] == "ValueError: no 0"
        assert {event.kind for event in app.events.page()} <= {
            "failed",
            "cause_new",
            "worker_started",
            "worker_stopped",
        }


def test_one_who_follows_hears_each_event_once(app: Headrace) -> None:
    app.queues["a"].pause()
    place = app.events.newest()
    follow = app.events.follow(["queue_paused"], after=place)
    app.queues["b"].pause()
    app.queues["b"].resume()
    app.queues["c"].pause()
    first = next(follow)
    assert (first.facts["queue"], next(follow).facts["queue"]) == ("b", "c")
    app.queues["d"].pause()
    assert next(follow).facts["queue"] == "d"
    again = app.events.follow(after=first.id)
    assert [event.facts["queue"] for event in itertools.islice(again, 3)] == ["b", "c", "d"]
    all_of_them = app.events.follow(after="0")
    assert [event.facts["queue"] for event in itertools.islice(all_of_them, 2)] == ["a", "b"]


def test_events_of_a_shard_that_was_silent_come_when_it_answers(new_server: Callable[..., Server]) -> None:
    """The cursor had gone on with the other shards, past them."""
    servers, seen = [new_server(tcp=True) for _ in range(3)], list[str]()
    url = " ".join(server.tcp_url for server in servers)

    def follow() -> None:
        for event in app.events.follow(after="0"):
            seen.append(event.facts["queue"])
            if seen[-1] == "end":
                return

    def put(shard: int, queue: str) -> None:
        fields = {"kind": "queue_paused", "queue": queue}
        other.client.store.parts[shard].run(tell(other.client.shards[shard], "events", queue, fields))

    with Headrace(url, timeout=2) as app, Headrace(url, timeout=60) as other:
        other.queues["a"].pause()
        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        eventually(lambda: "a" in seen, 60)
        os.kill(servers[1].pid, signal.SIGSTOP)
        eventually(lambda: app.client.left_out, 60)
        os.kill(servers[1].pid, signal.SIGCONT)
        # Servers may give the same id.
        id = f"{time.time_ns() // 1_000_000}-0"
        for shard, queue in ((1, "b"), (0, "c")):
            fields = {"kind": "queue_paused", "queue": queue}
            servers[shard].owner.xadd(other.client.shards[shard]("events"), fields, id)
        eventually(lambda: "c" in seen, 60)
        put(1, "d")
        eventually(lambda: "d" in seen, 60)
        put(0, "end")
        follower.join(60)
        assert sorted(seen) == ["a", "b", "c", "d", "end"]


async def test_a_coroutine_follows_too(app: Headrace) -> None:
    assert await app.events.anewest() == "0-0"
    await app.queues["a"].apause()
    seen: list[str] = []
    async for event in app.events.afollow(after="0"):
        seen.append(event.facts["queue"])
        if len(seen) == 3:
            break
        await app.queues["b" * len(seen)].apause()
    assert seen == ["a", "b", "bb"]
    assert (await app.events.apage()).rows == app.events.page().rows
    await app.aclose()


def test_pages(app: Headrace) -> None:
    assert (app.events.page().rows, app.events.newest()) == ([], "0-0")
    for name in "abc":
        app.queues[name].pause()
    page = app.events.page(limit=2)
    assert ([event.facts["queue"] for event in page], page.count) == (["c", "b"], 3)
    assert [event.facts["queue"] for event in app.events.page(after=page.next)] == ["a"]


@pytest.mark.parametrize("kinds", ["failed", ["faild"], [5]])
def test_an_unknown_kind_is_refused_at_the_call(app: Headrace, kinds: object) -> None:
    for verb in (app.events.page, app.events.follow, app.events.afollow):
        with pytest.raises(OptionsError, match="kind"):
            verb(kinds)  # type: ignore[operator]


def test_each_kind_says_what_it_tells() -> None:
    assert all(text and text[0].islower() for text in KINDS.values())
