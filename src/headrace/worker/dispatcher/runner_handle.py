"""Runners as the core of a dispatcher sees them. Decides nothing about jobs' outcomes.

:class:`Attempt`, :class:`RunnerHandle` and :class:`RunnerSlot` name each other: a start runs on a runner, which fills a
place, for which a start may wait. The loop owns a runner's socket and pipes (``runner_links.py``).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from headrace.model.job import Claim
from headrace.model.options import FORKING, Kind
from headrace.tasks.task import RunPlan
from headrace.worker.dispatcher.dispatcher_events import Actions, Notify, TakeBack
from headrace.worker.messages import ChildCrashed, Exit, Signal, Stop, StopVerdict
from headrace.worker.worker_options import SHARED

Waiting = tuple[Claim, RunPlan]

# Work that was sent ahead is bounded in number, too: a window of tickets must fit into a pipe. Linux makes pipes of two
# pages for a user who has very many. On a busy machine runners stall often, and what is taken back was claimed in vain:
# a runner holds less until this many of its jobs have ended without a stall.
MOST_AHEAD, LEAST_AHEAD = 2048, 512
CALM = 10_000


class Attempt(msgspec.Struct, eq=False):
    """One start of a job on a runner.

    Attributes:
        claim, plan: what runs, with which limits.
        handle: where.
        cost: seconds of work that were booked for it.
        reminders: how often it was interrupted.
        stop_reason: what the end of its runner would mean for it, where that was decided before: empty, ``cancel``,
            ``hard``, or ``other`` once a shutdown interrupted it.
        clocked: it may have begun, and its limits run.
        limited: its soft limit is over; ``limited_at``: monotonic time of that.
        kill_at: monotonic time of its hard limit, or of the kill after its cancellation; 0: there is none.
        told: it was told that it is cancelled; shown: its runner was told to write stacks, and is killed next.
        logged: it has written log lines.
        bound: the place of its key, or of a broadcast, where it waits when it is taken back; None: any runner will do.
    """

    claim: Claim
    plan: RunPlan
    handle: RunnerHandle
    bound: RunnerSlot | None = None
    cost: float = 0.0
    stop_reason: StopVerdict = ""
    reminders: int = 0
    clocked: bool = False
    limited: bool = False
    limited_at: float = 0.0
    kill_at: float = 0.0
    told: bool = False
    shown: bool = False
    logged: bool = False


class RunnerHandle:
    """One runner.

    Attributes:
        starts: what was sent and has not ended, in the order of sending, by number.
        slots: jobs that it runs at once.
        serial: it runs one job at a time.
        ahead: it may be sent work ahead.
        clocks: for how many of the starts, the first ones, limits run.
        load: estimated seconds of work sent and not ended.
        most: how many starts it may hold.
        calm_at: with how many ended jobs that is ``MOST_AHEAD`` again, if it does not stall before.
        progress: monotonic time of the last sign of progress.
        suspect: it holds a job that crashed a runner before.
        single: a shared kind's runner that takes one suspect and leaves, so that the suspect takes no job with it.
        garbled: it sent what is not a message.
        condemned: why it is being killed, as its other jobs are told, which are handed back; empty: it is not.
        born: monotonic time of its fork, or of the end of its start.
        done: jobs that it ended.
        wears: it may have to be replaced after a job.
        quota: it is replaced after this many jobs, and never holds more than are left of them; 0: no end.
        starting: code of the application runs in it before its first job; it gets work when that is done.
        leaving: gets no more work; ``gone``: its socket is closed.
        retiring: why it is replaced as soon as what it had not begun is back, unless something runs; None: it is not.
        recalling: it is being asked what it had not begun, and is given nothing meanwhile.
        look_at: when it is looked at again whether it stalls (monotonic seconds).
        place: which it fills; None for a single.
        is_fork_server: it runs no job itself, but forks a child for each.
        fell: how its last child ended, where it is a fork server that said so.
    """

    def __init__(self, number: int, kind: Kind, pid: int, slots: int = 1) -> None:
        self.number = number
        self.kind: Kind = kind
        self.pid = pid
        self.slots = slots
        self.serial = kind not in SHARED
        self.ahead = kind not in FORKING
        self.clocks = 0
        self.starts: OrderedDict[int, Attempt] = OrderedDict()
        self.load = 0.0
        self.most, self.calm_at = LEAST_AHEAD, CALM
        self.progress = 0.0
        self.done = 0
        self.wears = False
        self.quota = 0
        self.suspect = False
        self.single = False
        self.condemned = ""
        self.garbled = False
        self.born = 0.0
        self.starting = False
        self.leaving = False
        self.gone = False
        self.retiring: str | None = None
        self.recalling = False
        self.look_at = 0.0
        self.place: RunnerSlot | None = None
        self.is_fork_server = False
        self.fell: ChildCrashed | None = None

    @property
    def open(self) -> bool:
        return not (self.leaving or self.gone)

    @property
    def ready(self) -> bool:
        return not (self.starting or self.leaving or self.gone)

    @property
    def in_line(self) -> int:
        """How many starts its last slot has, those that wait included; 0 or less while a slot is free."""
        return len(self.starts) - self.slots + 1

    def spare(self, most: int) -> int:
        held = len(self.starts)
        return most - held if not self.quota else min(most, self.quota - self.done) - held

    def share(self, now: float, ended: int) -> float:
        """Seconds of the runner that one job took at most: jobs that ran beside each other took less than each says."""
        return float("inf") if self.serial else (now - self.progress) / max(1, ended)

    def take_back(self, count: int) -> list[Attempt]:
        """The last ``count`` starts, oldest first; it holds them no more."""
        back = [self.starts.popitem()[1] for _ in range(min(count, len(self.starts)))]
        back.reverse()
        self.clocks = min(self.clocks, len(self.starts))
        self.recalling = False
        return back


# The process that runs a runner's jobs, and its resident bytes; see ``remote_control.probe``.
Probe = Callable[[RunnerHandle], tuple[int, int]]


class RunnerSlot:
    """Where one runner works, or will.

    Attributes:
        id: its number among those of its kind, from 0: what keys are hashed to.
        kind: of its runners.
        handle: who fills it; None while it is empty.
        line: jobs that wait for this very place, oldest first.
        queued: estimated seconds of the work in the line.
        rank: what the ranks have as its load: 0 if it is idle, else at most a little less than it is.
        leaving: it is being removed.
        replaced, reason: how often its runner was replaced, and why the last time.
        failures: how many of its runners in a row were of no use: they ended in their start, or soon and without work.
    """

    __slots__ = ("failures", "handle", "id", "kind", "leaving", "line", "queued", "rank", "reason", "replaced")

    def __init__(self, id: int, kind: Kind) -> None:
        self.id = id
        self.kind: Kind = kind
        self.handle: RunnerHandle | None = None
        self.line: deque[Waiting] = deque()
        self.queued = 0.0
        self.rank = 0.0
        self.leaving = False
        self.replaced = 0
        self.reason = ""
        self.failures = 0

    def __repr__(self) -> str:
        return f"<RunnerSlot {self.kind}/{self.id}>"


class RunnerCommands:
    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    def send(self, handle: RunnerHandle, message: Stop | Exit) -> None:
        if not handle.gone:
            self._actions.add(Notify(handle.number, message))

    def signal(self, handle: RunnerHandle, what: str) -> None:
        """Have the supervisor ``stop`` what it runs, have it write its ``stacks``, or ``kill`` it."""
        self._actions.add(Signal(handle.number, what))

    def take_back(self, handle: RunnerHandle, *, but: int = 0) -> bool:
        """Ask for what it has not begun, ``but`` for the first ones; whether there may be any."""
        if len(handle.starts) <= but:
            return False
        handle.recalling = True
        self._actions.add(TakeBack(handle.number, len(handle.starts) - but))
        return True
