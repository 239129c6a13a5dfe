"""Requests of others to a worker, and its reports: :class:`SelfReport` for people, with renewals; stacks on demand,
which each runner's interpreter writes to its stderr, so that one that answers late delays no other; messages of the
supervisor, and commands that clients write into the store; answers to probes.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from headrace.errors import OptionsError
from headrace.model.options import Kind
from headrace.model.stacks import MOST, MOST_EACH, MOST_READ, RunnerStacks, WorkerStacks, jobs_first
from headrace.protocol import operations
from headrace.protocol.overviews import MOST_RUNNERS, RunnerFacts
from headrace.worker.dispatcher.assignment import Assignment, Probe, RunnerHandle
from headrace.worker.dispatcher.claim_demand import ClaimDemand
from headrace.worker.dispatcher.claiming import Claiming
from headrace.worker.dispatcher.dispatcher_events import CALLED, HURRY, Capture, StackHeard, Step
from headrace.worker.dispatcher.local_queues import LocalQueues
from headrace.worker.dispatcher.maintenance import Renewal, Unparking
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.runner_pool import RunnerSupply
from headrace.worker.dispatcher.worker_state import Desk, Worker
from headrace.worker.health_stamps import ANSWERED, DRAINING, EVICTING, REGISTERED, RUNNERS
from headrace.worker.messages import Signal, Size
from headrace.worker.startup_profiler import Advice
from headrace.worker.worker_options import SHARED

_PAGE = os.sysconf("SC_PAGE_SIZE")


def probe(handle: RunnerHandle) -> tuple[int, int]:
    """The process that runs a runner's jobs, and its resident bytes in whole MiB: one that idles says nothing new."""
    pid = handle.pid
    try:
        if handle.is_fork_server:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()
            pid = int(children[0]) if children else pid
        return pid, int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE >> 20 << 20
    except (OSError, ValueError, IndexError):
        return pid, 0


def status(handles: Iterable[RunnerHandle], ahead_of_us: float, look: Probe = probe, shown: str = "") -> str:
    """The runners as JSON, at most ``MOST_RUNNERS``. The job ``shown`` stands for its runner, even if not its first."""
    ordered = sorted(handles, key=lambda one: (one.kind, one.place.id if one.place else MOST_RUNNERS, one.number))
    return msgspec.json.encode([_row(one, ahead_of_us, look, shown) for one in ordered[:MOST_RUNNERS]]).decode()


def _row(handle: RunnerHandle, ahead_of_us: float, look: Probe, shown: str) -> RunnerFacts:
    place, (pid, memory) = handle.place, look(handle)
    first = next(iter(handle.starts.values()), None)
    if shown and not handle.serial:
        first = next((start for start in handle.starts.values() if start.claim.id == shown), first)
    # What runs one at a time began the first when it ended the one before; the others began theirs when they got them.
    began = ahead_of_us + handle.progress * 1e6 if handle.serial else float(first.claim.token if first else 0)
    stopped = first if first and (first.limited or first.told) else None
    return RunnerFacts(
        kind=handle.kind, place=place.id if place else -1, pid=pid, job=first.claim.id if first else "",
        task=first.claim.task if first else "", since=round(began) if first else 0,
        soft=round(ahead_of_us + stopped.limited_at * 1e6) if stopped and stopped.limited else 0,
        kill=round(ahead_of_us + stopped.kill_at * 1e6) if stopped and stopped.kill_at else 0,
        holds=len(handle.starts), waiting=len(place.line) if place else 0, done=handle.done, memory=memory,
        replaced=place.replaced if place else 0, reason=place.reason if place else "",
    )  # fmt: skip


class SelfReport:
    """What has changed and was not said.

    Attributes:
        said: what the last renewal said of the runners; ``busy``: how many slots of each kind had a job.
        shown: the job that is asked for, which the next renewal shows.
        resized: whether there are others than were said.
        phase: the one that was said.
    """

    def __init__(self, worker: Worker, desk: Desk, assignment: Assignment, advice: Advice) -> None:
        self.said = self.busy = self.shown = ""
        self.resized = False
        self.phase = "working"
        self._worker, self._desk = worker, desk
        self._assignment, self._advice = assignment, advice

    def begin(self) -> None:
        self.said = self.busy = ""
        self.phase = "working"
        if self._desk.home:
            self._advice.renew()

    def sizes(self) -> list[str]:
        kinds, options = self._worker.kinds, self._worker.options
        runners = " ".join(f"{kind}:{options.runners(kind)}" for kind in kinds)
        return ["runners", runners, "sizes", " ".join(f"{kind}:{options.jobs_at_once(kind)}" for kind in kinds)]

    def news(self) -> list[str | int]:
        metadata: list[str | int] = []
        if self._desk.home:
            for line in self._advice.lines():
                self._worker.actions.log(logging.WARNING, "%s", line, code="setup.repeated")
            metadata += ["startup_profile", self._advice.summary()] if self._advice.changed else []
        metadata += self.sizes() if self.resized else []
        self.resized = False
        worker = self._worker
        if worker.phase != self.phase:
            self.phase = worker.phase
            metadata += ["draining", "quiet" if worker.phase == "quiet" else 1]
        handles = self._assignment.handles.values()
        runners = status(handles, self._desk.server_ahead, worker.probe, self.shown)
        if runners != self.said:
            self.said = runners
            metadata += ["runner_facts", runners]
        busy = Counter[str]()
        for handle in handles:
            busy[handle.kind] += min(len(handle.starts), handle.slots)
        if (text := " ".join(f"{kind}:{busy[kind]}" for kind in worker.kinds)) != self.busy:
            self.busy = text
            metadata += ["busy", text]
        return metadata


# Seconds that runners have to write their stacks. Stacks that come later, for LATE seconds more, stay out of the log,
# where they would look like a fault.
WAIT = 0.3
LATE = 10.0
_TIMER = "stacks"


class StackRequests:
    """One reading is under way at most. Requests that come meanwhile are answered by it, too."""

    def __init__(self, worker: Worker, desk: Desk, assignment: Assignment) -> None:
        self._worker, self._desk, self._assignment = worker, desk, assignment
        self._requests: list[str] = []
        self._heard: dict[int, bytearray] = {}

    def ask(self, request: str) -> None:
        worker = self._worker
        self._requests.append(request[:64])
        if len(self._requests) > 1:
            return
        for handle in self._assignment.handles.values():
            if not handle.gone:
                worker.actions.add(Capture(handle.number, worker.now + WAIT + LATE))
                worker.actions.add(Signal(handle.number, "stacks"))
        self._desk.timers.set(_TIMER, worker.now + WAIT)

    def on_stacks(self, event: StackHeard) -> None:
        if not self._requests:
            # Too late.
            return
        text = self._heard.setdefault(event.runner, bytearray())
        if len(text) < MOST_READ:
            text += event.text

    def steps(self, now: float) -> list[Step]:
        worker = self._worker
        if not self._requests or not self._desk.timers.due(_TIMER, now):
            return []
        self._desk.timers.clear(_TIMER)
        handles = [one for one in self._assignment.handles.values() if not one.gone]
        each = min(MOST_EACH, MOST // max(1, len(handles)))
        rows: list[RunnerStacks] = []
        for handle in handles:
            first = next(iter(handle.starts.values()), None)
            text = jobs_first(bytes(self._heard.get(handle.number, b"")), each).decode("utf-8", "replace")
            row = RunnerStacks(
                kind=handle.kind, place=handle.place.id if handle.place else -1, pid=worker.probe(handle)[0],
                job=first.claim.id if first else "", task=first.claim.task if first else "", text=text.strip(),
            )  # fmt: skip
            rows.append(row)
        answer = msgspec.json.encode(WorkerStacks(requests=self._requests, runners=rows)).decode()
        self._requests = []
        self._heard.clear()
        return [(operations.tell_stacks(self._desk.keys, self._desk.owner, answer), lambda _: None)]


class RemoteControl:
    def __init__(
        self,
        worker: Worker,
        supply: RunnerSupply,
        local_queues: LocalQueues,
        demand: ClaimDemand,
        placement: Placement,
        renewal: Renewal,
        unparking: Unparking,
        report: SelfReport,
        stacks: StackRequests,
    ) -> None:
        self._worker = worker
        self._supply, self._local_queues = supply, local_queues
        self._demand, self._placement = demand, placement
        self._renewal, self._unparking = renewal, unparking
        self._report, self._stacks = report, stacks
        self.on_resize: Callable[[], None] = self.report_sizes
        self.on_stop: Callable[[], None] = lambda: None
        self.on_quiet: Callable[[], None] = lambda: None

    def mailed(self, text: str) -> None:
        """What others wrote.

        * Questions: ``show:JOB``, answered by a renewal out of turn, whose facts show that job; ``stacks:REQUEST``.
        * News: ``parked:TASK``; ``closed:TOKEN:GATE``: a call was refused, and the gate was closed after this token.
        * Wishes: ``scale:KIND:SIZE``; ``stop``; ``quiet``; the id of a job to cancel.
        """
        verb, _, rest = text.partition(":")
        kind, _, size = rest.partition(":")
        if text == CALLED:
            self._demand.call()
        elif text == HURRY:
            self._renewal.renew_soon()
        elif text == "stop":
            self.on_stop()
        elif text == "quiet":
            self.on_quiet()
        elif verb == "show":
            self._report.shown = rest
            self._renewal.renew_soon()
        elif verb == "stacks":
            self._stacks.ask(rest)
        elif verb == "parked" and rest in self._worker.tasks:
            self._unparking.parked.add(rest)
        elif verb == "closed" and kind.isdecimal():
            self._placement.close([size], int(kind))
        elif verb != "scale":
            self._renewal.cancels.append(text)
        elif kind in self._worker.kinds and size.isdecimal():
            self._scale(kind, int(size))
        else:
            cannot = "cannot do what was asked of this worker: %.100r"
            self._worker.actions.log(logging.WARNING, cannot, text, code="worker.not_understood")

    def _scale(self, kind: Kind, size: int) -> None:
        worker = self._worker
        try:
            worker.options.resized(kind, size)
        except OptionsError as error:
            worker.actions.log(logging.WARNING, "not resized: %s", error, code="worker.not_resized")
            return
        # Workers that come after us keep to it.
        worker.actions.add(Size(kind, size))
        self.resize(kind, size)

    def resize(self, kind: Kind, size: int) -> None:
        worker = self._worker
        if worker.phase != "working" or size == worker.options.jobs_at_once(kind):
            return
        text = "%s: %d at once, %d before"
        worker.actions.log(logging.INFO, text, kind, size, worker.options.jobs_at_once(kind), code="worker.resized")
        worker.options = worker.options.resized(kind, size)
        if kind not in worker.kinds:
            return
        if kind in SHARED:
            self._supply.renew(kind)
        else:
            for place in self._supply.resize(kind, size):
                self._local_queues.vacate(place)
        self.on_resize()

    def report_sizes(self) -> None:
        self._report.resized = True
        self._renewal.renew_soon()


class Vitals:
    def __init__(
        self, worker: Worker, desk: Desk, assignment: Assignment, renewal: Renewal, claiming: Claiming
    ) -> None:
        self._worker, self._desk, self._assignment = worker, desk, assignment
        self._renewal, self._claiming = renewal, claiming
        self._starving = 0.0

    def check(self, now: float) -> tuple[int, float, float]:
        """Flags, end of the lease and since when it starves: the first look that found jobs and room for them."""
        worker, desk, claiming = self._worker, self._desk, self._claiming
        kinds = {handle.kind for handle in self._assignment.handles.values() if not (handle.starting or handle.single)}
        flags = REGISTERED if desk.owner and not desk.fenced else 0
        flags |= 0 if desk.requests.away else ANSWERED
        flags |= RUNNERS if kinds.issuperset(worker.kinds) else 0
        flags |= 0 if worker.phase == "working" else DRAINING
        flags |= EVICTING if desk.evicting else 0
        # A claim that was answered since may have taken what the last renewal saw.
        ready = self._renewal.ready and claiming.answered < self._renewal.looked
        self._starving = (self._starving or now) if ready and claiming.has_room(now) else 0.0
        return flags, self._renewal.lease_until, self._starving
