"""The async kind: many coroutines on one event loop, each stopped alone, blocked or not."""

from __future__ import annotations

import _thread
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.worker.channel import frame, give_tickets
from headrace.worker.messages import Exit, Run, Stop
from tests.worker import jobs, rig
from tests.worker.rig import Runner, claim, error_of


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield make


@pytest.fixture
def loop(start: Callable[..., Runner]) -> Runner:
    return start("async", 100)


def test_jobs_run_at_once(loop: Runner) -> None:
    loop.run(*(claim(n, "meet", str(n), str((n + 1) % 50)) for n in range(50)))
    loop.until(lambda: loop.ended(*range(50)), "all ends")
    assert loop.value(7) == "7"


def test_a_result_is_kept(loop: Runner) -> None:
    assert loop.value(loop.one(claim(1, "aadd", 2, 3)).number) == 5


def test_each_coroutine_has_its_own_current_job(loop: Runner) -> None:
    loop.run(*(claim(n, "acurrent") for n in range(1, 41)))
    assert [loop.value(n) for n in range(1, 41)] == [f"id{n}" for n in range(1, 41)]


def test_refusals_are_those_of_every_kind(loop: Runner) -> None:
    assert loop.one(claim(1, "no.such.task")).ended.kind == "parked"
    assert loop.one(claim(2, "aadd", data=b"\xc1")).ended.kind == "corrupt"
    assert loop.one(claim(3, "aadd", "x", 1)).ended.kind == "failed"


@pytest.mark.parametrize("how", jobs.WAYS)
@pytest.mark.parametrize(("reason", "kind"), [("soft", "failed"), ("cancel", "cancelled")])
def test_a_stop_reaches_whatever_a_coroutine_waits_for(loop: Runner, how: str, reason: str, kind: str) -> None:
    loop.run(claim(1, "awaits", how), claim(2, "awaits", "future"))
    loop.started(1, 2)
    loop.stop(1, reason)
    done = loop.done(1)
    assert done.ended.kind == kind
    error = error_of(done)
    name = "SoftTimeLimit" if reason == "soft" else "CancelRequested"
    assert error.type == f"headrace.errors.{name}"
    assert "in awaits" in error.traceback
    assert "headrace/worker" not in error.traceback
    assert "_collections_abc" not in error.traceback
    # Its mate neither ended nor holds the loop.
    assert loop.value(loop.one(claim(3, "aadd", 1, 1)).number) == 2
    assert not loop.ended(2)


def test_what_a_stopped_coroutine_waited_for_is_ended_as_by_a_cancellation(loop: Runner) -> None:
    loop.run(claim(1, "aborrows"))
    loop.started(1)
    loop.stop(1)
    assert error_of(loop.done(1)).type == "headrace.errors.SoftTimeLimit"
    assert loop.said[-1].lines == ("given back",)


def test_a_coroutine_may_clean_up_after_its_limit(loop: Runner) -> None:
    loop.run(claim(1, "acleans"))
    loop.started(1)
    loop.stop(1)
    assert loop.value(1) == "cleaned False"


def test_a_limit_that_is_told_again_does_not_interrupt_the_cleaning_up(loop: Runner, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    loop.run(claim(1, "acleans", str(gate)))
    loop.started(1)
    for token in (2, 3, 4):
        loop.stop(1)
        # The stop was filed before this.
        assert loop.value(loop.one(claim(token, "aadd", 1, 1)).number) == 2
    gate.touch()
    assert loop.value(1) == "cleaned False"


@pytest.mark.parametrize(("reason", "kind"), [("soft", "failed"), ("cancel", "cancelled")])
def test_a_job_that_blocks_the_loop_is_interrupted(loop: Runner, reason: str, kind: str) -> None:
    loop.run(claim(1, "awaits", "future"), claim(2, "blocks"))
    loop.started(1, 2)
    # Nobody reads this before the loop turns again.
    loop.run(claim(3, "aadd", 1, 1))
    loop.stop(2, reason)
    assert loop.done(2).ended.kind == kind
    assert loop.value(3) == 2
    assert not loop.ended(1)


def test_a_job_that_blocks_the_loop_is_interrupted_where_there_is_no_room_for_a_thread(
    start: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", none)
    loop = start("async", 4)
    loop.run(claim(1, "blocks"))
    loop.started(1)
    loop.stop(1)
    assert error_of(loop.done(1)).type.endswith("SoftTimeLimit")


def test_a_stop_of_a_mate_does_not_interrupt_a_job_that_blocks(loop: Runner) -> None:
    loop.run(claim(1, "awaits", "future"), claim(2, "blocks_at_times", 20))
    loop.started(1, 2)
    for _ in range(20):
        loop.wake()
    loop.stop(1)
    assert loop.done(1).ended.kind == "failed"
    assert loop.value(2) == 20


def test_a_stop_of_a_start_that_is_not_here_is_ignored(loop: Runner) -> None:
    for token in range(20):
        loop.stop(token, "cancel")
    loop.run(*(claim(n, "anoop") for n in range(1, 20)))
    loop.until(lambda: loop.ended(*range(1, 20)), "all ends")
    assert {loop.done(n).ended.kind for n in range(1, 20)} == {"succeeded"}


def test_a_cancellation_that_comes_with_its_job_ends_it_before_it_begins(loop: Runner) -> None:
    loop.one(claim(1, "anoop"))
    run, cancel, limit = Run([claim(2, "awaits", "future"), claim(3, "anoop")]), Stop(2, "cancel"), Stop(3, "soft")
    frames = b"".join(frame(message) for message in (run, cancel, limit))
    give_tickets(loop.ticket_write, 2, 0)
    loop.channel.sock.sendall(frames)
    loop.until(lambda: loop.ended(2, 3), "both ends")
    assert (loop.done(2).ended.kind, loop.done(3).ended.kind) == ("cancelled", "succeeded")
    assert not loop.said


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["soft", "cancel"])
def test_a_stop_at_the_end_of_a_job_never_hits_another(loop: Runner, reason: str) -> None:
    dice, edge = random.Random(3), rig.Edge(0.002)
    for turn in range(200):
        victim, *mates = (1 + 4 * turn + n for n in range(4))
        loop.run(claim(victim, "aspin", edge.seconds, True), *(claim(n, "aspin", 0.0002) for n in mates))
        loop.started(victim)
        loop.said.clear()
        jobs.spin.function(dice.random() * 0.004)
        loop.stop(victim, reason)
        for token in mates:
            assert loop.done(token).ended.kind == "succeeded", loop.done(token)
        edge.learn(loop.done(victim).ended.kind)
    assert edge.kinds.keys() == {"succeeded", "failed" if reason == "soft" else "cancelled"}


def test_a_signal_inside_a_task_group_is_still_that_signal(loop: Runner) -> None:
    done = loop.one(claim(1, "agroup"))
    assert (done.ended.kind, done.ended.amount) == ("snoozed", 5_000_000)


def test_a_mate_that_cancels_every_task_loses_no_job(loop: Runner) -> None:
    loop.run(claim(1, "awaits", "future"))
    loop.started(1)
    loop.run(claim(2, "acancels_all"), claim(3, "anoop"))
    loop.until(lambda: loop.ended(1, 2, 3), "all ends")
    assert loop.done(1).ended.kind == "failed"
    assert loop.done(2).ended.kind == "succeeded"
    # It had not begun, so it goes back to its queue.
    assert loop.done(3).ended.kind == "released"


def test_the_end_of_a_job_that_a_mate_cancelled_is_not_kept_behind_one_that_waits(start: Callable[..., Runner]) -> None:
    loop = start("async", 2)
    # It is known as one that ends at once.
    loop.one(claim(1, "meet", "a", "a"))
    loop.run(claim(2, "acancels_all"), claim(3, "anoop"), claim(4, "meet", "b", "nobody"))
    assert loop.done(3).ended.kind == "released"


def test_system_exit_ends_a_job_and_not_the_loop(loop: Runner) -> None:
    loop.noisy = True
    assert loop.one(claim(1, "aexits", "here")).ended.kind == "failed"
    assert loop.value(loop.one(claim(2, "aexits", "in a task")).number) == "True"
    assert loop.value(loop.one(claim(3, "aadd", 1, 1)).number) == 2


def test_a_job_that_stops_the_loop_does_not(loop: Runner) -> None:
    assert loop.value(loop.one(claim(1, "astops_loop")).number) == "still here"


def test_exit_lets_what_is_held_end_and_ends_what_jobs_left_behind(loop: Runner) -> None:
    loop.run(claim(1, "acleans"), claim(2, "aleaves_behind"))
    loop.started(1)
    loop.channel.send(Exit())
    loop.stop(1)
    assert loop.wait() == 0
    assert loop.value(1) == "cleaned False"


def test_a_dispatcher_that_leaves_first_cuts_no_exit_short(loop: Runner, tmp_path: Path) -> None:
    """Its closed socket stopped the loop again while that ended what was left behind; and where nobody read stderr any
    more, the traceback of that kept the statistics from being flushed."""
    loop.one(claim(1, "atidies_behind", str(tmp_path / "tidy")))
    loop.channel.send(Exit())
    loop.channel.close()
    assert loop.wait() == 0
    assert (tmp_path / "tidy").exists()
    assert loop.stderr() == ""


def test_an_idle_runner_leaves_when_its_dispatcher_is_gone(loop: Runner) -> None:
    loop.one(claim(1, "anoop"))
    loop.channel.close()
    assert loop.wait() == 0


def test_a_busy_runner_ends_its_jobs_when_its_dispatcher_is_gone(loop: Runner) -> None:
    loop.run(claim(1, "anaps"))
    loop.started(1)
    loop.channel.close()
    assert loop.wait() == 0
