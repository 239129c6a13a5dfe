"""The storm's application: a task for each promise. Each writes down its starts and ends, and fails by the dice.

HR_SLOTS names the directory whose locks tell when more jobs of a limit or a name run than may.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from headrace import Concurrency, Debounce, Flow, Headrace, Latest, Rate, RateLimited, Unique, current_job
from headrace.errors import OptionsError
from tests.system import ledger, slot_files

SLOTS = Path(os.environ.get("HR_SLOTS", os.devnull))
# Above what the kills of a minute can explain.
BUDGET = 100

app = Headrace()
pair = app.limit("pair", Concurrency(2), by="who")
pace = app.limit("pace", Rate(200, per=10, burst=5), by="who")
newest = app.limit("newest", Concurrency(1), by="who", full="cancel_running")


def _act(gate: str = "", most: int = 1) -> None:
    """What most jobs do: a moment of work, at times an error, now and then the end of their process."""
    ledger.write("S")
    held = slot_files.take(SLOTS, gate, most) if gate else None
    try:
        if gate and held is None:
            ledger.write("over")
        fate = random.random()
        if fate < 0.03:
            raise ValueError("bad luck")
        if fate < 0.035:
            os._exit(3)
        time.sleep(random.random() * 0.02)
    finally:
        if held is not None:
            os.close(held)
    ledger.write("E")


@app.task(retries=3, max_crashes=BUDGET)
def plain(n: int) -> None:
    app.cache.get("storm", make=lambda: n, ttl=5)
    app.stats.add("storm", {"count": 1})
    if n % 20 == 0:
        app.enqueue_many([limited.job("child", n), thready.options(queue="low").job(n)])
    _act()


@app.task(kind="thread", retries=2, max_crashes=BUDGET)
def thready(n: int) -> None:
    _act()


@app.task(kind="fork", retries=2, max_crashes=BUDGET)
def forky(n: int) -> None:
    _act()


@app.task(kind="async", retries=2, max_crashes=BUDGET)
async def coroutine(n: int) -> None:
    ledger.write("S")
    if n % 20 == 0:
        await limited.aenqueue("child", n)
    await asyncio.sleep(random.random() * 0.02)
    ledger.write("E")


@app.task(limits=[pair], retries=2, max_crashes=BUDGET)
def limited(who: str, n: int) -> None:
    _act(f"pair-{who}", 2)


@app.task(kind="thread", limits=[pair, pace], retries=2, max_crashes=BUDGET)
def paced(who: str, n: int) -> None:
    if n % 50 == 0 and current_job().attempt == 1:
        raise RateLimited("pace", after=0.2)
    _act(f"pair-{who}", 2)


@app.task(limits=[newest], max_crashes=BUDGET)
def preview(who: str, n: int) -> None:
    ledger.write("S")
    time.sleep(0.05)
    ledger.write("E")


@app.task(unique=Unique(by=("who",)), retries=1, max_crashes=BUDGET)
def sole(who: str, n: int) -> None:
    _act(f"sole-{who}")


@app.task(kind="thread", unique=Debounce(0.2, by=("who",)), max_crashes=BUDGET)
def debounced(who: str, n: int) -> None:
    _act()


@app.task(kind="thread", unique=Latest(by=("who",)), limits=[pair], max_crashes=BUDGET)
def latest(who: str, n: int) -> None:
    _act(f"pair-{who}", 2)


@app.task(ordered=True, max_crashes=1000)
def ordered(n: int) -> None:
    ledger.write("S")
    time.sleep(0.003)
    ledger.write("E")


@app.task(kind="async", ordered=True, max_crashes=1000)
async def ordered_coroutine(n: int) -> None:
    ledger.write("S")
    await asyncio.sleep(0.003)
    ledger.write("E")


@app.task(at_most_once=True)
def once(n: int) -> None:
    _act()


@app.task(kind="fork", at_most_once=True)
def once_in_a_fork(n: int) -> None:
    _act()


@app.task(max_crashes=BUDGET)
def snoozing(n: int) -> None:
    ledger.write("S")
    if random.random() < 0.6:
        current_job().snooze(0.1)
    ledger.write("E")


@app.task(kind="thread", timeout=0.1, hard_timeout=0.4, max_crashes=BUDGET)
def stubborn(n: int) -> None:
    ledger.write("S")
    end = time.monotonic() + random.random() * 0.8
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except BaseException:
            if random.random() < 0.5:
                raise
    ledger.write("E")


@app.task(max_crashes=BUDGET)
def square(n: int) -> int:
    _act()
    return n * n


@app.task(kind="thread", max_crashes=BUDGET)
def total(parts: list[int | None]) -> int:
    _act()
    return sum(part or 0 for part in parts)


@app.task(max_crashes=BUDGET)
def undo(value: int) -> None:
    _act()


@app.task(kind="async", max_crashes=BUDGET)
async def numbers(n: int) -> list[int]:
    return list(range(n))


@app.workflow
def squares(flow: Flow, n: int) -> None:
    flow.run(total, flow.map(square, flow.run(numbers, n), on_failure="continue"))


@app.workflow
def undone(flow: Flow, n: int) -> None:
    first = flow.run(square, n, undo=undo, name="first")
    second = flow.run(square, n + 1, undo=undo, name="second", after=first)
    flow.run(plain, n, after=[second, flow.run(limited, "flow", n, after=second)])


app.every(timedelta(seconds=1), plain.options(queue="low"), 1, name="each-second")
app.every(timedelta(seconds=2), squares, 5, name="flows")
# Of several shards, a schedule lives on the first, and the name of its jobs must, too.
with suppress(OptionsError):
    app.every(timedelta(seconds=1), sole, "schedule", 1, name="sole", overlap="skip")
