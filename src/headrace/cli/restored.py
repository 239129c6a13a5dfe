"""``headrace restored``: what becomes of live jobs in a store that was put back to an old copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from headrace.cli.arguments import option
from headrace.cli.failure import OperationFault
from headrace.cli.output import several, span
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.app import Headrace

# Jobs of one page, of those that run in the copy.
PAGE = 1000
NOTE = "the store was put back to an old copy: jobs may have run already"


def restored(
    session: Session,
    live: Annotated[
        Literal["park", "run"],
        option("--live park|run", "park: pause every queue, so that jobs wait for you; run: they run again."),
    ] = "park",
) -> None:
    """Let workers claim again from a store that was put back to an old copy.

    Workers that live while a store is put back notice it: their leases there are old. They stop, and none claims, since
    jobs that are ready in the copy have run since. With park every queue is paused: delete or move what has run, by
    headrace jobs, then resume each queue. What was stored since the copy was made is lost, request ids included.
    """
    from headrace.protocol.operations import restored as look

    with session.acting("restored", "store", scope=f"live {live}", view=True) as (app, act):
        lost = app.client.run(look(app.client.keys, go=False))
        if not lost:
            raise OperationFault("workers claim from this store already: it was not put back")
        paused = _pause_all(app) if live == "park" else []
        app.client.run(look(app.client.keys, go=True))
        act.reply = f"workers claim again; {several(len(paused), 'queue')} paused"
        session.output.done(
            f"the last {span(lost / 1e6)} were lost; {act.reply}", {"lost": lost / 1e6, "paused": paused, "live": live}
        )


def _pause_all(app: Headrace) -> list[str]:
    """Pause each queue that holds jobs, that a worker serves, or whose jobs ran when the copy was made."""
    from headrace.protocol.operations import pause

    seen = app.overview()
    names = {*seen.names, *(queue for worker in (*seen.live, *seen.silent) for queue in worker.queues)}
    after = None
    while True:
        page = app.jobs.page(state="running", limit=PAGE, after=after)
        names |= {job.queue for job in page}
        if not (after := page.next):
            break
    for queue in sorted(names):
        app.client.run(pause(app.client.keys, queue, 0, NOTE))
    return sorted(names)
