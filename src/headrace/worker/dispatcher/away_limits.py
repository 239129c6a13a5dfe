"""Limits of jobs that live on other shards: their starts hold the gates at home, where limits live. Decides; no I/O.

A start is not given to a runner before it holds all gates of its job. It goes on holding them with the lease of the
worker, and lets go when it has ended here. Where a hold could not be kept, its job is stopped, and goes back without a
charge: so no limit is exceeded. A start that finds a gate closed comes again later, without a charge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headrace.model.job import Claim
from headrace.protocol.limit_verbs import GateAnswer, keep_hold, release_hold, take_limits
from headrace.settings import microseconds
from headrace.worker.dispatcher.dispatcher_events import End, Step
from headrace.worker.dispatcher.worker_state import NEVER, Desk, Worker
from headrace.worker.health_stamps import fence_at

# Seconds until a refused start without a time comes again, doubled each time up to the second. Each pause is varied by
# half: starts that were claimed together must not come together again.
FIRST, LONGEST = 0.2, 5.0
# Calls of one trip.
MOST = 300
# Share of the lease after which holds are kept for one more, as the lease of the worker is.
KEEP = 0.4


class _Hold(msgspec.Struct):
    claim: Claim
    holder: str
    gates: list[str]
    until: float
    keep_at: float
    keeping: bool = False
    lost: bool = False


class AwayLimits:
    """The holds of one worker.

    Attributes:
        ready: starts that hold their gates, to be handed out.
        refused: starts that come again later, each with its pause in microseconds.
    """

    def __init__(self, worker: Worker, desk: Desk) -> None:
        self.ready: list[Claim] = []
        self.refused: list[tuple[Claim, int]] = []
        self._worker, self._home = worker, desk
        self._lease = worker.settings.lease
        rows = worker.limits.rows
        # Tasks and queues that have limits, as the code of this worker declares them.
        self._limited = frozenset(str(name) for name in rows[::2])
        self._asking: dict[int, Claim] = {}
        self._unasked: list[Claim] = []
        self._holds: dict[int, _Hold] = {}
        self._releases: list[tuple[str, str]] = []

    def _concerns(self, claim: Claim) -> bool:
        names = self._limited
        return bool(names) and (f"task:{claim.task}" in names or f"queue:{claim.queue}" in names)

    def admitted(self, claims: Iterable[Claim]) -> list[Claim]:
        found: list[Claim] = []
        for claim in claims:
            hold = self._holds.get(claim.number)
            if hold is not None and hold.lost:
                self.refused.append((claim, self._pause(claim)))
            elif hold is not None or not self._concerns(claim):
                found.append(claim)
            elif claim.number not in self._asking:
                self._asking[claim.number] = claim
                self._unasked.append(claim)
        return found

    def steps(self, now: float) -> list[Step]:
        steps: list[Step] = []
        while self._unasked and len(steps) < MOST:
            claim = self._unasked.pop()
            if claim.number in self._asking:
                steps.append(self._take(claim, now))
        while self._releases and len(steps) < MOST:
            gate, holder = self._releases.pop()
            call = release_hold(self._home.keys, gate.partition(":")[0], gate, holder)
            steps.append((call, lambda _: None))
        for hold in self._holds.values():
            if now >= hold.keep_at and not hold.keeping and len(steps) < MOST:
                hold.keeping = True
                steps += [self._keep(hold, gate, now) for gate in hold.gates]
        return steps

    def check(self, now: float) -> None:
        """While home does not answer, starts come again later, and holds may be lost."""
        if self._home.fenced or not self._home.owner:
            for claim in self.take_all(lambda _: True):
                self.refused.append((claim, self._pause(claim)))
        for hold in self._holds.values():
            hold.lost = hold.lost or now >= fence_at(hold.until, self._lease)
        times = [min(one.keep_at if not one.keeping else NEVER, fence_at(one.until, self._lease)) for one in self._open]
        self._worker.timers.set("holds", min(times, default=NEVER))

    @property
    def _open(self) -> Iterable[_Hold]:
        return [hold for hold in self._holds.values() if not hold.lost]

    def lost(self, claim: Claim) -> bool:
        hold = self._holds.get(claim.number)
        return hold is not None and hold.lost

    @property
    def any_lost(self) -> bool:
        return any(hold.lost for hold in self._holds.values())

    def waiting(self, concerns: Callable[[Claim], bool]) -> int:
        return sum(map(concerns, self._asking.values()))

    def take_all(self, concerns: Callable[[Claim], bool]) -> list[Claim]:
        taken = [claim for claim in self._asking.values() if concerns(claim)]
        for claim in taken:
            del self._asking[claim.number]
        self._unasked = [claim for claim in self._unasked if claim.number in self._asking]
        return taken

    def ended(self, ends: Iterable[End]) -> None:
        for end in ends:
            if (hold := self._holds.pop(end.claim.number, None)) is not None:
                self._releases += [(gate, hold.holder) for gate in hold.gates]

    def _take(self, claim: Claim, now: float) -> Step:
        lease = microseconds(self._lease)
        holder = f"{self._worker.place}/{claim.id}/{claim.number}.{lease}"
        return take_limits(self._home.keys, claim, holder, lease), lambda reply: self._taken(claim, holder, now, reply)

    def _taken(self, claim: Claim, holder: str, sent: float, reply: GateAnswer) -> None:
        waits = self._asking.pop(claim.number, None) is not None
        if reply.held and not waits:
            self._releases += [(gate, holder) for gate in reply.gates]
        elif reply.held:
            self._holds[claim.number] = _Hold(claim, holder, reply.gates, sent + self._lease, sent + self._lease * KEEP)
            self.ready.append(claim)
        elif waits:
            self.refused.append((claim, max(1, reply.opens - reply.now) if reply.opens else self._pause(claim)))

    def _keep(self, hold: _Hold, gate: str, now: float) -> tuple[Any, Callable[[bool], None]]:
        def kept(there: bool) -> None:
            hold.keeping, hold.lost = False, hold.lost or not there
            if there:
                hold.until, hold.keep_at = now + self._lease, now + self._lease * KEEP

        return keep_hold(self._home.keys, gate, hold.holder, microseconds(self._lease)), kept

    def _pause(self, claim: Claim) -> int:
        longest = min(LONGEST, FIRST * 2.0 ** min(claim.snoozes, 10))
        return round(longest * (0.5 + self._worker.random.random()) * 1e6)
