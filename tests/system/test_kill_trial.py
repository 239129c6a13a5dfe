"""Limits and schedules while runners, dispatchers and workers are killed at random: none is exceeded, lost or doubled.

What ran is told by the ledger and by locks of the kernel, never by the store that is judged.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headrace import Every, Unique
from headrace.admin.keyspace_rules import gate_facts
from headrace.model.ids import tick_of
from headrace.tasks.job_handle import Job
from tests.servers import Server, connect
from tests.system.chaos import BUDGET, Chaos, verdict
from tests.system.fleet import Fleet, NewFleet, NewServer
from tests.system.test_soak import SEED, say

# Of the limit "paced": starts, microseconds, and how much shorter a window may be that has more.
STARTS, PER, SLACK = 20, 1_000_000, 10_000
SCHEDULES = [f"tick-{n}" for n in range(3)]
SOLE = ["sole-a", "sole-b"]


def _enqueue(fleet: Fleet, seconds: float, dice: random.Random) -> list[Job[float]]:
    """Jobs of each limit for about so many seconds, in an order that nobody chose."""
    counts = {"pair": round(10 * seconds), "each": round(15 * seconds), "paced": round(12 * seconds)}
    jobs: list[Job[float]] = []
    for name, count in counts.items():
        rows = [("all" if name != "each" else f"v{dice.randrange(12)}", dice.uniform(0, 0.05)) for _ in range(count)]
        jobs += fleet.enqueue_many(f"limited.{name}", rows, max_crashes=BUDGET)
    return jobs


def _gaps(fleet: Fleet) -> list[int]:
    """Microseconds of each row of ``STARTS`` + 1 starts of the rate, by their tokens."""
    ids = {line.id for line in fleet.ledger.starts()}
    paced = {id for id in ids if fleet.app.job(id).refresh().task == "limited.paced"}
    tokens = sorted(line.token for line in fleet.ledger.starts() if line.id in paced)
    return [later - first for first, later in zip(tokens, tokens[STARTS:], strict=False)]


def _ticks(fleet: Fleet, name: str) -> list[int]:
    """The ticks whose jobs ended, one for each job."""
    return sorted(tick for id in {line.id for line in fleet.ledger.ends()} if (tick := tick_of(id, name)))


def _second(server: Server) -> int:
    """The second that has begun last, microseconds of the server."""
    client: Any
    with connect(server.url) as client:
        return int(client.time()[0]) * 1_000_000


def _held(server: Server) -> dict[str, int]:
    """Gates that say that jobs run."""
    client: Any
    with connect(server.url) as client:
        gates = {key.decode(): gate_facts(client.get(key))[1] for key in client.scan_iter("*}:gate:*", count=1000)}
        assert not list(client.scan_iter("*}:slots:*", count=1000))
    return {key: held for key, held in gates.items() if held}


def _ran(fleet: Fleet) -> int:
    """Ticks for a name that no job had."""
    return sum(row.what == "ran" for name in SOLE for row in fleet.app.schedules[name].ticks(100))


def _trial(new_server: NewServer, new_fleet: NewFleet, directory: Path, seconds: float, every: float) -> None:
    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=5.0, result_ttl=3600, max_finished=1_000_000)
    say(f"seed {SEED} (HR_SEED chooses another)")
    dice = random.Random(SEED)
    chaos = Chaos(fleet, server, SEED, workers=3, environ={"HR_LIMITS": str(directory), "HR_KINDS": "process"})
    # A worker has said which limits there are.
    client: Any
    with connect(server.url) as client:
        fleet.until(lambda: client.exists(fleet.app.client.keys("limited")))
    for name in SCHEDULES:
        fleet.app.schedules.put(name, Every(1), fleet.app.by_name("process.add"), overlap="allow_all", missed="all")
    begun = _second(server)
    # Its ticks are skipped while a job of the name lives; two schedules ask for the same name.
    for name in SOLE:
        sole = fleet.app.by_name("limited.sole", unique=Unique(text="sole"), max_crashes=BUDGET).job("one", 0.7)
        fleet.app.schedules.put(name, Every(1), sole, overlap="allow_all")
    jobs = _enqueue(fleet, seconds, dice)
    chaos.run(len(jobs), seconds, 0, every)
    # None has stopped: each goes on to a tick that comes after the kills.
    ended = _second(server)
    fleet.until(lambda: all(_ticks(fleet, name)[-1:] > [ended] for name in SCHEDULES))
    # On a slow machine its jobs wait behind the others.
    fleet.until(lambda: _ran(fleet) >= 3)
    for name in (*SCHEDULES, *SOLE):
        fleet.app.schedules[name].pause()
    fleet.drained(120 + seconds)
    facts = verdict(fleet, jobs, chaos.deaths)
    facts["sole"] = _ran(fleet)
    over, gaps = fleet.ledger.lines("over"), _gaps(fleet)
    assert not over, f"{len(over)} starts beyond a limit, or of a name that is taken: {over[:3]}"
    assert min(gaps) >= PER - SLACK, f"{STARTS + 1} starts within {min(gaps)} us"
    for name in SCHEDULES:
        ticks = _ticks(fleet, name)
        assert ticks == list(range(ticks[0], ticks[-1] + 1, 1_000_000)), "a tick was lost or doubled"
        assert ticks[0] <= begun + 1_000_000, "the first ticks were lost"
        facts[name] = len(ticks)
    for worker in chaos.workers:
        worker.terminate()
    for worker in fleet.workers:
        worker.wait(60)
    assert _held(server) == {}
    fleet.check()
    say(str({**facts, **chaos.deaths.counts, "shortest window": min(gaps)}))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_limits_and_ticks_hold_through_ten_seconds_of_kills(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path
) -> None:
    _trial(new_server, new_fleet, tmp_path, seconds=10, every=0.8)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_limits_and_ticks_hold_through_five_minutes_of_kills(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path
) -> None:
    _trial(new_server, new_fleet, tmp_path, seconds=300, every=1.5)
