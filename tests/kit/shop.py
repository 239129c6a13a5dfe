"""An application under test: what a user of the kit would have in `shop/tasks.py`."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal

from headrace import Flow, Headrace, Retry, current_job
from headrace.context import CurrentJob
from headrace.errors import SoftTimeLimit

# A server that nothing listens on: a call that reaches it is a fault of the kit.
app = Headrace(url="redis://127.0.0.1:1/0", lease=20, max_crashes=2)

said: list[object] = []
around: list[str] = []


@app.middleware
@contextmanager
def noted(job: CurrentJob) -> Generator[None]:
    around.append(job.task)
    yield


@app.task
def send(user: int, text: str = "welcome") -> str:
    said.append((user, text))
    return f"{text} {user}"


@app.task
async def notify(user: int) -> int:
    await asyncio.sleep(0)
    said.append(user)
    return user


@app.task(retries=Retry(max=3, delay=60, factor=2, jitter=0))
def flaky(failures: int) -> int:
    if current_job().failures < failures:
        raise ConnectionError(f"failure {current_job().failures + 1}")
    return current_job().attempt


@app.task
def broken() -> None:
    raise ValueError("broken on purpose")


@app.task
def chain(left: int) -> int:
    if left:
        chain.enqueue(left - 1)
    return left


@app.task
async def achain(left: int) -> int:
    if left:
        await achain.aenqueue(left - 1)
    return left


@app.task
def poll() -> None:
    current_job().snooze(30)


@app.task(timeout=0.05, hard_timeout=1)
def slow(stubborn: bool = False) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            time.sleep(30)
        except SoftTimeLimit:
            if not stubborn:
                raise


@app.task(timeout=0.05)
async def aslow() -> None:
    await asyncio.sleep(30)


@app.task(queue="low")
def double(number: int) -> int:
    return 2 * number


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def several(count: int) -> list[int]:
    return list(range(count))


@app.task
def grow(count: int) -> int:
    for number in range(count):
        current_job().workflow.run(double, number)
    return count


@app.workflow
def sums(flow: Flow, numbers: list[int]) -> None:
    flow.run(total, [flow.run(double, number) for number in numbers])


@app.workflow
def mapped(flow: Flow, count: int) -> None:
    flow.run(total, flow.map(double, flow.run(several, count)))


@app.workflow
def failing(flow: Flow) -> None:
    flow.run(send, 1, after=flow.run(broken))


@app.workflow
def growing(flow: Flow, count: int) -> None:
    flow.run(send, 1, after=flow.run(grow, count))


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Item:
    name: str
    price: Decimal
    sizes: list[Size]


@app.task
def order(
    number: int, /, item: Item, when: dt.datetime | None, *rest: int, notes: dict[str, float], gift: bool = False
) -> str:
    said.append((number, item, when, rest, notes, gift))
    return item.name


@app.task(loose=True)
def anything(value, other=None):  # type: ignore[no-untyped-def]
    said.append((value, other))
