"""Headrace in a Django project: add ``headrace.contrib.django`` to ``INSTALLED_APPS``, and register tasks with ``app``.

    # shop/tasks.py
    from headrace.contrib.django import app

    @app.task
    def invoice(order_id: int) -> None: ...

``HEADRACE = {"URL": "redis://…"}`` in the settings gives what the environment does not; its keys are the settings of
Headrace in capital letters, and ``AFTER_COMMIT``. Jobs wait for a commit, and no job inherits a connection; ``install``
ties another application to Django. ``apps.py`` imports the tasks. Needs ``pip install 'headrace[django]'``.
"""

# Django has no types.
# pyright: basic

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from headrace.app import Headrace
from headrace.contrib.outbox import BATCH, INSERT, deletion, ids_stored_by_producer, keep, rows_of
from headrace.errors import Interrupt, MissingExtra, OptionsError, SettingsError
from headrace.model.retry import signal_in
from headrace.store.client import Client
from headrace.tasks.deferral import Pending, send

try:
    import django
except ImportError:
    raise MissingExtra("this needs Django: pip install 'headrace[django]'") from None

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.db import Error, connections, reset_queries
from django.db.transaction import Atomic

log = logging.getLogger("headrace")

DEFAULT = "default"
OUTBOX = "outbox"


def install(app: Headrace, *, after_commit: bool | str = True) -> None:
    """Tie an application to the databases of this Django project. Call it once for each application of your own.

    Work that is stored in an open ``atomic`` block is sent after its commit. Jobs run between two cleanings of the
    connections of their thread, and no connection crosses a fork. ``after_commit``: what tasks and calls mean that do
    not say: True, the database ``default``; the alias of another; ``outbox`` or ``outbox:ALIAS``, the outbox there;
    False: work is sent at once. Raises OptionsError: there is no such database. Cost: no round trip.
    """
    deferral = DatabaseDeferral(app.client, after_commit)
    deferral.meant(after_commit)
    app.client.deferral = deferral
    app.middleware(lambda _: JobConnections())
    app.before_fork(_close_all)
    app.on_exit(_close_all)


def _close_all() -> None:
    for connection in connections.all(initialized_only=True):
        connection.close()
        if getattr(connection, "pool", None) is not None:
            connection.close_pool()


class DatabaseDeferral:
    """The transactions of Django's connections; see :class:`headrace.tasks.deferral.Deferral`."""

    def __init__(self, client: Client, after_commit: bool | str) -> None:
        self._client = client
        self._default = after_commit
        self._in_test = False

    def meant(self, wish: Any) -> tuple[str, bool]:
        """The alias that ``after_commit`` means, or none; whether its outbox. Raises OptionsError: no such database."""
        wish = self._default if wish is None else wish
        if isinstance(wish, bool):
            return DEFAULT if wish else "", False
        word, _, alias = str(wish).partition(":")
        if word == OUTBOX:
            return self.meant(alias or True)[0], True
        known: Any = connections.settings
        if wish not in known:
            names = ", ".join(known)
            raise OptionsError(
                f"after_commit={wish!r:.80} is not an alias of a database: there are {names}, True and False"
            )
        return str(wish), False

    def transaction(self, wish: Any, /) -> DatabaseTransaction | None:
        alias, into_outbox = self.meant(wish)
        if not alias or not self._is_open(connections[alias]):
            return None
        return DatabaseTransaction(self._client, connections[alias], into_outbox)

    def outbox(self, database: str | None, /) -> ConnectionOutbox:
        alias, _ = self.meant(database or True)
        return ConnectionOutbox(connections[alias])

    def _is_open(self, connection: Any) -> bool:
        if not self._in_test:
            return bool(connection.in_atomic_block)
        # Those of a TestCase stay open until its test has ended.
        return any(not block._from_testcase for block in connection.atomic_blocks)  # noqa: SLF001 - Django has no other

    @contextmanager
    def in_test(self) -> Generator[None]:
        """Work waits for the end of the user's outermost block, though the one of a ``TestCase`` is never committed."""
        atomic: Any = Atomic
        before = atomic.__exit__

        def leave(block: Any, *error: Any) -> None:
            before(block, *error)
            connection: Any = connections[block.using or DEFAULT]
            if connection.in_atomic_block and not self._is_open(connection):
                ours = [hook for hook in connection.run_on_commit if isinstance(hook[1], CommitHook)]
                connection.run_on_commit = [hook for hook in connection.run_on_commit if hook not in ours]
                for _, hook, _ in ours if error[0] is None else ():
                    hook()

        self._in_test = True
        atomic.__exit__ = leave
        try:
            yield
        finally:
            self._in_test = False
            atomic.__exit__ = before


class DatabaseTransaction:
    """The open transaction of one connection."""

    def __init__(self, client: Client, connection: Any, into_outbox: bool) -> None:
        self._client = client
        self._connection = connection
        self._into_outbox = into_outbox

    def add(self, work: Pending, /) -> None:
        if self._into_outbox:
            keep(work, self._client.keys.seal)
            with self._connection.cursor() as cursor:
                cursor.executemany(INSERT.replace("?", "%s"), rows_of([work]))
        hooks: list[Any] = self._connection.run_on_commit
        last = next((hook[1] for hook in reversed(hooks) if isinstance(hook[1], CommitHook)), None)
        batch = (
            last.batch
            if last is not None and last.batch.client is self._client
            else CommitBatch(self._client, self._connection)
        )
        batch.hooks += 1
        self._connection.on_commit(CommitHook(batch, batch.hooks, work), robust=True)
        # Of no savepoint: what is left when the outermost block ends is sent together, behind the last of these.
        self._connection.run_on_commit.append((set(), CommitHook(batch, batch.hooks), True))


class CommitBatch:
    """What one transaction sends.

    Attributes:
        client: of its application.
        connection: whose transaction it is.
        committed: work whose savepoints were all released, from the commit until it is sent.
        hooks: number of its newest hook.
    """

    def __init__(self, client: Client, connection: Any) -> None:
        self.client = client
        self.connection = connection
        self.committed: list[Pending] = []
        self.hooks = 0


class CommitHook:
    """Called by Django after a commit: for work that was not rolled back, and behind the last of it, to send all.

    Django drops those of a savepoint that is rolled back, and all of them with the transaction.
    """

    __slots__ = ("_number", "_work", "batch")

    def __init__(self, batch: CommitBatch, number: int, work: Pending | None = None) -> None:
        self.batch = batch
        self._number = number
        self._work = work

    def __call__(self) -> None:
        batch = self.batch
        if self._work is not None:
            batch.committed.append(self._work)
        elif self._number == batch.hooks:
            works, batch.committed = batch.committed, []
            send(batch.client, works)
            if ids := ids_stored_by_producer(works):
                _delete(batch.connection, ids)


def _delete(connection: Any, ids: list[str]) -> None:
    table = ConnectionOutbox(connection)
    try:
        for first in range(0, len(ids), BATCH):
            piece = ids[first : first + BATCH]
            table.run(deletion(len(piece)), piece)
    except Error as error:
        # Their jobs are stored: a relay finds that out.
        log.warning("the outbox keeps %d rows whose jobs are stored: %s", len(ids), error)


class ConnectionOutbox:
    """The table of an outbox over a connection of Django; see :class:`headrace.contrib.outbox.OutboxTable`."""

    def __init__(self, connection: Any) -> None:
        self.dialect = str(connection.vendor)
        self.errors: tuple[type[Exception], ...] = (Error,)
        self._connection = connection

    def run(self, statement: str, values: Sequence[Any] = (), /) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.replace("?", "%s"), list(values) or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def close(self) -> None:
        self._connection.close()


class JobConnections:
    """Around one start: fresh connections before it, stale ones closed after it, in the thread that used them.

    A start that was stopped may have left a query half done on a connection that Django takes for usable, so all are
    closed. For a coroutine it is done where ``sync_to_async`` runs its queries.
    """

    def __enter__(self) -> None:
        _begin()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        _end(error)

    async def __aenter__(self) -> None:
        await sync_to_async(_begin)()

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        await sync_to_async(_end)(error)


def _begin() -> None:
    reset_queries()
    for connection in _idle():
        connection.close_if_unusable_or_obsolete()


def _end(error: BaseException | None) -> None:
    stopped = error is not None and isinstance(signal_in(error), Interrupt)
    for connection in _idle():
        connection.close() if stopped else connection.close_if_unusable_or_obsolete()


def _idle() -> list[Any]:
    """The connections of this thread, but for those of a block around the job: a test's transaction goes on."""
    return [one for one in connections.all(initialized_only=True) if not one.in_atomic_block]


def settings_of_project() -> dict[str, Any]:
    """``HEADRACE`` of the project's settings, by the names of Headrace. Raises SettingsError: it has another type."""
    given = getattr(settings, "HEADRACE", {})
    if not isinstance(given, dict):
        raise SettingsError(f'HEADRACE={given!r:.80} cannot be used: write a dictionary, such as {{"URL": ...}}')
    return {str(name).lower(): value for name, value in given.items()}


def _app() -> Headrace:
    given = settings_of_project()
    after_commit = given.pop("after_commit", True)
    made = Headrace(defaults=given)
    install(made, after_commit=after_commit)
    return made


#: The application of the project.
app = _app()

if not (apps.ready or apps.loading):
    # A worker that names this module is not a command of manage.py: the supervisor sets Django up, once.
    django.setup()
