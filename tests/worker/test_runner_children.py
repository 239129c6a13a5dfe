"""What a job forks or starts is an ordinary process: it has the handlers of any program, and can be terminated."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from headrace import Headrace, current_job
from headrace.model.options import KINDS
from tests.worker import rig
from tests.worker.rig import Runner, claim

WAYS = ("fork", "forkserver", "spawn", "os.fork", "subprocess")
ROUNDS = {"fork": 8, "os.fork": 8}
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)

app = Headrace(result_ttl=60, failure_ttl=600)
TOKENS = itertools.count(1)


def _sleeps() -> None:
    time.sleep(60)


def _double(number: int) -> int:
    return 2 * number


def _terminated(way: str) -> int:
    """The exit code of a child that is terminated as soon as it is started."""
    if way == "subprocess":
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        return child.wait()
    if way == "os.fork":
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    process = multiprocessing.get_context(way).Process(target=_sleeps)
    process.start()
    process.terminate()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def terminates(way: str) -> list[int]:
    return [_terminated(way) for _ in range(ROUNDS.get(way, 2))]


def pools(count: int) -> list[list[int]]:
    """Pools that are terminated at the end of their block."""
    found: list[list[int]] = []
    for _ in range(count):
        with multiprocessing.get_context("fork").Pool(4) as pool:
            found.append(pool.map(_double, range(8)))
    return found


def handlers() -> list[str]:
    """The signal handlers of a child, and what it blocks."""
    read, write = os.pipe()
    if not os.fork():
        told = [str(signal.getsignal(number)) for number in HEARD]
        told.append(str(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))))
        os.write(write, "\n".join(told).encode())
        os._exit(0)
    os.close(write)
    os.wait()
    with os.fdopen(read) as pipe:
        return pipe.read().split("\n")


def waits() -> str:
    current_job().log("started")
    with contextlib.suppress(TimeoutError):
        signal.sigtimedwait([], 1)
    return "done"


for kind in KINDS:
    for body in (terminates, pools, handlers, waits):
        if kind == "async":

            async def wrapped(*args: object, body: Callable[..., object] = body) -> object:
                return body(*args) if body is waits else await asyncio.to_thread(body, *args)

            functools.update_wrapper(wrapped, body)
            app.task(name=f"async.{body.__name__}")(wrapped)
        else:
            app.task(name=f"{kind}.{body.__name__}", kind=kind)(body)


@pytest.fixture(scope="module")
def runner_of() -> Iterator[Callable[[str], Runner]]:
    """The one runner of a kind; each time a new fork server, since one leaves after a job that left processes behind."""
    with rig.runners() as make:
        kept = functools.cache(lambda kind: make(kind, 2, app=app))
        yield (
            lambda kind: (
                make(kind, 2, app=app, is_fork_server=sys.platform == "linux") if kind == "fork" else kept(kind)
            )
        )


@pytest.fixture
def one(kind: str, runner_of: Callable[[str], Runner]) -> Runner:
    return runner_of(kind)


@pytest.fixture
def token() -> int:
    return next(TOKENS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_is_terminated_ends(one: Runner, token: int, kind: str, way: str) -> None:
    """Also one that is terminated before it has done anything: under load most are."""
    one.run(claim(token, f"{kind}.terminates", way))
    assert set(one.value(token)) == {-signal.SIGTERM}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_of_processes_ends(one: Runner, token: int, kind: str) -> None:
    one.run(claim(token, f"{kind}.pools", 2))
    assert one.value(token) == [[2 * n for n in range(8)]] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_has_the_handlers_of_any_program_and_blocks_nothing(one: Runner, token: int, kind: str) -> None:
    one.run(claim(token, f"{kind}.handlers"))
    *told, blocked = one.value(token)
    usual: dict[int, object] = dict.fromkeys(HEARD, signal.Handlers.SIG_DFL) | {
        signal.SIGINT: signal.default_int_handler
    }
    # What was ignored when the suite was started (HUP, under nohup) is ignored by each program below it.
    usual |= {n: signal.SIG_IGN for n in HEARD if signal.getsignal(n) is signal.SIG_IGN}
    assert told == [str(usual[n]) for n in HEARD]
    assert blocked == "[]"


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_of_the_whole_service_does_not_end_a_runner(one: Runner, token: int, kind: str) -> None:
    """A process manager may send TERM to every process; when the runners end is the supervisor's to say."""
    one.run(claim(token, f"{kind}.waits"))
    one.started(token)
    os.killpg(one.pid, signal.SIGTERM)
    os.killpg(one.pid, signal.SIGINT)
    assert one.value(token) == "done"
    assert not one.stderr()
