"""The write buffer: merges exactly, is sent once whatever fails, and belongs to one process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace.errors import HeadraceError, OptionsError, StoreUnavailable
from headrace.protocol.keys import Keys
from headrace.settings import Settings
from headrace.stats import Buffer, Stats
from headrace.stats import buffer as module
from headrace.stats.buffer import Row
from headrace.stats.resolutions import layout_of
from headrace.store.client import Client
from tests.deadline import eventually
from tests.proxy import Proxy
from tests.servers import Server

LAYOUT = layout_of("minute=2d hour=60d")
Make = Callable[..., Stats]


def total(stats: Stats, label: str = "a", field: str = "n") -> int:
    return stats.find(label, time.time() - 3600)[field]


def flushed(stats: Stats) -> bool:
    """Whether all is sent: where a call may take little time, a server that answers again may be too slow for one."""
    with contextlib.suppress(HeadraceError):
        stats.flush()
    return not stats.pending


def test_calls_are_merged_by_series_and_bucket(make_stats: Make) -> None:
    """R51 to R57, RS13."""
    stats = make_stats()
    for n in range(100):
        stats.add("/a/b", {"n": 1, "m": n}, at=1_700_000_000 + n)
        stats.add("a/b/", {"n": 1})
    assert (stats.pending, total(stats)) == (200, 0)
    before = stats.client.store.round_trips
    stats.flush()
    assert stats.client.store.round_trips - before <= 3
    assert (stats.pending, total(stats, "a/b"), total(stats)) == (0, 100, 100)
    # The hours and days of 2023 are over by now: its month is what is left.
    found = stats.find("a", 1_700_000_000 - 3600, 1_700_000_000 + 3600, "hour").total()
    assert (found["m"], found.exact, found.start.month, found.end.month) == (4950, False, 11, 12)
    stats.flush()
    assert total(stats) == 100


def test_a_flush_is_one_round_trip_however_much_it_sends(make_stats: Make) -> None:
    """RS14."""
    stats = make_stats()
    stats.add("a", {"n": 1})
    stats.flush()
    store = stats.client.store
    for calls in (1, 100, 5000):
        before = store.round_trips
        for n in range(calls):
            stats.add(f"a/{n % 50}", {f"f{n % 40}": 1})
        assert store.round_trips == before, "counting asks nobody"
        stats.flush()
        assert store.round_trips == before + 1
    assert stats.find("a", time.time() - 3600)["f0"] == 1 + 3 + 125


def test_a_batch_keeps_its_calls_until_it_is_answered() -> None:
    """RS2: what a dispatcher's loop does with a buffer, without a thread."""
    buffer = Buffer()
    lane = buffer.lane(LAYOUT)
    assert buffer.take() is None
    lane.add("a", {"n": 1}, 5_000)
    batch = buffer.take()
    assert batch is not None
    calls = batch.writes(Keys())
    lane.add("a", {"n": 2}, 5_000)
    assert buffer.take() is batch
    assert batch.writes(Keys()) == calls
    assert (buffer.held, buffer.calls, buffer.stuck) == (2, 1, True)
    buffer.answered(batch)
    following = buffer.take()
    assert following is not None
    assert (following.number, following.sender, following.rows[0].counts) == (batch.number + 1, batch.sender, {"n": 2})
    buffer.answered(batch)
    assert buffer.take() is following, "an answer that comes late is of another batch"
    buffer.answered(following, following.rows)
    assert buffer.take().rows == following.rows  # type: ignore[union-attr]


def test_several_calls_of_a_batch_have_senders_of_their_own(client: redis.Redis, make_stats: Make) -> None:
    stats = make_stats()
    for label in range(40):
        stats.add(f"a/{label}", {f"f{n}": 1 for n in range(60)})
    batch = stats._writer.buffer.take()
    assert batch is not None
    calls = batch.writes(Keys())
    assert len({call.keys for call in calls}) == len(calls) > 3
    # One of several fails, and all are sent again: the others are not counted twice, and it is not passed over.
    for call in (*calls[:1], *calls[2:], *calls):
        stats._client.run(call)
    stats._writer.buffer.answered(batch)
    assert stats.find("a", time.time() - 3600).total().counts == {f"f{n}": 40 for n in range(60)}


@pytest.mark.parametrize(
    ("label", "fields"),
    [
        ("a", {"n": 1.5}), ("a", {"n": True}), ("a", {"n": "1"}), ("a", {"n": 2**63}), ("a", {"": 1}), ("a", {"x~1": 1}),
        ("a\n", {"n": 1}), (5, {"n": 1}), ("a", {"n": 1, "k": 1, "m": 1.5}), ("a", {"n": 1, 5: 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [0, 100])
def test_what_cannot_be_counted_is_told_and_nothing_added(make_stats: Make, label: Any, fields: Any, size: int) -> None:
    """R08."""
    stats = make_stats(stats_buffer=size)
    stats.add("a", {"n": 7, "m": 1})
    with pytest.raises(OptionsError):
        stats.add(label, fields)
    stats.flush()
    assert stats.find("a", time.time() - 60).total().counts == {"n": 7, "m": 1}


def test_nothing_to_count_is_no_write(make_stats: Make, client: redis.Redis) -> None:
    """R21."""
    for size in (0, 5):
        stats = make_stats(stats_buffer=size)
        stats.add("a", {})
        stats.observe("a", {})
        stats.flush()
        assert stats.pending == 0
    assert client.keys("*stat*") == []


def test_threads_merge_to_the_exact_number(make_stats: Make) -> None:
    """RS5."""
    stats = make_stats(stats_buffer=500, stats_flush_interval=0.02)
    begin = threading.Barrier(8)

    def count(seed: int) -> None:
        dice = random.Random(seed)
        begin.wait()
        for _ in range(4000):
            stats.add(f"a/{dice.randrange(5)}", {"n": 1, f"f{dice.randrange(3)}": 2})

    threads = [threading.Thread(target=count, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats.flush()
    found = stats.find("a", time.time() - 3600)
    assert found["n"] == 32_000
    assert found["f0"] + found["f1"] + found["f2"] == 64_000
    assert sum(child["n"] for child in found.children()) == 32_000


def test_a_signal_handler_may_count(make_stats: Make) -> None:
    stats = make_stats()
    seen = 0

    def handle(_number: int, _frame: object) -> None:
        nonlocal seen
        seen += 1
        stats.add("a", {"signal": 1})

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while seen < 50:
            stats.add("a", {"n": 1})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    stats.flush()
    assert total(stats, field="signal") == seen


def test_a_count_amid_another_or_amid_a_take_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler counts wherever its thread is: the lock is re-entrant."""
    buffer = Buffer()
    lane = buffer.lane(LAYOUT)

    class Rows(dict[tuple[str, int], dict[str, int]]):
        """Is interrupted when it was asked for a row, and had none."""

        asked = False

        def get(self, key: tuple[str, int], default: Any = None) -> Any:
            found = super().get(key, default)
            if not self.asked:
                self.asked = True
                lane.add("a", {"n": 2, "first": 1}, 5_000)
            return found

    monkeypatch.setattr(lane, "_rows", Rows())
    lane.add("a", {"n": 1}, 5_000)
    drain = lane.drain

    def drained() -> list[Row]:
        rows = drain()
        lane.add("a", {"second": 1}, 5_000)
        return rows

    monkeypatch.setattr(lane, "drain", drained)
    batch = buffer.take()
    assert batch is not None
    assert [row.counts for row in batch.rows] == [{"n": 3, "first": 1}]
    assert (batch.calls, buffer.calls) == (2, 1)
    monkeypatch.setattr(lane, "drain", drain)
    buffer.answered(batch)
    following = buffer.take()
    assert following is not None
    assert [row.counts for row in following.rows] == [{"second": 1}]


def test_a_flush_comes_by_age_without_being_asked(make_stats: Make) -> None:
    """R58: few counts do not sit in memory until the end; and who counts nothing has no thread."""
    others = set(threading.enumerate())
    stats = make_stats(stats_flush_interval=0.05)
    for n in (1, 2):
        stats.add("a", {"n": 1})
        assert eventually(lambda: total(stats), what="flush by age") in (1, 2)
        eventually(lambda n=n: total(stats) == n)
        eventually(
            lambda: not {t for t in threading.enumerate() if t.name == "headrace-stats"} - others, what="no thread"
        )


def test_a_flush_comes_by_size(make_stats: Make) -> None:
    stats = make_stats(stats_buffer=50)
    for _ in range(49):
        stats.add("a", {"n": 1})
    assert stats.pending == 49
    stats.add("a", {"n": 1})
    eventually(lambda: total(stats) == 50)


def test_without_a_buffer_counts_are_there_at_once(make_stats: Make) -> None:
    """R50."""
    stats = make_stats(stats_buffer=0)
    stats.add("a/b", {"n": 2})
    stats.observe("a/b", {"s": 1.0})
    assert (total(stats), stats.pending) == (2, 0)
    assert stats.find("a", time.time() - 60).total().histogram("s").count == 1
    stats.add("a/b", {"n": 2**63 - 1 - 2})
    with pytest.raises(OptionsError, match="64 bits"):
        stats.add("a/b", {"n": 1})


def test_a_full_counter_is_told_in_the_log(make_stats: Make, caplog: pytest.LogCaptureFixture) -> None:
    stats = make_stats()
    stats.add("a", {"n": 2**63 - 1, "m": 1})
    stats.add("a", {"n": 2**63 - 1})
    stats.flush()
    assert "were refused" in caplog.text
    assert total(stats, field="m") == 1


def test_a_lost_reply_is_not_counted_twice(new_server: Callable[..., Server], make_stats: Make) -> None:
    """RS2: the connection dies after the server counted, before it answered."""
    server = new_server(tcp=True)
    with Proxy(server) as proxy:
        stats = make_stats(at=proxy.url, timeout=20)
        stats.add("a", {"n": 1})
        stats.flush()
        for _ in range(20):
            stats.add("a", {"n": 1})
            proxy.lose_replies()
            stats.flush()
        assert total(stats) == 21


def test_a_server_that_is_away_loses_and_doubles_nothing(new_server: Callable[..., Server], make_stats: Make) -> None:
    """RS2."""
    server = new_server(append_only=True)
    stats = make_stats(at=server.url, timeout=1)
    stats.add("a", {"n": 1})
    eventually(lambda: flushed(stats))
    server.kill()
    for n in range(3):
        stats.add("a", {"n": 1})
        with pytest.raises(StoreUnavailable):
            stats.flush()
        assert stats.pending == n + 1
    server.start()
    eventually(lambda: flushed(stats))
    assert total(make_stats(at=server.url)) == 4


LABELS = 3000


def count_labels(stats: Stats) -> None:
    for n in range(LABELS):
        stats.add(f"a/{n}", {"n": 1})
        stats.observe(f"a/{n}", {"seconds": 1})


def test_a_full_buffer_flushes_and_loses_nothing(make_stats: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 100)
    stats = make_stats()
    threads = [threading.Thread(target=count_labels, args=(stats,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats.flush()
    assert (stats.lost, total(stats), stats.find("a", time.time() - 3600).total().histogram("seconds").count) == (
        0, 2 * LABELS, 2 * LABELS
    )  # fmt: skip


async def test_a_full_buffer_holds_up_no_event_loop(make_stats: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    stats = make_stats()
    sending, begun, go_on = stats._writer.flusher._send, threading.Event(), threading.Event()

    def held(batch: Any) -> list[Row]:
        begun.set()
        go_on.wait(20)
        return sending(batch)

    monkeypatch.setattr(stats._writer.flusher, "_send", held)
    await stats.aadd("a", {f"f{n}": 1 for n in range(10)})
    waiting = [asyncio.create_task(stats.aadd("a", {"new": 1})), asyncio.create_task(stats.aobserve("a", {"s": 1}))]
    while not begun.is_set():
        await asyncio.sleep(0)
    assert not waiting[0].done()
    go_on.set()
    await asyncio.gather(*waiting)
    await stats.aflush()
    assert (stats.lost, total(stats, field="new")) == (0, 1)


def test_a_full_buffer_waits_once_for_a_server_that_is_away(
    new_server: Callable[..., Server],
    make_stats: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    server = new_server(append_only=True)
    stats = make_stats(at=server.url, timeout=0.2)
    server.kill()
    stats.add("a", {f"f{n}": 1 for n in range(10)})
    # What is sent waits apart from what comes: there is room for as many again.
    stats.add("a", {f"g{n}": 1 for n in range(10)})
    assert stats.lost == 0
    tried = stats._writer.client.store.round_trips
    for n in range(50):
        stats.add(f"new/{n}", {"n": 1})
        stats.add("a", {"g0": 1, "g1": 1})
    assert stats._writer.client.store.round_trips == tried
    lost = stats.lost
    assert lost == 50
    assert caplog.text.count("statistics are lost, 1 counters so far: ") == 1
    assert "did not answer" in caplog.text
    server.start()
    eventually(lambda: flushed(stats))
    assert f"statistics are sent again; this process has lost {lost} counters so far" in caplog.text
    stats.add("b", {"n": 1})
    eventually(lambda: flushed(stats))
    reader = make_stats(at=server.url)
    assert (stats.lost, total(reader, "b"), total(reader, field="f0")) == (lost, 1, 1)


def test_those_who_waited_for_a_flush_that_failed_do_not_try_again(
    make_stats: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    stats = make_stats()
    flusher, begun, go_on, sent = stats._writer.flusher, threading.Event(), threading.Event(), list[Any]()

    def failing(batch: Any) -> list[Row]:
        sent.append(batch)
        begun.set()
        go_on.wait(20)
        raise StoreUnavailable("away")

    monkeypatch.setattr(flusher, "_send", failing)
    stats.add("a", {"n": 1})

    def flush() -> None:
        with pytest.raises(StoreUnavailable):
            stats.flush()

    flushing = threading.Thread(target=flush)
    flushing.start()
    begun.wait(20)
    stats.add("a", {"m": 1})
    waiting = [threading.Thread(target=stats.add, args=(f"b/{n}", {"n": 1})) for n in range(5)]
    for thread in waiting:
        thread.start()
    go_on.set()
    for thread in (flushing, *waiting):
        thread.join(20)
        assert not thread.is_alive()
    assert (len(sent), stats.lost) == (1, 5)
    monkeypatch.undo()


def test_a_flush_that_waited_for_one_that_failed_fails_with_it(
    make_stats: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, away, sent = make_stats(), StoreUnavailable("away"), list[Any]()
    flusher = stats._writer.flusher

    class Sending(contextlib.nullcontext[None]):
        def __enter__(self) -> None:
            # What the flush that was under way came to.
            flusher.failing = away

    monkeypatch.setattr(flusher, "_sending", Sending())
    monkeypatch.setattr(flusher, "_send", sent.append)
    stats.add("a", {"n": 1})
    with pytest.raises(StoreUnavailable, match="away"):
        stats.flush()
    assert (sent, stats.pending) == ([], 1)
    monkeypatch.undo()


def test_where_the_oldest_may_be_dropped_nobody_waits(
    make_stats: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    monkeypatch.setattr(module, "DROP", 2)
    stats = make_stats(stats_overflow="drop_oldest")
    monkeypatch.setattr(stats._writer.flusher, "send_in_time", lambda calls: None)
    web = stats.scope("web", {"second": 600})
    now = int(time.time()) // 60 * 60
    for n in range(10):
        (web if n % 2 else stats).add(f"old/{n}", {"n": 1}, at=now - 600 + n * 60)
    trips = stats.client.store.round_trips
    stats.add("a", {"x": 1})
    web.add("a", {"x": 1})
    # A caller's own label may be among the dropped: it is counted anew.
    stats.add("old/0", {"n": 5}, at=now - 600)
    assert (stats.client.store.round_trips, stats.lost) == (trips, 4)
    assert caplog.text.count("statistics are lost, 2 counters so far: they come faster than they go") == 1
    batch = stats._writer.buffer.take()
    assert batch is not None
    assert sorted(row.label for row in batch.rows) == sorted(
        ["a", "web/a", "old/0", *(f"old/{n}" for n in (4, 6, 8)), *(f"web/old/{n}" for n in (5, 7, 9))]
    )


def test_the_engine_waits_for_no_flush(make_stats: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    stats = make_stats()
    trips = stats.client.store.round_trips
    stats.absorb("a", {"n": 1})
    stats.absorb("a", {"n": 1})
    stats.absorb("b", {"n": 1, "m": 1})
    assert (stats.client.store.round_trips, stats.lost) == (trips, 2)
    stats.flush()
    assert (total(stats), total(stats, "b")) == (2, 0)


def test_a_call_that_finds_no_room_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    buffer = Buffer()
    lane = buffer.lane(LAYOUT)
    lane.add("a", {"n": 1, "m": 1}, 0)
    with pytest.raises(module.Full):
        lane.add("a", {"n": 1, "x": 1}, 0)
    with pytest.raises(module.Full):
        lane.add("b", {"n": 1}, 0)
    with pytest.raises(OptionsError):
        lane.add("a", {"n": 1, "x": "1"}, 0)  # type: ignore[dict-item]
    assert lane.add("a", {"n": 1, "m": 1}, 0) == 2
    batch = buffer.take()
    assert batch is not None
    assert [row.counts for row in batch.rows] == [{"n": 2, "m": 2}]


def test_a_forked_child_sends_only_its_own(url: str, make_stats: Make) -> None:
    """RS4."""
    stats = make_stats(stats_flush_interval=0.05)
    expected = 0
    for _ in range(5):
        stats.add("a", {"n": 1})
        child = os.fork()
        if child == 0:
            code = 1
            try:
                stats.add("a", {"n": 10})
                stats.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        expected += 11
    stats.flush()
    assert total(stats) == expected


def test_what_a_child_is_the_first_to_count_is_sent_when_it_ends(url: str, make_stats: Make) -> None:
    text = "import os, sys, headrace\n"
    text += "app = headrace.Headrace(sys.argv[1], stats_flush_interval=3600)\n"
    text += "pid = os.fork()\n"
    text += "if pid: sys.exit(os.waitpid(pid, 0)[1])\n"
    text += "app.stats.add('a', {'n': 1})\n"
    subprocess.run([sys.executable, "-c", text, url], check=True, timeout=60)
    assert total(make_stats()) == 1


def test_a_process_of_multiprocessing_sends_its_counts_when_it_ends(make_stats: Make, url: str) -> None:
    # In a program of its own: threads of other tests are not to be met by the exit of a fork.
    code = f"""
import multiprocessing, sys
from headrace import Headrace
app = Headrace({url!r}, stats_flush_interval=3600)
child = multiprocessing.get_context("fork").Process(target=app.stats.add, args=("a", {{"n": 1}}))
child.start()
child.join(60)
sys.exit(child.exitcode)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
    assert total(make_stats()) == 1


def test_a_child_has_none_of_its_parents_troubles(make_stats: Make) -> None:
    stats = make_stats()
    stats.add("a", {"n": 1})
    stats._writer.buffer.lost, stats._writer.flusher.failing = 3, StoreUnavailable("no answer")
    child = os.fork()
    if child == 0:
        os._exit(0 if stats.lost == 0 and stats._writer.flusher.failing is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert stats.lost == 3


def test_a_child_forked_while_threads_count_is_free(make_stats: Make) -> None:
    """RS4: no lock is inherited locked."""
    stats = make_stats(stats_flush_interval=0.001)
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            stats.add("a", {"n": 1})

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(60)
                    stats.add("b", {"n": 1})
                    stats.flush()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert total(stats, "b") == 20


PROGRAM = """
import os, signal, sys, time
from headrace import Headrace
app = Headrace(sys.argv[1], stats_flush_interval=float(sys.argv[2]))
for n in range(1000):
    app.stats.add("a", {"n": 1})
if sys.argv[3] == "end":
    sys.exit(0)
print("counted", flush=True)
sys.stdin.readline()
"""


def program(url: str, age: float, how: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", PROGRAM, url, str(age), how]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_end_of_a_program_is_a_flush(url: str, make_stats: Make) -> None:
    """R56."""
    with program(url, 3600, "end") as process:
        assert process.wait(60) == 0
    assert total(make_stats()) == 1000


@pytest.mark.parametrize("age", [0.1, 3600])
def test_a_kill_loses_what_is_younger_than_the_age_at_most(url: str, make_stats: Make, age: float) -> None:
    """RS3: the bound."""
    stats = make_stats()
    with program(url, age, "wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "counted\n"
        if age < 1:
            eventually(lambda: total(stats) == 1000)
        process.kill()
        process.wait()
        assert total(stats) == (1000 if age < 1 else 0)


def test_close_says_what_is_lost(new_server: Callable[..., Server], caplog: pytest.LogCaptureFixture) -> None:
    server = new_server()
    settings = Settings(url=server.url, timeout=0.2, stats_flush_interval=3600)
    stats = Stats(Client(settings), settings)
    stats.add("a", {"n": 1})
    server.kill()
    stats.close()
    assert "the last 1 counts of this process are lost" in caplog.text


@pytest.mark.parametrize("seed", range(5))
def test_random_crashes_and_repetitions_add_up(make_stats: Make, seed: int) -> None:
    """RS2: any order of adds, sends that are answered, sends that are not, and repetitions."""
    dice, stats = random.Random(seed), make_stats()
    buffer, counted = stats._writer.buffer, 0
    for _ in range(300):
        match dice.randrange(4):
            case 0 | 1:
                stats.add(f"a/{dice.randrange(3)}", {"n": 1})
                counted += 1
            case _:
                batch = buffer.take()
                if batch is not None:
                    for call in batch.writes(Keys())[: dice.randrange(3)]:
                        stats._client.run(call)
                    if dice.random() < 0.5:
                        for call in batch.writes(Keys()):
                            stats._client.run(call)
                        buffer.answered(batch)
    stats.flush()
    assert total(stats) == counted


@pytest.mark.parametrize("wrong", [1, "n", ["n"], None])
def test_fields_are_a_mapping(wrong: Any) -> None:
    lane = Buffer().lane(LAYOUT)
    for count in (lane.add, lane.row):
        with pytest.raises(OptionsError, match=r'write {"count": 1}'):
            count("a", wrong, 0)
    with pytest.raises(OptionsError, match=r'write {"count": 1}'):
        module.observed(wrong)
