"""The messages between supervisor, dispatcher and runners, and the outcomes of starts. Pure.

Every message is a tagged array, so an unknown one fails at decoding, not later. How a start ended is decided in one
place: by the exception that left its code, or by the death of its runner.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from headrace.context import StopReason
from headrace.errors import RetryAfter, SoftTimeLimit
from headrace.model.ended import Cancelled, Corrupt, Crashed, Ended, Failed, Interrupted, Retried
from headrace.model.job import Claim, JobError, error_json
from headrace.model.options import Kind
from headrace.model.retry import fate
from headrace.settings import microseconds, seconds
from headrace.tasks.task import RunPlan


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """Dispatcher to runner: start these, in this order."""

    claims: list[Claim]


class WakeHint(msgspec.Struct, frozen=True, array_like=True, tag="wake"):
    """Dispatcher to idle runner: a job is about to follow, so wake up already."""


class Recall(msgspec.Struct, frozen=True, array_like=True, tag="recall"):
    """Dispatcher to runner: forget the last ``count`` jobs sent; their tickets were taken back."""

    count: int


class Up(msgspec.Struct, frozen=True, array_like=True, tag="up"):
    """Runner to dispatcher: the application's code for its start has run. Sent by those that were said to start."""


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Dispatcher to runner: the start of this number is to stop. All reasons but ``shutdown`` raise in its code."""

    number: int
    reason: Literal["shutdown", "interrupt", "cancel", "soft"]


class Exit(msgspec.Struct, frozen=True, array_like=True, tag="exit"):
    """Dispatcher to runner: leave when what you hold is done. Fork server to dispatcher: I leave."""


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done", gc=False):
    """Runner to dispatcher: a start ended. ``cost``: microseconds that the runner was busy with it, its own work
    included; ``memory``: peak resident bytes of the runner so far; 0 when not measured.
    """

    number: int
    ended: Ended
    cost: int
    memory: int


class ChildCrashed(msgspec.Struct, frozen=True, array_like=True, tag="fell"):
    """Fork server to dispatcher: its child ended without saying how its job did; fields as in :class:`Died`."""

    signal: int
    code: int
    memory: int


class JobProgress(msgspec.Struct, frozen=True, array_like=True, tag="say"):
    """Runner to dispatcher: progress with data (None: unchanged), lines, what was swallowed or spent, of a start."""

    number: int
    progress: float | None
    text: str
    lines: tuple[str, ...]
    swallowed: str = ""
    spent: tuple[tuple[str, int], ...] = ()
    data: str = ""


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """Runner to dispatcher, before the end of a start: what was done in it that each new runner does again.

    Attributes:
        first: whether this start was watched as the first of its task here.
        imports: modules that its code imported, with microseconds.
        early: the same of what runs outside of jobs, such as hooks.
        functions: ``module:function`` of what may be set-up that it spent time below, with microseconds.
    """

    number: int
    first: bool
    imports: list[tuple[str, int]]
    early: list[tuple[str, int]]
    functions: list[tuple[str, int]]


class Spawn(msgspec.Struct, frozen=True, array_like=True, tag="spawn"):
    """Dispatcher to supervisor: fork a runner; ``profile``: it notes what is done again in it."""

    kind: Kind
    profile: bool = False


class Signal(msgspec.Struct, frozen=True, array_like=True, tag="signal"):
    """Dispatcher to supervisor: interrupt (``stop``) or end (``kill``) a runner, or have it write its ``stacks``."""

    runner: int
    what: str


class Size(msgspec.Struct, frozen=True, array_like=True, tag="size"):
    """From now on this many of a kind at once. It goes from the dispatcher, where an operator set it, to the
    supervisor, the parent of ``--reload``, and the next worker.
    """

    kind: Kind
    size: int


class Resize(msgspec.Struct, frozen=True, array_like=True, tag="resize"):
    """Parent to supervisor: have this many runners more, or fewer."""

    by: int


class Quiet(msgspec.Struct, frozen=True, array_like=True, tag="quiet"):
    """Dispatcher to supervisor: an operator had me claim no more, which my successor must not do either."""


class Owner(msgspec.Struct, frozen=True, array_like=True, tag="owner"):
    """Dispatcher to supervisor: the incarnation that my successor must take over from."""

    owner: str


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """Dispatcher to supervisor: registered, and no first runner is starting any more; or why one ended in its start."""

    trouble: str = ""


class Serves(msgspec.Struct, frozen=True, array_like=True, tag="serves"):
    """Supervisor to parent: this worker serves its queues, and its first runners have begun."""


class StartFailed(msgspec.Struct, frozen=True, array_like=True, tag="start_failed"):
    """Supervisor to parent: why this worker cannot start."""

    reason: str


class Spawned(msgspec.Struct, frozen=True, array_like=True, tag="spawned"):
    """Supervisor to dispatcher: a runner; comes with four descriptors: socket, tickets (read, write), its stderr.

    Attributes:
        is_fork_server: it runs no job itself, but forks a child for each.
        starting: it, or its first child, runs code of the application first, and says :class:`Up` when it takes jobs.
    """

    runner: int
    kind: Kind
    pid: int
    is_fork_server: bool = False
    starting: bool = False


class Died(msgspec.Struct, frozen=True, array_like=True, tag="died"):
    """Supervisor to dispatcher: a runner was reaped. ``signal`` and ``code`` are 0 when they do not apply.

    ``fenced``: the supervisor had killed it, since the dispatcher did not move until its lease ended.
    """

    runner: int
    signal: int
    code: int
    memory: int
    fenced: bool = False


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Supervisor to dispatcher: stop claiming, finish, hand back the rest after the timeout; ``now``: at once."""

    now: bool


ToRunner = Run | WakeHint | Recall | Stop | Exit
FromRunner = Done | JobProgress | Found | ChildCrashed | Exit | Up
ToSupervisor = Spawn | Signal | Owner | Begun | Size | Quiet
FromSupervisor = Spawned | Died | Drain | Size
FromWorker = Serves | StartFailed | Size
ToWorker = Resize | Size


# Why the runner of a start ended: for no reason of ours, the start was cancelled, the start ran past its hard limit, or
# for another reason than this start (a mate's limit, a shutdown), which a text names.
StopVerdict = Literal["", "cancel", "hard", "other"]

TIME_OVER = "the worker stopped or reloaded, and its shutdown timeout was over"
_FREE = "it runs again, and no retry or crash is counted"
_ONCE = "it may start only once, so it failed"


def before_start(claim: Claim, now: int, keep: int) -> Ended | None:
    """How a claimed job ends that must not start: it names no task, or its time is over; None: it may start."""
    if not claim.task:
        return Corrupt(error_json(JobError(type="Corrupt", message="the record names no task")), keep)
    if claim.expires == LEFT_OUT:
        text = "its limit is full, and lets other jobs start"
        return Cancelled(error_json(JobError(type="Limited", message=text)), keep)
    if claim.expires and claim.expires < now:
        text = "it did not start before its time was over"
        return Cancelled(error_json(JobError(type="Expired", message=text)), keep)
    return None


# The time of its end, where a limit with full= leaves a job out: see lane_entry.lua.
LEFT_OUT = 1


def of_error(
    plan: RunPlan, claim: Claim, error: BaseException, stored_error: bytes, random: float, stopped_by: StopReason = ""
) -> Ended:
    match fate(plan.retry, claim.failures, error, stopped_by):
        case "interrupted":
            return Interrupted(stored_error, plan.failure_ttl)
        case "cancelled":
            return Cancelled(stored_error, plan.failure_ttl)
        case "retried":
            if isinstance(error, RetryAfter):
                return Retried(stored_error, microseconds(seconds(error.after, "the delay of RetryAfter")))
            return Retried(stored_error, microseconds(plan.retry.wait(claim.failures + 1, random)))
        case "failed":
            return Failed(stored_error, plan.failure_ttl)


def of_death(
    plan: RunPlan, claim: Claim, stop_reason: StopVerdict, error: JobError, random: float, why: str = TIME_OVER
) -> Ended:
    """The outcome of a start whose runner died; ``error``: how the runner died; ``why``: the reason of ``other``."""
    if stop_reason == "cancel":
        return Cancelled(cancelled(claim), plan.failure_ttl)
    if stop_reason == "hard":
        error = replace(error, type="HardTimeLimit", message="it ran past its hard time limit and was killed")
        return of_error(plan, claim, SoftTimeLimit(), error_json(error), random)
    if stop_reason == "other":
        error = replace(error, type="Interrupted", message=f"{why}: {_ONCE if claim.once else _FREE}")
        return Interrupted(error_json(error), plan.failure_ttl)
    return Crashed(error_json(error), plan.failure_ttl)


def cancelled(claim: Claim) -> bytes:
    return error_json(JobError(type="Cancelled", message="cancelled while it ran", attempt=claim.attempt))
