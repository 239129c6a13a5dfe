"""An exception that arrives at any moment of a pool's verb costs the pool no member, no lock and no count.

The interpreter raises asynchronous exceptions after a call and at the start of a function; a profile function hears of
these moments, so each of them is tried in turn.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from headrace import Pool
from headrace.pool import Call, state
from tests.deadline import eventually
from tests.pool import chores
from tests.pool.conftest import Blocks

MOST = 3000
PAYLOAD = b"0" * 3_000_000


class Cut(BaseException):
    """What is raised in the midst of a verb."""


def cut(moment: int, verb: Callable[[], object]) -> bool:
    """Run a verb and raise at one of its moments; False when it ended before.

    It runs in a thread of its own: in the main thread signals run their handlers at these moments, too.
    """
    moments = 0
    wrong: list[BaseException] = []

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal moments
        if event in ("call", "c_return"):
            moments += 1
            if moments == moment:
                raise Cut

    def run() -> None:
        sys.setprofile(profile)
        try:
            verb()
        except BaseException as error:  # noqa: BLE001 - told to the test
            wrong.append(error)
        finally:
            sys.setprofile(None)

    # A collection would run what others left behind at one of these moments.
    gc.disable()
    try:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), f"the verb hangs, cut at its moment {moment}"
    finally:
        gc.enable()
    for error in wrong:
        if not isinstance(error, Cut) and not (isinstance(error, RuntimeError) and isinstance(error.__context__, Cut)):
            raise error
    return moments >= moment


def idle(pool: Pool) -> bool:
    """Whether nothing is booked, waits or is counted."""
    scheduler: Any = pool._scheduler
    if scheduler.lock.locked():
        return False
    ranks = scheduler.snapshot.ranks
    loads = [load for load, number, member in ranks._heap if ranks._current.get(member.id) == number]
    return (
        all(m.running is None and m.lease is None and not m.inbox and not m.urgent for m in scheduler.members)
        and not scheduler.lines.central
        and scheduler.lines.waiting == 0
        and not scheduler.lines.homes
        and loads == [0] * scheduler.snapshot.size
    )


def all_run_at_once(pool: Pool, blocks: Blocks) -> None:
    asked = [blocks.ask(pool) for _ in range(pool.snapshot.size)]
    eventually(lambda: all(started.exists() for _, started, _ in asked), 20, what="each member runs a call")
    for call, _, release in asked:
        release.touch()
        assert call.result(20) == "released"


def leased(pool: Pool) -> None:
    with pool.reserve(timeout=20) as member:
        member.call(chores.double, 1)


def leased_by_key(pool: Pool) -> None:
    with pool.reserve(key="a", timeout=20) as member:
        member.submit(chores.double, 1)
        member.submit(chores.double, 2)


def cancelled(pool: Pool) -> None:
    calls = [pool.submit(chores.double, value, key="b") for value in range(5)]
    for call in reversed(calls):
        call.cancel()


def crowded(pool: Pool) -> None:
    """Calls of others wait for the members that are given back, for any of them and for this one."""
    with pool.reserve(timeout=20), pool.reserve(timeout=20):
        others[:] = [pool.submit(chores.double, value) for value in range(3)]
        others.extend(pool.submit(chores.double, value, key=value) for value in range(4))


def shrunk(pool: Pool) -> None:
    """The same, and one of them leaves the pool."""
    with pool.reserve(timeout=20), pool.reserve(timeout=20):
        others[:] = [pool.submit(chores.double, value) for value in range(3)]
        others.extend(pool.submit(chores.double, value, key=value) for value in range(4))
        pool.resize(1)


# Calls whose callers are not the ones that are cut short.
others: list[Call[int]] = []

VERBS: dict[str, Callable[[Pool], object]] = {
    "submit": lambda pool: pool.submit(chores.double, 1).result(20),
    "least": lambda pool: pool.submit(chores.double, 1, strategy="least_loaded").result(20),
    "now": lambda pool: pool.submit(chores.double, 1, strategy="next_available").result(20),
    "key": lambda pool: [pool.submit(chores.double, value, key="a") for value in range(3)][-1].result(20),
    "timeout": lambda pool: pool.submit(chores.double, 1, timeout=20).result(),
    "call": lambda pool: pool.call(chores.double, 1, timeout=20),
    "cast": lambda pool: pool.cast(chores.double, 1),
    "map": lambda pool: list(pool.map(chores.double, range(4), timeout=20)),
    "buffered": lambda pool: list(pool.map(chores.double, range(4), buffersize=2, chunksize=2)),
    "broadcast": lambda pool: pool.broadcast(chores.double, 1),
    "broadcall": lambda pool: pool.broadcall(chores.double, 1, timeout=20),
    "lease": leased,
    "leased_by_key": leased_by_key,
    "cancel": cancelled,
    "large": lambda pool: pool.call(len, PAYLOAD),
    "ready": lambda pool: pool.wait_ready(20),
    "crowded": crowded,
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_moment_of_a_verb_costs_a_member(make: Callable[..., Pool], kind: str, blocks: Blocks, verb: str) -> None:
    pool = make(2, kind=kind)
    pool.wait_ready(60)
    others.clear()
    VERBS[verb](pool)  # what it imports it has
    moment = 1
    while cut(moment, lambda: VERBS[verb](pool)):
        for call in others:
            call.result(20)
        eventually(lambda: idle(pool), 20, every=0.0005, what=f"the pool is idle after a cut at moment {moment}")
        moment += 1
        assert moment < MOST
    assert moment > 8, "it was cut"
    all_run_at_once(pool, blocks)
    assert pool.stats().members[0].restarts == 0
    pool.shutdown()


def test_no_moment_of_a_resize_costs_a_member(make: Callable[..., Pool], kind: str, blocks: Blocks) -> None:
    pool = make(2, kind=kind)
    pool.wait_ready(60)
    moment = 1
    while cut(moment, lambda: pool.resize(3)):
        pool.resize(2)
        moment += 1
    assert moment > 10
    moment = 1
    while cut(moment, lambda: shrunk(pool)):
        for call in others:
            call.result(20)
        pool.resize(2)
        moment += 1 if kind == "thread" else 9
    pool.resize(2)
    pool.wait_ready(60)
    all_run_at_once(pool, blocks)
    pool.shutdown()


def test_a_resize_that_was_cut_short_does_not_undo_the_next_one(
    make: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make(2, kind="thread")
    late: list[Callable[[], None]] = []

    def cut_short(run: Callable[[], None], _: tuple[()]) -> None:
        late.append(run)
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(state, "start_new_thread", cut_short)
        with pytest.raises(Cut):
            pool.resize(1)
    pool.resize(3)
    late[0]()
    assert pool.snapshot.size == 3


@pytest.mark.parametrize("how", ["shutdown", "cancel", "stop"])
def test_no_moment_of_a_shutdown_keeps_the_next_one_waiting(make: Callable[..., Pool], kind: str, how: str) -> None:
    verbs: dict[str, Callable[[Pool], object]] = {
        "shutdown": lambda pool: pool.shutdown(),
        "cancel": lambda pool: pool.shutdown(cancel_futures=True),
        "stop": lambda pool: pool.stop(5),
    }
    moment, step, going = 1, 1 if kind == "thread" else 9, True
    while going:
        pool = make(2, kind=kind)
        calls = [pool.submit(chores.double, value) for value in range(4)]
        pool.cast(chores.double, 1, key="a")
        going = cut(moment, lambda pool=pool: verbs[how](pool))  # type: ignore[misc]
        pool.shutdown()
        assert pool._crew.wait(20), "it ended"
        assert all(call.done() for call in calls)
        moment += step
        assert moment < MOST
    assert moment > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one may arrive in a __del__
def test_exceptions_at_random_cost_no_member(make: Callable[..., Pool], kind: str, blocks: Blocks) -> None:
    """As :func:`PyThreadState_SetAsyncExc` raises them, several in one verb too."""
    pool = make(2, kind=kind, callbacks=())
    pool.wait_ready(60)
    dice, stopping, ready = random.Random(25), threading.Event(), threading.Event()
    names = [name for name in VERBS if name != "large"]
    done: list[str] = []

    def user() -> None:
        ready.set()
        while not stopping.is_set():
            with suppress(BaseException):
                while True:
                    VERBS[name := dice.choice(names)](pool)
                    done.append(name)

    def guarded() -> None:
        while not stopping.is_set():
            with suppress(BaseException):
                user()

    thread = threading.Thread(target=guarded)
    thread.start()
    ready.wait(20)
    for _ in range(400):
        before = len(done)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Cut))
        if dice.random() < 0.5:
            eventually(lambda before=before: len(done) > before, 30, every=0.0005, what="verbs go on")  # type: ignore[misc]
    stopping.set()
    eventually(
        lambda: (
            not thread.is_alive()
            or ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Cut)) < 0
        ),
        30,
        every=0.05,
    )
    eventually(lambda: idle(pool), 20, what="the pool is idle")
    all_run_at_once(pool, blocks)
    pool.shutdown()


def test_a_call_has_all_that_a_future_has(make: Callable[..., Pool]) -> None:
    """A call does not call its base class when it is made."""
    from concurrent.futures import Future

    call = make(1, kind="thread").submit(chores.double, 1)
    assert set(vars(Future())) <= set(vars(call))


def test_a_thread_of_ours_leaves_no_entry_behind() -> None:
    """Of 200 pools on a busy machine two threads stayed in ``threading.enumerate()`` for ever."""
    before = threading.enumerate()
    found: list[threading.Thread] = []
    state.apart(lambda: found.append(threading.current_thread()))
    with pytest.raises(KeyError):
        state.apart(lambda: {}[threading.current_thread()])  # type: ignore[var-annotated]
    # A thread of an earlier test may end meanwhile.
    assert set(threading.enumerate()) <= set(before)
