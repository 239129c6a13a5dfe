"""The application that the fault suite's workers run: each task does one thing well, or badly.

The function ``nap`` is the task ``process.nap``, ``fork.nap`` and ``thread.nap``; its coroutine is ``async.nap``. Which
kinds a worker has is said by HR_KINDS, so that a test starts no more processes than it needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace import Concurrency, Flow, Headrace, Rate, Unique, current_job
from headrace.errors import JobInterrupted
from headrace.model.retry import Retry
from tests.system import ledger, slot_files

app = Headrace()
HASTE = Retry(max=0, delay=0.01, factor=1, jitter=0)
LONG = 60.0


def _recorded(body: Callable[..., Any]) -> Callable[..., Any]:
    def chore(*args: Any, **kwargs: Any) -> Any:
        ledger.write("S")
        value = body(*args, **kwargs)
        ledger.write("E")
        return value

    chore.__name__ = chore.__qualname__ = body.__name__
    return chore


def _hold(path: str) -> None:
    end = time.monotonic() + LONG
    while not Path(path).exists() and time.monotonic() < end:
        time.sleep(0.005)


def add(a: int = 0, b: int = 0) -> int:
    return a + b


def noop() -> None:
    return None


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def fenced(seconds: float) -> int:
    """Return the token of its start: so a client learns which start made the result."""
    time.sleep(seconds)
    return current_job().token


def gate(path: str) -> int:
    """Run until a file exists: the test decides when."""
    _hold(path)
    return current_job().attempt


def beat(path: str) -> int:
    """Write down that it runs, again and again, until a file exists."""
    attempt, end = current_job().attempt, time.monotonic() + LONG
    with Path(f"{path}.beats").open("a", buffering=1) as beats:
        while not Path(path).exists() and time.monotonic() < end:
            beats.write(f"{attempt} {time.monotonic()}\n")
            time.sleep(0.002)
    return attempt


def fail(times: int) -> int:
    if current_job().failures < times:
        raise ValueError("not yet")
    return current_job().attempt


def fail_once(path: str) -> int:
    """Run until the start's own file exists; then the first start fails."""
    _hold(f"{path}.{current_job().failures}")
    return fail(1)


def crash(how: str, times: int = 1000) -> int:
    """Take the runner down, the first so many times."""
    if current_job().attempt > times:
        return current_job().attempt
    sys.stderr.write(f"about to {how}\n")
    sys.stderr.flush()
    if how == "exit":
        os._exit(7)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "memory":
        _exhaust()
    return 0


def _exhaust() -> None:
    """Take memory until the kernel kills us (a cgroup's limit), or the stand-in does (our own limit, then SIGKILL)."""
    group = os.environ.get("HR_MEMORY_GROUP")
    if group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    else:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    taken: list[bytes] = []
    with contextlib.suppress(MemoryError):
        while len(taken) < 4096:
            taken.append(b"x" * (1 << 20))
    os.kill(os.getpid(), signal.SIGKILL)


def snooze(times: int) -> int:
    if current_job().attempt <= times:
        current_job().snooze(0.02)
    return current_job().attempt


def say(path: str) -> str:
    current_job().progress(0.5, "half", {"done": [1, "one"]})
    current_job().log("a line\nanother")
    _hold(path)
    current_job().progress(1.0, "all")
    return "said"


def swallow(seconds: float) -> int:
    """Catch every Exception for so long, as careless code does."""
    end, caught = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except Exception:  # noqa: BLE001
            caught += 1
    return caught


def stubborn(seconds: float) -> None:
    """Let nothing end it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            ledger.write("armed")
            while time.monotonic() < end:
                time.sleep(0.01)
        except BaseException:  # noqa: BLE001
            ledger.write("caught")


def hog(seconds: float) -> float:
    """Hold the interpreter in C code: no other thread of the process runs."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return seconds


def children(path: str, count: int) -> None:
    """Start programs and write their process ids down; never wait for them."""
    pids: list[int] = []
    for _ in range(count):
        pid = os.fork()
        if not pid:
            os.execvp("sleep", ["sleep", "300"])
        pids.append(pid)
    part = Path(f"{path}.part")
    part.write_text(" ".join(map(str, pids)))
    part.rename(path)
    time.sleep(LONG)


def flood(megabytes: int) -> int:
    for _ in range(megabytes):
        sys.stdout.write("out\n" * (1 << 18))
        sys.stderr.write("err\n" * (1 << 18))
    sys.stdout.flush()
    return megabytes


def recurse() -> None:
    recurse()


def many_children(count: int) -> int:
    """Forks that are left behind, each asleep."""
    for _ in range(count):
        if not os.fork():
            time.sleep(LONG)
            os._exit(0)
    return count


def close_all() -> None:
    """Close what is not ours, the runner's own descriptors too."""
    os.closerange(3, 4096)


def rubbish(count: int) -> None:
    """Write into every descriptor that the process has but stdout and stderr, as a job that mixed them up does."""
    for descriptor in range(3, 256):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"rubbish!" * count)
    time.sleep(LONG)


def tidy(how: str) -> int:
    """At its first start: learn of a shutdown, go on, and tidy up when that is over."""
    job = current_job()
    if job.attempt > 1:
        return job.attempt
    try:
        job.stopping.wait(LONG)
        ledger.write("told")
        while True:
            time.sleep(0.01)
    except JobInterrupted:
        _tidied(how)
        raise


async def a_tidy(how: str) -> int:
    job = current_job()
    if job.attempt > 1:
        return job.attempt
    try:
        await job.stopping
        ledger.write("told")
        await asyncio.sleep(LONG)
    except JobInterrupted:
        await asyncio.sleep(0.01)
        _tidied(how)
        raise
    return 0


def _tidied(how: str) -> None:
    ledger.write("tidy")
    if how == "fails":
        raise ValueError("while it tidied up")
    if how == "exits":
        os._exit(7)
    if how == "hangs":
        time.sleep(LONG)


def leave_thread() -> int:
    threading.Thread(target=time.sleep, args=(LONG,), daemon=True).start()
    return threading.active_count()


def pid() -> int:
    return os.getpid()


def measure(data: str) -> int:
    return len(data)


def numbers(count: int) -> list[int]:
    return list(range(count))


def total(values: list[int]) -> int:
    return sum(values)


def headers() -> dict[str, str]:
    return dict(current_job().headers)


def heir(kind: str) -> list[str]:
    """Enqueue a job in each way; their ids."""
    task = app.by_name(f"{kind}.headers")
    draft = task.job()
    app.enqueue_many([draft])
    own = task.options(headers={"tenant": None, "own": "1"}).enqueue()
    return [task.enqueue().id, draft.id, own.id]


def payloads() -> list[list[Any]]:
    return [[one.name, one.state, one.output] for one in current_job().payloads]


def graft(count: int, kind: str, path: str = "") -> str:
    """Add nodes to the workflow from inside, and wait for the file if there is one."""
    flow = current_job().workflow
    added = [flow.run(f"{kind}.add", number, 1) for number in range(count)]
    flow.run(f"{kind}.total", added, name="inner")
    if path:
        _hold(path)
    return "grown"


async def a_add(a: int = 0, b: int = 0) -> int:
    return a + b


async def a_nap(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def a_gate(path: str) -> int:
    end = time.monotonic() + LONG
    while not Path(path).exists() and time.monotonic() < end:  # noqa: ASYNC240
        await asyncio.sleep(0.005)
    return current_job().attempt


async def a_fail(times: int) -> int:
    return fail(times)


async def a_crash(how: str, times: int = 1000) -> int:
    return crash(how, times)


async def a_rubbish(count: int) -> None:
    rubbish(count)


async def a_snooze(times: int) -> int:
    return snooze(times)


async def a_say(path: str) -> str:
    current_job().progress(0.5, "half")
    current_job().log("a line\nanother")
    await a_gate(path)
    current_job().progress(1.0, "all")
    return "said"


async def a_swallow(seconds: float) -> int:
    end, caught = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.01)
        except Exception:  # noqa: BLE001
            caught += 1
    return caught


async def a_stubborn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            ledger.write("armed")
            while time.monotonic() < end:
                await asyncio.sleep(0.01)
        except BaseException:  # noqa: BLE001
            ledger.write("caught")


async def a_numbers(count: int) -> list[int]:
    return numbers(count)


async def a_total(values: list[int]) -> int:
    return sum(values)


async def a_payloads() -> list[list[Any]]:
    return payloads()


async def a_headers() -> dict[str, str]:
    await asyncio.sleep(0)
    return headers()


async def a_heir(kind: str) -> list[str]:
    task = app.by_name(f"{kind}.headers")
    draft = task.job()
    await app.aenqueue_many([draft])
    own = await task.options(headers={"tenant": None, "own": "1"}).aenqueue()
    return [(await task.aenqueue()).id, draft.id, own.id]


async def a_graft(count: int, kind: str) -> str:
    return graft(count, kind)


async def a_block(seconds: float) -> float:
    """Block the event loop, as synchronous code in a coroutine does."""
    time.sleep(seconds)  # noqa: ASYNC251
    return seconds


SYNC: tuple[Callable[..., Any], ...] = (
    measure, numbers, total, headers, heir, payloads, graft,
    add, nap, fenced, gate, beat, fail, fail_once, crash, snooze, say, swallow, stubborn, hog, children, flood, recurse,
    many_children, close_all, leave_thread, pid, rubbish, tidy,
)  # fmt: skip
ASYNC: tuple[Callable[..., Any], ...] = (
    a_numbers, a_total, a_headers, a_heir, a_payloads, a_graft,
    a_add, a_nap, a_gate, a_fail, a_crash, a_snooze, a_say, a_swallow, a_stubborn, a_block, a_rubbish, a_tidy,
)  # fmt: skip


def _arecorded(body: Callable[..., Any]) -> Callable[..., Any]:
    async def chore(*args: Any, **kwargs: Any) -> Any:
        ledger.write("S")
        value = await body(*args, **kwargs)
        ledger.write("E")
        return value

    chore.__name__ = chore.__qualname__ = body.__name__
    return chore


def define(app: Headrace, kinds: list[str]) -> None:
    """Add the tasks of these kinds."""
    for kind in kinds:
        if kind == "async":
            for body in ASYNC:
                app.task(name=f"async.{body.__name__.removeprefix('a_')}", retries=HASTE)(_arecorded(body))
        else:
            for body in SYNC:
                app.task(name=f"{kind}.{body.__name__}", kind=kind, retries=HASTE)(_recorded(body))  # type: ignore[arg-type]
            app.task(name=f"{kind}.noop", kind=kind, result_ttl=0)(noop)  # type: ignore[arg-type]
            app.task(name=f"{kind}.frail", kind=kind, max_crashes=1)(_recorded(crash))  # type: ignore[arg-type]

        if kind == "process":
            # What builds a nested workflow runs on a process runner, which other workers shall not have.
            app.workflow(name="process.inner")(_inner(kind))


def _inner(kind: str) -> Callable[[Flow, int], None]:
    """A workflow that can be nested where its argument is known only at run time."""

    def inner(flow: Flow, count: int) -> None:
        flow.run(f"{kind}.total", flow.map(f"{kind}.add", list(range(count)), 1))

    return inner


def define_limited(app: Headrace, directory: Path) -> None:
    """Add tasks with limits, whose jobs write down when more of them run than may: see ``test_kill_trial.py``."""

    def checked(name: str, most: int) -> Callable[[str, float], None]:
        def chore(value: str, seconds: float) -> None:
            ledger.write("S")
            held = slot_files.take(directory, f"{name}-{value}", most)
            if held is None:
                ledger.write("over")
            time.sleep(seconds)
            if held is not None:
                os.close(held)
            ledger.write("E")

        chore.__name__ = chore.__qualname__ = name
        return chore

    limits = {
        "pair": (app.limit("pair", Concurrency(2)), 2),
        "each": (app.limit("each", Concurrency(1), by="value"), 1),
        "paced": (app.limit("paced", Rate(20, per=1)), 1000),
    }
    for name, (limit, most) in limits.items():
        app.task(name=f"limited.{name}", limits=[limit])(checked(name, most))
    app.task(name="limited.sole", unique=Unique(by=("value",)))(checked("sole", 1))


define(app, os.environ.get("HR_KINDS", "process").split(","))
if limits := os.environ.get("HR_LIMITS"):
    define_limited(app, Path(limits))
if every := os.environ.get("HR_EVERY"):
    # Each tick runs, however late or long it is on a busy machine.
    until = datetime.fromtimestamp(int(end), UTC) if (end := os.environ.get("HR_UNTIL")) else None
    app.every(float(every), app.tasks["process.add"], 1, 1, name="code", overlap="allow_all", missed="all", until=until)
