"""What waits in a worker for one place: in which order it leaves, and where it goes when its place does."""

from __future__ import annotations

import pytest

from headrace.model.job import Claim
from headrace.worker.dispatcher.assignment import Attempt, RunnerHandle, Waiting
from headrace.worker.dispatcher.local_queues import LocalQueues
from tests.worker.test_assignment import NOW, PLAN, Table


class Worker(Table):
    """A table with lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = LocalQueues(self.assignment)
        self.order: list[str] = []
        self._number = 0

    def add(self, key: str = "k-", kind: str = "process", task: str = "task") -> Claim:
        self._number += 1
        claim = Claim(f"{key}{self._number}", self._number, "default", 0, task, b"", self._number, key=key)
        assert self.lines.add((claim, PLAN), kind)
        return claim

    def serve(self) -> list[Attempt]:
        starts = self.lines.serve(NOW, lambda _: True)
        self.order += [start.claim.id for start in starts]
        return starts

    def done(self, start: Attempt) -> None:
        self.end(start)
        self.lines.ended(start.claim.token)

    def run_all(self) -> list[Attempt]:
        """Serve and end until nothing is left, oldest first."""
        ended: list[Attempt] = []
        running = self.serve()
        while running:
            start = min(running, key=lambda start: start.claim.token)
            running.remove(start)
            self.done(start)
            ended.append(start)
            running += self.serve()
        return ended

    def remove(self, size: int, kind: str = "process") -> None:
        """Resize, as a pool does: what was sent and not begun comes back first."""
        for place in self.assignment.places(kind).resize(size):
            assert place.handle is not None
            place.handle.leaving = True
            self.lines.vacate(place)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_kind_without_places_takes_nothing(worker: Worker) -> None:
    claim = Claim("a", 1, "default", 0, "task", b"", 1, key="k")
    assert not worker.lines.add((claim, PLAN), "process")
    assert worker.lines.waiting == 0


def test_jobs_of_one_key_go_to_one_runner_in_order(worker: Worker) -> None:
    for _ in range(4):
        worker.handle()
    for number in range(40):
        worker.add(f"k{number % 7}-")
    ended = worker.run_all()
    assert len(ended) == 40
    assert worker.lines.waiting == 0
    for key in range(7):
        mine = [start for start in ended if start.claim.key == f"k{key}-"]
        assert [start.claim.token for start in mine] == sorted(start.claim.token for start in mine)
        assert len({start.handle.number for start in mine}) == 1
    assert len({start.handle.number for start in ended}) > 1


def test_jobs_of_one_key_never_run_beside_each_other_in_threads(worker: Worker) -> None:
    worker.handle("thread", slots=4)
    for number in range(6):
        worker.add(f"k{number % 2}-", kind="thread")
    first = worker.serve()
    assert [start.claim.id for start in first] == ["k0-1", "k1-2"]
    worker.done(first[1])
    assert [start.claim.id for start in worker.serve()] == ["k1-4"]
    worker.done(first[0])
    worker.run_all()
    assert [id for id in worker.order if id.startswith("k0")] == ["k0-1", "k0-3", "k0-5"]


def test_a_broadcast_waits_for_the_least_loaded(worker: Worker) -> None:
    handles = [worker.handle() for _ in range(3)]
    for _ in range(6):
        worker.add("")
    assert {start.handle for start in worker.serve()} == set(handles)
    assert [len(place.line) for place in worker.assignment.places("process").snapshot.members] == [1, 1, 1]


def test_nothing_is_sent_ahead_of_what_waits_for_a_runner(worker: Worker) -> None:
    worker.handle()
    worker.assignment.measure("tiny", 1e-6)
    worker.add("k-")
    worker.add("k-")
    assert len(worker.serve()) == 1
    assert worker.lines.waiting == 1
    assert worker.start("tiny") is None


def test_tiny_jobs_of_a_key_are_sent_ahead_and_taken_back_in_order(worker: Worker) -> None:
    handle = worker.handle()
    worker.assignment.measure("tiny", 1e-4)
    for _ in range(60):
        worker.add("k-", task="tiny")
    sent = worker.serve()
    assert 40 < len(sent) < 60
    assert worker.lines.waiting == 60 - len(sent)
    back = sent[10:]
    for start in back:
        del handle.starts[start.claim.token]
        worker.assignment.release(handle, start)
    worker.assignment.reindex(handle)
    worker.order = worker.order[:10]
    worker.lines.put_back(back)
    rest = worker.serve()
    for start in [*sent[:10], *rest]:
        worker.done(start)
    worker.run_all()
    assert [int(id[2:]) for id in worker.order] == list(range(1, 61))


def test_a_line_waits_while_its_runner_is_replaced(worker: Worker) -> None:
    handle = worker.handle()
    worker.add("k-")
    (start,) = worker.serve()
    worker.add("k-")
    worker.end(start)
    worker.assignment.detach(handle)
    worker.lines.ended(start.claim.token)
    assert worker.serve() == []
    other = fill(worker, handle)
    (second,) = worker.serve()
    assert second.handle is other


def fill(worker: Worker, handle: RunnerHandle) -> RunnerHandle:
    """Another runner in the place that this one had."""
    handle.gone = True
    size = worker.assignment.places(handle.kind).snapshot.size
    other = worker.handle(handle.kind)
    assert other.place is not None
    assert other.place.id == 0
    worker.assignment.places(handle.kind).resize(size)
    return other


def test_a_key_follows_its_running_job_when_a_place_is_removed(worker: Worker) -> None:
    for _ in range(4):
        worker.handle()
    for number in range(60):
        worker.add(f"k{number % 12}-")
    running = worker.serve()
    worker.remove(1)
    early = worker.serve()
    busy = {start.claim.key for start in running}
    assert not busy & {start.claim.key for start in early}
    for start in running:
        worker.add(start.claim.key)
    ended = [*running, *early]
    for start in ended:
        worker.done(start)
    worker.run_all()
    assert worker.lines.waiting == 0
    for key in range(12):
        mine = [int(id.partition("-")[2]) for id in worker.order if id.startswith(f"k{key}-")]
        assert mine == sorted(mine)
    assert len(worker.order) == 60 + len(running)


def test_keys_stay_where_they_are_while_jobs_of_them_are_there(worker: Worker) -> None:
    worker.handle()
    worker.add("k-")
    (start,) = worker.serve()
    for _ in range(7):
        worker.handle()
    for _ in range(5):
        worker.add("k-")
    assert worker.serve() == []
    worker.done(start)
    assert {start.handle for start in worker.run_all()} == {start.handle}


def test_a_job_that_waits_can_be_taken_out(worker: Worker) -> None:
    worker.handle("thread", slots=2)
    claims = [worker.add("k-", kind="thread") for _ in range(3)]
    assert worker.lines.cancel("nobody") is None
    taken: Waiting | None = worker.lines.cancel(claims[1].id)
    assert taken is not None
    assert taken[0] is claims[1]
    worker.lines.ended(claims[1].token)
    worker.run_all()
    assert worker.order == [claims[0].id, claims[2].id]


def test_all_that_waits_is_handed_back_at_the_end(worker: Worker) -> None:
    worker.handle()
    worker.handle("thread", slots=2)
    for kind in ("process", "thread"):
        for _ in range(4):
            worker.add("k-", kind=kind)
    started = worker.serve()
    assert len(started) == 2
    taken = worker.lines.take_all(lambda _: True)
    assert [claim.token for claim, _ in taken] == [2, 3, 4, 6, 7, 8]
    assert worker.lines.waiting == 0
    for claim, _ in taken:
        worker.lines.ended(claim.token)
    for start in started:
        worker.done(start)
    assert worker.serve() == []


def test_what_may_not_start_any_more_makes_room_for_the_next(worker: Worker) -> None:
    worker.handle()
    first, second = worker.add("k-"), worker.add("k-")

    def may_start(waiting: Waiting) -> bool:
        if waiting[0] is first:
            worker.lines.ended(first.token)
            return False
        return True

    (start,) = worker.lines.serve(NOW, may_start)
    assert start.claim is second


def test_a_suspect_waits_for_a_free_runner(worker: Worker) -> None:
    worker.handle()
    worker.assignment.measure("tiny", 1e-6)
    worker.add("k-", task="tiny")
    suspect = Claim("s", 99, "default", 0, "tiny", b"", 99, key="k-", crashes=1)
    worker.lines.add((suspect, PLAN), "process")
    (first,) = worker.serve()
    assert worker.serve() == []
    worker.done(first)
    (second,) = worker.serve()
    assert second.claim is suspect
