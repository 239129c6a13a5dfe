"""An outbox: envelopes of jobs in a table of the user's database, written by the transaction that wants the jobs.

No cursor: rows are deleted, so one whose transaction commits late is not passed over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.app import Headrace
from headrace.errors import DuplicateJob, EnvelopeError, HeadraceError, LaneFull, OptionsError
from headrace.tasks.deferral import Pending, PendingJobs
from headrace.tasks.envelope import packed

if TYPE_CHECKING:
    from headrace.model.sealing import Seal

log = logging.getLogger("headrace")

TABLE = "headrace_outbox"
BATCH = 500  # rows that a relay holds at once: one round trip stores their jobs
# Seconds between two looks at an empty table: the first, and the longest.
SHORTEST, LONGEST = 0.2, 5.0

INSERT = f"INSERT INTO {TABLE} (id, envelope, tries) VALUES (?, ?, 0)"  # noqa: S608 - a constant
_TAKE = f"SELECT id, envelope FROM {TABLE} WHERE error IS NULL ORDER BY id LIMIT {BATCH}"  # noqa: S608
_REFUSE = f"UPDATE {TABLE} SET tries = tries + 1, error = ? WHERE id = ?"  # noqa: S608
_REFUSED = f"SELECT id, tries, error FROM {TABLE} WHERE error IS NOT NULL ORDER BY id LIMIT {BATCH}"  # noqa: S608
_AGAIN = f"UPDATE {TABLE} SET error = NULL WHERE error IS NOT NULL"  # noqa: S608
_COUNT = f"SELECT COUNT(*) FROM {TABLE} WHERE error IS NULL"  # noqa: S608
# How a transaction begins that nothing of another is held up by. MySQL would lock the place behind the last row, too.
_BEGIN = {
    "sqlite": ["BEGIN IMMEDIATE"],
    "mysql": ["SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"],
    "mariadb": ["SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"],
}


class OutboxTable(Protocol):
    """The table, over one connection in autocommit mode, which is made anew when it was closed. ``dialect``:
    postgresql, mysql, mariadb or sqlite. ``errors``: what the database raises.
    """

    dialect: str
    errors: tuple[type[Exception], ...]

    def run(self, statement: str, values: Sequence[Any] = (), /) -> list[tuple[Any, ...]]: ...

    def close(self) -> None:
        """Close the connection; a transaction that is open there is rolled back."""
        ...


def keep(work: Pending, seal: Seal | None) -> None:
    """Have an outbox keep jobs: pack them, to be stored by id from now on. Raises OptionsError: these are no jobs."""
    if not isinstance(work, PendingJobs):
        raise OptionsError(
            f"an outbox keeps jobs, not {work.about}: enqueue a job that does it, or say after_commit=True"
        )
    rows = list(zip(work.rows, work.requests or [""] * len(work.rows), strict=True))
    work.kept = [(row.id, packed(row.id, row.args, row.form, request, row.name, seal)) for row, request in rows]
    work.requests = [request or row.id for row, request in rows]


def rows_of(works: Sequence[Pending]) -> list[tuple[str, bytes]]:
    """Id and envelope of the jobs that an outbox keeps."""
    return [row for work in works if isinstance(work, PendingJobs) for row in work.kept]


def ids_stored_by_producer(works: Sequence[Pending]) -> list[str]:
    return [id for work in works if isinstance(work, PendingJobs) and work.stored for id, _ in work.kept]


def deletion(count: int) -> str:
    return f"DELETE FROM {TABLE} WHERE id IN ({', '.join('?' * count)})"  # noqa: S608


class Relay:
    """Stores the jobs of one table."""

    def __init__(self, app: Headrace, table: OutboxTable) -> None:
        self._app = app
        self._table = table
        self._away = False

    def run(self, stop: threading.Event, *, once: bool = False) -> int:
        """Store what is there, until ``stop`` is set; how many rows were handed over. What the database or the server
        refuses is logged once, and tried again. ``once``: end when the table holds no more, and raise what is refused.
        """
        handed, pause = 0, SHORTEST
        refused: tuple[type[Exception], ...] = (HeadraceError, *self._table.errors)
        try:
            while not stop.is_set():
                try:
                    count = self.step()
                except refused as error:
                    if once:
                        raise
                    if not self._away:
                        log.warning("the outbox waits, since it cannot be handed over: %s", error)
                    self._away, count, pause = True, 0, LONGEST
                else:
                    if self._away:
                        log.warning("the outbox is handed over again")
                    self._away = False
                handed += count
                if count:
                    pause = SHORTEST
                elif once:
                    break
                else:
                    stop.wait(pause)
                    pause = min(LONGEST, pause * 1.5)
        finally:
            self._table.close()
        return handed

    def step(self) -> int:
        """Take rows, store their jobs, delete them; how many. Where a database or server raises, no row has changed."""
        table = self._table
        try:
            for statement in _BEGIN.get(table.dialect, ["BEGIN"]):
                table.run(statement)
            rows = table.run(_TAKE + ("" if table.dialect == "sqlite" else " FOR UPDATE SKIP LOCKED"))
            refused = self._store({str(id): bytes(envelope) for id, envelope in rows})
            for id, why in refused.items():
                log.error("the outbox keeps job %s, which cannot be stored: %s", id, why)
                table.run(_REFUSE, (why[:1000], id))
            done = [id for id, _ in rows if id not in refused]
            if done:
                table.run(deletion(len(done)), done)
            table.run("COMMIT")
        except BaseException:
            table.close()
            raise
        return len(rows)

    def _store(self, left: dict[str, bytes]) -> dict[str, str]:
        """Store jobs by id; why some cannot be."""
        refused: dict[str, str] = {}
        while left:
            try:
                self._app.enqueue_packed(left.values())
            except EnvelopeError as error:
                id = list(left)[error.row]
                refused[id] = str(error)
                del left[id]
            except (DuplicateJob, LaneFull) as error:
                if len(left) == 1:
                    return refused | dict.fromkeys(left, str(error))
                # One job that is refused keeps the others of its chunk from being stored.
                for id, envelope in left.items():
                    refused |= self._store({id: envelope})
                return refused
            else:
                break
        return refused

    def waiting(self) -> int:
        return int(self._ask(_COUNT)[0][0])

    def refused(self) -> list[tuple[str, int, str]]:
        """Rows that are kept since their jobs cannot be stored: id, tries, why. At most 500."""
        return [(str(id), int(tries), str(error)) for id, tries, error in self._ask(_REFUSED)]

    def retry(self) -> None:
        """Have the next step try the refused ones again."""
        self._ask(_AGAIN)

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            return self._table.run(statement)
        finally:
            self._table.close()
