"""Every error that Headrace raises: typed, and each text says what to do next.

Errors derive from :class:`HeadraceError`. The signals that enter *user code* (a time limit, a cancellation, an
interruption) or leave it (a snooze, a refused call) derive from ``BaseException``, so that ``except Exception`` in a
job cannot swallow them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta


class HeadraceError(Exception):
    """Anything that Headrace raises on purpose."""


class SettingsError(HeadraceError):
    """A setting, flag or environment variable has a value that cannot be used."""


class UrlError(SettingsError):
    """The URL's scheme, host, database or credentials cannot be used."""


class ServerError(HeadraceError):
    """The server cannot be started, found or used."""


class EvictingServer(ServerError):
    """The server may drop keys under memory pressure, and with them jobs."""


class SchemaMismatch(ServerError):
    """The keyspace has another layout than this Headrace works on, or is on its way from one to another."""


class MigrationRefused(HeadraceError):
    """The store cannot be migrated now: workers run, another migration is at it, or workflows have not ended."""


class StoreUnavailable(ServerError):
    """The server did not answer within the allowed time, or no connection was free in it; the call may be repeated."""


class ShardAway(StoreUnavailable):
    """Another shard may take the job: its own did nothing. Verbs do not raise it."""


class StoreFull(ServerError):
    """The server refused a write because its memory or disk is full."""


class NotConfirmed(ServerError):
    """The server stored work, and not as many copies as its ``durability`` asks for confirmed it in time.

    The work runs, unless a failover loses it. A repeat by the same ``request_id``, or of the same ``task.job(...)``,
    stores nothing twice and waits again.

    Attributes:
        ids: of the jobs or of the workflow.
    """

    def __init__(self, text: str, ids: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.ids = ids


class BrokerUnavailable(ServerError):
    """The message broker of the statistics cannot be used, or did not answer in time; counts wait in the program."""


class OptionsError(HeadraceError, ValueError):
    """An option of a job, task, schedule, limit, count or picture cannot be used, contradicts another, or is taken."""


class ArgumentError(HeadraceError, TypeError):
    """An argument or result cannot be sent, or does not fit the task's annotation; names it and the path in it."""


class PayloadTooLarge(HeadraceError, ValueError):
    """Arguments, a result or a message exceed their cap."""


class FrozenValue(HeadraceError, TypeError):
    """A value from the cache was to be changed in place; it is shared, so a copy must be changed and stored."""


class CorruptRecord(HeadraceError):
    """The record, arguments, options or headers of a stored job are not what an enqueue writes."""


class BadSignature(CorruptRecord):
    """A job has no signature, or one that no key of the setting ``signing_keys`` made for it; it does not run."""


class NotDecrypted(CorruptRecord):
    """What is stored of a job is encrypted, and cannot be read here: a key is missing, or a program has changed it."""


class EnvelopeError(HeadraceError, ValueError):
    """A packed job cannot be stored: not an envelope, or it asks for what cannot be; ``row`` is its place, from 0."""

    def __init__(self, text: str, row: int) -> None:
        super().__init__(text)
        self.row = row


class DuplicateJob(HeadraceError):
    """Another job holds the name of a unique one with ``clash="raise"``; nothing of this call is stored.

    Attributes:
        id: of the job that holds the name.
        job: of the one that was not stored.
    """

    def __init__(self, text: str, id: str = "", job: str = "") -> None:
        super().__init__(text)
        self.id, self.job = id, job


class StateError(HeadraceError, RuntimeError):
    """The state of the job or workflow does not allow this, or a limit is in use: code that runs declares it."""


class WaitTimeout(HeadraceError, TimeoutError):
    """A job, workflow, limit or call of a pool was not ready in time. Jobs go on; a call not begun never runs."""


class LaneFull(HeadraceError, RuntimeError):
    """As many jobs wait for a value of a limit as its ``backlog`` lets wait. None of the call was stored.

    Attributes:
        limit, backlog, waiting: name of the limit, the most that may wait, how many do.
    """

    def __init__(self, limit: str, backlog: int, waiting: int) -> None:
        super().__init__(
            f"{waiting:,} jobs wait for one value of limit {limit}, and its backlog is {backlog:,}: enqueue fewer"
        )
        self.limit = limit
        self.backlog = backlog
        self.waiting = waiting

    def __reduce__(self) -> tuple[object, ...]:
        return LaneFull, (self.limit, self.backlog, self.waiting)


class AppImportError(HeadraceError):
    """The application's module could not be imported, holds no application, or a step of its warm-up failed."""


class LifespanError(HeadraceError):
    """A lifespan could not be entered in a runner, which takes no job and is replaced; the cause is what it raised."""


class NotFound(HeadraceError, LookupError):
    """No schedule, limit, live worker or node of a workflow has this name; nodes: or several have."""


class JobNotFound(NotFound):
    """No job of this id is stored: it never existed, is kept no longer, or the server lost it."""


class WorkflowNotFound(NotFound):
    """No workflow of this id is stored: it never existed, was deleted, is kept no longer, or the server lost it."""


class ResultMismatch(HeadraceError, TypeError):
    """What a task returned, or the stored result, does not fit the return annotation of the task."""


class JobUnsuccessful(HeadraceError):
    """The job ended, but has no result: see the subclasses.

    Attributes:
        id: the job's id.
        error: the stored structured error (:class:`headrace.model.job.JobError`), or None.
    """

    def __init__(self, text: str, id: str, error: object = None) -> None:
        super().__init__(text)
        self.id = id
        self.error = error


class JobFailed(JobUnsuccessful):
    """The job raised, exceeded a limit or lost its only start."""


class JobCancelled(JobUnsuccessful):
    """The job was cancelled, expired before it started, or is a node that its workflow passed over."""


class JobQuarantined(JobUnsuccessful):
    """The job crashed its runners too often, or its record cannot be read."""


class WaitRefused(HeadraceError):
    """A wait for a job or workflow would hold up a runner, an event loop or a worker's start; see the text."""


class ClosedError(HeadraceError, RuntimeError):
    """The application or pool was closed, or belongs to the parent of this process, or the interpreter ends."""


class NoCurrentJob(HeadraceError, LookupError):
    """Called outside of a running job, or for its workflow in a job that is not a node of one."""


class WorkflowError(HeadraceError, ValueError):
    """A workflow's definition cannot be stored: the text says what is wrong with it, and names the nodes."""


class MissingExtra(HeadraceError, ImportError):
    """This needs an optional part of Headrace that is not installed; the text has the command that installs it."""


class PoolFull(HeadraceError):
    """As many calls wait in the pool as its ``backlog`` allows, or no member is free for a call that does not wait."""


class PoolBroken(HeadraceError, RuntimeError):
    """The members of a pool keep dying, or one died where none was allowed to; the text names the last reason."""


class MemberDied(HeadraceError, RuntimeError):
    """The member that ran this call is gone: it may have had effects, and has no result.

    Attributes:
        member: the member's id.
        reason: what ended it, such as ``signal 9`` or ``exit code 3``.
    """

    def __init__(self, text: str, member: int, reason: str) -> None:
        super().__init__(text)
        self.member = member
        self.reason = reason


class Interrupt(BaseException):
    """Base of the signals that enter user code; ``except Exception`` does not catch them."""


class SoftTimeLimit(Interrupt):
    """Raised inside a job that exceeded its soft time limit; the hard limit follows after ``kill_timeout``."""


class JobInterrupted(Interrupt):
    """Raised inside a running job when its worker's ``shutdown_timeout`` is nearly over; the kill follows.

    The job goes back to its queue when it ends, and uses up no retry, whatever its code raises while it cleans up. A
    job that can stop anywhere may raise it by itself once ``current_job().stopping`` is set.
    """


class CancelRequested(Interrupt):
    """Raised inside a running job that was cancelled."""


class RateLimited(Interrupt):
    """Raised by a job whose call was refused as too frequent: ``raise RateLimited("account", after=30)``.

    The job returns to the head of its line, without using up a retry, and nothing passes the limit, for the value of
    this job, until ``after`` is over.

    Attributes:
        limit: name of one of the job's limits.
        after: seconds or a timedelta. None or 0: a second, twice as long each time, up to five minutes; a job that
            succeeds meanwhile begins anew with a second.
    """

    def __init__(self, limit: object, after: float | timedelta | None = None) -> None:
        """``limit`` is what ``app.limit`` returned, or its name."""
        name = getattr(limit, "name", limit)
        super().__init__(name, after)
        self.limit, self.after = str(name), after


class RetryAfter(Interrupt):
    """Raised by a job that is to run again ``after`` seconds: ``raise RetryAfter(30) from error``.

    It uses up a retry, as any error does; the job fails with it when none is left. The delay is as given, whatever
    ``Retry`` says: without jitter. ``except Exception`` does not catch it.

    Attributes:
        after: seconds or a timedelta.
    """

    def __init__(self, after: float | timedelta) -> None:
        super().__init__(after)
        self.after = after

    def __str__(self) -> str:
        return f"run again after {self.after}{' s' if isinstance(self.after, (int, float)) else ''}"


class Snooze(Interrupt):
    """Raised by ``current_job().snooze(delay)``: run this job again ``delay`` seconds later; no attempt is burned."""

    def __init__(self, delay: float) -> None:
        super().__init__(delay)
        self.delay = delay
