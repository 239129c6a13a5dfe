"""Members die, run too long, are replaced, told of, leased, and the pool ends: P13, P18, P32 to P38, P41, PS1 to PS16."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headrace import Pool
from headrace.errors import ClosedError, MemberDied, OptionsError, PoolBroken, PoolFull, WaitTimeout
from headrace.pool import Alert, Overrun, processes
from headrace.pool.scheduler import lease_call
from headrace.pool.state import Lease
from tests.deadline import eventually
from tests.pool import chores
from tests.pool.conftest import Blocks
from tests.processes import lives

Make = Callable[..., Pool]
Up = Callable[[Pool], Pool]

OURS = re.compile(r"headrace.pool|concurrent.futures|(threading|random)\.py$")
"""Files whose code a submit consists of."""


# -- deaths: PS6, PS7, PS8, PS9 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chore", "arguments", "reason"),
    [
        (chores.kill_me, (), "signal 9, SIGKILL"),
        (chores.die, (7,), "exit code 7"),
        (chores.die_beside_a_program, (7,), "exit code 7"),
    ],
    ids=["signal", "exit", "exit beside a program"],
)
def test_the_caller_learns_at_once_why_its_member_died(
    make: Make, chore: Any, arguments: tuple[int, ...], reason: str
) -> None:
    pool = make(2, kind="process")
    with pytest.raises(MemberDied, match=reason) as caught:
        pool.call(chore, *arguments, timeout=60)
    assert caught.value.reason == reason
    assert pool.call(chores.double, 1) == 2


def test_only_the_running_call_dies_with_its_member(make: Make, up: Up, tmp_path: Path) -> None:
    pool = up(make(1, kind="process", strategy="round_robin"))
    doomed = pool.submit(chores.kill_me)
    others = [pool.submit(chores.note, tmp_path / "notes", str(n), key="k" if n % 2 else None) for n in range(6)]
    with pytest.raises(MemberDied):
        doomed.result(20)
    for call in others:
        call.result(20)
    assert sorted((tmp_path / "notes").read_text().split()) == list("012345")


def test_a_member_that_dies_idle_is_replaced_and_statistics_survive_it(make: Make, up: Up) -> None:
    pool = up(make(2, kind="process"))
    old = {member.pid for member in pool.stats().members}
    os.kill(min(old), signal.SIGKILL)
    for _ in range(20):
        assert len(pool.stats().members) == 2
    eventually(lambda: sum(member.restarts for member in pool.stats().members) == 1, 20)
    up(pool)
    assert sum(member.reason.startswith("signal 9") for member in pool.stats().members) == 1
    assert len({member.pid for member in pool.stats().members} - old) == 1
    assert [pool.call(chores.double, n, strategy="round_robin") for n in range(4)] == [0, 2, 4, 6]


def test_no_call_is_lost_or_run_twice_while_members_are_killed(make: Make, tmp_path: Path) -> None:
    pool, path = make(3, kind="process", restarts=10_000), tmp_path / "notes"
    calls = []
    for number in range(300):
        if number % 50 == 25:
            pids = [member.pid for member in pool.stats().members if member.pid]
            for pid in pids[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        strategy = ("available", "least_loaded", "round_robin")[number % 3]
        calls.append(pool.submit(chores.note, path, str(number), strategy=strategy))
    died = set[int]()
    for number, call in enumerate(calls):
        error = call.exception(30)
        assert error is None or isinstance(error, MemberDied)
        if error:
            died.add(number)
    lines = [int(line) for line in path.read_text().split()]
    assert len(lines) == len(set(lines)), "none twice"
    assert set(range(300)) - set(lines) <= died, "none lost without its caller being told"
    assert len(died) <= 6


def test_while_a_member_is_away_others_are_chosen(make: Make, up: Up) -> None:
    pool = up(make(2, kind="process"))
    os.kill(pool.stats().members[0].pid, signal.SIGSTOP)
    os.kill(pool.stats().members[0].pid, signal.SIGKILL)
    eventually(lambda: pool.stats().members[0].restarts or pool.stats().members[0].state == "away", 20)
    for strategy in ("round_robin", "random", "least_loaded", "available"):
        assert pool.call(chores.double, 1, strategy=strategy, timeout=30) == 2


# -- storms: PS5, PS10 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["available", "round_robin"])
def test_members_that_cannot_start_break_the_pool_visibly(
    make: Make, kind: str, caplog: pytest.LogCaptureFixture, strategy: str
) -> None:
    with caplog.at_level(logging.ERROR, "headrace.pool"):
        pool = make(2, kind=kind, restarts=2, initializer=chores.broken_set_up, strategy=strategy)
        try:
            call = pool.submit(chores.double, 1)
        except PoolBroken:
            pass
        else:
            with pytest.raises(PoolBroken, match="RuntimeError: no licence"):
                call.result(30)
        eventually(lambda: pool.stats().broken, 20)
    with pytest.raises(PoolBroken, match="members keep dying, and the next start is in"):
        pool.call(chores.double, 1)
    assert "no licence" in caplog.text


def test_a_broken_pool_heals_by_itself(make: Make, kind: str, tmp_path: Path) -> None:
    pool = make(1, kind=kind, restarts=1, initializer=chores.broken_once, initargs=(tmp_path / "once",))
    assert pool.call(chores.double, 1, timeout=30) == 2
    pool = make(1, kind="process", restarts=1)
    for _ in range(2):
        with pytest.raises(MemberDied):
            pool.call(chores.kill_me)
    with pytest.raises((PoolBroken, MemberDied)):
        pool.call(chores.kill_me, timeout=30)
    eventually(lambda: not pool.stats().broken and pool.stats().members[0].state == "idle", 20)
    assert pool.call(chores.double, 1) == 2


def test_with_no_restarts_the_first_death_ends_the_pool(make: Make, up: Up) -> None:
    pool = up(make(2, kind="process", restarts=0))
    with pytest.raises(MemberDied):
        pool.call(chores.die, 3)
    with pytest.raises(PoolBroken, match="restarts=0"):
        eventually(lambda: pool.call(chores.double, 1) and False, 20)
    eventually(lambda: not pool._crew._living, 20, what="the other member left, too")


# -- overruns: P36, P37, P38 -----------------------------------------------------------------------------------------


def test_an_overrun_is_told_and_a_broken_handler_costs_nothing(make: Make, kind: str, blocks: Blocks) -> None:
    alerts: list[Alert] = []

    def broken(alert: Alert) -> None:
        raise RuntimeError("handler")

    pool = make(1, kind=kind, overrun=0.05, overrun_handlers=[broken, alerts.append], name="kitchen")
    later: list[Alert] = []
    pool.on_overrun(later.append)
    call, release = blocks.hold(pool)
    eventually(lambda: len(alerts) >= 3 and len(later) >= 3, 20)
    release.touch()
    assert call.result(20) == "released"
    first, second, third = alerts[:3]
    assert (first.kind, first.pool, first.member, first.call) == ("overrun", "kitchen", 0, "tests.pool.chores.block")
    assert [alert.number for alert in alerts[:3]] == [1, 2, 3]
    assert first.seconds >= 0.05
    assert second.seconds >= 0.1
    assert third.seconds >= 0.2


def test_an_alert_that_finds_no_thread_is_told_with_the_next(
    make: Make, kind: str, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error ended the watch: no call timed out any more, and no lease was given back."""
    alerts = list[Alert]()
    pool = make(1, kind=kind, overrun=Overrun(0.2), overrun_handlers=[alerts.append])
    pool.wait_ready(60)

    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", none)
        call, release = blocks.hold(pool)
        eventually(lambda: call.alerts, 60)
    eventually(lambda: len(alerts) >= 2, 60)
    assert [alert.number for alert in alerts][:2] == [1, 2]
    release.touch()
    assert call.result(60) == "released"


def test_the_default_handler_logs(make: Make, blocks: Blocks, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.pool"):
        pool = make(1, overrun=0.02)
        _, release = blocks.hold(pool)
        eventually(lambda: "has run for" in caplog.text, 20)
        release.touch()


def test_the_last_alert_kills_and_nothing_that_waits_is_lost(make: Make, kind: str, blocks: Blocks) -> None:
    """P37, PS9: the others wait in the pool's hands, not in the killed member's."""
    alerts: list[Alert] = []
    pool = make(1, kind=kind, overrun=Overrun(1.5, limit=2), overrun_handlers=[alerts.append])
    call, release = blocks.hold(pool)
    waiting = [pool.submit(chores.double, n, strategy=strategy) for n, strategy in enumerate(["available", "random"])]
    with pytest.raises(MemberDied, match=r"killed: tests.pool.chores.block ran for [\d.]+ s"):
        call.result(20)
    assert [other.result(20) for other in waiting] == [0, 2]
    eventually(lambda: len(alerts) == 2)
    assert [(alert.kind, alert.number) for alert in alerts] == [("overrun", 1), ("limit", 2)]
    release.touch()
    assert pool.call(chores.double, 5, timeout=20) == 10
    assert pool.stats().members[0].restarts == 1


def test_a_kill_takes_the_whole_group_and_not_us(make: Make, tmp_path: Path) -> None:
    pool = make(1, kind="process", overrun=Overrun(5, limit=1), overrun_handlers=[])
    with pytest.raises(MemberDied, match="killed"):
        pool.call(chores.with_grandchild, tmp_path / "pids")
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]

    eventually(lambda: not any(lives(pid) for pid in pids), 20, what="member, child and grandchild are gone")
    assert pool.call(chores.double, 1) == 2


def test_a_frozen_member_is_killed_like_any_other(make: Make, up: Up, blocks: Blocks) -> None:
    pool = up(make(1, kind="process", overrun=Overrun(3, limit=1), overrun_handlers=[]))
    os.kill(pool.stats().members[0].pid, signal.SIGSTOP)
    with pytest.raises(MemberDied):
        pool.submit(chores.echo, b"x" * (4 << 20)).result(20)
    assert pool.call(chores.double, 1, timeout=20) == 2


# -- callbacks: P41 --------------------------------------------------------------------------------------------------


class Diary:
    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def on_start(self, pool: str) -> None:
        self.lines.append(("start", pool))

    def on_member(self, pool: str, member: int) -> None:
        self.lines.append(("member", member))

    def on_death(self, pool: str, member: int, reason: str) -> None:
        self.lines.append(("death", member, reason))


class OnlyDeath:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_death(self, pool: str, member: int, reason: str) -> None:
        self.reasons.append(reason)
        raise RuntimeError("this callback is broken")


def test_callbacks_are_told_of_the_life_of_a_pool(make: Make, up: Up) -> None:
    diary, broken, late = Diary(), OnlyDeath(), Diary()
    pool = up(make(1, kind="process", name="kitchen", callbacks=[broken, diary]))
    pool.add_callbacks(late)
    with pytest.raises(MemberDied):
        pool.call(chores.kill_me)
    assert pool.call(chores.double, 1) == 2
    pool.remove_callbacks(late)
    pool.shutdown()
    death = ("death", 0, "signal 9, SIGKILL")
    expected = [("start", "kitchen"), ("member", 0), death, ("member", 0), ("death", 0, "left")]
    eventually(lambda: diary.lines == expected, what=str(expected))
    assert broken.reasons == ["signal 9, SIGKILL", "left"]
    assert late.lines == [death, ("member", 0)]


def test_a_callback_that_exits_is_told_of_what_comes(make: Make, up: Up) -> None:
    told = list[tuple[Any, ...]]()

    class Exits:
        def on_member(self, *facts: Any) -> None:
            told.append(facts)
            sys.exit(1)

    up(make(3, callbacks=[Exits()], name="kitchen"))
    eventually(lambda: {member for _, member in told} == {0, 1, 2}, 20)


def test_a_callback_that_knows_nothing_is_a_warning_at_the_start_and_an_error_later(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headrace.pool"):
        pool = make(1, callbacks=[object()])
    assert "it will never be called" in caplog.text
    with pytest.raises(OptionsError, match="on_death"):
        pool.add_callbacks(object())


# -- leases: P13, PS1, PS2, PS3 --------------------------------------------------------------------------------------


def test_a_leased_member_works_for_one_caller_alone(make: Make, kind: str, up: Up) -> None:
    pool = up(make(1, kind=kind))
    with pool.reserve() as member:
        first = member.call(chores.me)
        with pytest.raises(PoolFull):
            pool.call(chores.me, strategy="next_available")
        other = pool.submit(chores.me)
        calls = [member.submit(chores.double, n) for n in range(5)]
        assert [call.result(20) for call in calls] == [0, 2, 4, 6, 8]
        assert not other.done()
    assert other.result(20) == first
    with pytest.raises(ClosedError, match="lease is over"):
        member.submit(chores.double, 1)
    pool.shutdown()


def test_run_gives_the_member_back_whatever_happens(make: Make, kind: str, up: Up) -> None:
    pool = up(make(1, kind=kind))
    assert pool.run(lambda member, left: (member.call(chores.double, 4), left)) == (8, None)
    left = pool.run(lambda member, left: left, timeout=30)  # never calls the member: PS3
    assert left is not None
    assert 0 < left <= 30
    with pytest.raises(ZeroDivisionError):
        pool.run(lambda member, left: 1 / 0)
    assert pool.call(chores.double, 1, strategy="next_available") == 2
    pool.shutdown()


def test_waiting_for_a_lease_has_an_end_and_never_costs_a_member(make: Make, kind: str, blocks: Blocks) -> None:
    pool = make(1, kind=kind)
    _, release = blocks.hold(pool)
    with pytest.raises(WaitTimeout):
        pool.reserve(timeout=0.05)
    release.touch()
    assert pool.call(chores.double, 1, timeout=20) == 2


def test_no_member_is_lost_when_waiters_give_up_just_as_they_are_served(make: Make, up: Up) -> None:
    """PS1: the time-out and the grant race, thousands of times."""
    pool = up(make(2))

    def impatient() -> None:
        for number in range(150):
            try:
                if number % 2:
                    with pool.reserve(timeout=0.0005):
                        time.sleep(0.0002)
                else:
                    pool.call(time.sleep, 0.0003, timeout=0.0005)
            except WaitTimeout:
                continue

    threads = [threading.Thread(target=impatient) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    eventually(lambda: all(member.state == "idle" for member in pool.stats().members), 20)
    stats = pool.stats()
    assert (stats.waiting, stats.central, len(pool.snapshot.ranks)) == (0, 0, 2)
    assert pool.broadcall(chores.double, 1, timeout=20).values == {0: 2, 1: 2}


def test_a_holder_whose_thread_ended_gives_its_member_back(make: Make, kind: str) -> None:
    pool, held = make(1, kind=kind), list[Any]()
    thread = threading.Thread(target=lambda: held.append(pool.reserve()))
    thread.start()
    thread.join(20)
    assert len(held) == 1
    assert pool.call(chores.double, 1, timeout=20) == 2


def test_a_forgotten_lease_gives_its_member_back(make: Make) -> None:
    pool = make(1)
    pool.reserve()
    gc.collect()
    assert pool.call(chores.double, 1, timeout=20) == 2


def test_a_leased_member_that_dies_ends_its_lease(make: Make) -> None:
    pool = make(1, kind="process")
    with pool.reserve() as member:
        with pytest.raises(MemberDied):
            member.call(chores.kill_me)
        with pytest.raises(ClosedError, match="or died"):
            eventually(lambda: member.call(chores.double, 1) and False, 20)
    assert pool.call(chores.double, 1, timeout=20) == 2


# -- resize ----------------------------------------------------------------------------------------------------------


def test_resizing_under_keyed_load_loses_none_runs_none_twice_and_keeps_each_keys_order(
    make: Make, kind: str, tmp_path: Path
) -> None:
    pool, path = make(4, kind=kind), tmp_path / "notes"
    total = 800 if kind == "thread" else 400
    calls = []
    for number in range(total):
        if number % (total // 8) == total // 16:
            pool.resize((8, 2, 5, 1)[number // (total // 8) % 4])
        seconds = 0.002 if number % 9 == 0 else 0
        calls.append(pool.submit(chores.slow_note, path, f"{number % 13} {number}", seconds, key=number % 13))
    for call in calls:
        call.result(60)
    assert pool.stats().size == pool.snapshot.size
    pool.shutdown()
    seen: dict[str, list[int]] = {}
    for line in path.read_text().splitlines():
        key, number = line.split()
        seen.setdefault(key, []).append(int(number))
    assert sorted(number for numbers in seen.values() for number in numbers) == list(range(total))
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert pool._scheduler.lines.homes == {}
    assert pool._scheduler.lines.waiting == 0


def test_four_to_eight_to_two(make: Make, kind: str, up: Up, blocks: Blocks) -> None:
    pool = up(make(4, kind=kind))
    pool.resize(8)
    assert len(pool.broadcall(chores.me, timeout=30).values) == 8
    holds = [blocks.hold(pool) for _ in range(8)]
    waiting = [pool.submit(chores.double, n, strategy="round_robin") for n in range(16)]
    pool.resize(2)
    stats = pool.stats()
    assert stats.size == 2
    assert sum(member.state == "leaving" for member in stats.members) == 6
    assert [member.waiting for member in stats.members if member.state == "leaving"] == [0] * 6
    for call, release in holds:
        release.touch()
        assert call.result(20) == "released"
    assert [call.result(20) for call in waiting] == [2 * n for n in range(16)]
    eventually(lambda: len(pool.stats().members) == 2, 20, what="the removed members have left")


def test_a_pool_of_nobody_is_refused(make: Make) -> None:
    with pytest.raises(OptionsError):
        Pool(0)
    with pytest.raises(OptionsError):
        make(1).resize(0)


# -- the end: P18, P33, P34, PS11, PS16 ------------------------------------------------------------------------------


def test_the_end_of_the_block_runs_what_was_accepted(kind: str, tmp_path: Path) -> None:
    with Pool(2, kind=kind) as pool:  # type: ignore[arg-type]
        for number in range(50):
            pool.cast(chores.note, tmp_path / "notes", str(number), strategy=("available", "random")[number % 2])
    assert len((tmp_path / "notes").read_text().split()) == 50
    assert pool.stats().members[0].state == "leaving"


def test_shutting_down_with_cancelling_ends_what_waits(make: Make, kind: str, blocks: Blocks) -> None:
    pool = make(1, kind=kind)
    call, release = blocks.hold(pool)
    waiting = [pool.submit(chores.double, 1, strategy=strategy) for strategy in ("available", "round_robin")]
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(other.cancelled() for other in waiting)
    release.touch()
    assert call.result(20) == "released"


def test_a_stop_gives_shutdown_timeout_and_then_kills(make: Make, kind: str, blocks: Blocks) -> None:
    pool = make(2, kind=kind)
    (quick, release), (slow, never) = blocks.hold(pool), blocks.hold(pool)
    waiting = pool.submit(chores.double, 1)
    threading.Timer(0.1, release.touch).start()
    began = time.monotonic()
    pool.stop(shutdown_timeout=6)
    assert time.monotonic() - began < 30
    assert quick.result(0) == "released"
    assert waiting.cancelled()
    with pytest.raises(MemberDied, match="the pool was stopped"):
        slow.result(5)
    never.touch()
    pool.stop(0)


@pytest.mark.parametrize("how", ["shutdown", "stop", "resize"])
def test_a_member_that_leaves_runs_its_exit_handlers(make: Make, up: Up, how: str, tmp_path: Path) -> None:
    """PS11: an orderly end is the default, and one that is given time."""
    path = tmp_path / "notes"
    pool = up(make(2, kind="process", initializer=chores.clean_up_at_exit, initargs=(path,)))
    pids = {str(member.pid) for member in pool.stats().members}
    if how == "resize":
        pool.resize(1)
        eventually(path.exists, 20)
    pool.shutdown() if how != "stop" else pool.stop(shutdown_timeout=20)
    eventually(lambda: path.exists() and set(path.read_text().split()) == pids, 20)


NO_DESCRIPTORS = """
import os, resource, signal
from headrace import Pool
from tests.deadline import eventually
from tests.pool import chores

if __name__ == "__main__":
    pool = Pool(1, kind="process", restarts=2)
    pool.wait_ready(60)
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
    os.kill(pool.stats().members[0].pid, signal.SIGKILL)
    eventually(lambda: pool.stats().broken, 60)
    print(pool.stats().broken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
    eventually(lambda: not pool.stats().broken, 60)
    print(pool.call(chores.double, 1, timeout=60))
    pool.shutdown()
"""


def test_a_member_that_finds_no_descriptors_is_started_later(root: Path, tmp_path: Path) -> None:
    """Its thread ended, so it never came back, and calls waited for it for ever."""
    (tmp_path / "commands.py").write_text(NO_DESCRIPTORS)
    environ = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, str(tmp_path / "commands.py")]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert "Too many open files; members keep dying" in run.stdout, run.stderr
    assert run.stdout.endswith("\n2\n"), run.stderr


def test_a_stop_while_members_start_ends_them(kind: str) -> None:
    pool = Pool(3, kind=kind)  # type: ignore[arg-type]
    pool.stop(0)
    eventually(lambda: not pool._crew._living, 20)


def test_a_forgotten_pool_runs_what_it_accepted_and_ends(kind: str, tmp_path: Path) -> None:
    pool = Pool(1, kind=kind, name="forgotten")  # type: ignore[arg-type]
    crew = pool._crew
    calls = [pool.submit(chores.note, tmp_path / "notes", str(number)) for number in range(5)]
    del pool
    gc.collect()
    for call in calls:
        call.result(20)
    eventually(lambda: not crew._living, 20, what="its members have left")


FORGOTTEN_LATE = """
import gc, sys, threading
from headrace import Pool

gc.disable()
pool = Pool(1, kind="thread")
pool.call(int)
pool.itself = pool
del pool
gc.set_threshold(1)
gc.enable()
for _ in range(10):
    sys._current_frames()
gc.collect()
print("went on")
"""


def test_a_pool_that_is_collected_while_the_interpreter_lists_its_threads_hangs_nothing(root: Path) -> None:
    command = [sys.executable, "-c", FORGOTTEN_LATE]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stdout) == (0, "went on\n")


PROGRAM = """
import sys
from headrace import Pool
from tests.pool import chores
from pathlib import Path

if __name__ == "__main__":
    pool = Pool(2, kind=sys.argv[1])
    for number in range(20):
        pool.cast(chores.note, Path(sys.argv[2]), str(number))
"""


def test_a_program_that_ends_without_a_word_has_its_calls_run(root: Path, kind: str, tmp_path: Path) -> None:
    (tmp_path / "commands.py").write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, str(tmp_path / "commands.py"), kind, str(tmp_path / "notes")]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert len((tmp_path / "notes").read_text().split()) == 20


UNGUARDED = """
from headrace import Pool
from tests.pool import chores

pool = Pool(1, kind="process", restarts=1)
pool.call(chores.double, 1)
"""


def test_a_program_without_its_guard_is_told_so(root: Path, tmp_path: Path) -> None:
    (tmp_path / "commands.py").write_text(UNGUARDED)
    environ = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, str(tmp_path / "commands.py")]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 1
    assert "PoolBroken" in run.stderr
    assert "__main__" in run.stderr


def test_members_end_when_the_program_is_killed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "commands.py").write_text(PROGRAM + "    pool.wait_ready(60)\n"
        "    print(*[m.pid for m in pool.stats().members], flush=True)\n"
        "    input()\n")  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, str(tmp_path / "commands.py"), "process", str(tmp_path / "notes")]
    process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.communicate(timeout=20)
    eventually(lambda: not any(lives(pid) for pid in pids), 20)


BUSY = """
import sys
from headrace import Pool
from tests.pool import chores
from pathlib import Path

if __name__ == "__main__":
    with Pool(1, kind="process") as pool:
        pool.call(chores.with_grandchild, Path(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the call ends first")
def test_what_a_call_runs_ends_when_the_program_is_killed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "commands.py").write_text(BUSY)
    pids = tmp_path / "pids"
    command = [sys.executable, str(tmp_path / "commands.py"), str(pids)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(root)}) as process:
        eventually(pids.exists, what="the call runs")
        process.kill()
    started = [int(pid) for pid in pids.read_text().split()]
    try:
        eventually(lambda: not any(lives(pid) for pid in started), 20, what="all that it ran is gone")
    finally:
        for pid in filter(lives, started):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_is_told_that_the_pool_is_not_its_own(make: Make, kind: str) -> None:
    pool = make(1, kind=kind, name="kitchen")
    assert pool.call(chores.double, 1) == 2
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def ask() -> None:
        try:
            pool.call(chores.double, 1)
        except ClosedError as error:
            queue.put(str(error))

    process = context.Process(target=ask)
    process.start()
    assert "kitchen belongs to the process that this one was forked from" in queue.get()
    process.join(20)
    assert process.exitcode == 0
    assert pool.call(chores.double, 2) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_makes_pools_of_its_own_whatever_threads_held(make: Make) -> None:
    pool = make(1, kind="process")
    assert pool.call(chores.double, 1) == 2

    def use() -> None:
        pool.shutdown()
        with Pool(1, kind="process") as own:
            assert own.call(chores.double, 2) == 4

    fork = multiprocessing.get_context("fork").Process(target=use)
    body: Any = pool._scheduler.members[0].body
    with body._sending, processes._nursery, forkserver._forkserver._lock:  # type: ignore[attr-defined]
        fork.start()
    fork.join(20)
    code = fork.exitcode
    fork.kill()
    fork.join()
    assert code == 0
    assert pool.call(chores.double, 3) == 6


def test_bad_options_are_refused_at_once() -> None:
    for options in (
        {"kind": "fibre"}, {"queue": "random"}, {"strategy": "best"}, {"backlog": -1}, {"restarts": -1},
        {"period": 0}, {"overrun": 0}, {"shutdown_timeout": -1}, {"initializer": 3},
    ):  # fmt: skip
        with pytest.raises(OptionsError):
            Pool(1, **options)  # type: ignore[arg-type]


def test_many_threads_may_use_one_pool(make: Make, kind: str) -> None:
    pool, sums = make(3, kind=kind), list[int]()
    strategies = ["available", "least_loaded", "round_robin", "random"]

    def use(number: int) -> None:
        mine = [pool.submit(chores.double, n, strategy=strategies[(n + number) % 4]) for n in range(150)]
        sums.append(sum(call.result(60) for call in mine))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [2 * sum(range(150))] * 6
    stats = pool.stats()
    assert (stats.waiting, stats.done) == (0, 900)


def test_a_removed_member_that_dies_leaves_its_key_to_another(make: Make, up: Up, blocks: Blocks) -> None:
    pool = up(make(4, kind="process"))
    key = next(n for n in range(1000) if pool.snapshot.ring.owner(n).id == 3)
    busy, _ = blocks.hold(pool, key=key)
    waiting = [pool.submit(chores.double, n, key=key) for n in range(3)]
    pid = pool.stats().members[3].pid
    pool.resize(1)
    assert not any(call.done() for call in waiting), "they come after the running one, wherever they run"
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(MemberDied):
        busy.result(20)
    assert [call.result(20) for call in waiting] == [0, 2, 4]


def test_what_waits_for_a_removed_member_is_run_though_the_pool_is_closed(
    make: Make, kind: str, up: Up, blocks: Blocks
) -> None:
    pool = up(make(4, kind=kind))
    key = next(n for n in range(1000) if pool.snapshot.ring.owner(n).id == 3)
    busy, release = blocks.hold(pool, key=key)
    waiting = [pool.submit(chores.double, n, key=key) for n in range(3)]
    pool.resize(1)
    pool.shutdown(wait=False)
    release.touch()
    assert busy.result(20) == "released"
    assert [call.result(20) for call in waiting] == [0, 2, 4]


def test_a_lease_that_is_granted_to_nobody_goes_back(make: Make, up: Up) -> None:
    """PS1: the waiter gave up after the grant began and before the lease knew its member."""
    pool = up(make(1))
    lease = Lease()
    lease.over = True
    pool._place(lease_call(pool._scheduler, lease), None, None)
    assert pool.call(chores.double, 1, timeout=20) == 2


def test_interrupted_submits_cost_no_member(make: Make, up: Up) -> None:
    """An exception may come between any two steps of a submit, that between booking and handing over included."""
    pool = up(make(2))

    class Interrupted(BaseException):
        pass

    def interrupt(_: int, frame: FrameType | None) -> None:
        # Only within a submit's own steps: what a collection of garbage calls amid them cannot pass it on. And only one:
        # a second would cut what the first one is cleaned up with.
        nonlocal armed
        while frame is not None and OURS.search(frame.f_code.co_filename) and frame.f_code.co_name != "__del__":
            if frame.f_code.co_name == "submit" and armed:
                armed = False
                raise Interrupted
            frame = frame.f_back

    def fire() -> None:
        for _ in range(20):
            time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGUSR1)

    armed = False
    old, seen = signal.signal(signal.SIGUSR1, interrupt), 0
    thread = threading.Thread(target=fire)
    thread.start()
    try:
        while seen < 5 and thread.is_alive():
            try:
                armed = True
                while thread.is_alive():
                    pool.submit(chores.double, 1)
            except Interrupted:
                seen += 1
    finally:
        armed = False
        thread.join()
        signal.signal(signal.SIGUSR1, old)
    assert pool.broadcall(chores.double, 1, timeout=20).values == {0: 2, 1: 2}
    eventually(lambda: pool.stats().waiting == 0, 20)
    assert len(pool.snapshot.ranks) == 2
