"""``headrace outbox``: hand over what waits in an outbox, and show what cannot be."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

from headrace.cli.arguments import argument, option
from headrace.cli.commands import command, group
from headrace.cli.failure import UsageFault
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.contrib.outbox import Relay

App = Annotated[str | None, argument("MODULE:APP", "The application, such as tasks:app.", envvar="HEADRACE_APP")]
Database = Annotated[
    str | None, option("--database NAME", "An alias of Django, or a URL of SQLAlchemy. Default: the application's.")
]

app = group("Hand over the jobs of an outbox in a database.")


def _relay(app: Headrace, database: str | None) -> Relay:
    from headrace.contrib.outbox import Relay

    if app.client.deferral is None:
        raise UsageFault("the application has no tie to a database: docs/django.md and docs/sqlalchemy.md say how")
    return Relay(app, app.client.deferral.outbox(database))


@command(app, "relay")
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
    stop = threading.Event()

    def leave(number: int, frame: object) -> None:  # noqa: ARG001 - of a handler
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    with session.code(application) as headrace:
        handed = _relay(headrace, database).run(stop, once=once)
    session.output.done(f"{handed:,} rows were handed over", {"rows": handed})


@command(app, "list")
def list_(session: Session, application: App = None, database: Database = None) -> None:
    """Show how many rows wait, and the first 500 of those whose jobs cannot be stored."""
    with session.code(application) as headrace:
        found = _relay(headrace, database)
        waiting, refused = found.waiting(), found.refused()
    if session.output.json:
        rows: list[dict[str, Any]] = [{"id": id, "tries": tries, "error": error} for id, tries, error in refused]
        session.output.document({"waiting": waiting, "refused": rows})
        return
    session.output.table(("job", ">tries", "error"), refused, keep=("job",), spare="error")
    session.output.remark(f"{waiting:,} rows wait")


@command(app, "retry")
def retry(session: Session, application: App = None, database: Database = None) -> None:
    """Have the relay try again the rows whose jobs could not be stored."""
    with session.code(application) as headrace:
        _relay(headrace, database).retry()
    session.output.done("the relay tries the refused rows again", {"retried": True})
