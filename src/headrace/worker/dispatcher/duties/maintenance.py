"""A dispatcher's housekeeping: renew the lease, promote due jobs, reclaim from the dead, sweep, unpark, tend chores,
resume queues whose pause is over, fire ticks (schedule_ticks.py).

Owns the timers. Produces calls, which travel with the next exchange, and reads their replies; sends nothing itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence

from headrace.protocol import consume, graph, operations
from headrace.protocol.keys import Keys
from headrace.protocol.ticks import Row
from headrace.settings import Settings, microseconds
from headrace.worker.dispatcher.dispatcher_events import Step
from headrace.worker.dispatcher.duties.schedule_ticks import Log, TickDuty, no_log

BATCH = 500
# Share of the lease after which it is renewed: there is time for a second try, and an idle worker says little.
RENEW = 0.4
# Workflows that leave at once, and seconds until the next ones may: removing many must not be felt by jobs.
LAPSE, LAPSE_EVERY = 10, 0.05
# Seconds for which a worker that leaves when all is done waits for what is due by then.
SOON = 0.1
# A lease that is over is looked at so much later (seconds): at the very moment its owner may still be renewing.
LATE = 0.05
# Nodes or edges of one piece of a chore.
CHORE = 250


class Upkeep:
    """Timers in this process's monotonic seconds; what the server says in its own time is converted on arrival.

    Attributes:
        owner: the incarnation whose lease is renewed.
        lease_until: until when this incarnation is sure of what it holds, reckoned from before the renewal was sent.
        cancels: ids that run here and were asked to stop, to be taken by the dispatcher.
        gone: the lease was lost.
        doubts: how many renewals in a row have counted others.
        parked: tasks that are known here and may have jobs that another worker parked.
    """

    def __init__(
        self,
        keys: Keys,
        settings: Settings,
        tasks: Container[str],
        queues: Sequence[str],
        schedules: Sequence[Row] = (),
        log: Log = no_log,
    ) -> None:
        self.keys = keys
        self.settings = settings
        self.tasks = tasks
        self.queues = queues
        self.ticks = TickDuty(keys, schedules, log)
        self.lease = microseconds(settings.lease)
        self.owner = ""
        self.victims: deque[tuple[str, bool]] = deque()
        self.cancels: deque[str] = deque()
        self.gone = False
        self.doubts = 0
        self.lease_until = 0.0
        self._renew_at = 0.0
        self._promote_at: float | None = None
        # When a job of our own becomes due, or did.
        self._expected_at = 0.0
        # The incarnation whose lease ends first, and when that is.
        self._suspect: tuple[float, str] | None = None
        self._sweep_at: float | None = None
        self.parked: set[str] = set()
        self._unparking = 0
        # When the retention of a workflow ends.
        self._lapse_at: float | None = None
        self._tend_at: float | None = None
        # When the next pause ends by itself.
        self._resume_at: float | None = None
        # Until when others may be alive that were silent, so that nothing of theirs is reclaimed yet.
        self._doubt_until = 0.0

    def begin(self, owner: str, sent: float, spared: float = 0.0) -> None:
        """A new incarnation was registered by a request sent at ``sent``.

        Args:
            spared: seconds for which it is not known whether others live.
        """
        self._doubt_until = sent + spared + LATE if spared else 0.0
        self.owner, self.gone, self.doubts = owner, False, 0
        self.lease_until = sent + self.settings.lease
        self.ticks.begin(owner, sent)
        # At once, since the first renewal tells what else is due in this store.
        self._renew_at = sent

    @property
    def next(self) -> float:
        """When there is something to do, monotonic seconds."""
        if self.victims:
            return 0.0
        times = [self._renew_at, self._promote_at, self._sweep_at, self._suspect[0] if self._suspect else None]
        times += [self._lapse_at, self._tend_at, self._resume_at, self.ticks.next]
        return min(time for time in times if time is not None)

    def owes(self, now: float) -> bool:
        """Whether there is something to do about now that may make jobs ready, here or for others."""
        if self.victims or self.parked or self._unparking or now < self._doubt_until:
            return True
        times = [self._renew_at, self._promote_at, self._suspect[0] if self._suspect else None, self._tend_at]
        times += [self._resume_at, self.ticks.next]
        return min(time for time in times if time is not None) <= now + SOON

    def learn_due(self, now: float, server_now: int, due: int) -> None:
        """The server's next scheduled job becomes due at ``due`` (0: there is none)."""
        self._promote_at = now + max(0, due - server_now) / 1e6 if due else None
        if self._expected_at > now:
            # A claim may have been made before the settle that scheduled that job, and be answered after it.
            self._promote_at = _sooner(self._promote_at, self._expected_at)

    def expect(self, due: float) -> None:
        """A job was scheduled for ``due``; monotonic seconds."""
        self._promote_at = self._expected_at = _sooner(self._promote_at, due)

    def steps(
        self, now: float, facts: Callable[[], Sequence[str | int]] = tuple, expected: Callable[[], int] = int
    ) -> list[Step]:
        """The calls that are due.

        What makes jobs ready is owed until it is answered: a worker that leaves when all is done must not do so before.

        Args:
            facts: asked before a renewal: what the worker says of itself has changed, names and values.
            expected: asked before a renewal: how many jobs the store should count as held.
        """
        found = self.ticks.steps(now)
        if now >= self._renew_at:
            self._renew_at = now + self.settings.lease * RENEW
            call = consume.renew(self.keys, self.owner, self.lease, facts(), self.queues)
            held = expected()
            found.append((call, lambda reply: self._renewed(reply, now, held)))
        if self._promote_at is not None and now >= self._promote_at:
            self._promote_at = None
            found.append((consume.promote(self.keys, BATCH), lambda reply: self._promoted(reply, now)))
        if self._resume_at is not None and now >= self._resume_at:
            found.append((operations.resume_due(self.keys, BATCH), lambda reply: self._resumed(reply, now)))
        if self._suspect and now >= self._suspect[0]:
            self.victims.append((self._suspect[1], False))
            self._suspect = None
        if self.victims:
            victim, known = self.victims[0]
            ttl = microseconds(self.settings.failure_ttl)
            reclaim = consume.reclaim(self.keys, victim, known, BATCH, ttl)
            found.append((reclaim, lambda reply: self._reclaimed(reply, victim, known)))
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep_at = None
            sweep = consume.sweep(self.keys, BATCH, self.settings.max_finished, self.settings.max_finished_bytes)
            found.append((sweep, lambda reply: self._swept(reply, now)))
        return found + self._of_workflows(now)

    def unpark(self, task: str, room: int) -> Step:
        """Have parked jobs of a task line up, for a claim in the same trip that has room for so many of them."""
        limit = min(room, BATCH)
        # What is heard from now on may be newer than the answer.
        self.parked.discard(task)
        self._unparking += 1

        def moved(count: int) -> None:
            self._unparking -= 1
            if count == limit:
                self.parked.add(task)

        return consume.unpark(self.keys, task, limit, self.queues), moved

    def hurry(self) -> None:
        """Renew soon: the worker has something to say of itself, or there is something to hear."""
        self._renew_at = 0.0

    def _of_workflows(self, now: float) -> list[Step]:
        found: list[Step] = []
        if self._lapse_at is not None and now >= self._lapse_at:
            self._lapse_at = None
            found.append((graph.lapse(self.keys, LAPSE), lambda reply: self._lapsed(reply, now)))
        if self._tend_at is not None and now >= self._tend_at:
            self._tend_at = None
            found.append((graph.tend(self.keys, CHORE), self.learn_chores))
        return found

    @property
    def tends(self) -> bool:
        """Whether there is something to tend now: a worker that leaves when all is done has not done all."""
        return self._tend_at == 0.0

    def learn_chores(self, left: int) -> None:
        """So many pieces of long verbs are left to do."""
        if left:
            self._tend_at = 0.0

    def _lapsed(self, reply: tuple[int, int, int], sent: float) -> None:
        count, server_now, ends = reply
        if count:
            self._lapse_at = sent + LAPSE_EVERY
        elif ends:
            self._lapse_at = sent + max(0, ends - server_now) / 1e6

    def learn_kept(self, kept: int, size: int, now: float) -> None:
        """So much is kept: over the caps, sweep at once."""
        if kept > self.settings.max_finished or size > self.settings.max_finished_bytes:
            self._sweep_at = now

    def _renewed(self, reply: consume.Renewed, sent: float, expected: int) -> None:
        if not reply.alive:
            self.gone = True
            return
        self.doubts = self.doubts + 1 if reply.held != expected else 0
        self.lease_until = sent + self.settings.lease
        self.learn_due(sent, reply.now, reply.due)
        self._suspect = None
        if reply.lapsing and reply.lapsing != self.owner:
            self._suspect = (sent + max(0, reply.lapse - reply.now) / 1e6 + LATE, reply.lapsing)
        self.cancels.extend(reply.cancels)
        self.parked.update(task for task in reply.parking if task in self.tasks)
        # Whatever is known already, something sooner may have come since.
        if reply.over:
            self._sweep_at = _sooner(self._sweep_at, sent + max(0, reply.over - reply.now) / 1e6)
        self.learn_kept(reply.kept, reply.bytes, sent)
        if reply.ends:
            self._lapse_at = _sooner(self._lapse_at, sent + max(0, reply.ends - reply.now) / 1e6)
        if reply.chore:
            self._tend_at = _sooner(self._tend_at, sent + max(0, reply.chore - reply.now) / 1e6)
        self._learn_end(sent, reply.now, reply.resumes)
        self.ticks.learn(sent, reply.now, reply.tick)

    def _promoted(self, reply: tuple[int, int, int], sent: float) -> None:
        _, server_now, due = reply
        self.learn_due(sent, server_now, due)

    def _resumed(self, reply: tuple[int, int, int], sent: float) -> None:
        _, server_now, end = reply
        self._learn_end(sent, server_now, end)

    def _learn_end(self, now: float, server_now: int, end: int) -> None:
        self._resume_at = now + max(0, end - server_now) / 1e6 if end else None

    def _reclaimed(self, reply: tuple[str, int], victim: str, known: bool) -> None:
        word, _ = reply
        self.victims.popleft()
        if word == "some":
            self.victims.append((victim, known))
        elif word == "done":
            # There may be another lapsed owner behind this one: the next renewal names it.
            self._renew_at = 0.0

    def _swept(self, reply: tuple[int, int, int], sent: float) -> None:
        count, server_now, over = reply
        if count == BATCH:
            self._sweep_at = sent
        elif over:
            self._sweep_at = sent + max(0, over - server_now) / 1e6


def _sooner(known: float | None, at: float) -> float:
    return at if known is None else min(known, at)
