"""What a dispatcher wants next: never idle with work that could start, never awake for work that could not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.protocol.consume import Looked
from headrace.worker.dispatcher.claim_demand import ClaimRequest, QueueKnowledge, awaited, want

ALL = frozenset({"async", "process"})
FRESH = QueueKnowledge(ALL)
NOTHING = QueueKnowledge(frozenset())
CROWD = QueueKnowledge(frozenset({"process"}), frozenset({"process"}))
DEEP = QueueKnowledge(CROWD.waiting, CROWD.crowded, {"q": (b"1", b"a")}, frozenset({"process"}), True)


def looked(*passed: str, beyond: bool = False, **cursors: str) -> Looked:
    return Looked(frozenset(passed), {queue: (b"1", id.encode()) for queue, id in cursors.items()}, beyond)


@pytest.mark.parametrize(
    ("known", "rooms", "wanted"),
    [
        (FRESH, {"process": 2, "async": 100}, ClaimRequest(True, 102, ALL)),
        (FRESH, {"process": 0, "async": 100}, ClaimRequest(True, 100, frozenset({"async"}))),
        (FRESH, {"process": 0, "async": 0}, None),
        (FRESH, {}, None),
        (NOTHING, {"process": 2, "async": 100}, ClaimRequest(False, 102, ALL)),
        (NOTHING, {"process": 0, "async": 100}, ClaimRequest(False, 100, frozenset({"async"}))),
        (NOTHING, {"process": 0}, None),
        (CROWD, {"process": 0, "async": 100}, ClaimRequest(False, 100, frozenset({"async"}), {"process": 0})),
        (CROWD, {"process": 1, "async": 100}, ClaimRequest(True, 1, frozenset({"process"}))),
        (CROWD, {"process": 1}, ClaimRequest(True, 1, frozenset({"process"}))),
        (QueueKnowledge(ALL, CROWD.crowded), {"process": 1, "async": 9}, ClaimRequest(True, 10, ALL, {"process": 1})),
        (DEEP, {"process": 0, "async": 9}, None),
        (DEEP, {"process": 1, "async": 9}, ClaimRequest(True, 1, frozenset({"process"}))),
    ],
)
def test_what_is_wanted_follows_from_what_is_known_and_what_has_room(
    known: QueueKnowledge, rooms: dict[str, int], wanted: ClaimRequest | None
) -> None:
    assert want(known, rooms, 300) == wanted


def test_no_more_is_wanted_than_the_dispatcher_may_hold() -> None:
    wanted = want(FRESH, {"process": 512, "async": 100}, 300)
    assert wanted is not None
    assert wanted.limit == 300
    assert want(FRESH, {"process": 2}, 0) is None
    assert want(FRESH, {"process": 2}, -3) is None


def test_what_no_claim_has_told_of_is_asked_for_at_once() -> None:
    assert want(NOTHING, {"process": 2, "async": 3}, 300, ask=True) == ClaimRequest(True, 5, ALL)


def test_it_goes_on_looking_behind_the_last_entry_when_it_is_time() -> None:
    wanted = want(DEEP, {"process": 0, "async": 9}, 300, look=True)
    assert wanted == ClaimRequest(True, 9, frozenset({"async"}), {"process": 0}, DEEP.cursors)
    # Another kind is crowded, too, whose jobs may be before the cursor.
    more = QueueKnowledge(ALL, ALL, DEEP.cursors, frozenset({"process"}), True)
    wanted = want(more, {"process": 0, "async": 0, "thread": 1}, 300, look=True)
    assert wanted is not None
    assert wanted.cursors == DEEP.cursors
    other = QueueKnowledge(ALL, frozenset({"async"}), DEEP.cursors, frozenset({"process"}), True)
    wanted = want(other, {"process": 1, "async": 0}, 300, look=True)
    assert wanted is not None
    assert wanted.cursors == {}


def test_a_short_answer_leaves_only_what_was_passed_over() -> None:
    wanted = ClaimRequest(True, 10, ALL)
    assert FRESH.answered(wanted, 9, None) == NOTHING
    wanted = ClaimRequest(True, 10, frozenset({"async"}), {"process": 0})
    assert FRESH.answered(wanted, 9, looked("process", q="x")) == QueueKnowledge(
        CROWD.waiting, CROWD.crowded, {"q": (b"1", b"x")}, CROWD.crowded
    )
    assert QueueKnowledge(ALL, CROWD.crowded).answered(wanted, 9, looked(q="x")).waiting == frozenset()


def test_a_full_answer_leaves_everything_that_it_was_asked_for() -> None:
    assert NOTHING.answered(ClaimRequest(False, 3, ALL), 3, None).waiting == ALL
    assert CROWD.answered(ClaimRequest(True, 1, frozenset({"process"})), 1, None) == CROWD


def test_a_repeated_reply_which_tells_nothing_of_what_was_passed_over_leaves_everything() -> None:
    wanted = ClaimRequest(True, 10, frozenset({"async"}), {"process": 0})
    assert CROWD.answered(wanted, 0, None).waiting == ALL


def test_a_sleep_hears_of_what_others_passed_over_unless_it_could_not_run_here() -> None:
    queues = ("high", "mail", "low")
    assert awaited(queues, {"mail"}, ["process"], NOTHING) == ["high", "high|process", "low", "low|process"]
    assert awaited(["q"], (), ["async", "process"], CROWD) == ["q", "q|async"]


# -- a model of one worker, or several, on one store --------------------------------------------------------------------

KINDS = ("async", "fork", "process")
QUEUES = ("a", "b", "c")
LOOK, FRONT = 6, 2


@dataclass
class Store:
    """Queues as claim.lua treats them, with a short look-ahead; wake-up tokens by name."""

    ready: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    paused: set[str] = field(default_factory=set[str])
    tokens: set[str] = field(default_factory=set[str])
    made: int = 0

    def add(self, queue: str, kind: str, *, first: bool) -> None:
        self.made += 1
        self.ready[queue].append((-self.made if first else self.made, kind))
        self.ready[queue].sort()
        self.tokens.add(queue)

    def claim(self, wanted: ClaimRequest, queues: Iterable[str]) -> tuple[list[tuple[str, int, str]], Looked | None]:
        rooms, passed, cursors, beyond = dict(wanted.passing), set[str](), dict[str, tuple[bytes, bytes]](), False
        taken: list[tuple[str, int, str]] = []
        names = [queue for queue in queues if queue not in self.paused]
        for queue in names:
            line = self.ready[queue]
            if not wanted.passing:
                taken += [(queue, *job) for job in line[: wanted.limit - len(taken)]]
            else:
                at = int(wanted.cursors[queue][0]) if queue in wanted.cursors else None
                behind = [job for job in line if at is None or job[0] > at]
                windows = [behind[:LOOK]] if at is None else [line[:FRONT], behind[: LOOK - FRONT]]
                rest = len(behind) > len(windows[-1])
                for window in windows:
                    for score, kind in window:
                        last = window is windows[-1]
                        if len(taken) == wanted.limit:
                            rest = True
                            break
                        if (queue, score, kind) in taken:
                            continue
                        if last:
                            at = score
                        if rooms.get(kind, 1) <= 0:
                            passed.add(kind)
                            self.tokens.add(f"{queue}|{kind}")
                            continue
                        rooms[kind] = rooms.get(kind, 1000) - 1
                        taken.append((queue, score, kind))
                        # Where something has come before the cursor there may be more.
                        rest = rest or not last
                if at is not None:
                    cursors[queue], beyond = (str(at).encode(), b""), beyond or rest
            for queue_, score, kind in taken:
                if queue_ == queue and (score, kind) in line:
                    line.remove((score, kind))
        if len(taken) == wanted.limit:
            self.tokens |= {queue for queue in names if self.ready[queue]}
        return taken, Looked(frozenset(passed), cursors, beyond) if wanted.passing else None


class Worker:
    """A dispatcher's part in it: as loop.py does, one step at a time."""

    def __init__(self, store: Store, sizes: dict[str, int], queues: tuple[str, ...]) -> None:
        self.store, self.sizes, self.queues = store, sizes, queues
        self.running = Counter[str]()
        self.known = QueueKnowledge(frozenset(sizes))
        self.armed: tuple[ClaimRequest, list[str]] | None = None
        self.claims = 0
        self.anew = False

    def rooms(self) -> dict[str, int]:
        return {kind: max(0, size - self.running[kind]) for kind, size in self.sizes.items()}

    def claim(self, wanted: ClaimRequest, *, woken: bool = False) -> None:
        self.claims += 1
        jobs, found = self.store.claim(wanted, self.queues)
        self.known = self.known.answered(wanted, len(jobs), found)
        self.anew = self.anew or bool(wanted.cursors and woken)
        for queue, score, kind in jobs:
            if self.running[kind] < self.sizes[kind]:
                self.running[kind] += 1
            else:
                self.store.ready[queue].append((score, kind))
                self.store.ready[queue].sort()
                self.store.tokens.add(queue)
                self.known = self.known.handed_back(kind)

    def wait(self) -> bool:
        """Let time pass; whether it has something to look at anew."""
        if self.anew:
            self.known, self.anew = self.known.from_the_front(), False
            return True
        return False

    def step(self) -> bool:
        """Whether it did something."""
        wanted = want(self.known, self.rooms(), 300, look=True)
        if self.armed is not None:
            asleep, names = self.armed
            token = next((name for name in names if name in self.store.tokens), None)
            if token is None and not (wanted is not None and wanted.now):
                return False
            self.store.tokens.discard(token or "")
            self.armed = None
            self.claim(asleep, woken=token is not None)
            return True
        if wanted is not None and wanted.now:
            self.claim(wanted)
            return True
        if wanted is not None:
            self.armed = (wanted, awaited(self.queues, self.store.paused, self.sizes, self.known))
            return True
        return False


class Liveness(RuleBasedStateMachine):
    """Workers of any kinds on any queues: when all are still, no job could run that does not."""

    @initialize(
        workers=st.lists(
            st.tuples(
                st.dictionaries(st.sampled_from(KINDS), st.integers(1, 4), min_size=1),
                st.permutations(QUEUES).flatmap(lambda names: st.integers(1, 3).map(lambda n: tuple(names[:n]))),
            ),
            min_size=1,
            max_size=3,
        )
    )
    def begin(self, workers: list[tuple[dict[str, int], tuple[str, ...]]]) -> None:
        self.store = Store()
        # A worker that serves a queue knows all its tasks: who does not is another matter.
        kinds = frozenset(kind for sizes, _ in workers for kind in sizes)
        self.workers = [Worker(self.store, dict.fromkeys(kinds, 0) | sizes, queues) for sizes, queues in workers]
        self.kinds = sorted(kinds)

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), count=st.integers(1, 9), first=st.booleans())
    def enqueue(self, data: Any, queue: str, count: int, first: bool) -> None:
        kind = data.draw(st.sampled_from(self.kinds))
        for _ in range(count):
            self.store.add(queue, kind, first=first)

    @rule(data=st.data())
    def a_job_ends(self, data: Any) -> None:
        busy = [(worker, kind) for worker in self.workers for kind, count in sorted(worker.running.items()) if count]
        if busy:
            worker, kind = data.draw(st.sampled_from(busy))
            worker.running[kind] -= 1

    @rule(queue=st.sampled_from(QUEUES))
    def pause_or_resume(self, queue: str) -> None:
        self.store.paused ^= {queue}
        if queue not in self.store.paused and self.store.ready[queue]:
            self.store.tokens.add(queue)
        for worker in self.workers:
            if worker.armed is not None:
                asleep, _ = worker.armed
                worker.armed = None
                worker.claim(asleep)

    @rule(data=st.data(), size=st.integers(0, 5))
    def resize(self, data: Any, size: int) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        worker.sizes[data.draw(st.sampled_from(self.kinds))] = size

    @invariant()
    def nothing_waits_that_could_start(self) -> None:
        before = sum(worker.claims for worker in self.workers)
        while sum(worker.step() for worker in self.workers) or sum(worker.wait() for worker in self.workers):
            self.workers.append(self.workers.pop(0))
            # Each claim takes something, looks further, or is the last one before a sleep: no worker spins.
            assert sum(worker.claims for worker in self.workers) - before < 400
        for worker in self.workers:
            free = {kind for kind, room in worker.rooms().items() if room > 0}
            for queue in worker.queues:
                left = {kind for _, kind in self.store.ready[queue]}
                assert queue in self.store.paused or not left & free, (queue, left, free, worker.known, worker.armed)


TestLiveness = Liveness.TestCase
TestLiveness.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
