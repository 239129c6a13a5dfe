"""What was sent ahead to a runner is run or taken back: never both, never neither. The same for each kind."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.model.ended import Succeeded
from headrace.worker.channel import Channel, give_tickets, take_ticket
from headrace.worker.dispatcher.assignment import MOST_AHEAD
from headrace.worker.messages import Done, Exit, FromRunner, Recall, Run, ToRunner
from headrace.worker.runner.reporting import JobReporter, Reporter
from tests.worker import rig
from tests.worker.rig import Runner, claim

# Kind -> jobs at once; a task that waits until it is cancelled; tasks that end at once or soon.
KINDS = {
    "process": (1, ("stubborn",), (("noop",), ("spin", 0.00005))),
    "thread": (4, ("stubborn",), (("noop",), ("spin", 0.00005), ("spin_politely", 0.00005))),
    "async": (4, ("awaits", "future"), (("anoop",), ("anap", 0.00005))),
}


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield make


class Busy:
    """A runner whose slots are all taken, so that what follows waits in it."""

    def __init__(self, kind: str, start: Callable[..., Runner]) -> None:
        slots, self.waits, self.quick = KINDS[kind]
        self.runner = start(kind, slots)
        self.held = list(range(1, slots + 1))
        self.runner.run(*(claim(n, *self.waits) for n in self.held))
        self.runner.started(*self.held)

    def noops(self, *tokens: int) -> None:
        self.runner.run(*(claim(n, *self.quick[0]) for n in tokens))

    def let_go(self) -> None:
        """End one of the jobs that wait."""
        token = self.held.pop()
        self.runner.stop(token, "cancel")
        self.runner.done(token)
        self.runner.order.remove(token)


@pytest.fixture(params=list(KINDS))
def busy(request: pytest.FixtureRequest, start: Callable[..., Runner]) -> Busy:
    return Busy(request.param, start)


def test_what_is_taken_back_does_not_start(busy: Busy) -> None:
    busy.noops(*range(11, 21))
    assert busy.runner.recall(7) == 7
    busy.noops(21)
    busy.let_go()
    busy.runner.until(lambda: busy.runner.ended(11, 12, 13, 21), "the rest")
    assert busy.runner.order == [11, 12, 13, 21]


def test_what_is_taken_back_does_not_start_however_often_that_was_done(
    start: Callable[..., Runner], tmp_path: Path
) -> None:
    """A ticket that had overtaken 128 recalls counted as one in time, and started what the first of them took back."""
    go = tmp_path / "go"
    os.mkfifo(go)
    runner = start("process", 1)
    # It hears nothing while the first one runs, and has the second.
    runner.run(claim(1, "gated", str(go)), claim(11, "noop"))
    runner.started(1)
    for token in range(1000, 1127):
        assert runner.recall(1) == 1
        runner.run(claim(token, "noop"))
    assert runner.recall(1) == 1
    runner.run(claim(12, "noop"))
    go.write_text("on")
    runner.done(12)
    assert runner.order == [1, 12]


def test_a_ticket_that_overtakes_a_recall_starts_nothing_recalled(busy: Busy) -> None:
    runner = busy.runner
    busy.noops(11)
    assert rig.take_back(runner.ticket_read, 9) == 1
    runner.recalls = 1
    # The ticket of 12 is there before the recall of 11 is, and before 12.
    rig.give_tickets(runner.ticket_write, 1, runner.recalls)
    while busy.held:
        busy.let_go()
        if runner.kind == "process":
            break
    assert not runner.hear(timeout=0.05)
    runner.channel.send(Recall(1))
    runner.channel.send(Run([claim(12, *busy.quick[0])]))
    runner.done(12)
    busy.noops(*range(13, 20))
    runner.until(lambda: runner.ended(*range(13, 20)), "it goes on")
    assert not runner.ended(11)


def test_what_was_cancelled_before_it_began_does_not_begin(busy: Busy) -> None:
    busy.noops(11, 12)
    busy.runner.stop(11, "cancel")
    busy.let_go()
    busy.runner.until(lambda: busy.runner.ended(11, 12), "both ends")
    assert [busy.runner.done(n).ended.kind for n in (11, 12)] == ["cancelled", "succeeded"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_each_job_is_run_or_taken_back_never_both_never_neither(kind: str, start: Callable[..., Runner]) -> None:
    slots, _, quick = KINDS[kind]
    runner, dice, tokens = start(kind, slots), random.Random(5), itertools.count(1)
    taken: set[int] = set()
    sent = 0
    # As many as it takes for either to be frequent, which is decided by who else uses the machine.
    while sent < 6000 or min(len(runner.order), len(taken)) <= 300:
        held = sent - len(runner.order) - len(taken)
        if dice.random() < 0.5 and held < 60:
            batch = [next(tokens) for _ in range(dice.randint(1, 12))]
            runner.run(*(claim(n, *dice.choice(quick)) for n in batch))
            sent += len(batch)
        elif held and dice.random() < 0.7:
            taken.update(last(sent, taken, runner.recall(dice.randint(1, held + 2))))
        runner.hear(timeout=dice.choice([0, 0, 0.0001]))
    runner.until(lambda: len(runner.order) + len(taken) >= sent, "the rest")
    done = set(runner.order)
    assert not done & taken
    assert done | taken == set(range(1, sent + 1))


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_runner_that_leaves_tells_of_each_end_also_if_the_rest_is_taken_back(
    kind: str, start: Callable[..., Runner]
) -> None:
    """Ends are kept for jobs that follow; here these are taken back while the runner leaves."""
    _, _, quick = KINDS[kind]
    for number in range(1, 30):
        runner = start(kind, 1)
        runner.run(claim(1, *quick[0]), claim(2, *quick[0]), *(claim(n, *quick[0]) for n in range(3, 40)))
        runner.channel.send(Exit())
        back = runner.recall(number)
        assert runner.wait() == 0
        assert runner.order == list(range(1, 40 - back))


@pytest.fixture
def gate() -> Iterator[tuple[int, int]]:
    """A pipe: what a job reads from, and what lets it go on."""
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_an_end_that_is_kept_is_sent_before_a_job_begins_that_may_be_slow() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reporter = Reporter(Channel(ours, ToRunner), None, measure_memory=False, following=lambda: 1)
        heard = Channel[FromRunner](theirs, FromRunner)
        # However slow this machine is, this one was quick.
        began = reporter.begin(claim(1, "noop")) + 10**12
        reporter.done(JobReporter(reporter, 1), claim(1, "noop"), Succeeded(b"", 0), began)
        assert heard.receive(wait=False) == []
        reporter.begin(claim(2, "noop"))
        assert heard.receive(wait=False) == [], "it was quick the last time"
        reporter.begin(claim(3, "holds_the_interpreter"))
        assert [done.number for done in heard.receive(wait=False) if isinstance(done, Done)] == [1]


@pytest.mark.parametrize(("kind", "task", "slots"), [("thread", "holds_the_interpreter", 1), ("async", "ablocks", 4)])
def test_ends_are_not_kept_while_a_job_lets_nobody_else_run(
    kind: str, task: str, slots: int, start: Callable[..., Runner], gate: tuple[int, int]
) -> None:
    _, _, quick = KINDS[kind]
    # With a second thread the interpreter's lock may be taken before the first job ends.
    runner = start(kind, slots)
    runner.run(claim(1, *quick[0]), claim(2, task, gate[0]), claim(3, *quick[0]), claim(4, *quick[0]))
    runner.done(1)
    assert not runner.ended(2)
    os.write(gate[1], b"x")
    runner.until(lambda: runner.ended(2, 3, 4), "the rest")


@pytest.mark.parametrize(("kind", "task"), [("thread", "dies"), ("async", "adies")])
def test_a_job_that_ends_its_process_takes_no_end_of_others_with_it(
    kind: str, task: str, start: Callable[..., Runner]
) -> None:
    """The job that had ended would have crashed, too: charged, run again, and a suspect from then on."""
    _, _, quick = KINDS[kind]
    runner = start(kind, 1 if kind == "thread" else 4)
    runner.run(claim(1, *quick[0]), claim(2, task), claim(3, *quick[0]))
    runner.done(1)
    assert runner.wait() == -signal.SIGKILL


def last(sent: int, taken: set[int], count: int) -> list[int]:
    """The last ``count`` of those that were sent and not taken back: jobs begin in the order in which they were sent."""
    return list(itertools.islice((n for n in range(sent, 0, -1) if n not in taken), count))


@pytest.mark.skipif(sys.platform != "linux", reason="sets the size of a pipe")
def test_a_window_of_tickets_fits_into_the_smallest_pipe() -> None:
    """The dispatcher would wait for a runner whose job is slow. A page of a pipe is free when all of it was read."""
    dice = random.Random(7)
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 2 * mmap.PAGESIZE)
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    held = 0
    for _ in range(5000):
        given = dice.randint(1, MOST_AHEAD) if dice.random() < 0.2 else dice.randint(1, 64)
        if held + given <= MOST_AHEAD:
            give_tickets(write, given, 0)
            held += given
        for _ in range(dice.randint(0, held)):
            assert take_ticket(read) == 0
            held -= 1
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(("kind", "runs"), [("process", "stubborn"), ("async", "blocks")])
def test_a_stop_behind_a_whole_window_is_found_by_one_signal(
    start: Callable[..., Runner], kind: str, runs: str
) -> None:
    runner = start(kind, 1)
    runner.run(claim(1, runs))
    runner.started(1)
    runner.run(*(claim(n, "noop") for n in range(2, MOST_AHEAD + 1)))
    runner.stop(1, "cancel")
    assert runner.done(1).ended.kind == "cancelled"
