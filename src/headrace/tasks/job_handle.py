"""A handle on one job: what its producer, or anybody who has its id, may ask of it.

Owns no connection. Each verb has an asynchronous pair; what a reply means is decided once, in the functions below.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, Unpack, cast

from headrace.errors import JobCancelled, JobFailed, JobQuarantined, JobUnsuccessful, WaitTimeout
from headrace.model import codec, elsewhere
from headrace.model.job import JobError, State, parse_error
from headrace.model.job_record import AttemptRecord, PlainReader, Record, ValueReader
from headrace.protocol import operations, produce
from headrace.protocol.overviews import why
from headrace.protocol.produce import Watched
from headrace.protocol.script import Call
from headrace.running_job import check_wait
from headrace.settings import Duration, microseconds, patience
from headrace.store.client import Client, Steps, then, twin, verb
from headrace.store.waiting import AsyncInbox, Inbox, aask_all, ask_all, await_job, job_change, wait_job
from headrace.tasks.edited_job import JobMove, cancelled, deleted, moved, moving, not_found, retried
from headrace.tasks.reasons import PAGE, Why, explain, reason

R = TypeVar("R")

# What a record says of its task: what reads its values, and how long its failure stays, seconds.
Find: TypeAlias = Callable[[Record], tuple[ValueReader, float | None]]


class Job(Generic[R]):
    """One durable request to run a task. ``R`` is the type that the task returns.

    Attributes:
        id: 21 characters that sort by the time of the enqueue.
        task: name of its task; on a handle of ``app.job(id)`` empty until a verb has read it.
        fresh: whether the enqueue that gave this handle has stored the job; False: a job with its name or request id
            was there, or the handle is of an id that was known.
    """

    __slots__ = ("_client", "_failure_ttl", "_find", "_reader", "fresh", "id", "task")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(elsewhere.of_job(name), name=name, obj=self)

    def __init__(
        self, client: Client, id: str, task: str, reader: ValueReader | None, failure_ttl: float | None,
        find: Find | None = None, *, fresh: bool = False,
    ) -> None:  # fmt: skip
        """Use ``task.enqueue(...)``, ``app.jobs.get(id)`` or ``app.job(id)``. ``reader``: makes values of its arguments
        and result; None: ``find`` gives it, once its record is read. ``find``: gives what a record says of its task.
        """
        self.id = id
        self.task = task
        self.fresh = fresh
        self._client = client
        self._reader = reader
        self._failure_ttl = failure_ttl
        self._find = find

    @property
    def state(self) -> State:
        """Where the job is now. Raises JobNotFound: it is not stored any more. Cost: one round trip."""
        return self._state(self._client.run(self._watch()))

    async def astate(self) -> State:
        """See :attr:`state`."""
        return self._state(await self._client.arun(self._watch()))

    def refresh(self) -> Record:
        """Everything that is stored of the job. Raises JobNotFound: it is not stored any more. Cost: one round trip."""
        return self._record(self._client.run(self._read()))

    async def arefresh(self) -> Record:
        """See :meth:`refresh`."""
        return self._record(await self._client.aread(self._read()))

    def result(self, timeout: Duration | None = None, *, allow_wait: bool = False) -> R:
        """Wait until the job has ended, and return what its task returned. Does not poll.

        Args:
            timeout: the longest wait; None waits for ever, 0 only looks.
            allow_wait: wait even inside of a job, or on a running event loop.

        Raises:
            WaitRefused: it is called inside of a job, or blocks a running event loop.
            WaitTimeout: it has not ended by then; it goes on, and the text says what it waits for.
            JobFailed: it raised, or exceeded a limit; the text holds its traceback.
            JobCancelled: it was cancelled, or expired.
            JobQuarantined: it crashed too often, or cannot be read.
            JobCancelled: it is a node of a workflow that was passed over.
            JobNotFound: it is not stored: with ``result_ttl=0``, ask before it ends.
            StoreUnavailable: the server did not answer for as long as the setting ``timeout`` says.
            ClosedError: the application was closed meanwhile, or the interpreter ends.
            NotDecrypted: the result is encrypted, and this program lacks its key.
            ResultMismatch: the result does not fit the task's return annotation.

        Cost: one round trip when it has ended; four when it has not, and one more each five seconds, which all that
        the application waits for share, as they share one connection; another one for what it waits for when the
        time is over, unless the timeout is 0.
        """
        if (timeout is None or timeout) and not allow_wait:
            check_wait("result()", "await job, or job.aresult()")
        if self._reader is None:
            self.refresh()
        seen = wait_job(self._client, self.id, patience(timeout))
        if _overdue(seen) and timeout:
            raise self._late(seen, timeout, self._reason())
        return self._conclude(seen, timeout)

    async def aresult(self, timeout: Duration | None = None, *, allow_wait: bool = False) -> R:
        """See :meth:`result`. ``await job`` does the same without a time."""
        if (timeout is None or timeout) and not allow_wait:
            check_wait("aresult()")
        if self._reader is None:
            await self.arefresh()
        seen = await await_job(self._client, self.id, patience(timeout))
        if _overdue(seen) and timeout:
            raise self._late(seen, timeout, await self._areason())
        return self._conclude(seen, timeout)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    @verb
    def cancel(self) -> Steps[State]:
        """End the job if it waits; ask it to stop if it runs.

        Returns ``cancelled`` when it waited, ``running`` when it was asked to stop (a soft interruption, then a kill),
        the final state that it was in already, or ``blocked``: it is a node of a workflow that has ended or is undone,
        where it does not start. Raises JobNotFound: it is not stored any more. Cost: one round trip.
        """
        if self._reader is None:
            self._record((yield self._read()))
        ttl = self._client.settings.failure_ttl if self._failure_ttl is None else self._failure_ttl
        return cancelled(self.id, (yield produce.cancel(self._client.keys, self.id, microseconds(ttl))))

    @verb
    def retry(self) -> Steps[None]:
        """Run the finished job again, with the same arguments and fresh budgets. Raises JobNotFound: it is not stored
        any more. Raises StateError: it has not ended, or it is unique, and another job has its name. Cost: one round
        trip.
        """
        call = produce.rerun(self._client.keys, self.id, os.urandom(8).hex())
        return then(call, lambda found: retried(self.id, found))

    @verb
    def delete(self) -> Steps[None]:
        """Remove the job with all that is stored of it, unless it runs; those who wait for it hear of a cancellation.
        Raises JobNotFound: it is not stored any more. Raises StateError: it runs, or is a node of a workflow, which
        is deleted as a whole. Cost: one round trip.
        """
        return then(produce.delete(self._client.keys, self.id), lambda found: deleted(self.id, found))

    @verb
    def move(self, **changes: Unpack[JobMove]) -> Steps[State]:
        """Give the waiting job another queue, priority or time. What is not given stays; ``delay=0`` has it ready now.

        Returns:
            ``scheduled``, ``ready``, or ``blocked`` where it waits for its turn among the jobs of its key.

        Raises:
            OptionsError: nothing is given, or something out of range.
            JobNotFound: it is not stored any more.
            StateError: it runs, has ended, waits for other jobs, or would have expired by then.

        Cost: one round trip.
        """
        return then(moving(self._client.keys, self.id, changes), lambda found: moved(self.id, found))

    @verb
    def attempts(self) -> Steps[list[AttemptRecord]]:
        """The starts of the job that have ended, if the first of them did not succeed; empty for any other job. The
        first three and the last seven are kept, with those before a retry by hand, as long as the job. Raises
        JobNotFound: it is not stored any more. Cost: one round trip.
        """
        return then(self._read(), lambda found: list(self._record(found).attempts))

    @verb
    def logs(self, limit: int = 1000) -> Call[list[str]]:
        """The last lines that the job logged, at most 1,000 are kept. Cost: one round trip."""
        return operations.logs(self._client.keys, self.id, limit)

    def events(self, after: str = "") -> Generator[Record]:
        """The job as it changes: its record now, then after each change of state, start or progress, to its end.

        Starts, progress, failed starts and the end arrive at once, other changes within five seconds. Changes that
        follow each other faster than they are read are one; the newest counts, and the end is always given. Log lines
        are not in it: see :meth:`logs`.

        Args:
            after: the ``version`` of a record that is known: that one is not given again.

        Raises:
            WaitRefused: it is called inside of a job, or blocks a running event loop.
            JobNotFound: it is not stored any more.
            StoreUnavailable, ClosedError: as :meth:`result`.

        Cost: one round trip a change. All that wait share the connection that hears of ends.
        """
        check_wait("events()", "async for record in job.aevents()")
        inbox, ended = Inbox(), False
        self._client.ends.follow(self.id, job_change, inbox.ring)
        try:
            while not ended:
                inbox.get(None)
                record = self.refresh()
                if record.version != after:
                    yield record
                after, ended = record.version, record.state.final
        finally:
            self._client.ends.remove([self.id], inbox.ring)

    async def aevents(self, after: str = "") -> AsyncGenerator[Record]:
        """See :meth:`events`: ``async for record in job.aevents()``."""
        check_wait("aevents()")
        await self._client.ready()
        inbox, ended = AsyncInbox(), False
        self._client.ends.follow(self.id, job_change, inbox.ring)
        try:
            while not ended:
                await inbox.get(None)
                record = await self.arefresh()
                if record.version != after:
                    yield record
                after, ended = record.version, record.state.final
        finally:
            self._client.ends.remove([self.id], inbox.ring)

    @verb
    def why(self) -> Steps[Why]:
        """Why the job does not run, or where it runs: every reason that holds, the deciding one first. Raises
        StoreUnavailable: the server does not answer, or is loading its data. Cost: one round trip; two where it waits
        for other jobs, whose reasons are read too, or is behind others.
        """
        return explain(self._client, self.id)

    def _watch(self) -> Call[Watched]:
        return produce.watch(self._client.keys, self.id, 0, most=0)

    def _reason(self) -> str:
        if fault := self._client.ends.fault:
            return f"the server does not answer ({fault})"
        return reason(ask_all(self._client, [why(self._client.keys, self.id)])[0])

    async def _areason(self) -> str:
        if fault := self._client.ends.fault:
            return f"the server does not answer ({fault})"
        return reason((await aask_all(self._client, [why(self._client.keys, self.id)]))[0])

    def _read(self) -> Call[list[Record | None]]:
        return produce.read(self._client.keys, [self.id])

    def _state(self, seen: Watched) -> State:
        if seen.state is None:
            raise not_found(self.id, commits=self._client.deferral is not None)
        return seen.state

    def _record(self, found: list[Record | None]) -> Record:
        if found[0] is None:
            raise not_found(self.id, commits=self._client.deferral is not None)
        if self._reader is None:
            assert self._find is not None
            self.task = found[0].task
            self._reader, self._failure_ttl = self._find(found[0])
        reader = self._reader
        return found[0].read_with(lambda _task: reader)

    def _conclude(self, seen: Watched, timeout: Duration | None) -> R:
        if seen.state is None:
            raise not_found(self.id, commits=self._client.deferral is not None)
        if seen.state is State.SUCCEEDED:
            assert self._reader is not None
            return cast(R, self._value(seen.result or b"", self._reader))
        if seen.state.final:
            error, seal = parse_error(seen.error), self._client.keys.seal
            error = error if seal is None else seal.opened_error(self.id, error)
            raise unsuccessful(self.id, self.task, seen.state, error)
        raise self._late(seen, timeout, "")

    def _value(self, result: bytes, reader: ValueReader) -> Any:
        if codec.sealed_part(result) is None:
            return reader.unpack_result(result)
        # Loaded at first use: a program without encrypted jobs must not pay for it.
        from headrace.model.sealing import opened_result

        plain = opened_result(self._client.keys.seal, self.id, result)
        return (PlainReader(self.task) if plain is result else reader).unpack_result(plain)

    def _late(self, seen: Watched, timeout: Duration | None, cause: str) -> WaitTimeout:
        said = f"{cause}; " if cause else ""
        more = "" if seen.state is State.RUNNING else f" ({PAGE})"
        late = f"job {self.id} of {self.task} is {seen.state} after {patience(timeout):g} s"
        return WaitTimeout(f"{late}: {said}ask again, or cancel it{more}")

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task or '(task not read)'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    acancel = twin(cancel)
    aretry = twin(retry)
    adelete = twin(delete)
    amove = twin(move)
    aattempts = twin(attempts)
    alogs = twin(logs)
    awhy = twin(why)


def unsuccessful(id: str, task: str, state: State, error: JobError | None) -> JobUnsuccessful:
    kind, word = _ENDS[state]
    return kind(f"job {id} of {task} {word}{describe(error)}", id, error)


_ENDS: dict[State, tuple[type[JobUnsuccessful], str]] = {
    State.FAILED: (JobFailed, "failed"),
    State.CANCELLED: (JobCancelled, "was cancelled"),
    State.QUARANTINED: (JobQuarantined, "is quarantined"),
    State.SKIPPED: (JobCancelled, "was skipped: a condition or a node before it said so"),
}


def describe(error: JobError | None) -> str:
    if error is None:
        return ""
    attempt = f" at attempt {error.attempt}" if error.attempt else ""
    where = f" on {error.worker}" if error.worker else ""
    peak = None if error.peak_memory is None else f"{error.peak_memory / (1 << 20):.0f} MiB"
    known = (("ended by signal", error.signal), ("exit code", error.exit_code), ("peak memory", peak))
    facts = [f"{name} {value}" for name, value in known if value is not None]
    text = f"{attempt}{where}: {error.type}" + (f": {error.message}" if error.message else "")
    text += f" ({', '.join(facts)})" if facts else ""
    if error.stderr:
        text += f"\n\nlast lines of stderr:\n{error.stderr.rstrip()}"
    if error.traceback:
        text += f"\n\n{error.traceback.rstrip()}"
    return text


def _overdue(seen: Watched) -> bool:
    return seen.state is not None and not seen.state.final
