"""What type checkers must accept, and the types that they must see. Never run; see test_typing.py."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from headrace import Headrace, Job, Retry, Task

app = Headrace()


@app.task
def fetch(url: str, *, tries: int = 1) -> bytes:
    return url.encode() * tries


@app.task(retries=Retry(max=5), timeout=30, queue="low")
def resize(image: bytes, sizes: list[int]) -> dict[str, int]:
    return {str(size): len(image) for size in sizes}


@app.task
async def notify(user: int) -> str:
    return str(user)


@app.task(keep=0, kind="async")
async def forget() -> None: ...


def sync_code() -> object:
    assert_type(fetch("u"), bytes)
    assert_type(fetch.enqueue("u", tries=2), Job[bytes])
    assert_type(fetch.enqueue("u").result(timeout=1), bytes)
    assert_type(resize.enqueue(b"", [1]).result(), dict[str, int])
    assert_type(notify.enqueue(7), Job[str])
    coroutine = assert_type(notify(7), Coroutine[Any, Any, str])
    assert_type(forget.enqueue(), Job[None])
    assert_type(fetch.options(queue="low", delay=60).options(key="k").enqueue("u"), Job[bytes])
    assert_type(app.enqueue_many(fetch.job(url) for url in "abc"), int)
    assert_type(fetch.job("u").handle, Job[bytes])
    assert_type(app.by_name("x").enqueue(1, a=2), Job[Any])
    kept: Task[[int], str, Coroutine[Any, Any, str]] = notify
    named: Task[..., Any, Any] = fetch
    return coroutine, kept, named


async def async_code() -> None:
    assert_type(await notify(7), str)
    assert_type(await notify.aenqueue(7), Job[str])
    assert_type(await (await notify.aenqueue(7)).aresult(), str)
    assert_type(await notify.options(priority=3).aenqueue(7), Job[str])
    assert_type(await app.aenqueue_many([notify.job(1), fetch.job("u")]), int)
