"""The process and fork kinds: tickets, stops, strays, the end."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.worker.messages import Exit, Run, WakeHint
from tests.deadline import eventually
from tests.worker import jobs, rig
from tests.worker.rig import Runner, claim, error_of


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield make


@pytest.fixture
def process(start: Callable[..., Runner]) -> Runner:
    return start()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A named pipe: the task ``gated`` runs until somebody writes into it."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


# --- order and tickets ---


def test_jobs_run_in_order_in_one_process(process: Runner) -> None:
    process.run(*(claim(n, "who") for n in range(1, 101)))
    process.until(lambda: process.ended(*range(1, 101)), "all ends")
    assert process.order == list(range(1, 101))
    assert {tuple(process.value(n)) for n in range(1, 101)} == {(process.pid, process.value(1)[1])}


def test_a_wake_hint_may_come_with_a_job_amid_one_or_alone(process: Runner, gate: Path) -> None:
    process.channel.send(WakeHint())
    process.run(claim(1, "gated", str(gate)))
    process.started(1)
    process.channel.send(WakeHint())
    gate.write_text("go")
    process.done(1)
    process.channel.send(WakeHint())
    assert not process.hear(timeout=0.05)
    process.one(claim(2, "noop"))
    process.channel.send(WakeHint())
    process.channel.send(Exit())
    assert process.wait() == 0


def test_a_fork_runner_leaves_after_one_job(start: Callable[..., Runner]) -> None:
    one = start("fork")
    one.one(claim(1, "add", 1))
    assert one.wait() == 0


# --- stops ---


def test_a_soft_limit_passes_except_exception(process: Runner) -> None:
    process.run(claim(1, "stubborn"), claim(2, "add", 1))
    process.started(1)
    process.stop(1)
    done = process.done(1)
    assert (done.ended.kind, error_of(done).type) == ("failed", "headrace.errors.SoftTimeLimit")
    assert "soft time limit" in error_of(done).message
    assert "in stubborn" in error_of(done).traceback
    assert "headrace/worker" not in error_of(done).traceback
    assert process.value(2) == 2


def test_a_job_may_clean_up_after_its_limit(process: Runner) -> None:
    process.run(claim(1, "stubborn", "clean"))
    process.started(1)
    process.stop(1)
    assert process.value(1) == "cleaned False"


def test_a_cancelled_job_ends_as_cancelled(process: Runner) -> None:
    process.run(claim(1, "stubborn"), claim(2, "swallow"))
    process.started(1)
    process.stop(1, "cancel")
    done = process.done(1)
    assert (done.ended.kind, error_of(done).type) == ("cancelled", "headrace.errors.CancelRequested")
    process.started(2)
    process.stop(2, "cancel")
    assert process.value(2) == "swallowed True"


def test_a_stop_of_another_start_is_ignored(process: Runner, gate: Path) -> None:
    process.run(claim(5, "gated", str(gate)))
    process.started(5)
    for token in (4, 6, 0):
        process.stop(token)
        process.stop(token, "cancel")
    gate.write_text("undisturbed")
    assert process.value(5) == "undisturbed"


def test_a_cancellation_that_comes_before_its_start_ends_it_there(process: Runner, gate: Path) -> None:
    process.run(claim(1, "gated", str(gate)), claim(2, "noop"), claim(3, "noop"), claim(4, "noop"))
    process.started(1)
    process.stop(2, "cancel")
    # A limit is of running code: whoever has not begun cannot have exceeded it.
    process.stop(3, "soft")
    gate.write_text("")
    process.done(4)
    assert [process.done(n).ended.kind for n in (1, 2, 3, 4)] == ["succeeded", "cancelled", "succeeded", "succeeded"]


def test_a_stop_read_with_its_job_still_counts(process: Runner) -> None:
    rig.give_tickets(process.ticket_write, 1, 0)
    process.channel.send(Run([claim(1, "stubborn")]))
    process.stop(1, "cancel")
    assert process.done(1).ended.kind == "cancelled"


def test_signals_while_idle_do_nothing(process: Runner) -> None:
    for _ in range(20):
        process.wake()
    assert process.value(process.one(claim(1, "add", 1)).number) == 2


def test_messages_behind_a_stop_are_kept(process: Runner) -> None:
    process.run(claim(1, "stubborn"))
    process.started(1)
    process.channel.send(rig.Stop(1, "soft"))
    process.run(claim(2, "noop"))
    process.run(claim(3, "noop"))
    assert process.recall(1) == 1
    process.run(claim(4, "noop"))
    process.channel.send(Exit())
    process.wake()
    assert process.wait() == 0
    assert process.order == [1, 2, 4]


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["soft", "cancel"])
def test_a_stop_at_the_end_of_a_job_never_hits_the_next(process: Runner, reason: str) -> None:
    dice, edge = random.Random(7), rig.Edge(0.0003)
    for turn in range(700):
        victim, *mates = (1 + 4 * turn + n for n in range(4))
        process.run(claim(victim, "spin", edge.seconds, True), *(claim(n, "chatty", 3) for n in mates))
        process.started(victim)
        process.said.clear()
        jobs.spin.function(dice.random() * 0.0006)
        process.stop(victim, reason)
        for token in mates:
            assert process.done(token).ended.kind == "succeeded", process.done(token)
        edge.learn(process.done(victim).ended.kind)
    assert edge.kinds.keys() == {"succeeded", "failed" if reason == "soft" else "cancelled"}


@pytest.mark.slow
def test_stops_do_not_tear_what_a_job_says(process: Runner) -> None:
    """A stop that lands while a note is being sent must not leave half a frame on the channel."""
    dice = random.Random(11)
    for token in range(1, 400):
        process.run(claim(token, "speaks_for_ever"))
        process.started(token)
        process.said.clear()
        jobs.spin.function(dice.random() * 0.0005)
        process.stop(token)
        assert process.done(token).ended.kind == "failed"


def test_a_stop_waits_for_the_end_of_a_frame(process: Runner) -> None:
    process.run(claim(1, "says_much"))
    sizes = [-1]

    def full() -> bool:
        sizes.append(process.backlog())
        return sizes[-1] == sizes[-2] > 0

    # Nobody reads until the job hangs in the midst of a frame.
    eventually(full, every=0.02)
    process.stop(1)
    done = process.done(1)
    assert error_of(done).type == "headrace.errors.SoftTimeLimit"
    assert len(process.said[0].lines) == 300


# --- what user code does to its process ---


def test_a_stray_fork_of_a_job_is_not_heard(process: Runner) -> None:
    assert process.value(process.one(claim(1, "forked", "raise")).number) == 1
    assert process.value(process.one(claim(2, "forked", "speak")).number) == 0
    assert process.said == []
    assert process.order == [1, 2]
    assert process.leave() == 0


def test_standard_output_is_the_jobs(process: Runner) -> None:
    process.one(claim(1, "to_stdout", "hello"))
    assert process.leave() == 0
    assert process.stdout() == "hello\n"


def test_random_numbers_differ_between_runners(start: Callable[..., Runner]) -> None:
    ones = [start(), start()]
    first, second = ([one.one(claim(n, "retried", "value")).ended.amount for n in range(1, 9)] for one in ones)
    assert first != second


# --- the end ---


def test_exit_lets_what_is_held_end(process: Runner, gate: Path) -> None:
    process.run(claim(1, "gated", str(gate)), claim(2, "noop"))
    process.started(1)
    process.channel.send(Exit())
    gate.write_text("")
    assert process.wait() == 0
    assert process.order == [1, 2]


def test_an_idle_runner_leaves_when_its_dispatcher_is_gone(process: Runner) -> None:
    process.one(claim(1, "noop"))
    process.channel.close()
    assert process.wait() == 0


def test_a_busy_runner_ends_its_job_when_its_dispatcher_is_gone_and_starts_no_other(
    process: Runner, gate: Path, tmp_path: Path
) -> None:
    process.run(claim(1, "gated", str(gate)), claim(2, "touch", str(tmp_path / "no")))
    process.started(1)
    process.channel.close()
    process.wake()
    gate.write_text("")
    assert process.wait() == 0
    assert not (tmp_path / "no").exists()


def test_hooks_run_after_the_fork_and_at_the_end(start: Callable[..., Runner]) -> None:
    app = Headrace()
    parent = os.getpid()
    say = jobs.to_stdout.function
    app.after_fork_child(lambda: say(f"forked {os.getpid() != parent}"))
    app.exit_hooks = [lambda: say("bye"), lambda: 1 / 0, lambda: say("still")]  # type: ignore[attr-defined]
    one = start(app=app)
    one.noisy = True
    assert one.leave() == 0
    assert one.stdout() == "forked True\nbye\nstill\n"
    assert "ZeroDivisionError" in one.stderr()


def test_a_hook_that_hangs_does_not_keep_the_runner(start: Callable[..., Runner]) -> None:
    app = Headrace()
    app.exit_hooks = [signal.pause]  # type: ignore[attr-defined]
    one = start(app=app, exit_deadline=8)
    one.noisy = True
    assert one.leave() == 0
    cut = re.search(r"hook _signal\.pause took more than ([\d.]+) s and was cut", one.stderr())
    assert cut, one.stderr()
    # Half of what the hook before it left.
    assert 0 < float(cut[1]) <= 4


def test_a_hook_that_hangs_costs_the_others_nothing(start: Callable[..., Runner]) -> None:
    app = Headrace()
    say = jobs.to_stdout.function
    app.exit_hooks = [signal.pause, lambda: say("flushed")]  # type: ignore[attr-defined]
    one = start(app=app, exit_deadline=12)
    one.noisy = True
    assert one.leave() == 0
    assert one.stdout() == "flushed\n"


def test_a_hook_that_cannot_be_cut_ends_with_its_process(start: Callable[..., Runner]) -> None:
    app = Headrace()

    def deaf() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        signal.pause()

    app.on_exit(deaf)
    # Deaf well before its share is over, and cut by nothing but the end of all.
    one = start(app=app, exit_deadline=4)
    one.noisy = True
    assert one.leave() == 0
    assert "more than 4 s" in one.stderr()


def test_a_crash_leaves_its_evidence(process: Runner) -> None:
    process.noisy = True
    process.run(claim(1, "segfault"))
    assert process.wait() == -signal.SIGSEGV
    assert "in segfault" in process.stderr()
