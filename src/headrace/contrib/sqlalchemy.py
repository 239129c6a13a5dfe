"""Transactions of SQLAlchemy, for an application: jobs wait for the commit of a session.

    from headrace.contrib import sqlalchemy
    sqlalchemy.install(app, engine)

    with Session(engine) as session, session.begin():
        session.add(order)
        invoice.options(after_commit=session).enqueue(order.id)

Needs ``pip install 'headrace[sqlalchemy]'``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from headrace.app import Headrace
from headrace.contrib.outbox import BATCH, TABLE, ids_stored_by_producer, keep, rows_of
from headrace.errors import MissingExtra, OptionsError
from headrace.store.client import Client
from headrace.tasks.deferral import Pending, asend, send

try:
    import sqlalchemy
except ImportError:
    raise MissingExtra("this needs SQLAlchemy: pip install 'headrace[sqlalchemy]'") from None

from sqlalchemy import Column, Engine, Integer, LargeBinary, MetaData, String, Table, Text, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.util import await_only

log = logging.getLogger("headrace")

MOST_BYTES = (1 << 24) - 1  # an envelope takes less: MySQL chooses the type by the length


class OutboxWish(msgspec.Struct, frozen=True):
    """``after_commit=outbox(session)``."""

    session: Any


def outbox(session: Any) -> OutboxWish:
    """``task.options(after_commit=outbox(session))``: the transaction of the session also writes the job into a table.
    See :func:`outbox_table`. What a program does not send after the commit, ``headrace outbox relay`` does.
    """
    return OutboxWish(session)


def outbox_table(metadata: MetaData) -> Table:
    """The table of the outbox, for ``metadata.create_all`` or a migration."""
    return Table(
        TABLE,
        metadata,
        Column("id", String(32), primary_key=True),
        Column("envelope", LargeBinary(MOST_BYTES), nullable=False),
        Column("tries", Integer, nullable=False, default=0),
        Column("error", Text),
    )


def install(
    app: Headrace, *engines: Any, session: Callable[[], Any] | None = None, after_commit: bool | str = True
) -> None:
    """Tie an application to sessions of SQLAlchemy, once, where the application is made.

    A job with ``after_commit=session`` waits for the commit of that session's outermost transaction; one of an
    ``AsyncSession`` is awaited by its commit. Where ``session`` is given, jobs that do not say wait for that one's.
    Raises OptionsError: ``after_commit`` has another value, or an engine is none.

    Args:
        engines: whose connections no forked process may use: their pools begin anew there. The first is that of the
            relay of an outbox. Engines of asyncio are fine.
        session: gives the session of the running code or None, such as a ``scoped_session``.
        after_commit: what tasks and calls mean that do not say: True: the transaction of ``session``; ``outbox``:
            and its outbox; False: work is sent at once.
    """
    if after_commit not in (True, False, "outbox"):
        raise OptionsError(f"after_commit={after_commit!r:.80} must be True, False or 'outbox'")
    found: list[Any] = [getattr(engine, "sync_engine", engine) for engine in engines]
    if wrong := [engine for engine in found if not isinstance(engine, Engine)]:
        raise OptionsError(f"install takes engines of SQLAlchemy, not {wrong[0]!r:.80}")
    app.client.deferral = SessionDeferral(app.client, engines, session, after_commit)

    def begin_anew() -> None:
        for engine in found:
            # Not closed: the sockets are the parent's, too.
            engine.dispose(close=False)

    app.after_fork_child(begin_anew)


class SessionDeferral:
    """The transactions of sessions; see :class:`headrace.tasks.deferral.Deferral`."""

    def __init__(
        self, client: Client, engines: Sequence[Any], ambient: Callable[[], Any] | None, after_commit: bool | str
    ) -> None:
        self._client = client
        self._engines = engines
        self._ambient = ambient
        self._default = after_commit

    def transaction(self, wish: Any, /) -> SessionWorks | OutboxWorks | None:
        given = self._default if wish is None else wish
        into_outbox = given == "outbox" or isinstance(given, OutboxWish)
        if given is False:
            return None
        if isinstance(given, OutboxWish):
            given = given.session
        elif isinstance(given, str) and given != "outbox":
            raise OptionsError(f"after_commit={given!r:.80} is not a session, True, False or 'outbox'")
        if given is True or given == "outbox":
            if self._ambient is None and wish is not None:
                raise OptionsError(
                    f"after_commit={wish!r} does not say which session is meant: give the session, or tell "
                    f"sqlalchemy.install(app, session=...) where to find it"
                )
            given = None if self._ambient is None else self._ambient()
        session = _session_of(given)
        if session is None or not session.in_transaction():
            return None
        works: SessionWorks = session.info.get(self) or SessionWorks(self, self._client, session)
        return OutboxWorks(works) if into_outbox else works

    def outbox(self, database: str | None, /) -> EngineOutbox:
        engine = sqlalchemy.create_engine(database) if database else next(iter(self._engines), None)
        if not isinstance(engine, Engine):
            raise OptionsError(
                "the relay needs an engine that is not asynchronous: sqlalchemy.install(app, engine), or --database "
                "with a URL of SQLAlchemy"
            )
        return EngineOutbox(engine)

    def in_test(self) -> AbstractContextManager[object]:
        """See :class:`headrace.tasks.deferral.Deferral`; a session in a test's transaction commits as ever."""
        return nullcontext()


def _session_of(given: Any) -> Session | None:
    if given is None:
        return None
    if callable(given) and not isinstance(given, Session):  # a scoped_session
        given = given()
    given = getattr(given, "sync_session", given)
    if not isinstance(given, Session):
        raise OptionsError(f"after_commit takes a session, True, False or 'outbox', not {given!r:.80}")
    return given


class SessionWorks:
    """What waits for the transactions of one session: a session has at most one."""

    def __init__(self, deferral: SessionDeferral, client: Client, session: Session) -> None:
        self._client = client
        self.seal = client.keys.seal
        self._session = session
        self._works: dict[SessionTransaction, list[Pending]] = {}
        self._committed: set[SessionTransaction] = set()
        session.info[deferral] = self
        event.listen(session, "before_commit", self._before_commit)
        event.listen(session, "after_commit", self._after_commit)
        event.listen(session, "after_transaction_end", self._after_end)

    def add(self, work: Pending, /) -> None:
        self._works.setdefault(self._innermost(), []).append(work)

    def _innermost(self) -> SessionTransaction:
        found = self._session.get_nested_transaction() or self._session.get_transaction()
        assert found is not None
        return found

    def _before_commit(self, session: Session) -> None:
        """Write what an outbox keeps, once it is known that no savepoint drops it. Raises: as the database does."""
        if session.get_nested_transaction() is not None:
            return
        works = self._works.get(self._innermost(), [])
        rows = [{"id": id, "envelope": envelope, "tries": 0} for id, envelope in rows_of(works)]
        if rows:
            session.execute(sqlalchemy.insert(_TABLE), rows)

    def _after_commit(self, session: Session) -> None:  # noqa: ARG002 - of the event
        # It is called for a savepoint that is released, too.
        self._committed.add(self._innermost())

    def _after_end(self, session: Session, transaction: SessionTransaction) -> None:
        works, committed = self._works.pop(transaction, []), transaction in self._committed
        self._committed.discard(transaction)
        if not committed or not works:
            return
        if transaction.parent is not None:
            self._works.setdefault(transaction.parent, []).extend(works)
            return
        if _in_greenlet():
            await_only(asend(self._client, works))
        else:
            send(self._client, works)
        if ids := ids_stored_by_producer(works):
            _delete(session.get_bind().engine, ids)


class OutboxWorks:
    """The same, for work that an outbox keeps."""

    def __init__(self, works: SessionWorks) -> None:
        self._works = works

    def add(self, work: Pending, /) -> None:
        # Packed here, where the caller hears of what cannot be.
        keep(work, self._works.seal)
        self._works.add(work)


_TABLE = outbox_table(MetaData())


def _in_greenlet() -> bool:
    greenlet = sys.modules.get("greenlet")
    return greenlet is not None and bool(getattr(greenlet.getcurrent(), "__sqlalchemy_greenlet_provider__", False))


def _delete(engine: Engine, ids: list[str]) -> None:
    try:
        with engine.begin() as connection:
            for first in range(0, len(ids), BATCH):
                connection.execute(sqlalchemy.delete(_TABLE).where(_TABLE.c.id.in_(ids[first : first + BATCH])))
    except SQLAlchemyError as error:
        # Their jobs are stored: a relay finds that out.
        log.warning("the outbox keeps %d rows whose jobs are stored: %s", len(ids), error)


class EngineOutbox:
    """The table of an outbox over a connection of an engine; see :class:`headrace.contrib.outbox.OutboxTable`."""

    def __init__(self, engine: Engine) -> None:
        self.dialect = engine.dialect.name
        self.errors: tuple[type[Exception], ...] = (SQLAlchemyError,)
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._connection: Any = None

    def run(self, statement: str, values: Sequence[Any] = (), /) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = self._engine.connect()
        for number in range(len(values)):
            statement = statement.replace("?", f":v{number}", 1)
        named = {f"v{number}": value for number, value in enumerate(values)}
        result = self._connection.execute(sqlalchemy.text(statement), named)
        return [tuple(row) for row in result] if result.returns_rows else []

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()
