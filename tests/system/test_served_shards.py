"""One worker at several shards: on one server, and on three of which one stands still.

Each of ``apps`` stores its jobs at one shard.
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.protocol.overviews import overview
from headrace.tasks.job_handle import Job
from headrace.testing import assert_invariants
from tests.proxy import Proxy
from tests.servers import Server, connect
from tests.system.fleet import LONG_LEASE, Fleet, NewFleet

SHARDS = 3


class Spread:
    """A fleet whose workers serve three shards."""

    def __init__(self, fleet: Fleet, urls: list[str]) -> None:
        self.fleet, self.urls = fleet, urls
        self.url = " ".join(urls) if len(set(urls)) > 1 else f"{urls[0]}?shards={SHARDS}"
        self.apps = [self._app(shard) for shard in range(SHARDS)]
        fleet.app.close()
        fleet.app = self.apps[0]

    def _app(self, shard: int) -> Headrace:
        """A producer whose jobs live at this shard."""
        app = Headrace(self.url, **self.fleet.settings)
        client: Any = app.client
        client.shard_for = lambda _: shard
        return app

    def worker(self, **options: Any) -> Any:
        return self.fleet.worker(url=self.url, **options)

    def enqueue(self, shard: int, task: str, arguments: list[tuple[Any, ...]]) -> list[Job[Any]]:
        # With a name, so that limited ones do not live at home.
        bound = self.apps[shard].by_name(task)
        return [bound.options(request_id=uuid.uuid4().hex).enqueue(*args) for args in arguments]

    def ended(self, jobs: list[Job[Any]]) -> None:
        for job in jobs:
            self.fleet.until(lambda job=job: job.state.final)

    def check(self) -> None:
        for url in set(self.urls):
            with connect(url) as client:
                assert_invariants(client, "hr")
        assert self.fleet.ledger.tokens_grow()

    def close(self) -> None:
        for app in self.apps:
            app.close()


@pytest.fixture
def spread(new_fleet: NewFleet, server: Server) -> Iterator[Spread]:
    """Three shards on one server."""
    made = Spread(new_fleet(server.url, lease=LONG_LEASE), [server.url] * SHARDS)
    yield made
    made.close()


def test_one_worker_runs_the_jobs_of_all_shards_once_each(spread: Spread) -> None:
    jobs = [spread.enqueue(n, "process.add", [(i, n) for i in range(40)]) for n in range(SHARDS)]
    worker = spread.worker(processes=2)
    for some in jobs:
        spread.ended(some)
    more = [job for n in range(SHARDS) for job in spread.enqueue(n, "process.add", [(1, n)])]
    spread.ended(more)
    assert spread.fleet.ledger.counts() == dict.fromkeys([job.id for some in [*jobs, more] for job in some], 1)
    parts = spread.apps[0].store.parts

    def owners() -> list[set[str]]:
        return [{one.owner for one in part.run(overview(part.keys)).workers} for part in parts]

    first = owners()
    assert first[0] == first[1] == first[2]
    # A server that lost its data: the worker has another name, which is one, too.
    with connect(spread.urls[0]) as client:
        client.flushall()
    spread.fleet.until(lambda: all(now and now != then for now, then in zip(owners(), first, strict=True)))
    assert len({owner for some in owners() for owner in some}) == 1
    worker.terminate()
    assert worker.wait() == 0
    spread.check()


@pytest.fixture
def servers(new_fleet: NewFleet) -> Iterator[tuple[Spread, list[Server]]]:
    """A shard on each of three servers."""
    made = [Server() for _ in range(SHARDS)]
    spread = Spread(new_fleet(made[0].url, lease=6.0), [one.url for one in made])
    yield spread, made
    spread.fleet.end()
    spread.close()
    for one in made:
        one.stop()


def test_a_server_that_stands_still_stops_its_own_jobs_only(
    servers: tuple[Spread, list[Server]], tmp_path: Path
) -> None:
    spread, (_, _, still) = servers
    paths = [tmp_path / f"go{n}" for n in range(SHARDS)]
    held = [spread.enqueue(n, "process.gate", [(str(paths[n]),)])[0] for n in range(SHARDS)]
    worker = spread.worker(processes=4)
    for job in held:
        spread.fleet.started(job)
    os.kill(still.pid, signal.SIGSTOP)
    (stopped,) = [line.pid for line in spread.fleet.ledger.starts(held[2].id)]
    try:
        # Until its job is stopped, and then, the others go on.
        more = 20
        while more:
            more -= not Path(f"/proc/{stopped}").exists()
            spread.ended([job for n in (0, 1) for job in spread.enqueue(n, "process.add", [(1, n)])])
    finally:
        os.kill(still.pid, signal.SIGCONT)
    spread.fleet.started(held[2], 2)
    for path in paths:
        path.touch()
    spread.ended(held)
    assert [len(spread.fleet.ledger.starts(job.id)) for job in held] == [1, 1, 2]
    record = held[2].refresh()
    assert (record.state, record.crashes) == ("succeeded", 0)
    # The log names the server, which it called the store, and the shard whose lease was not kept.
    assert f"{still.url} does not answer" in worker.log()
    assert " at shard 2 of 3 could not be kept: stopping its jobs" in worker.log()
    spread.check()


def test_a_slow_and_a_silent_server_hold_up_no_job_of_another_shard(new_fleet: NewFleet) -> None:
    """Of the second each reply takes a second; the third stops for ever."""
    with contextlib.ExitStack() as stack:
        made = [Server(tcp=True) for _ in range(SHARDS)]
        for one in made:
            stack.callback(one.stop)
        slow = stack.enter_context(Proxy(made[1]))
        spread = Spread(new_fleet(made[0].url, lease=LONG_LEASE), [made[0].url, slow.url, made[2].url])
        stack.callback(spread.close)
        stack.callback(spread.fleet.end)
        late = [job for n in (1, 2) for job in spread.enqueue(n, "process.nap", [(0.0,)] * 3)]
        spread.worker(processes=2)
        spread.ended(late)
        os.kill(made[2].pid, signal.SIGSTOP)
        stack.callback(os.kill, made[2].pid, signal.SIGCONT)
        slow.delay = 1.0
        replies = 0

        def counted(_: bytes) -> bool:
            nonlocal replies
            replies += 1
            return False

        slow.cut = counted
        late = spread.enqueue(1, "process.nap", [(0.0,)] * 3)
        began = replies
        for n in range(50):
            spread.ended(spread.enqueue(0, "process.add", [(n, 1)]))
        # Each job would have waited for one reply at least.
        assert replies - began < 50
        spread.ended(late)
        assert {job.state for job in late} == {"succeeded"}


def test_no_limit_is_exceeded_over_shards_while_workers_are_killed(
    servers: tuple[Spread, list[Server]], tmp_path: Path
) -> None:
    spread, _ = servers
    directory = tmp_path / "slots"
    directory.mkdir()
    limited = {"environ": {"HR_LIMITS": str(directory)}, "processes": 3}
    first = spread.worker(**limited)
    spread.worker(**limited)
    jobs = [
        job for n in range(SHARDS)
        for task in ("limited.pair", "limited.each")
        for job in spread.enqueue(n, task, [(f"v{i % 2}", 0.05) for i in range(8)])
    ]  # fmt: skip
    spread.fleet.until(lambda: len(spread.fleet.ledger.ends()) >= 5)
    first.kill("worker")
    spread.ended(jobs)
    assert {job.state for job in jobs} == {"succeeded"}
    assert spread.fleet.ledger.lines("over") == []
    spread.check()
