"""Which runner gets which job, and how much is sent ahead. Decides; sends nothing.

A job goes to a free runner, or to the least loaded one if it may be sent ahead. A job with a key goes to the place of
its key, and waits there (``local_queues.py``). A place outlives its runners, and so do the jobs that wait there. For
tasks measured to be tiny, a window worth a few milliseconds is sent ahead to runners of each kind but fork, so that
pipes and round trips are amortised. A runner without progress for ``STALL`` loses it: nothing waits behind a slow job.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from itertools import count

import msgspec

from headrace.dispatch import LoadIndex, Snapshot, hash, least_loaded  # noqa: A004 - its public name
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
        stop_reason: what the end of its runner would mean for it, if decided: ``other`` once a shutdown interrupted it.
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


class RunnerCommands:
    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    def send(self, handle: RunnerHandle, message: Stop | Exit) -> None:
        if not handle.gone:
            self._actions.add(Notify(handle.number, message))

    def signal(self, handle: RunnerHandle, what: str) -> None:
        self._actions.add(Signal(handle.number, what))

    def take_back(self, handle: RunnerHandle, *, but: int = 0) -> bool:
        """Ask for what it has not begun, ``but`` for the first ones; whether there may be any."""
        if len(handle.starts) <= but:
            return False
        handle.recalling = True
        self._actions.add(TakeBack(handle.number, len(handle.starts) - but))
        return True


# Above every load: a runner without progress, or with a suspect, is chosen last.
LAST = float("inf")
# Minimum load per job, so that a runner with a job never looks idle.
ONE = 1e-9
# Seconds beyond every load: a runner without a free slot ranks behind all that have one. One that is full of tiny jobs
# has less of a load than one that runs a slow job, and would hide its free slots.
FULL = 1e6


class RunnerSlots:
    """The places of one kind's runners, among which strategies choose in O(1).

    Attributes:
        snapshot: what strategies see; replaced as a whole when the size changes.
        ranks: those with a runner that takes work, by load.
    """

    __slots__ = ("_turn", "kind", "ranks", "snapshot")

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.ranks: LoadIndex[RunnerSlot] = LoadIndex()
        self._turn: Callable[[], int] = count().__next__
        self.snapshot: Snapshot[RunnerSlot] = Snapshot((), self.ranks, self._turn)

    def resize(self, size: int) -> list[RunnerSlot]:
        members = self.snapshot.members
        stay, gone = members[:size], members[size:]
        new = tuple(RunnerSlot(number, self.kind) for number in range(len(stay), size))
        self.snapshot = Snapshot((*stay, *new), self.ranks, self._turn)
        for place in gone:
            place.leaving = True
            self.ranks.remove(place)
        return list(gone)

    def reindex(self, place: RunnerSlot) -> None:
        """Rank a place by what its runner holds now and what waits for it. Cost: O(log places)."""
        if place.leaving:
            # It is ranked no longer, and another place may have its number by now.
            return
        handle = place.handle
        if handle is None or not handle.ready:
            self.ranks.remove(place)
            return
        held = len(handle.starts) + len(place.line)
        place.rank = LAST if handle.suspect else handle.load + place.queued + held * ONE if held else 0.0
        self.ranks.set(place, place.rank + FULL if held >= handle.slots else place.rank)


def place_of(snapshot: Snapshot[RunnerSlot], key: str) -> RunnerSlot:
    place = hash(snapshot, key) if key else least_loaded(snapshot)
    assert place is not None
    return place


# Seconds without progress after which work sent ahead is taken back.
STALL = 0.01
# Room for this many jobs is worth a claim of its own.
BATCH = 64
# Suspects of shared kinds get runners of their own, at most this many at once for each kind.
SINGLES = 8


class Assignment:
    """The runners of one worker and what their jobs cost.

    Attributes:
        handles: by number.
        kinds: the places of each kind of runner.
        changed: places with a line whose runner may have got room.
        freed: kinds of runners that got room since it was last cleared.
        prefetch_seconds: seconds of work that may be sent ahead to one runner; 0 sends one job at a time.
        costs: measured seconds by task; unknown tasks are not tiny.
        mean: measured seconds of a job on a runner that is sent work ahead, over all tasks; None before the first.
        coming: runners for suspects that were asked for and are not there yet, by kind.
    """

    def __init__(self, prefetch_seconds: float) -> None:
        self.handles: dict[int, RunnerHandle] = {}
        self.kinds: dict[Kind, RunnerSlots] = {}
        self.changed: set[RunnerSlot] = set()
        self.freed: set[Kind] = set()
        self.prefetch_seconds = prefetch_seconds
        self._coarse = prefetch_seconds / 16
        self.costs: dict[str, float] = {}
        self.mean: float | None = None
        self.coming: Counter[Kind] = Counter()

    def measure(self, task: str, seconds: float) -> None:
        """Learn what a job cost. A slow one is believed faster than a quick one: waiting behind it hurts more."""
        old = self.costs.get(task)
        self.costs[task] = seconds if old is None else old + (seconds - old) * (0.1 if seconds < old else 0.3)
        mean = self.mean
        # As cautious as the costs are: room for more than can be handed out is claimed only to be given back.
        self.mean = seconds if mean is None else mean + (seconds - mean) * (0.1 if seconds < mean else 0.3)

    def window(self) -> int:
        """How many jobs of average cost are worth sending to one runner, one that runs included."""
        if not self.prefetch_seconds or self.mean is None:
            return 1
        return max(1, min(MOST_AHEAD, int(self.prefetch_seconds / max(self.mean, 1e-6))))

    def rooms(self, now: float) -> dict[Kind, int]:
        """How many jobs of each kind a claim may bring. A runner with little room asks for none, so that claims come in
        batches; long before it runs dry it asks, so that server and runner work at the same time.
        """
        window, found = self.window(), dict.fromkeys(self.kinds, 0)
        for handle in self.handles.values():
            if not handle.ready or handle.single or (handle.place is not None and handle.place.line):
                continue
            line, ahead = handle.in_line, min(window, handle.most)
            if not handle.ahead:
                found[handle.kind] += max(0, handle.spare(handle.slots))
            elif line <= 0 or (
                ahead - line >= min(ahead // 2, BATCH) > 0 and not self.stalled(handle, now) and not handle.suspect
            ):
                found[handle.kind] += max(0, handle.spare(handle.slots - 1 + ahead))
        return found

    def stalled(self, handle: RunnerHandle, now: float) -> bool:
        return bool(handle.starts) and now - handle.progress > STALL

    def places(self, kind: Kind) -> RunnerSlots:
        if kind not in self.kinds:
            self.kinds[kind] = RunnerSlots(kind)
        return self.kinds[kind]

    def attach(self, handle: RunnerHandle) -> None:
        self.handles[handle.number] = handle
        members = () if handle.single else self.places(handle.kind).snapshot.members
        if (place := next((one for one in members if one.handle is None), None)) is not None:
            place.handle, handle.place = handle, place
            self.reindex(handle)

    def detach(self, handle: RunnerHandle) -> None:
        if (place := handle.place) is not None:
            place.handle = handle.place = None
            self.kinds[place.kind].reindex(place)

    def reindex(self, handle: RunnerHandle) -> None:
        if (place := handle.place) is not None:
            self.kinds[place.kind].reindex(place)
            if place.line:
                self.changed.add(place)

    def single(self, kind: Kind) -> RunnerHandle | None:
        return next(
            (s for s in self.handles.values() if s.single and s.kind == kind and s.ready and not s.starts), None
        )

    def wants_single(self, kind: Kind) -> bool:
        """Whether one more of those may be forked: not while one starts, which takes the next suspect."""
        singles = [handle for handle in self.handles.values() if handle.single and handle.kind == kind]
        return self.coming[kind] + len(singles) < SINGLES and not any(handle.starting for handle in singles)

    def choose(self, kind: Kind, task: str, now: float, *, alone: bool) -> RunnerHandle | None:
        """The runner for one job: one that has a free slot, or the least loaded if it may be sent ahead; None: neither.
        One that goes ``alone`` crashed before, or may start at most once: it is not sent ahead.
        """
        places = self.kinds.get(kind)
        if places is None:
            return None
        while (place := places.ranks.least()) is not None and (handle := place.handle) is not None:
            if not place.rank or (not place.line and self.fits(handle, task, now, alone=alone)):
                return handle
            if place.rank < handle.load:
                places.reindex(place)
                continue
            # Others hold more than the least loaded one, but it would hide them until it ends something.
            if place.rank == LAST or not (self.stalled(handle, now) or handle.spare(handle.most) <= 0):
                return None
            place.rank = LAST
            places.ranks.set(place, LAST)
        return None

    def choose_by_place(self, kind: Kind, claim: Claim, now: float, *, alone: bool) -> RunnerHandle | None:
        snapshot = self.places(kind).snapshot
        place = place_of(snapshot, claim.key) if snapshot.size else None
        handle = None if place is None or place.line else place.handle
        if handle is not None and handle.ready and self.fits(handle, claim.task, now, alone=alone):
            return handle
        return self.choose(kind, claim.task, now, alone=alone)

    def fits(self, handle: RunnerHandle, task: str, now: float, *, alone: bool) -> bool:
        if not handle.starts:
            return handle.ready
        if handle.recalling:
            return False
        if len(handle.starts) < handle.slots or not handle.ahead:
            return handle.spare(handle.slots) > 0
        cost = self.costs.get(task)
        return (
            cost is not None
            and handle.load + cost <= self.prefetch_seconds
            and now - handle.progress <= STALL
            and not (alone or handle.suspect)
            and handle.spare(handle.most) > 0
        )

    def assign(self, handle: RunnerHandle, start: Attempt, now: float) -> None:
        if not handle.starts:
            handle.progress = now
            handle.load = 0.0
        claim = start.claim
        handle.starts[claim.number] = start
        # The cost is written down: what is booked off later must be what was booked, however much was learned since.
        start.cost = self.costs.get(claim.task, self.prefetch_seconds)
        handle.load += start.cost
        if claim.crashes:
            handle.suspect = True
        # Not after each: of a hundred tiny jobs it does not matter to which of two runners a few more go.
        if (place := handle.place) is not None and (
            not place.rank
            or len(handle.starts) == handle.slots
            or handle.load - place.rank > self._coarse
            or handle.suspect
        ):
            self.kinds[place.kind].reindex(place)

    def release(self, handle: RunnerHandle, start: Attempt) -> None:
        if handle.starts:
            handle.load -= start.cost
        else:
            handle.load = 0.0
            handle.suspect = False

    @property
    def running(self) -> int:
        return sum(len(handle.starts) for handle in self.handles.values())

    @property
    def least_held(self) -> int:
        """The shortest line of a busy runner, at least 1; 0: none is busy. While it is large, no runner lacks work."""
        return min((max(1, handle.in_line) for handle in self.handles.values() if handle.starts), default=0)

    @property
    def likely(self) -> int:
        """The process runner that the next job will most likely go to; 0: none is idle."""
        places = self.kinds.get("process")
        place = None if places is None else places.ranks.idle()
        return 0 if place is None or place.handle is None else place.handle.number
