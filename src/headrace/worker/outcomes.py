"""How a start ended, decided in one place: by the exception that left its code, or by the death of its runner. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.context import StopReason
from headrace.errors import SoftTimeLimit
from headrace.model.ended import Cancelled, Corrupt, Crashed, Ended, Failed, Interrupted, Retried
from headrace.model.job import Claim, JobError, error_json
from headrace.model.retry import fate
from headrace.settings import microseconds
from headrace.tasks.run_plan import RunPlan

# Why the runner of a start ended: for no reason of ours, the start was cancelled, the start ran past its hard limit, or
# for another reason than this start (a mate's limit, a shutdown), which a text names.
StopVerdict = Literal["", "cancel", "hard", "other"]

TIME_OVER = "the worker stopped or reloaded, and its shutdown timeout was over"
_FREE = "it runs again, and no retry or crash is counted"
_ONCE = "it may start only once, so it failed"


def before_start(claim: Claim, now: int, keep: int) -> Ended | None:
    """How a claimed job ends that must not start: it names no task, or its time is over; None: it may start.

    ``now`` is the server's time, and ``keep`` how long the job stays, both in microseconds.
    """
    if not claim.task:
        return Corrupt(error_json(JobError(type="Corrupt", message="the record names no task")), keep)
    if claim.expires == LEFT_OUT:
        return Cancelled(error_json(JobError(type="Limited", message=_LEFT_OUT)), keep)
    if claim.expires and claim.expires < now:
        return Cancelled(error_json(JobError(type="Expired", message=_EXPIRED)), keep)
    return None


# The time of its end, where a limit with full= leaves a job out: see excess.lua.
LEFT_OUT = 1
_LEFT_OUT = "its limit is full, and lets other jobs start"
_EXPIRED = "it did not start before its time was over"


def of_error(
    plan: RunPlan, claim: Claim, error: BaseException, data: bytes, dice: float, stopped_by: StopReason = ""
) -> Ended:
    """The outcome of a start whose code raised.

    Args:
        error: the exception, or the signal that a group of exceptions carries.
        data: the exception as a stored error.
        dice: a random number from 0 to 1, for the jitter of the retry.
        stopped_by: what was stopping the start.
    """
    match fate(plan.retry, claim.failures, error, stopped_by):
        case "interrupted":
            return Interrupted(data, plan.failure_ttl)
        case "cancelled":
            return Cancelled(data, plan.failure_ttl)
        case "retried":
            return Retried(data, microseconds(plan.retry.wait(claim.failures + 1, dice)))
        case "failed":
            return Failed(data, plan.failure_ttl)


def of_death(
    plan: RunPlan, claim: Claim, stop_reason: StopVerdict, error: JobError, dice: float, why: str = TIME_OVER
) -> Ended:
    """The outcome of a start whose runner died; ``error``: how the runner died; ``why``: the reason of ``other``."""
    if stop_reason == "cancel":
        return Cancelled(cancelled(claim), plan.failure_ttl)
    if stop_reason == "hard":
        data = _told(error, "HardTimeLimit", "it ran past its hard time limit and was killed")
        return of_error(plan, claim, SoftTimeLimit(), data, dice)
    if stop_reason == "other":
        data = _told(error, "Interrupted", f"{why}: {_ONCE if claim.once else _FREE}")
        return Interrupted(data, plan.failure_ttl)
    return Crashed(error_json(error), plan.failure_ttl)


def cancelled(claim: Claim) -> bytes:
    """The stored error of a start that was cancelled."""
    return error_json(JobError(type="Cancelled", message="cancelled while it ran", attempt=claim.attempt))


def _told(error: JobError, kind: str, text: str) -> bytes:
    return error_json(msgspec.structs.replace(error, type=kind, message=text))
