"""Tasks that the runners of these tests run. Each says ``started`` where a test must know that its code runs."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from headrace import CurrentJob, Headrace, Retry, current_job
from headrace.errors import CancelRequested, RetryAfter, Snooze, SoftTimeLimit

app = Headrace(result_ttl=60, failure_ttl=600, max_result=10_000)


def started() -> None:
    current_job().log("started")


@app.task
def noop() -> None: ...


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task
def who() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


@app.task
def spin(seconds: float, loud: bool = False) -> None:
    if loud:
        started()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@app.task
def spin_on() -> None:
    """Computes until it is stopped."""
    started()
    while True:
        pass


@app.task
def spin_politely(seconds: float, loud: bool = False) -> None:
    """Lets other threads in at every step."""
    if loud:
        started()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0)


@app.task
def profiled() -> int:
    """How many events a profiler of this thread sees."""
    seen: list[str] = []
    sys.setprofile(lambda frame, event, argument: seen.append(event))
    try:
        spin_politely.function(0.001)
    finally:
        sys.setprofile(None)
    return len(seen)


meeting_of_threads = threading.Barrier(4)


@app.task
def barrier() -> None:
    """Ends only once four run at the same time."""
    meeting_of_threads.wait()


# --- ways to end ---


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")

    __repr__ = __str__


class AwkwardError(UnprintableError):
    __notes__ = 7  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> object:
        if name == "__cause__":
            raise RuntimeError("no cause")
        return super().__getattribute__(name)


class ClosedError(Exception):
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("no attributes")


class TypeOfErrors(type):
    def __getattribute__(cls, name: str) -> object:
        if name in ("__qualname__", "__module__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class NamelessError(Exception, metaclass=TypeOfErrors): ...


@dataclass
class Picky:
    size: int

    def __post_init__(self) -> None:
        raise LookupError("no such size")


@app.task
def fail(how: str) -> object:
    raise_it = {
        "value": lambda: ValueError("a value"),
        "unprintable": UnprintableError,
        "awkward": AwkwardError,
        "nameless": NamelessError,
        "closed": ClosedError,
        "surrogates": lambda: ValueError("\ud800 lone"),
        "long": lambda: ValueError("x" * 100_000),
        "exit": lambda: SystemExit(3),
        "keyboard": KeyboardInterrupt,
        "generator": lambda: GeneratorExit("out"),
        "stop": lambda: StopIteration(4),
        "group": lambda: BaseExceptionGroup("both", [ValueError("one"), CancelRequested("two")]),
    }[how]
    raise raise_it()


@app.task
def fall(depth: int) -> int:
    """No end of recursion for a negative depth."""
    return 0 if depth == 0 else 1 + fall(depth - 1)


@app.task
def chain() -> None:
    error = ValueError("root")
    for number in range(2000):
        try:
            raise KeyError(number) from error
        except KeyError as next_one:
            error = next_one  # type: ignore[assignment]
    raise error


@app.task(retries=Retry(max=2, delay=10, jitter=0.5, on=(ValueError,), never=(UnicodeError,)))
def retried(what: str) -> None:
    raise {"value": ValueError, "unicode": UnicodeError, "key": KeyError, "limit": SoftTimeLimit}[what]


@app.task(retries=Retry(max=2, never=(SoftTimeLimit,)))
def never_after_limit() -> None:
    raise SoftTimeLimit


@app.task
def snooze(delay: float) -> None:
    current_job().snooze(delay)


@app.task(retries=Retry(max=2, delay=9))
def after(delay: float) -> None:
    raise RetryAfter(delay) from ValueError("not yet")


@app.task
def snooze_badly() -> None:
    raise Snooze(-1)


@app.task
def picky(one: Picky) -> None: ...


@app.task(retries=3)
def result(kind: str) -> object:
    return {"object": object(), "large": b"x" * 20_000, "list": [1, "two"], "surrogate": "\udcff"}[kind]


# --- being stopped ---


@app.task
def stubborn(kind: str = "except") -> str:
    """Ignores every Exception, so that only what is none can end it."""
    while True:
        try:
            started()
            while True:
                time.sleep(0.001)
        except Exception:  # noqa: BLE001
            continue
        except SoftTimeLimit:
            if kind == "clean":
                return f"cleaned {current_job().cancelled}"
            raise


@app.task
def swallow() -> str:
    try:
        started()
        while True:
            time.sleep(0.001)
    except BaseException:  # noqa: BLE001
        return f"swallowed {current_job().cancelled}"


@app.task
def misfit() -> int:
    return cast(int, "text")


@app.task
async def amisfit() -> int:
    return cast(int, "text")


@app.task
def misfit_raises() -> int:
    raise KeyError


@app.task
async def amisfit_raises() -> int:
    raise KeyError


@app.task
def gated(path: str) -> str:
    """Runs until somebody writes into the named pipe."""
    started()
    with Path(path).open() as pipe:
        return pipe.read()


@app.task
def waits_for_a_byte(descriptor: int) -> None:
    os.read(descriptor, 1)


@app.task
def writes_bytes(descriptor: int, count: int) -> None:
    os.write(descriptor, b"x" * count)


@app.task
def holds_the_interpreter(descriptor: int) -> None:
    """Waits in C code that keeps the interpreter's lock."""
    ctypes.PyDLL(None).read(descriptor, ctypes.create_string_buffer(1), 1)


@app.task
def close(descriptor: int) -> None:
    os.close(descriptor)


@app.task
def chatty(count: int) -> None:
    for number in range(count):
        current_job().progress((number + 1) / count, f"step {number}")


@app.task
def odd_log() -> None:
    job = current_job()
    job.log("first\nsecond")
    job.log("\udcff odd")
    job.log("y" * 10_000)
    job.log("\n".join(map(str, range(5000))))
    job.progress(0.5, "\udcff half")


over = threading.Event()
late: list[threading.Thread] = []


@app.task
def late_speaker() -> None:
    job = current_job()
    late.append(threading.Thread(target=lambda: (over.wait(), job.log("too late"))))
    late[0].start()


@app.task
def lets_speak() -> None:
    over.set()
    late[0].join()


@app.task
def speaks_from_threads(count: int) -> None:
    job = current_job()

    def speak() -> None:
        for number in range(count):
            job.log(f"{number}")

    threads = [threading.Thread(target=speak) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@app.task
def speaks_for_ever() -> None:
    job = current_job()
    started()
    while True:
        try:
            job.log("z" * 3000)
        except Exception:  # noqa: BLE001
            continue


@app.task
def leaves_speakers() -> None:
    """Threads that say notes that no socket holds, and that wait for their turn when it ends."""
    text, job = "\n".join(["z" * 3000] * 300), current_job()
    for _ in range(8):
        threading.Thread(target=lambda: job.log(text), daemon=True).start()
    time.sleep(0.05)


@app.task
def speaks_when_alarmed() -> None:
    """A note that no socket holds, and another one in the handler of a signal that comes amid it."""
    job = current_job()
    signal.signal(signal.SIGALRM, lambda *_: job.log("alarmed"))
    job.log("\n".join(["z" * 3000] * 300))


# --- the process ---


@app.task
def says_much() -> None:
    """A single note that no socket holds."""
    current_job().log("\n".join(["z" * 3000] * 300))


@app.task
def touch(path: str) -> None:
    Path(path).touch()


@app.task
def segfault() -> None:
    faulthandler._sigsegv()  # type: ignore[attr-defined]


@app.task
def exits(code: int) -> None:
    os._exit(code)


@app.task
def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def large(mebibytes: int) -> int:
    return len(bytearray(b"x") * (mebibytes << 20))


@app.task
def leaves(ended: bool) -> int:
    """Leaves an orphan in this process group: the process that started it has ended."""
    read, write = os.pipe()
    if not os.fork():
        pid = os.fork()
        if not pid:
            if not ended:
                signal.pause()
            os._exit(0)
        os.write(write, str(pid).encode())
        if ended:
            os.waitpid(pid, 0)
        os._exit(0)
    os.wait()
    return int(os.read(read, 20))


@app.task
def leads() -> None:
    """Be no longer of the runner's process group, as who wants to signal all that it starts."""
    os.setsid()
    current_job().log(str(os.getpid()))
    time.sleep(60)


@app.task
def who_stays() -> None:
    current_job().log(str(os.getpid()))
    signal.pause()


@app.task
def forked(how: str) -> int:
    """Forks; the child falls out of the job, or speaks, and must not be heard."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == "speak":
        current_job().log("from the child")
        return 0
    raise ValueError("in the child")


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@app.task
def serve_tenant(name: str) -> str:
    before = tenant.get()
    tenant.set(name)
    return before


@app.task
async def aserve_tenant(name: str) -> str:
    return serve_tenant.function(name)


@app.task
def current() -> list[object]:
    job = current_job()
    return [job.id, job.attempt, job.failures, job.token]


class Heavy:
    alive = 0

    def __init__(self) -> None:
        type(self).alive += 1

    def __del__(self) -> None:
        type(self).alive -= 1


@app.task
def heavy_failure() -> None:
    heavy = Heavy()
    try:
        raise KeyError("first")
    except KeyError as error:
        kept = error
        raise ValueError(repr(heavy)) from kept


CONSTANT = ValueError("always the same")


@app.task
def same_error() -> None:
    heavy = Heavy()  # noqa: F841 - lives as long as its frame
    raise CONSTANT


@app.task
def heavies() -> int:
    return Heavy.alive


@app.task
def to_stdout(text: str) -> None:
    sys.stdout.write(f"{text}\n")


# --- coroutines ---


@app.task
async def anoop() -> None: ...


@app.task
async def ablocks(descriptor: int) -> None:
    """Keeps the loop from turning."""
    os.read(descriptor, 1)


@app.task
async def adies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
async def aadd(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


meeting: dict[str, asyncio.Event] = {}


@app.task
async def meet(me: str, other: str) -> str:
    """Ends only if the other runs at the same time."""
    meeting.setdefault(me, asyncio.Event()).set()
    await meeting.setdefault(other, asyncio.Event()).wait()
    return me


@app.task
async def awaits(how: str) -> str:
    """Waits for ever in one of many ways, ignoring every Exception."""
    started()
    try:
        await WAYS[how]()
    except Exception as error:  # noqa: BLE001
        return f"swallowed {error!r}"
    return "returned"


@app.task
async def anap(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def for_ever(pause: float) -> None:
    while True:
        with contextlib.suppress(Exception):
            await asyncio.sleep(pause)


async def group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(100))
        group.create_task(asyncio.sleep(100))


async def timeout() -> None:
    async with asyncio.timeout(100):
        await asyncio.sleep(100)


async def deaf_child() -> None:
    await asyncio.create_task(deaf())
    await asyncio.sleep(100)


async def thread() -> None:
    await asyncio.to_thread(time.sleep, 0.1)
    await asyncio.sleep(100)


async def gather() -> None:
    await asyncio.gather(asyncio.sleep(100), asyncio.sleep(100))


async def shield() -> None:
    await asyncio.shield(asyncio.sleep(100))


WAYS: dict[str, Callable[[], Awaitable[object]]] = {
    "future": lambda: asyncio.get_running_loop().create_future(),
    "sleeps": lambda: for_ever(0.001),
    "busy": lambda: for_ever(0),
    "gather": gather,
    "group": group,
    "wait_for": lambda: asyncio.wait_for(asyncio.Event().wait(), 100),
    "timeout": timeout,
    "shield": shield,
    "deaf": deaf_child,
    "thread": thread,
}


async def deaf() -> None:
    """Swallows the cancellation of whoever awaits it."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(100)


async def gives_back() -> None:
    try:
        await asyncio.sleep(100)
    finally:
        current_job().log("given back")


@app.task
async def aborrows() -> None:
    started()
    await asyncio.wait_for(gives_back(), 100)


@app.task
async def acleans(gate: str = "") -> str:
    try:
        started()
        await asyncio.sleep(100)
    except SoftTimeLimit:
        # Nothing of the cancellation is left: what cleaning up needs works as ever.
        async with asyncio.timeout(10):
            await asyncio.sleep(0.001)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.001))
        while gate and not await asyncio.to_thread(Path(gate).exists):
            await asyncio.sleep(0.001)
        return f"cleaned {current_job().cancelled}"
    return "not stopped"


@app.task
async def blocks() -> None:
    """Does not let the loop turn."""
    started()
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.001)  # noqa: ASYNC251 - that is the point


@app.task
async def blocks_at_times(count: int) -> int:
    started()
    for _ in range(count):
        time.sleep(0.002)  # noqa: ASYNC251 - that is the point
        await asyncio.sleep(0)
    return count


@app.task
async def aspin(seconds: float, loud: bool = False) -> None:
    if loud:
        started()
    end = time.monotonic() + seconds
    while time.monotonic() < end:  # keeps the loop busy
        await asyncio.sleep(0)


@app.task
async def agroup() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(100))
        current_job().snooze(5)


@app.task
async def acancels_all() -> None:
    """What a careless clean-up does to its mates."""
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()


@app.task
async def aexits(where: str) -> str:
    async def leave() -> None:
        sys.exit(9)

    if where == "here":
        sys.exit(9)
    task = asyncio.create_task(leave())
    await asyncio.sleep(0.01)
    return f"{task.done()}"


@app.task
async def anaps() -> None:
    started()
    await asyncio.sleep(0.5)


@app.task
async def astops_loop() -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    return "still here"


@app.task
async def aleaves_behind() -> None:
    background.add(asyncio.create_task(asyncio.sleep(100)))


@app.task
async def atidies_behind(path: str) -> None:
    """Leaves a task behind that needs the loop for a while once it is cancelled."""

    async def tidy() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            for _ in range(10):
                await asyncio.sleep(0.005)
            Path(path).touch()  # noqa: ASYNC240 - an empty file

    background.add(asyncio.create_task(tidy()))
    await asyncio.sleep(0)


background: set[asyncio.Task[None]] = set()


@app.task
async def acurrent() -> str:
    await asyncio.sleep(0.001)
    return current_job().id


# --- an application with middleware ---

enclosed = Headrace()
seen: list[str] = []


@enclosed.middleware
@contextlib.contextmanager
def outer(job: CurrentJob) -> Iterator[None]:
    seen.append(f"outer in {job.task.rpartition('.')[2]}")
    try:
        yield
    except ValueError:
        seen.append("outer saw")
        raise
    finally:
        seen.append("outer out")


@enclosed.middleware
@contextlib.contextmanager
def inner(job: CurrentJob) -> Iterator[None]:
    seen.append(f"inner in {current_job().attempt}")
    try:
        yield
    finally:
        seen.append("inner out")


@enclosed.task
def look_back() -> list[str]:
    return list(seen)


@enclosed.task
async def alook_back() -> list[str]:
    return list(seen)


@enclosed.task
def fail_enclosed() -> None:
    raise ValueError("inside")
