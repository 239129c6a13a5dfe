"""Work that waits until a transaction of a database has been committed.

Knows no database. Loaded at first use: a program without transactions must not pay for it.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import msgspec

from headrace.errors import DuplicateJob, JobNotFound, LaneFull, StoreUnavailable
from headrace.model.form import NewJob
from headrace.protocol.durability import Confirmer, Wishes
from headrace.protocol.produce import CHUNK
from headrace.store.client import Client, Steps, adriven, driven

log = logging.getLogger("headrace")

# Bytes of arguments that one round trip takes, as of a chunk of enqueue_many.
MOST_BYTES = 1 << 20


class PendingJobs(msgspec.Struct):
    """Jobs of one call.

    Attributes:
        requests: as :meth:`headrace.store.client.Client.submit` takes them.
        asked: how safe they are to be when they are stored.
        kept: their rows in an outbox, id and envelope: a relay stores them if that fails here.
        stored: whether the store has them.
    """

    rows: list[NewJob]
    requests: Sequence[str] = ()
    asked: Wishes = None
    kept: Sequence[tuple[str, bytes]] = ()
    stored: bool = False


class PendingAct(msgspec.Struct):
    """What is not a list of jobs: a broadcast, a workflow that is created or started.

    Attributes:
        about: names it in a log.
        steps: what stores it; not begun.
        done: called with what the steps have returned.
    """

    about: str
    steps: Steps[Any]
    done: Callable[[Any], object] | None = None


Pending: TypeAlias = PendingJobs | PendingAct


class Transaction(Protocol):
    """An open transaction of a database."""

    def add(self, work: Pending, /) -> None:
        """Keep work until the outermost commit; a savepoint's rollback drops it. Raises OptionsError: no outbox can."""
        ...


class Deferral(Protocol):
    """A tie to a database: ``app.client.deferral``."""

    def transaction(self, wish: Any, /) -> Transaction | None:
        """The open transaction that work waits for; None: there is none, so work is sent at once. ``wish``: the option
        ``after_commit`` of the call or its task, not False; None: as the application says. Raises OptionsError: no
        transaction can be meant by it.
        """
        ...

    def outbox(self, database: str | None, /) -> Any:
        """The table of the outbox, for its relay: a :class:`headrace.contrib.outbox.OutboxTable`."""
        ...

    def in_test(self) -> AbstractContextManager[object]:
        """For the test kit: what a test leaves open is not a transaction of the user."""
        ...


def grouped_by_trip(works: Sequence[Pending]) -> list[list[Pending]]:
    groups: list[list[Pending]] = []
    count = size = 0
    for work in works:
        rows = work.rows if isinstance(work, PendingJobs) else []
        last = groups[-1][-1] if groups else None
        count, size = count + len(rows), size + sum(len(row.args) for row in rows)
        fits = count <= CHUNK and size <= MOST_BYTES
        if isinstance(last, PendingJobs) and isinstance(work, PendingJobs) and last.asked == work.asked and fits:
            groups[-1].append(work)
        else:
            groups.append([work])
            count, size = len(rows), sum(len(row.args) for row in rows)
    return groups


def send(client: Client, works: Sequence[Pending]) -> None:
    """Store what a committed transaction had. Raises nothing but what stops the program."""

    def do(group: list[Pending]) -> Any:
        first = group[0]
        if isinstance(first, PendingAct):
            return client.drive(first.steps)
        return client.submit(*_jobs(group), Confirmer(first.asked) if first.asked else None)

    driven(_sending(works), do)


async def asend(client: Client, works: Sequence[Pending]) -> None:
    async def do(group: list[Pending]) -> Any:
        first = group[0]
        if isinstance(first, PendingAct):
            return await client.adrive(first.steps)
        return await client.asubmit(*_jobs(group), Confirmer(first.asked) if first.asked else None)

    await adriven(_sending(works), do)


def _jobs(group: list[Pending]) -> tuple[list[NewJob], Sequence[str]]:
    rows: list[NewJob] = []
    requests: list[str] = []
    for work in group:
        if isinstance(work, PendingJobs):
            rows += work.rows
            requests += work.requests or [""] * len(work.rows)
    return rows, requests if any(requests) else ()


def _sending(works: Sequence[Pending]) -> Generator[list[Pending], Any, None]:
    groups = grouped_by_trip(works)
    while groups:
        group = groups[0]
        try:
            value = yield group
        except (DuplicateJob, JobNotFound, LaneFull) as error:
            # Nothing of the group was stored, and one refused job must not keep the others from it.
            groups[:1] = [[one] for one in group] if len(group) > 1 else []
            _lost(group if len(group) == 1 else (), error)
            continue
        except BaseException as error:
            # A server that is away for one is away for all, and each would wait for it in turn.
            away = isinstance(error, StoreUnavailable) or not isinstance(error, Exception)
            for lost in groups if away else groups[:1]:
                _lost(lost, error)
            if not isinstance(error, Exception):
                raise
            groups = [] if away else groups[1:]
            continue
        del groups[0]
        for one in group:
            if isinstance(one, PendingJobs):
                one.stored = True
            elif one.done is not None:
                one.done(value)


def _lost(group: Sequence[Pending], error: BaseException) -> None:
    why = f"{type(error).__name__}: {error}"
    for work in group:
        if isinstance(work, PendingAct):
            log.error("a transaction was committed, and %s was not stored (%s)", work.about, why)
        elif work.kept:
            log.warning("a transaction was committed; the outbox keeps its %d jobs (%s)", len(work.rows), why)
        else:
            for row, request_id in zip(work.rows, work.requests or [""] * len(work.rows), strict=True):
                log.error(
                    "a transaction was committed, and job %s of %s was not stored (%s); %s",
                    row.id, row.form.task, why, _envelope(row, request_id),
                )  # fmt: skip


def _envelope(row: NewJob, request_id: str) -> str:
    from headrace.tasks.envelope import packed

    if row.form.secrets:
        return "it has secret arguments, so its envelope is not shown"
    if row.form.after:
        return f"no envelope has a job that follows others; it was to follow {row.form.after}"
    return f"envelope: {base64.b64encode(packed(row.id, row.args, row.form, request_id, row.name)).decode()}"
