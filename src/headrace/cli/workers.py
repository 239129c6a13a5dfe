"""``headrace workers``: who serves the queues now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli.measures import span, stamp
from headrace.cli.session import Session, command, group

if TYPE_CHECKING:
    from headrace.protocol.admin import WorkerFacts

app = group("Look at the workers that serve the queues now.")


@command(app, "list")
def list_(session: Session) -> None:
    """List the workers: where they are, what they serve and run, and when their lease ends if they fall silent."""
    with session.app() as app:
        seen = app.overview()
    if session.output.json:
        for worker in seen.workers:
            session.output.document(_facts(worker, seen.now))
        return
    rows = [
        (w.owner, w.facts.get("queues", "-"), w.facts.get("runners", "-"), f"{w.running:,}", _left(w, seen.now))
        for w in sorted(seen.workers, key=lambda worker: worker.owner)
    ]
    session.output.table(
        ("worker", "queues", "runners", ">running", ">lease left"), rows, keep=("running", "lease left")
    )
    if not seen.workers:
        session.output.remark("no worker serves this server: start one with headrace worker module:app")


def _left(worker: WorkerFacts, now: int) -> str:
    left = (worker.lease - now) / 1e6
    return span(left) if left > 0 else "over"


def _facts(worker: WorkerFacts, now: int) -> dict[str, Any]:
    since = worker.facts.get("since", "")
    return {
        "worker": worker.owner,
        "place": worker.facts.get("place"),
        "queues": [name for name in worker.facts.get("queues", "").split(",") if name],
        "runners": _runners(worker.facts.get("runners", "")),
        "running": worker.running,
        "lease_left": round((worker.lease - now) / 1e6, 3),
        "since": stamp(int(since)) if since.isdecimal() else None,
    }


def _runners(text: str) -> dict[str, int]:
    """Processes by kind, of ``process:2 async:1``."""
    pairs = (part.partition(":") for part in text.split())
    return {kind: int(count) for kind, _, count in pairs if count.isdecimal()}
