"""Schedules: 100,000 that are due at one second, how late a mix of 1,000 ticks, and what schedules cost an idle worker.

Each tick notes when it was fired, by the server's clock, which its nominal time is compared with. What becomes of ticks
while workers are killed and clocks jump is counted by ``bench/tick_trial.py``, for ``--minutes``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.context import Context
from bench.figure import Bar, Figure, percentile
from bench.processes import BenchError, Group, wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE
from bench.tick_trial import trial
from headrace import Headrace
from headrace.model.form import Form
from headrace.protocol import ticks
from headrace.protocol.ticks import Policies, ScheduleRecord
from headrace.schedules.timetables import Timing

_MICRO = 1_000_000
#: Of the mix: the shortest and longest interval, and for how long it is watched, seconds.
_SHORTEST, _LONGEST, _WATCHED = 5, 60, 30
#: Seconds over which an idle worker's commands are counted: several renewals.
_IDLE = 20


@contextmanager
def _scene(context: Context) -> Generator[tuple[Server, Headrace, Group]]:
    with server() as target, Headrace(target.url) as app, context.worker(HEADRACE, target) as worker:
        _until(lambda: bool(app.overview().workers), worker, "a worker", 60)
        yield target, app, worker


def _until(condition: Callable[[], bool], worker: Group, what: str, seconds: float) -> None:
    """Poll each 50 ms: the figures come from the server's clock."""

    def holds() -> bool:
        worker.check()
        return condition()

    wait_until(holds, what, seconds, pause=0.05)


def _store(app: Headrace, steps: Sequence[tuple[int, int]]) -> None:
    """Schedules of these intervals and offsets, microseconds, in as few trips as may be."""
    form = Form("bench.app.noop")
    for first in range(0, len(steps), ticks.MOST_TICKS):
        rows = [
            ticks.row_of(
                f"s{first + n}", "f", form, b"\x92\x90\x80",
                Timing(step=step, shift=shift).packed(), Policies("all", overlap="allow_all"),
            )
            for n, (step, shift) in enumerate(steps[first : first + ticks.MOST_TICKS])
        ]  # fmt: skip
        app.client.run(ticks.declare(app.client.keys, "", rows))


def _now(target: Server) -> int:
    client: Any = target.client
    seconds, micros = client.time()
    return int(seconds) * _MICRO + int(micros)


def _herd(context: Context, count: int) -> tuple[float, float]:
    """Seconds from the second at which all are due until each has made its job; microseconds of the server for each."""
    with _scene(context) as (target, app, worker):
        line = app.client.keys("ticking")
        day = 86_400 * _MICRO
        # Long enough to store them and to have their ticks reckoned, which is done ahead.
        due = _now(target) // _MICRO * _MICRO + (20 + count // 1000) * _MICRO
        _store(app, [(day, due % day)] * count)
        _until(lambda: target.client.zcount(line, "-inf", f"({due}") == 0, worker, "the reckoning", 20 + count / 500)
        if _now(target) > due:
            raise BenchError("their ticks were reckoned too late: the machine is too slow for this")
        before = target.work()
        _until(lambda: _now(target) > due and target.client.zcount(line, "-inf", due) == 0, worker, "the last", 300)
        used = target.work() - before
        fired = [row.last[-1].at for row in _rows(app)]
        return (max(fired) - due) / _MICRO, used.cpu / count


def _rows(app: Headrace) -> Iterator[ScheduleRecord]:
    after = ""
    while True:
        page = app.client.run(ticks.read_schedules(app.client.keys, after=after, ticks=100))
        yield from page.rows
        if len(page.rows) < ticks.MOST_TICKS:
            return
        after = page.rows[-1].name


def _mix(context: Context, count: int) -> tuple[float, float, int]:
    """Median and 99th percentile of the lateness in milliseconds; and how many ticks did not run."""
    dice = random.Random(7)
    with _scene(context) as (target, app, worker):
        steps = [dice.randrange(_SHORTEST * _MICRO, _LONGEST * _MICRO, 1000) for _ in range(count)]
        _store(app, [(step, dice.randrange(0, step, 1000)) for step in steps])
        # Those that came due while the others were stored say nothing.
        begin = _now(target) + 2 * _MICRO
        end = begin + (_WATCHED // 3 if context.quick else _WATCHED) * _MICRO
        _until(lambda: _now(target) > end, worker, "the end", 120)
        rows = [one for row in _rows(app) for one in row.last if begin < one.tick < end - _MICRO]
        late = [(one.at - one.tick) / 1000 for one in rows if one.what == "ran"]
        return percentile(late, 50), percentile(late, 99), len(rows) - len(late)


def _idle(context: Context, count: int) -> float:
    """Commands in a second of a worker that idles beside so many schedules, none of which is due."""
    with _scene(context) as (target, app, worker):
        _store(app, [(86_400 * _MICRO, (_now(target) // _MICRO - 1) * _MICRO % (86_400 * _MICRO))] * count)
        line = app.client.keys("ticking")
        # One that waits for its ticks is looked at again within seconds.
        _until(
            lambda: target.client.zcount(line, "-inf", _now(target) + 600 * _MICRO) == 0, worker, "the reckoning", 60
        )
        before, began = target.work(), time.monotonic()
        time.sleep(_IDLE / 4 if context.quick else _IDLE)
        return (target.work() - before).commands / (time.monotonic() - began)


def run(context: Context) -> list[Figure]:
    """One worker with one runner fires them all."""
    many, some = context.scaled(100_000), context.scaled(1000)
    context.say(f"schedules: {many:,} due at one second")
    herd, cpu = _herd(context, many)
    context.say(f"schedules: {some:,} in a mix")
    median, late, lost = _mix(context, some)
    context.say("schedules: an idle worker")
    none, beside = _idle(context, 0), _idle(context, some)
    rounds = trial(context, workers=4 if context.quick else 8, minutes=context.minutes, hours=2, every=1.5)
    count, kills, jumps = (sum(n) for n in zip(*((one.count, one.kills, one.jumps) for one in rounds), strict=True))
    return [
        Figure(f"{many:,} schedules due at one second: the last has fired", herd, "s", bar=Bar("at most", 10)),
        Figure(f"{many:,} schedules due at one second: the server, with their jobs", cpu, "us a tick"),
        Figure(f"lateness of ticks of {some:,} schedules, p50", median, "ms"),
        Figure(f"lateness of ticks of {some:,} schedules, p99", late, "ms", bar=Bar("at most", 50)),
        Figure(f"ticks of {some:,} schedules that did not run", lost, "ticks", bar=Bar("at most", 0)),
        Figure(
            f"idle worker beside {some:,} schedules",
            beside,
            "commands/s",
            "without",
            none,
            Bar("at most", 1.1, "ratio"),
        ),
        Figure(
            "ticks lost, doubled or made up while workers are killed and the clock jumps",
            sum(one.wrong for one in rounds),
            "ticks",
            bar=Bar("at most", 0),
            note=f"of {count:,}; {kills} kills, {jumps} jumps",
        ),
    ]
