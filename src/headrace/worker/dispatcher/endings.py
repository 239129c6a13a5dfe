"""How starts ended, until the store has it: gathered, logged, counted, and settled in batches. Nodes that a start added
to its workflow are stored before its end.

The log gets one line of each, in words, and folds floods. For statistics a job costs four entries in lists; once a
second they are added up, and the sums go into the buffer of ``app.stats``, which has a connection of its own.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from headrace.errors import OptionsError
from headrace.model.ended import (
    Cancelled,
    Corrupt,
    Ended,
    EndKind,
    Failed,
    Growing,
    Interrupted,
    RateRefused,
    Retried,
    Succeeded,
)
from headrace.model.ids import OWN_QUEUE
from headrace.model.job import NO_LOG, Claim, JobError, Outcome, StartNote, error_json, parse_error, type_and_first_line
from headrace.model.limit_rules import gates_of
from headrace.model.notation import duration, size
from headrace.model.workflow import log_fields
from headrace.protocol import consume
from headrace.protocol.script import Call
from headrace.settings import Settings, microseconds
from headrace.stats.resolutions import LONGEST, MARK, QUEUES, TASKS, bucket_of, queue_label
from headrace.worker.dispatcher.dispatcher_events import End, Log
from headrace.worker.dispatcher.local_queues import LocalQueues
from headrace.worker.dispatcher.worker_state import Desk, Worker
from headrace.worker.dispatcher.workflow_growth import GROWTH, Growth
from headrace.worker.standard_streams import log

# Ends of a first start that need no journal.
_SIMPLE: frozenset[EndKind] = frozenset({"succeeded", "grown", "skipped"})
# Ends of claims whose code did not run.
_NO_START: frozenset[EndKind] = frozenset({"released", "parked"})


def journal_notes(batch: Sequence[tuple[Outcome, Claim]]) -> list[StartNote]:
    found = [_note(outcome, claim) for outcome, claim in batch if outcome.kind not in _SIMPLE or claim.journaled]
    return [note for note in found if note is not None]


def _note(outcome: Outcome, claim: Claim) -> StartNote | None:
    if outcome.kind in _NO_START:
        return None
    if outcome.kind == "limited":
        return StartNote(claim.id, claim.ready, outcome.data.decode())
    error = error_of(outcome.kind, outcome.data)
    if error is None:
        return StartNote(claim.id, claim.ready)
    if not error.attempt and outcome.kind in ("cancelled", "corrupt"):
        # It expired, was cancelled or could not be read before its code began.
        return None
    code = -1 if error.exit_code is None else error.exit_code
    return StartNote(claim.id, claim.ready, type_and_first_line(error), error.signal or 0, code)


# What one settle may cost the server, in ends of plain jobs; that of a node, with its children, is worth several.
SETTLE_MOST = 600
NODE = 3
# This many bytes of a result count as one end more: a larger call may exceed what the server takes, and on a slow line
# keeps the lease from being renewed.
LARGE = 2048
# What sends a job back to the server; of a broadcast it is an end, since no other worker may run it.
NO_END: frozenset[EndKind] = frozenset({"released", "parked", "snoozed", "limited", "retry"})
_LEFT = error_json(
    JobError(type="Cancelled", message="its worker could not run it: no such task or runner, or it stops")
)
_UNKNOWN = JobError(type="Lost", message="the store and its worker have both forgotten how this start ended")

Outcomes = list[tuple[Outcome, Claim]]


class Endings:
    """What ended and was not sent.

    Attributes:
        finished: how many jobs of the application have run here, or ended without.
        since: since when the oldest of what is gathered waits (monotonic seconds).
        urgent: a job goes back to the server. Until that knows, what claims tell of the queues misses the job.
        growth: starts whose nodes must be stored first.
        on_ends: hears of ends in a worker that serves several shards.
    """

    def __init__(self, worker: Worker, desk: Desk, local_queues: LocalQueues) -> None:
        self.finished = 0
        self.since = 0.0
        self.urgent = False
        self.on_ends: Callable[[list[End]], None] | None = None
        self.growth = Growth(desk.keys, lambda end: self.ended([end]))
        # Gates that are to be closed, since a call was refused; what has not begun of their jobs goes back.
        self._refused = set[str]()
        self._waiting: deque[tuple[Outcome, Claim]] = deque()
        self._keep = microseconds(worker.settings.failure_ttl)
        self._logged = logged_kinds(worker.settings)
        self._debug = logging.getLogger("headrace.worker").isEnabledFor(logging.DEBUG)
        self._worker, self._desk, self._local_queues = worker, desk, local_queues
        self._job_counts = worker.job_counts

    def __len__(self) -> int:
        return len(self._waiting)

    def ended(self, ends: list[End]) -> None:
        if self.on_ends is not None:
            self.on_ends(ends)
        queues, add, now = self._local_queues, self._add, self._worker.now
        for end in ends:
            if queues.joined:
                queues.ended(end.claim.number)
            if isinstance(end.ended, Growing):
                self.growth.begin(end)
            else:
                add(end, now)

    def end(self, claim: Claim, ended: Ended) -> None:
        self.ended([End(claim, ended)])

    def end_with(self, claim: Claim, how: type[Failed | Corrupt], name: str, text: str) -> None:
        self.end(claim, how(error_json(JobError(type=name, message=text, attempt=claim.attempt)), self._keep))

    def interrupt_growth(self) -> None:
        self._desk.requests.forget(*GROWTH)
        for claim in self.growth.drop_all():
            self.end(claim, Interrupted(b"", self._keep))

    def end_unread(self, id: str, token: int, kind: Literal["corrupt", "interrupted"], error: JobError) -> None:
        self._desk.starts.held[token] = id
        outcome = Outcome(id, token, kind, error_json(error), self._keep)
        self._waiting.append((outcome, Claim(id, token, "", 0, "", b"")))

    def hand_back(self, id: str, token: int) -> None:
        """This worker does not know this start. It may have run: one that may start at most once fails."""
        self.end_unread(id, token, "interrupted", _UNKNOWN)

    def _add(self, end: End, now: float) -> None:
        claim, ended = end.claim, end.ended
        if ended.kind in NO_END and claim.queue[0] == "@":
            ended = (Failed if isinstance(ended, Retried) else Cancelled)(ended.data or _LEFT, self._keep)
        kind = ended.kind
        if not self._waiting:
            self.since = now
        if kind in self._logged:
            self._write_line(end, ended)
        if kind == "released":
            self.urgent = True
        elif claim.queue != OWN_QUEUE:
            self.finished += 1
            if self._job_counts is not None:
                self._job_counts.ended(claim, kind, self.since, end.cost)
        if isinstance(ended, Succeeded):
            # Each line is paid for by every job: most succeed.
            stays = ended.ttl or (0 if end.logged or claim.logged else NO_LOG)
            row = Outcome(claim.id, claim.token, kind, ended.result, stays)
        else:
            row = Outcome(claim.id, claim.token, kind, ended.data, ended.amount)
            if isinstance(ended, RateRefused):
                # The sooner its limit is closed, the fewer others are refused.
                self._refused.update(gate for gate in gates_of(claim.lane) if gate.partition(":")[0] == ended.limit)
                self.urgent = True
        self._waiting.append((row, claim))

    def _write_line(self, end: End, ended: Ended) -> None:
        claim, kind = end.claim, ended.kind
        error = error_of(kind, ended.data)
        facts = facts_of(claim, kind, error, end.cost, end.memory)
        extra: dict[str, Any] = {"facts": facts}
        # A crash with a traceback is a fault of Headrace's own code.
        if error is not None and error.traceback and (kind == "crashed" or self._debug):
            extra["traceback"] = error.traceback
        line = line_of(claim, kind, error, ended.amount, end.cost, end.memory)
        level = logging.ERROR if kind == "crashed" else logging.WARNING if kind in _FAILURES else logging.INFO
        self._worker.actions.add(Log(level, "%s", (line,), CODES[kind], extra))

    def take_refused(self) -> set[str]:
        if refused := self._refused:
            self._refused = set[str]()
        return refused

    def take(self) -> Outcomes:
        batch: Outcomes = []
        room, waiting = SETTLE_MOST, self._waiting
        while waiting and room > 0:
            one = waiting.popleft()
            batch.append(one)
            room -= (NODE if one[1].facts else 1) + len(one[0].data) // LARGE
        self.urgent = self.urgent and bool(self._waiting)
        return batch

    def settle(self, number: int, batch: Outcomes) -> Call[consume.Settled]:
        # One that succeeded lines up nowhere, and every job passes here.
        ends = [(outcome, claim.score if outcome.kind != "succeeded" else 0) for outcome, claim in batch]
        desk = self._desk
        return consume.settle(desk.keys, desk.owner, number, ends, self._keep, starts=journal_notes(batch))


EVERY = 1.0

_FLOAT = struct.Struct("=f")
_BITS = struct.Struct("=I")
# Which of a float's two halves is the high one.
_HIGH = 1 if sys.byteorder == "little" else 0

# Outcomes by the word that people know them by. What is released or taken back has not ended.
ENDS: dict[EndKind, str] = {
    "succeeded": "succeeded", "grown": "succeeded", "failed": "failed", "retry": "retried", "snoozed": "snoozed",
    "limited": "limited", "cancelled": "cancelled", "crashed": "crashed", "interrupted": "interrupted",
    "corrupt": "quarantined", "skipped": "skipped", "parked": "parked",
}  # fmt: skip


class StatsSink(Protocol):
    def absorb(self, label: str, counts: Mapping[str, int], at: float | None = None) -> None: ...


def coarse(values: array[float]) -> Counter[int]:
    """How many of some 32-bit floats have the same sign, exponent and seven bits of the fraction, counted in C."""
    return Counter(array("H", values.tobytes())[_HIGH::2])


def middle(half: int) -> float:
    return float(_FLOAT.unpack(_BITS.pack(half << 16 | 0x8000))[0])


class _Sums:
    """Of one task and queue, an entry for each job: how it ended, microseconds, the second that it came in."""

    __slots__ = ("came", "ends", "runs", "waits")

    def __init__(self) -> None:
        self.ends: list[EndKind] = []
        self.runs = array("f")
        self.waits = array("f")
        self.came = array("q")

    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for kind, count in Counter(self.ends).items():
            found[ENDS[kind]] += count
            found["started"] += count if kind != "parked" else 0
        for field, times in (("run", self.runs), ("wait", self.waits)):
            for half, count in coarse(times).items():
                # A clock that was set back makes no time shorter than none.
                found[f"{field}{MARK}{bucket_of(max(0.0, middle(half)) / 1e6)}"] += count
        return found


class JobCounts:
    """Sums since the last second; ``next``: when they go on (monotonic seconds)."""

    def __init__(self, counts: StatsSink, workers: StatsSink, place: str) -> None:
        self.next = float("inf")
        self._counts, self._workers, self._place = counts, workers, place
        self._sums: dict[tuple[str, str], _Sums] = {}
        self._busy = self._memory = 0

    def ended(self, claim: Claim, kind: EndKind, now: float, cost: int = 0) -> None:
        """A start ended so. That of a job's first one counts it as enqueued, at the time when it lined up."""
        if kind not in ENDS:
            return
        # Each line is paid for by every job.
        try:
            sums = self._sums[claim.task, claim.queue]
        except KeyError:
            sums = self._sums[claim.task, claim.queue] = _Sums()
            self.next = min(self.next, now + EVERY)
        sums.ends.append(kind)
        if kind == "parked":
            # It did not start, and lines up anew.
            return
        if cost:
            sums.runs.append(cost)
            self._busy += cost
        ready = claim.ready
        # One that crashed, was interrupted or refused lined up where it stood before: since when it waits is not known.
        if ready > 0 and not (claim.crashes or claim.interruptions or claim.limited):
            sums.waits.append(claim.token - ready)
            if not (claim.failures or claim.snoozes):
                sums.came.append(ready // 1_000_000)

    def grew(self, memory: int) -> None:
        self._memory = max(self._memory, memory)

    def sampled(self, sizes: Mapping[str, int], at: float, is_first: bool) -> None:
        """Count ready jobs: ``ready`` divided by ``samples``, which the first shard counts, is the mean backlog."""
        if is_first:
            self._absorb(QUEUES, {"samples": 1}, at)
        for queue, ready in sizes.items():
            self._absorb(queue_label(queue), {"ready": ready}, at)

    def pass_on(self, now: float) -> None:
        """Hand the sums to the buffer; ``now``: seconds since 1970 by the server's clock, not this machine's."""
        self.next = float("inf")
        taken, self._sums = self._sums, {}
        for (task, queue), sums in taken.items():
            counts, came = sums.counts(), Counter(sums.came)
            for label in (f"{TASKS}/{task}", queue_label(queue)):
                self._absorb(label, counts, now)
                for second, count in came.items():
                    self._absorb(label, {"enqueued": count}, second)
        if taken:
            mine = {"busy": self._busy}
            if self._memory:
                mine[f"memory{MARK}{bucket_of(float(self._memory))}"] = 1
            self._workers.absorb(self._place, mine, now)
            self._busy = self._memory = 0

    def _absorb(self, label: str, counts: Mapping[str, int], at: float) -> None:
        try:
            self._counts.absorb(label, counts, at)
        except OptionsError:
            # Any program may have written a record. Names are shown escaped; a time of no year is not counted.
            with contextlib.suppress(OptionsError):
                self._counts.absorb(ascii(label)[1:-1][:LONGEST], counts, at)


# How an outcome reads after "attempt 3".
_WORDS: dict[EndKind, str] = {
    "succeeded": "succeeded", "grown": "succeeded", "skipped": "was skipped", "failed": "failed", "retry": "failed",
    "crashed": "crashed", "corrupt": "is quarantined", "cancelled": "was cancelled", "snoozed": "snoozed",
    "interrupted": "was interrupted and goes back", "limited": "was told that it calls too often and goes back",
}  # fmt: skip
_FAILURES: frozenset[EndKind] = frozenset({"failed", "retry", "crashed", "corrupt"})
# The code of the line for an outcome.
CODES: dict[EndKind, str] = {kind: f"job.{ENDS[kind]}" for kind in _WORDS}
# Characters of an error that a line shows at most.
_LONGEST = 500
# The data of these outcomes is not an error.
_NO_ERROR: frozenset[EndKind] = frozenset({"succeeded", "grown", "skipped", "snoozed", "limited"})


def logged_kinds(settings: Settings) -> frozenset[EndKind]:
    wishes: dict[str, frozenset[EndKind]] = {"none": frozenset(), "failures": _FAILURES, "all": frozenset(_WORDS)}
    return wishes[settings.log_jobs]


def line_of(claim: Claim, kind: EndKind, error: JobError | None, amount: int, cost: int, memory: int = 0) -> str:
    """``job ID (tasks.mean), attempt 1 failed: ZeroDivisionError: division by zero at tasks.py:8 in mean; ...``.

    ``amount``: microseconds until the next start. ``cost``: microseconds that the runner was busy; ``memory``: the most
    that its process had, bytes; 0: unknown.
    """
    word = "was interrupted" if kind == "interrupted" and claim.once else _WORDS[kind]
    parts = [f"job {claim.id} ({claim.task}), attempt {claim.attempt} {word}{_why(error)}"]
    if kind in ("retry", "snoozed"):
        parts.append(f"{'retry' if kind == 'retry' else 'again'} in {duration(amount)}")
    if claim.waited is not None:
        parts.append(f"waited {duration(claim.waited)}")
    if cost:
        parts.append(f"ran {duration(cost)}")
    if peak := memory or (error and error.peak_memory):
        parts.append(f"peak {size(peak)}")
    return "; ".join((parts[0], ", ".join(parts[1:]))) if len(parts) > 1 else parts[0]


def facts_of(claim: Claim, kind: EndKind, error: JobError | None, cost: int, memory: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {**log_fields(claim), "outcome": kind}
    if claim.waited is not None:
        found["waited"] = claim.waited / 1e6
    if cost:
        found["ran"] = cost / 1e6
    if error is not None:
        found["error"] = error.type
    if peak := memory or (error and error.peak_memory):
        found["memory"] = peak
    return found


def error_of(kind: EndKind, data: bytes) -> JobError | None:
    return None if kind in _NO_ERROR else parse_error(data)


def _why(error: JobError | None) -> str:
    if error is None:
        return ""
    # A crash is in the word already.
    told = [*([] if error.type == "Crashed" else [error.type]), *error.message.splitlines()[:1]]
    text = ": ".join(part for part in told if part)
    return f": {text[:_LONGEST]}" + (f" at {error.where}" if error.where else "")


# Lines of one code and task that a second has room for.
MOST = 10


class DispatcherLog:
    """Writes lines, unless many of one code and task come within a second; ``next``: when to call :meth:`pass_on`."""

    def __init__(self, *, fold: bool = True) -> None:
        self.next = float("inf")
        self._fold = fold
        self._since = 0.0
        self._counts: dict[tuple[str, str], list[int]] = {}

    def write(self, action: Log) -> None:
        task = (action.extra or {}).get("facts", {}).get("task", "")
        if task and self._fold:
            now = time.monotonic()
            self.pass_on(now)
            if not self.admits(action.code, task, action.level, now):
                return
        log.log(action.level, action.text, *action.args, code=action.code, extra=action.extra)

    def pass_on(self, now: float) -> None:
        for level, code, task, count in self.rest(now):
            extra = {"facts": {"task": task, "more": count}}
            log.log(level, "and %d more of %s (%s)", count, task, code, code=code, extra=extra)

    def admits(self, code: str, task: str, level: int, now: float) -> bool:
        if now - self._since >= 1.0 and self.next > now:
            self._counts.clear()
            self._since = now
        row = self._counts.setdefault((code, task), [0, level])
        row[0] += 1
        if row[0] > MOST:
            self.next = self._since + 1.0
        return row[0] <= MOST

    def rest(self, now: float) -> list[tuple[int, str, str, int]]:
        if now < self.next:
            return []
        held = [(level, *key, count - MOST) for key, (count, level) in self._counts.items() if count > MOST]
        self._counts.clear()
        self._since, self.next = now, float("inf")
        return held
