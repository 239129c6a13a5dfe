"""A runner that runs code of the application first: it gets no work before it says that it is up."""

from __future__ import annotations

import pytest

from headrace.model.ended import Succeeded
from headrace.model.job import Claim
from headrace.model.retry import Retry
from headrace.tasks.task import RunPlan
from headrace.worker.dispatcher.assignment import Attempt, RunnerHandle
from headrace.worker.dispatcher.dispatcher_events import Heard, Notify, RunnerDied
from headrace.worker.dispatcher.local_queues import LocalQueues
from headrace.worker.dispatcher.runner_pool import RunnerPool
from headrace.worker.messages import (
    Begun,
    ChildCrashed,
    Done,
    Exit,
    FromRunner,
    Spawn,
    Spawned,
    Up,
)
from tests.worker.worker_states import worker_state

PLAN = RunPlan(Retry(max=0), None, None, 0, 0)
NOW = 1000.0


class Life:
    """A pool with the test as its supervisor and as its runners."""

    def __init__(self) -> None:
        worker = self.worker = worker_state()
        self.actions, self.timers = worker.actions, worker.timers
        self.runner_pool = RunnerPool(worker)
        self.exits: list[int] = []

    def born(self, number: int, kind: str = "thread", *, starting: bool = True) -> RunnerHandle:
        self.runner_pool.supply.up(Spawned(number, kind, 0, False, starting), NOW)
        return self.runner_pool.assignment.handles[number]

    def says(self, number: int, message: FromRunner) -> None:
        self.runner_pool.on_messages(Heard(number, [message]), NOW)

    def asked(self) -> list[str]:
        """Kinds of the runners that were asked for since."""
        actions = self.actions.take()
        self.exits += [one.runner for one in actions if isinstance(one, Notify) and one.message == Exit()]
        return [one.kind for one in actions if isinstance(one, Spawn)]

    def begun(self) -> list[str]:
        """What the supervisor was told of first runners since."""
        return [one.trouble for one in self.actions.take() if isinstance(one, Begun)]

    def room(self, kind: str = "thread") -> int:
        return self.runner_pool.assignment.rooms(NOW)[kind]

    def dies(self, number: int) -> float:
        """Seconds until another runner is asked for; negative: it was asked for at once."""
        self.asked()
        self.runner_pool.died(RunnerDied(number, code=70), NOW)
        if self.asked():
            return -1.0
        self.runner_pool.supply.respawn(NOW)
        return self.timers.at("spawn") - NOW


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.mark.parametrize("kind", ["process", "fork", "thread", "async"])
def test_it_gets_work_when_it_is_up(life: Life, kind: str) -> None:
    life.runner_pool.supply.resize(kind, 1)
    handle = life.born(1, kind)
    assert life.room(kind) == 0
    assert life.runner_pool.assignment.choose(kind, "task", NOW, alone=False) is None
    life.runner_pool.assignment.freed.clear()
    life.says(1, Up())
    assert life.runner_pool.assignment.freed == {kind}, "what was handed back since no runner had room is claimed again"
    assert life.room(kind) >= 1
    assert life.runner_pool.assignment.choose(kind, "task", NOW, alone=False) is handle


def test_one_that_runs_nothing_first_gets_work_at_once(life: Life) -> None:
    life.runner_pool.supply.resize("thread", 1)
    life.born(1, starting=False)
    assert life.room() >= 1


def test_what_waits_for_its_place_is_given_when_it_is_up(life: Life) -> None:
    life.runner_pool.supply.resize("process", 1)
    life.born(1, "process")
    lines = LocalQueues(life.runner_pool.assignment)
    claim = Claim("id", 1, "default", 0, "task", b"", 1, b"", "k", 0, 0, 0, 0, False)
    assert lines.add((claim, PLAN), "process")
    assert lines.serve(NOW, lambda _: True) == []
    life.says(1, Up())
    (start,) = lines.serve(NOW, lambda _: True)
    assert start.claim is claim


def test_one_that_fails_in_its_start_is_replaced_after_twice_as_long_each_time(life: Life) -> None:
    life.runner_pool.supply.resize("thread", 2)
    life.born(1)
    other = life.born(2)
    pauses = list[float]()
    for number in range(3, 12):
        pauses.append(life.dies(1 if number == 3 else number - 1))
        life.runner_pool.supply.respawn(life.timers.at("spawn"))
        assert life.asked() == ["thread"]
        life.born(number)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    # Another place has its own count.
    assert life.dies(other.number) == 1
    life.says(11, Up())
    assert life.runner_pool.assignment.handles[11].place.failures == 0  # type: ignore[union-attr]


def test_one_that_ends_soon_and_without_work_is_replaced_after_twice_as_long_each_time(life: Life) -> None:
    life.runner_pool.supply.resize("thread", 1)
    pauses = list[float]()
    for number in range(1, 5):
        life.born(number, starting=False)
        pauses.append(life.dies(number))
        life.runner_pool.supply.respawn(life.timers.at("spawn"))
    assert pauses == [1, 2, 4, 8]
    handle = life.born(5, starting=False)
    handle.done = 1
    assert life.dies(5) == -1
    life.born(6, starting=False)
    assert life.dies(6) == 1, "one of use came between"


def test_one_that_was_up_is_replaced_at_once_however_long_its_start_took(life: Life) -> None:
    life.runner_pool.supply.resize("thread", 1)
    handle = life.born(1)
    life.says(1, Up())
    claim = Claim("id", 1, "default", 0, "task", b"", 1, b"", "", 0, 0, 0, 0, False)
    life.runner_pool.assignment.assign(handle, Attempt(claim, PLAN, handle), NOW)
    life.says(1, Done(1, Succeeded(b"", 0), 0, 0))
    assert life.dies(1) == -1


def test_one_that_is_dismissed_while_it_starts_is_replaced_without_a_pause(life: Life) -> None:
    """A resize replaces runners of the shared kinds, whether they have started or not."""
    life.runner_pool.supply.resize("thread", 1)
    life.born(1)
    life.asked()
    life.runner_pool.supply.renew("thread")
    assert life.asked() == ["thread"]
    assert life.exits == [1]
    handle = life.born(2)
    life.runner_pool.died(RunnerDied(1), NOW)
    assert life.asked() == []
    assert handle.place is not None
    assert handle.place.failures == 0


def test_a_suspect_waits_for_the_runner_that_starts_for_it_and_asks_for_no_other(life: Life) -> None:
    life.runner_pool.supply.resize("thread", 1)
    life.born(1, starting=False)
    life.asked()
    assert life.runner_pool.supply.isolated("thread") is None
    assert life.asked() == ["thread"]
    handle = life.born(2)
    assert handle.single
    assert life.runner_pool.supply.isolated("thread") is None
    assert life.asked() == []
    # However long its start takes, it is not dismissed before it is up.
    life.runner_pool.supply.respawn(NOW + 60)
    assert handle.open
    life.says(2, Up())
    assert life.runner_pool.supply.isolated("thread") is handle


def test_a_runner_for_a_suspect_that_cannot_start_is_asked_for_again_after_a_pause(life: Life) -> None:
    life.runner_pool.supply.resize("thread", 1)
    life.born(1, starting=False)
    life.runner_pool.supply.isolated("thread")
    life.born(2)
    life.runner_pool.assignment.freed.clear()
    assert life.dies(2) == 1
    assert life.runner_pool.assignment.freed == set()
    life.runner_pool.supply.respawn(life.timers.at("spawn"))
    assert life.runner_pool.assignment.freed == {"thread"}
    assert life.asked() == [], "the suspect asks, when it was claimed again"


def test_the_supervisor_is_told_when_no_first_runner_is_starting_any_more(life: Life) -> None:
    life.runner_pool.supply.resize("thread", 3)
    life.runner_pool.supply.resize("process", 1)
    life.runner_pool.supply.on_registration()
    life.born(1)
    life.born(2)
    life.born(3, starting=False)
    life.born(4, "process", starting=False)
    life.says(1, Up())
    # Where a first one has begun, the next may start for long: a fork kind's do with each job.
    life.runner_pool.assignment.handles[1].done = 1
    life.dies(1)
    life.born(5)
    assert life.begun() == []
    life.says(2, Up())
    assert life.begun() == [""]
    life.says(5, Up())
    assert life.begun() == []


def test_a_place_that_is_removed_is_not_waited_for(life: Life) -> None:
    life.runner_pool.supply.resize("process", 2)
    life.runner_pool.supply.on_registration()
    life.born(1, "process", starting=False)
    life.born(2, "process")
    assert life.begun() == []
    life.runner_pool.supply.resize("process", 1)
    assert life.begun() == [""]


def test_the_supervisor_is_told_why_a_runner_ended_in_its_start_unless_that_was_dismissed(life: Life) -> None:
    life.runner_pool.supply.resize("thread", 1)
    life.runner_pool.supply.on_registration()
    life.born(1)
    life.actions.take()
    life.runner_pool.died(RunnerDied(1, code=70, stderr=b"RuntimeError: no database\n"), NOW)
    assert life.begun() == ["its process left with exit code 70\nRuntimeError: no database"]
    life.born(2)
    life.runner_pool.supply.renew("thread")
    life.runner_pool.died(RunnerDied(2), NOW)
    life.born(3)
    life.runner_pool.died(RunnerDied(3, heard=[ChildCrashed(0, 3, 0)]), NOW)
    assert life.begun() == ["its process left with exit code 3"], "a fork server, of its first child"
    life.born(4)
    # Its last words.
    life.runner_pool.died(RunnerDied(4, code=70, heard=[Up()]), NOW)
    assert life.begun() == [""]
