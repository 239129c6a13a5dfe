"""Every error that Headrace raises: typed, and each text says what to do next.

Errors derive from :class:`HeadraceError`. The three signals that enter *user code* (a time limit, a cancellation, a
snooze) derive from ``BaseException``, so that ``except Exception`` in a job cannot swallow them.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Anything that Headrace raises on purpose."""


class SettingsError(HeadraceError):
    """A setting, flag or environment variable has a value that cannot be used."""


class UrlError(SettingsError):
    """The URL's scheme, host, database or credentials cannot be used."""


class ServerError(HeadraceError):
    """The server cannot be started, found or used."""


class ServerTooOld(ServerError):
    """The server's version is below Redis 6.2 or Valkey 7.2."""


class EvictingServer(ServerError):
    """The server may drop keys under memory pressure, and with them jobs."""


class SchemaMismatch(ServerError):
    """The keyspace was written by a newer Headrace than this one."""


class StoreUnavailable(ServerError):
    """The server did not answer within the allowed time; the call may be repeated."""


class StoreFull(ServerError):
    """The server refused a write because its memory or disk is full."""


class OptionsError(HeadraceError, ValueError):
    """A job or task option is out of range, or contradicts another."""


class ArgumentError(HeadraceError, TypeError):
    """An argument cannot be sent, or does not fit the task's annotation; names the argument and the path in it."""


class PayloadTooLarge(HeadraceError, ValueError):
    """Arguments, a result or a message exceed their cap."""


class CorruptRecord(HeadraceError):
    """A stored job cannot be read: its bytes are truncated, or not Headrace's."""


class CorruptArguments(CorruptRecord):
    """The stored arguments of a job are not the MessagePack that an enqueue writes."""


class CorruptOptions(CorruptRecord):
    """The stored options of a job are not the MessagePack that an enqueue writes."""


class UnknownTask(HeadraceError, LookupError):
    """No task of this name is defined in this application."""


class DuplicateTask(HeadraceError, ValueError):
    """Two functions were registered under one task name."""


class AppImportError(HeadraceError):
    """The application's module could not be imported, or holds no application."""


class JobNotFound(HeadraceError, LookupError):
    """No job of this id is stored: it never existed, or finished and was not kept."""


class ResultTimeout(HeadraceError, TimeoutError):
    """The job did not finish within the time that the caller was ready to wait."""


class JobStateError(HeadraceError):
    """The job's state does not allow this."""


class ResultUndecodable(HeadraceError, ValueError):
    """The stored result does not fit the task's return annotation."""


class JobUnsuccessful(HeadraceError):
    """The job ended, but has no result: see the subclasses.

    Attributes:
        id: the job's id.
        error: the stored structured error (:class:`headrace.job.JobError`), or None.
    """

    def __init__(self, text: str, id: str, error: object = None) -> None:
        super().__init__(text)
        self.id = id
        self.error = error


class JobFailed(JobUnsuccessful):
    """The job raised, exceeded a limit or lost its only start."""


class JobCancelled(JobUnsuccessful):
    """The job was cancelled or expired before it started."""


class JobQuarantined(JobUnsuccessful):
    """The job crashed its runners too often, or its record cannot be read."""


class NoCurrentJob(HeadraceError, LookupError):
    """Called outside of a running job."""


class Interrupt(BaseException):
    """Base of the signals that enter user code; ``except Exception`` does not catch them."""


class SoftTimeLimit(Interrupt):
    """Raised inside a job that exceeded its soft time limit; the hard limit follows after the grace."""


class CancelRequested(Interrupt):
    """Raised inside a running job that was cancelled."""


class Snooze(Interrupt):
    """Raised by ``current_job().snooze(delay)``: run this job again later; no attempt is burned.

    Attributes:
        delay: seconds until the next start.
    """

    def __init__(self, delay: float) -> None:
        super().__init__(delay)
        self.delay = delay
