"""Ticks while workers are killed at random and the server's clock jumps, over gaps and folds: each makes one job.

A round takes a time zone over one change of its clocks. The server's clock is set to hours before it, and then again
and again forward by minutes, or back, until it is as long past the change; some schedules tick each minute. Meanwhile
any process of any worker is killed at any moment, and now and then all of a worker's. What ran is told by the ledger
that the jobs write, and compared with the timetable, reckoned in one piece.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from bench import set_clock
from bench.context import Context
from bench.ledger import ledger
from bench.processes import Group, wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE
from headrace import Headrace
from headrace.model.form import Form
from headrace.model.ids import tick_of
from headrace.model.job import FINAL
from headrace.protocol import ticks
from headrace.protocol.ticks import Policies, ScheduleRecord
from headrace.schedules.timetables import Timing, moment_of

_MICRO, _MINUTE = 1_000_000, 60_000_000
#: Zone, and when its clocks change: an hour is left out, half an hour comes twice, half an hour is left out, an hour
#: comes twice.
CHANGES = (
    ("Europe/Berlin", "2026-03-29T01:00Z"), ("Australia/Lord_Howe", "2026-04-04T15:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30Z"), ("Europe/Berlin", "2026-10-25T01:00Z"),
)  # fmt: skip
EXPRESSIONS = ("* * * * *", "*/15 * * * *", "30 2 * * *", "0,45 1-3 * * *")
#: Longest jumps, minutes. A jump of more than an hour back has ticks reckoned from then, of which a history of 100
#: knows that they ran.
_FORWARD, _BACK, _FAR_BACK = 80, 50, 70
_LEASE = 3.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What became of one round.

    Attributes:
        timings: of each schedule.
        wanted, ran: ticks of each schedule, microseconds: those of its timetable, and those whose jobs wrote theirs.
        made: jobs that each schedule says it made.
        kills, jumps: how many.
    """

    timings: dict[str, Timing]
    wanted: dict[str, list[int]]
    ran: dict[str, list[int]]
    made: dict[str, int]
    kills: int
    jumps: int

    @property
    def count(self) -> int:
        return sum(map(len, self.wanted.values()))

    @property
    def wrong(self) -> int:
        """Ticks that were lost, doubled or made up."""
        strays = sum(len(set(self.wanted[name]) ^ set(self.ran[name])) for name in self.wanted)
        return strays + sum(abs(self.made[name] - len(self.wanted[name])) for name in self.wanted)


class _Scene:
    """One server, its clock, and workers that may end at any moment."""

    def __init__(self, context: Context, target: Server, app: Headrace, path: Path, dice: random.Random) -> None:
        self.target, self.app, self.path, self.dice = target, app, path, dice
        # Of their own: how often something is killed meanwhile depends on the machine.
        self.jump_dice = random.Random(dice.random())
        self.kills = self.jumps = 0
        self.names: list[str] = []
        self._context = context
        self._ahead = 0
        self._workers: list[tuple[Group, ExitStack]] = []
        self._next_kill = 0.0

    @property
    def now(self) -> int:
        client: Any = self.target.client
        seconds, micros = client.time()
        return int(seconds) * _MICRO + int(micros) + self._ahead

    def set_clock(self, moment: int) -> None:
        self.jumps += 1
        self._ahead += moment - self.now
        self.target.client.set(set_clock.KEY, self._ahead)

    def start(self) -> None:
        end = ExitStack()
        command = ("-m", "headrace", "worker", "bench.tick_app:app", "--processes", "1")
        env = {"BENCH_LEDGER": str(self.path), "HEADRACE_LEASE": f"{_LEASE:g}"}
        system = replace(HEADRACE, worker=command, env=env)
        self._workers.append((end.enter_context(self._context.worker(system, self.target)), end))

    def stop(self) -> None:
        for _, end in self._workers:
            end.close()

    def kill(self) -> None:
        """End one process at random, or one time in four a whole worker."""
        group, _ = self.dice.choice(self._workers)
        members = group.members()
        if self.dice.random() < 0.25:
            group.kill()
        elif members:
            group.kill_one(self.dice.choice(members))
        self.kills += 1

    def replace_dead(self) -> None:
        for group, end in [worker for worker in self._workers if not worker[0].alive]:
            self._workers.remove((group, end))
            end.close()
            self.start()

    def until(self, condition: Callable[[], bool], what: str, every: float) -> None:
        """Wait, and kill something each ``every`` seconds or so; 0: nothing."""

        def holds() -> bool:
            self.replace_dead()
            if every and time.monotonic() > self._next_kill:
                self._next_kill = time.monotonic() + every * self.dice.uniform(0.5, 1.5)
                self.kill()
            return condition()

        wait_until(holds, what, 90, pause=0.05)

    def fired(self) -> bool:
        """Whether nothing is due, and it is known what comes."""
        now, rows = self.now, self.app.client.run(ticks.read_schedules(self.app.client.keys, self.names)).rows
        return all(row.ticks and row.ticks[0][1] > now for row in rows)

    def done(self) -> bool:
        # A leap of the clock ends all leases: what becomes ready before the next renewal is parked for a moment.
        return self.fired() and not any(n for state, n in self.app.overview().states.items() if state not in FINAL)


@contextmanager
def _scene(context: Context, workers: int, seed: int) -> Generator[_Scene]:
    with server() as target, ledger() as path, Headrace(target.url) as app:
        scene = _Scene(context, target, app, path, random.Random(seed))
        try:
            for _ in range(workers):
                scene.start()
            yield scene
        finally:
            scene.stop()


def _declare(scene: _Scene, zone: str) -> dict[str, Timing]:
    """Schedules of a round, whose names no other round has."""
    timings = {f"{scene.jumps}.{n}": Timing(text, zone) for n, text in enumerate(EXPRESSIONS)}
    timings[f"{scene.jumps}.even"] = Timing(step=_MINUTE, shift=7 * _MICRO)
    timings[f"{scene.jumps}.late"] = Timing("*/5 * * * *", zone, jitter=2 * _MICRO)
    scene.names = list(timings)
    form, policies = Form("bench.tick_app.ticked"), Policies("all", overlap="allow_all")
    rows = [
        ticks.row_of(name, "f", form, b"\x92\x90\x80", timing.packed(), policies) for name, timing in timings.items()
    ]
    scene.app.client.run(ticks.declare(scene.app.client.keys, "", rows).at(scene.now))
    return timings


def _facts(scene: _Scene, timings: dict[str, Timing], kills: int, jumps: int) -> Facts:
    """When nothing is due and nothing runs: all ticks before the next one have run."""
    records = {name: scene.app.schedules[name].read() for name in timings}
    ids = set(scene.path.read_text().split())
    ran = {name: sorted(tick for id in ids if (tick := tick_of(id, name))) for name in timings}
    wanted = {name: _wanted(timing, records[name]) for name, timing in timings.items()}
    made = {name: record.runs for name, record in records.items()}
    return Facts(timings, wanted, ran, made, scene.kills - kills, scene.jumps - jumps)


def _wanted(timing: Timing, record: ScheduleRecord) -> list[int]:
    following = record.ticks[0][0]
    return list(takewhile(lambda tick: tick < following, timing.after(record.changed)))


def _jump(scene: _Scene, oldest: int, newest: int) -> int:
    """Set the clock, never before ``oldest``; returns the latest time that it has had."""
    now = scene.now
    newest = max(now, newest)
    dice = scene.jump_dice
    forward, back = dice.uniform(1, _FORWARD), -dice.uniform(1, _BACK)
    minutes = dice.choice([*[forward] * 8, back, -_FAR_BACK])
    # Not so far back that the history knows nothing of what ran since.
    scene.set_clock(max(now + round(minutes * _MINUTE), newest - _FAR_BACK * _MINUTE, oldest))
    return newest


def _round(scene: _Scene, zone: str, change: str, hours: float, every: float) -> Facts:
    """From so many hours before the change to as many after it."""
    middle, half = moment_of("change", datetime.fromisoformat(change)), round(hours * 60 * _MINUTE)
    kills, jumps = scene.kills, scene.jumps
    scene.set_clock(middle - half)
    timings = _declare(scene, zone)
    oldest = newest = scene.now
    while newest < middle + half:
        scene.until(scene.fired, "ticks are fired", every)
        pause = time.monotonic() + scene.jump_dice.uniform(0, 2)
        scene.until(lambda pause=pause: time.monotonic() > pause, "a pause", every)
        newest = _jump(scene, oldest, newest)
    if scene.now < newest:
        scene.set_clock(newest)
    scene.until(scene.done, "all is done", 0)
    facts = _facts(scene, timings, kills, jumps)
    for name in timings:
        scene.app.schedules[name].delete()
    return facts


def trial(
    context: Context,
    *,
    workers: int,
    minutes: float,
    hours: float,
    every: float,
    rounds: int = len(CHANGES),
    seed: int = 7,
) -> list[Facts]:
    """Rounds until so many minutes are over, and so many at least.

    Args:
        hours: before and after each change of clocks.
        every: seconds between two kills.

    Raises:
        BenchError: what was due did not come within a minute and a half.
    """
    end = time.monotonic() + 60 * minutes
    found: list[Facts] = []
    with _scene(context, workers, seed) as scene:
        while len(found) < rounds or time.monotonic() < end:
            context.say(f"ticks while workers are killed: round {len(found) + 1}")
            found.append(_round(scene, *CHANGES[len(found) % len(CHANGES)], hours, every))
    return found
