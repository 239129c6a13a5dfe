"""Claims: when one is made, for what, and what its answer tells.

The jobs of a claim are read when the next request is on its way. The claim of a sleep is the exception, since an idle
runner waits for its job: one plain job goes out at once, and what the claim tells of the queues is learned after that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from headrace.model.ended import Released
from headrace.model.ids import OWN_QUEUE
from headrace.model.job import JobError
from headrace.model.options import OWN, Kind
from headrace.protocol import consume
from headrace.protocol.script import Call, unread
from headrace.worker.dispatcher.assignment import Assignment
from headrace.worker.dispatcher.claim_demand import ClaimDemand, ClaimRequest
from headrace.worker.dispatcher.dispatcher_events import Step
from headrace.worker.dispatcher.endings import Endings
from headrace.worker.dispatcher.maintenance import Maintenance
from headrace.worker.dispatcher.placement import Placement, needs_check
from headrace.worker.dispatcher.worker_state import ENDS, NEVER, Desk, Worker
from headrace.worker.dispatcher.workflow_growth import Inputs

CLAIM_MOST = 600
# While more jobs than this are on their way from other shards, none is asked: all would come at once, and go back where
# jobs take longer than was expected.
ALONE = CLAIM_MOST // 2
# A claim that is not answered after so long (seconds) takes no room from other shards any more.
RESERVED = 0.05
# Every fourth claim goes to the shard that was not asked for longest.
LEVEL = 4


class ClaimTurns:
    """Which of several shards is asked first, and what their claims take of the room that all share.

    Each turn one claim takes all the room. So the first in order gets it: the shard whose last job had the oldest
    score. A shard that does not answer takes room for a moment only. What comes later goes back to its store.

    Attributes:
        all: a worker's claiming at each shard, in their order.
        count: how many claims were made.
        room: for how many jobs of one kind the runners have room in this turn, at most.
        coming: jobs of all shards that no runner has yet and that are here or on their way.
    """

    def __init__(self, worker: Worker, assignment: Assignment) -> None:
        self.all: list[Claiming] = []
        self.count = self.room = self.coming = 0
        self._rooms = dict[Kind, int]()
        self._worker, self._assignment = worker, assignment

    def order(self) -> list[int]:
        """The shards in the order in which this turn asks them. Counts once what is the same for all of them."""
        alls, now, until, self.coming = self.all, self._worker.now, NEVER, 0
        for one in alls:
            one.here = one.coming
            one.counted = 0
            if (one.here or one.reserved) and now < (ends := one.asked + RESERVED):
                until = min(until, ends)
                one.counted = one.here + one.reserved
                self.coming += one.counted
        self._worker.timers.set("reserved", until)
        self._rooms = self._assignment.rooms(now)
        self.room = max([room for kind, room in self._rooms.items() if kind != OWN], default=0)
        if self.count % LEVEL:
            return sorted(range(len(alls)), key=lambda n: alls[n].head)
        return sorted(range(len(alls)), key=lambda n: alls[n].asked)

    def rooms(self, _: float) -> dict[Kind, int]:
        return self._rooms.copy()

    def claimed(self, one: Claiming, limit: int) -> None:
        self.count += 1
        one.asked, one.reserved = self._worker.now, limit
        self.coming += one.here + limit - one.counted
        one.counted = one.here + limit
        timers = self._worker.timers
        timers.set("reserved", min(timers.at("reserved"), one.asked + RESERVED))

    @property
    def finished(self) -> int:
        return sum(one.finished for one in self.all)

    def share(self, room: int) -> int:
        return max(1, room // max(1, sum(one.can_sleep for one in self.all)))


class Claiming:
    """What is claimed and was not handed out.

    Attributes:
        arrivals: claims that were answered, until the next request is on its way: call, reply and number.
        unnoted: the claim of a sleep whose job goes out first: what it took, the reply, what was wanted, its number.
        answered: when the last claim was answered (monotonic seconds).
        woken: whether a queue ended the last sleep; ``paused``: queues that no sleep listens to. Incarnation's.
        found_none: a claim showed that a worker that leaves when all is done may do so.
        head: score of the last job that was claimed; asked: when a claim was made last (monotonic seconds).
        reserved: room that a claim under way takes from other shards.
        here: how many jobs of this shard were ``coming`` as the turn began; counted: what of both takes room.
    """

    def __init__(
        self,
        worker: Worker,
        desk: Desk,
        turns: ClaimTurns | None,
        endings: Endings,
        demand: ClaimDemand,
        placement: Placement,
        inputs: Inputs,
        maintenance: Maintenance,
    ) -> None:
        self.arrivals: deque[tuple[Call[consume.Claimed], Any, int]] = deque()
        self.unnoted: tuple[consume.Claimed, Any, ClaimRequest, int] | None = None
        self.answered = 0.0
        self.woken = self.found_none = False
        self.head, self.asked = 0, 0.0
        self.reserved = self.here = self.counted = 0
        self.paused = frozenset[str]()
        self._renewed = 0.0
        self._worker, self._desk, self._requests = worker, desk, desk.requests
        # None: there are no other shards.
        self._turns = turns
        if turns is not None:
            turns.all.append(self)
            demand.runner_rooms = turns.rooms
        self._endings, self._demand = endings, demand
        self._placement, self._inputs = placement, inputs
        self._maintenance, self._renewal = maintenance, maintenance.renewal
        self._promotion, self._unparking = maintenance.promotion, maintenance.unparking
        self._background, self._own_calls = maintenance.background, maintenance.own_calls

    def claimable(self, now: float) -> ClaimRequest | None:
        if self.must_wait:
            return None
        known, parked = self._demand.known, self._parked
        wanted = self._wanted(now) if known.waiting or known.beyond or parked or self._may_have_unannounced else None
        if wanted is not None and wanted.now:
            return wanted
        return self._demand.own(now) if self._looks_for_own(parked) else None

    def _looks_for_own(self, parked: Collection[str]) -> bool:
        """Whether own jobs are claimed alone. A worker that leaves when all is done takes them with others only."""
        demand, looked = self._demand, self._renewal.looked
        if looked != self._renewed:
            self._renewed = looked
            # While all runners are busy nothing sleeps on the queue of own jobs.
            demand.own_may_wait = demand.own_may_wait or not self._requests.armed
        if self._own_calls.stored:
            self._own_calls.stored, demand.own_may_wait = False, True
        waits = demand.own_may_wait or any(self._worker.tasks[task].kind == OWN for task in parked)
        return waits and self._desk.owner != "" and self._placement.takes and not self._worker.options.burst

    def has_room(self, now: float) -> bool:
        return self._wanted(now) is not None

    @property
    def must_wait(self) -> bool:
        return self._requests.waits("claim", *ENDS)

    @property
    def _parked(self) -> Collection[str]:
        return () if self._requests.waits("unpark") else self._unparking.parked

    @property
    def _may_have_unannounced(self) -> bool:
        return self._demand.unasked_broadcast or (self._background.at <= self._worker.now and not self._requests.armed)

    def _wanted(self, now: float) -> ClaimRequest | None:
        if not (self._desk.owner and self._placement.takes):
            return None
        worker, turns, most = self._worker, self._turns, CLAIM_MOST
        if turns is None:
            coming = self.coming
        elif self.others_take_all_room:
            return None
        else:
            others = turns.coming - self.counted
            most, coming = most - others, self.here + others
        if worker.options.max_jobs:
            finished = self._endings.finished if turns is None else turns.finished
            most = min(most, worker.options.max_jobs - finished - self._placement.held - coming)
        parked: list[Kind] = [kind for task in self._parked if (kind := worker.tasks[task].kind) != OWN]
        return self._demand.wanted(now, most, coming, parked, ask=self._may_have_unannounced)

    @property
    def others_take_all_room(self) -> bool:
        turns = self._turns
        if turns is None:
            return False
        others = turns.coming - self.counted
        return others > ALONE or self.here + others >= turns.room

    @property
    def sleeps_well(self) -> bool:
        """Whether nothing is known to wait, and what comes ends a sleep: then more room changes nothing."""
        known = self._demand.known
        more = known.waiting or known.beyond or self._unparking.parked or self._demand.unasked_broadcast
        return self._requests.armed and not more

    @property
    def coming(self) -> int:
        found = 0 if self._turns is None else self._placement.expected
        for _, reply, _ in self.arrivals:
            found += consume.brought(reply)
        return found + len(self._inputs) if self._inputs else found

    @property
    def finished(self) -> int:
        return self._endings.finished

    @property
    def can_sleep(self) -> bool:
        return bool(self._desk.owner) and not (self._requests.away or self._desk.fenced)

    def steps(self, now: float, wanted: ClaimRequest) -> list[Step]:
        # What others parked since they do not know it, as far as there is room: the claim behind it takes it.
        parked = self._parked
        rooms = self._demand.rooms(now, 0) if parked else {}
        rooms[OWN] = self._demand.own_room
        kinds = {task: self._worker.tasks[task].kind for task in sorted(parked)}
        able = [(task, rooms[kind]) for task, kind in kinds.items() if kind in wanted.kinds]
        steps = [self._unparking.step(task, min(room, wanted.limit)) for task, room in able]
        names = self._demand.own_names()
        call, number = self._claim(wanted, names if OWN in wanted.kinds else [*names, *self._private(), *self._order()])
        if self._turns is not None and OWN not in wanted.kinds:
            self._turns.claimed(self, wanted.limit)
        return [*steps, (unread(call), lambda reply: self._arrived(call, reply, wanted, number))]

    def sleep(self, now: float) -> None:
        wanted = self._wanted(now)
        if wanted is None or wanted.now:
            return
        if self._turns is not None:
            wanted = replace(wanted, limit=self._turns.share(wanted.limit))
        # Each job that comes to a paused queue would wake us, in vain. What is claimed, the server decides.
        names = self._demand.awaited(self._worker.options.queues.names, self.paused)
        if names:
            call, number = self._claim(wanted, [*self._demand.own_names(), *self._order()])
            claim: Step = (unread(call), lambda reply: self._claimed_awake(call, reply, wanted, number))
            self._requests.sleep([self._desk.keys.wake(name) for name in names], claim)

    def _claim(self, wanted: ClaimRequest, names: list[str]) -> tuple[Call[consume.Claimed], int]:
        desk, number, passing = self._desk, self._requests.next_number(), self._demand.passing(wanted)
        call = consume.claim(
            desk.keys, desk.owner, number, wanted.limit, names,
            own=self._demand.own_room, passing=passing, cursors=wanted.cursors,
            shard=desk.keys.shard if desk.many else None,
        )  # fmt: skip
        return call, number

    def _private(self) -> list[str]:
        if not self._demand.unasked_broadcast:
            return []
        self._demand.ask(self._requests.number + 1)
        return [f"@{self._desk.owner}"]

    def _order(self) -> list[str]:
        queues, random = self._worker.options.queues, self._worker.random
        return list(queues.draw_order([random.random() for _ in queues.names] if queues.weights else []))

    @property
    def leased(self) -> int:
        return sum(consume.leased(reply) for _, reply, _ in self.arrivals)

    def _arrived(self, call: Call[consume.Claimed], reply: Any, wanted: ClaimRequest, number: int) -> None:
        self.arrivals.append((call, reply, number))
        self.reserved = 0
        self._demand.answered(wanted, consume.summary(reply), self._worker.now, woken=False)

    def hand_out(self) -> None:
        while self.arrivals:
            call, reply, number = self.arrivals.popleft()
            claimed = self._read(call, reply)
            if not self._took(claimed, number):
                continue
            if self._worker.options.burst and not (claimed.jobs or self._demand.known.waiting):
                # Ends on their way since that claim may have made the next nodes of their workflows ready.
                idle = not self._placement.busy and not self._maintenance.may_make_ready(self._worker.now)
                self.found_none = self.found_none or (idle and number == self._requests.number)
            self._placement.start(claimed)

    def _read(self, call: Call[consume.Claimed], reply: Any) -> consume.Claimed:
        claimed, turns, most = call.parse(reply), self._turns, self._worker.options.max_jobs
        if turns is None or not claimed.jobs:
            return claimed
        self.head = claimed.jobs[-1].score
        if most:
            # Sleeps at several shards may bring more than a worker may still run.
            room = max(0, most - turns.finished - self._placement.held - len(self._inputs) - self._placement.waiting)
            for claim in claimed.jobs[room:]:
                self._endings.end(claim, Released())
            del claimed.jobs[room:]
        return claimed

    def _claimed_awake(self, call: Call[consume.Claimed], reply: Any, wanted: ClaimRequest, number: int) -> None:
        """The claim of a sleep was answered. Most bring one plain job, and a runner waits for it: that goes first."""
        claimed = self._read(call, reply)
        self.unnoted = claimed, reply, wanted, number
        if len(claimed.jobs) == 1 and not needs_check(claimed.jobs[0]):
            if refused := self._placement.place(claimed.jobs):
                self.note()
                self._placement.hand_back(refused)
        else:
            self.note()
            self._placement.start(claimed)

    def note(self) -> None:
        if self.unnoted is None:
            return
        claimed, reply, wanted, number = self.unnoted
        self.unnoted = None
        summary = consume.summary(reply)
        self._demand.answered(wanted, summary, self._worker.now, woken=self.woken)
        self._took(claimed, number)
        # A token may be left of a job that is claimed already. Only a paused queue goes on to wake in vain.
        if self.woken and not summary.brought and summary.halted > len(self.paused):
            self._renewal.renew_soon()

    def _took(self, claimed: consume.Claimed, number: int) -> bool:
        """Jobs are leased to us since this claim, and these are facts of the queues; False: the lease was lost."""
        worker, desk = self._worker, self._desk
        if not claimed.alive:
            self._renewal.gone = True
            return False
        desk.starts.took(claimed.jobs, number)
        self.answered = worker.now
        if claimed.jobs and claimed.jobs[0].queue == OWN_QUEUE:
            # There may be more.
            self._demand.own_may_wait = True
        desk.server_ahead = claimed.now - worker.now * 1e6
        self._promotion.learn(worker.now, claimed.now, claimed.due)
        for id in claimed.lost:
            text = "job %s has no readable record; removed from its queue"
            worker.actions.log(logging.ERROR, text, id, facts={"job": id}, code="job.no_record")
        for one in claimed.unreadable:
            fault = "its id, its priority or its record cannot be read"
            text = f"job %s: {fault}: quarantined"
            worker.actions.log(logging.ERROR, text, ascii(one.id), facts={"job": one.id}, code="job.unreadable")
            self._endings.end_unread(one.id, one.token, "corrupt", JobError(type="Corrupt", message=fault))
        if number == self._demand.asking:
            self._demand.on_claim(some=any(claim.queue[0] == "@" for claim in claimed.jobs))
        return True
