"""``headrace bridge`` and ``headrace outbox``: jobs that wait in queues of Celery or RQ, or in a database."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated

from headrace.cli.arguments import argument, option
from headrace.cli.commands import command, group
from headrace.cli.output import bar_of, several
from headrace.cli.session import ExitCode, OperationFault, Session, UsageFault
from headrace.errors import StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.bridge import Bridge, Envelopes, MessageSource
    from headrace.contrib.outbox import Relay

app = group("Drain the queues of Celery or RQ into Headrace. Each message becomes the job of the task of its name.")

PAUSE = 1.0  # seconds between two looks at empty queues, and after a server that could not be reached
FEW = 10  # reasons and ids that the summary shows

_From = Annotated[str, option("--from URL", "Where their queues are.", default=False)]
_Queues = Annotated[str, option("--queues NAMES", "Their queues, with commas between.", default=False)]
_To = Annotated[str | None, option("--to NAME", "Our queue of all jobs.", "the queue of the same name")]
_Once = Annotated[bool, option("--until-empty", "End when their queues are empty, but for what cannot be moved.")]


@command(app, "celery")
def celery(
    session: Session,
    from_: _From,
    queues: _Queues,
    to: _To = None,
    until_empty: _Once = False,
    key_prefix: Annotated[str, option("--key-prefix TEXT", "Celery's global_keyprefix, in Redis.", "none")] = "",
) -> int:
    """Drain queues of Celery, in Redis or at RabbitMQ, until you stop it.

    A message is acknowledged when its job is stored. The job has the arguments, the priority, the time limits and the
    headers of the message, starts at its ETA and expires with it. Pickles, parts of a canvas and compressed messages
    stay in their queue and are listed at the end. Celery may go on sending and working meanwhile: each message is moved
    or taken by a worker, never both. You may stop the bridge at any moment and start it again.
    """
    from headrace.bridge import foreign_jobs

    in_redis = from_.partition("://")[0] in ("redis", "rediss", "unix")
    kind = partial(foreign_jobs.celery_in_redis, prefix=key_prefix) if in_redis else foreign_jobs.CeleryBroker
    source = partial(kind, from_, _names(queues), clock=time.time)
    return _drain(session, "celery", source, to, until_empty=until_empty)


@command(app, "rq")
def rq(
    session: Session,
    from_: _From,
    queues: _Queues,
    to: _To = None,
    until_empty: _Once = False,
    plain_pickles: Annotated[
        bool, option("--plain-pickles", "Read pickles of plain values, and no others; without it none is read.")
    ] = False,
) -> int:
    """Drain queues of RQ, and what is scheduled for them, until you stop it.

    A job of RQ is removed when ours is stored. Ours has its arguments, timeout, retries and times to live. Pickles, and
    jobs that others depend on, stay in their queue and are listed at the end. RQ may go on sending and working
    meanwhile. You may stop the bridge at any moment and start it again.
    """
    from headrace.bridge import foreign_jobs

    source = partial(foreign_jobs.rq_in_redis, from_, _names(queues), plain_pickles=plain_pickles)
    return _drain(session, "rq", source, to, until_empty=until_empty)


def _names(queues: str) -> list[str]:
    names = [name.strip() for name in queues.split(",") if name.strip()]
    if not names:
        raise UsageFault("--queues needs the name of a queue")
    return names


def _drain(
    session: Session, system: str, make: Callable[[Envelopes], MessageSource], to: str | None, *, until_empty: bool
) -> int:
    from headrace.bridge import Bridge, Envelopes

    stop = _stopped_by_signals()
    with session.app() as ours, closing(make(Envelopes(ours, system, to))) as source:
        bridge = Bridge(ours, source)
        _run(session, bridge, source, stop, until_empty=until_empty)
    return _tell(session, bridge)


def _stopped_by_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


def _run(session: Session, bridge: Bridge, source: MessageSource, stop: threading.Event, *, until_empty: bool) -> None:
    try:
        waiting = source.waiting()
    except source.errors as error:
        raise OperationFault(f"their server, --from, cannot be used: {error}") from error
    away: tuple[type[Exception], ...] = (StoreUnavailable, StoreFull, *source.errors)
    with bar_of(session.output, waiting if until_empty else None) as advance:
        while not stop.is_set():
            try:
                count = bridge.step()
            except away as error:
                session.output.remark(f"{error}; again in {PAUSE:g} s")
                stop.wait(PAUSE)
                continue
            advance(bridge.moved + bridge.repeated)
            if not count:
                if until_empty:
                    return
                stop.wait(PAUSE)


def _tell(session: Session, bridge: Bridge) -> int:
    if session.output.json:
        session.output.document({"moved": bridge.moved, "repeated": bridge.repeated, "left": bridge.left})
    else:
        again = f"; {bridge.repeated:,} had been moved before" if bridge.repeated else ""
        session.output.line(f"{several(bridge.moved, 'job')} moved{again}")
        for id, reason in list(bridge.left.items())[:FEW]:
            session.output.line(f"  {id} stays: {reason}")
        if len(bridge.left) > FEW:
            session.output.line(f"  and {len(bridge.left) - FEW:,} others stay; --json lists all")
    return ExitCode.FAILED if bridge.left else ExitCode.OK


App = Annotated[str | None, argument("MODULE:APP", "The application, such as tasks:app.", envvar="HEADRACE_APP")]
Database = Annotated[
    str | None, option("--database NAME", "An alias of Django, or a URL of SQLAlchemy. Default: the application's.")
]

outbox = group("Hand over the jobs of an outbox in a database.")


def _relay(app: Headrace, database: str | None) -> Relay:
    from headrace.contrib.outbox import Relay

    if app.client.deferral is None:
        raise UsageFault("the application has no tie to a database: docs/django.md and docs/sqlalchemy.md say how")
    return Relay(app, app.client.deferral.outbox(database))


@command(outbox, "relay")
def relay(
    session: Session,
    application: App = None,
    database: Database = None,
    once: Annotated[bool, option("--once", "Exit when the table holds no more.")] = False,
) -> None:
    """Store the jobs of the outbox, and delete their rows, until a signal stops it.

    Several may run at once. A row whose job cannot be stored is kept with its error, and holds up no other; it is tried
    again after headrace outbox retry.
    """
    stop = _stopped_by_signals()
    with session.code(application) as headrace:
        handed = _relay(headrace, database).run(stop, once=once)
    session.output.done(f"{handed:,} rows were handed over", {"rows": handed})


@command(outbox, "list")
def list_(session: Session, application: App = None, database: Database = None) -> None:
    """Show how many rows wait, and the first 500 of those whose jobs cannot be stored."""
    with session.code(application) as headrace:
        found = _relay(headrace, database)
        waiting, refused = found.waiting(), found.refused()
    if session.output.json:
        rows = [{"id": id, "tries": tries, "error": error} for id, tries, error in refused]
        session.output.document({"waiting": waiting, "refused": rows})
        return
    session.output.table(("job", ">tries", "error"), refused, keep=("job",), spare="error")
    session.output.remark(f"{waiting:,} rows wait")


@command(outbox, "retry")
def retry(session: Session, application: App = None, database: Database = None) -> None:
    """Have the relay try again the rows whose jobs could not be stored."""
    with session.code(application) as headrace:
        _relay(headrace, database).retry()
    session.output.done("the relay tries the refused rows again", {"retried": True})
