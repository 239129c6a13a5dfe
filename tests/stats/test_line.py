"""``stats="stream"``: batches line up, a consumer counts them, once; and whoever is late is seen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
import redis

from headrace.protocol import stats_calls as protocol
from headrace.protocol.keys import Keys
from headrace.stats import Stats
from headrace.stats.broker import Consumer
from headrace.stats.buffer import Row, encode
from tests.deadline import eventually
from tests.servers import Server

Make = Callable[..., Stats]


def total(stats: Stats, label: str = "a", field: str = "n") -> int:
    return stats.find(label, time.time() - 3600)[field]


def consume(stats: Stats) -> int:
    """Take all that waits; how many steps that was."""
    consumer, steps = Consumer(stats._client), 0
    while consumer.step().batches:
        steps += 1
    return steps


def test_counts_are_there_when_they_were_consumed(make_stats: Make) -> None:
    stats = make_stats(stats="stream")
    for n in range(5):
        stats.add(f"a/{n}", {"n/x": 1})
        stats.observe("a", {"s": 1.0})
        stats.flush()
    assert (total(stats), stats.lag().waiting) == (0, 5)
    assert consume(stats) == 1
    assert (total(stats), total(stats, field="n/x"), stats.lag().waiting) == (5, 5, 0)
    assert stats.find("a", time.time() - 60).total().histogram("s").count == 5
    assert stats.lag().taken > 0


def test_another_scope_keeps_its_resolutions_on_the_way(make_stats: Make) -> None:
    stats = make_stats(stats="stream")
    fine = stats.scope("fine", {"second": 600})
    fine.add("a", {"n": 1})
    stats.flush()
    consume(make_stats())
    assert fine.find("a", time.time() - 60)["n"] == 1
    assert stats.find("fine/a", time.time() - 60)["n"] == 0


def test_many_batches_take_several_steps(make_stats: Make) -> None:
    stats = make_stats(stats="stream")
    for first in range(0, 1200, 400):
        for n in range(first, first + 400):
            stats.add(f"a/{n}", {"n": 1})
        stats.flush()
    assert consume(stats) == 2
    assert total(stats) == 1200


def test_a_full_line_leaves_counts_with_the_program(make_stats: Make) -> None:
    """RS15: they go on merging, nothing is lost."""
    stats = make_stats(stats="stream", stats_stream_max=2, stats_flush_interval=0.02)
    for n in range(6):
        stats.add(f"a/{n}", {"n": 1})
        stats.flush()
    assert stats.lag().waiting == 2
    assert stats.pending > 0
    eventually(lambda: (consume(stats), stats.flush(), total(stats) == 6)[2])
    assert (total(stats), stats.lag().lost) == (6, 0)


def test_a_full_line_drops_the_oldest_if_told_to(make_stats: Make) -> None:
    """RS15."""
    stats = make_stats(stats="stream", stats_stream_max=2, stats_overflow="drop_oldest")
    for n in range(5):
        stats.add("a", {"n": 10**n})
        stats.flush()
    assert (stats.lag().lost, stats.pending) == (3, 0)
    consume(stats)
    assert total(stats) == 11_000


def test_consumers_side_by_side_count_everything_once(make_stats: Make) -> None:
    stats = make_stats(stats="stream")
    stop = threading.Event()

    def consumer() -> None:
        one, last = Consumer(make_stats()._client), False
        # Asked before it looks: what was sent after its last look would stay.
        while one.step().waiting or not last:
            last = stop.is_set()

    threads = [threading.Thread(target=consumer) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for n in range(300):
            # Of different sizes, so that one counted for another shows.
            stats.add(f"a/{n % 7}", {"n": n})
            stats.flush()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert total(stats) == sum(range(300))


def test_a_batch_that_cannot_be_read_stops_no_other(
    make_stats: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    stats = make_stats(stats="stream")
    stats.add("a", {"n": 1})
    stats.flush()
    layout, now = stats.layout, int(time.time())
    # A time that no calendar has; a field that none can have; a histogram's bucket that readers could not place.
    rows = Row(layout, "a", 1 << 60, {"n": 1}), Row(layout, "a", now, {"": 1}), Row(layout, "a", now, {"n~x": 1})
    batches = b"alien", b"\x91\x94\xa1x\xa1x\x00\x80", *(encode([row]) for row in rows)
    for number, batch in enumerate(batches):
        stats._client.run(protocol.send(Keys(), "other", number, batch, 100, hold=False))
    stats.add("a", {"n": 1})
    stats.flush()
    consume(stats)
    assert (total(stats), stats.lag().waiting) == (2, 0)
    assert caplog.text.count("cannot be read") == 5


def test_statistics_may_live_on_another_server(url: str, new_server: Callable[..., Server]) -> None:
    from headrace import Headrace

    other, months = new_server(), Keys()("stat:??????:a")
    with Headrace(url, stats_url=other.url, stats_flush_interval=3600) as app:
        app.stats.add("a", {"n": 1})
        app.stats.flush()
        assert app.stats.find("a", time.time() - 60)["n"] == 1
        assert app.stats is app.stats
        app.stats.add("a", {"n": 1})
    client = other.client()
    # There are two of them where one ends meanwhile.
    assert sum(int(client.hget(month, "n") or 0) for month in client.keys(months)) == 2


async def test_aclose_closes_the_connections_to_the_other_server(url: str, new_server: Callable[..., Server]) -> None:
    from headrace import Headrace

    other = new_server()
    client = other.client()
    app = Headrace(url, stats_url=other.url, stats_flush_interval=3600)
    await app.stats.aadd("a", {"n": 1})
    await app.stats.aflush()
    assert await app.stats.find("a", time.time() - 60).atotal()
    assert len(client.client_list()) > 1
    await app.aclose()
    await asyncio.to_thread(eventually, lambda: len(client.client_list()) == 1, 5)
