"""Follow the demo's jobs to their ends, and collect what they found.

Reads the store through the same pages that ``headrace jobs`` shows. Starts nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from headrace.demo import tasks
from headrace.demo.tasks import Measured
from headrace.job import Record, State

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNFINISHED = (State.SCHEDULED, State.READY, State.RUNNING, State.PARKED)


@dataclass(slots=True)
class Progress:
    """What is known of the jobs so far.

    Attributes:
        found: results by the job's id.
        records: of the jobs that succeeded, by id, in the order of their ends.
        running: jobs that ran a moment ago.
        left: jobs that had not ended a moment ago.
    """

    found: dict[str, Measured] = field(default_factory=dict[str, Measured])
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    running: int = 0
    left: int = 0

    def look(self) -> list[str]:
        """Learn what happened since the last look; a sentence for each job that survived something.

        Cost: three round trips, and two more for each 1,000 jobs that ended.
        """
        # Counted before the page is read: what ends in between is found by the page, or by the next look.
        states = tasks.app.overview().states
        self.running = states.get(State.RUNNING, 0)
        self.left = sum(states.get(state, 0) for state in _UNFINISHED)
        return [text for record in self._new() if (text := survived(record, self.found[record.id]))]

    def _new(self) -> Iterator[Record]:
        """Jobs that succeeded since the last look: the newest known one is read again, since ends may coincide."""
        last = next(reversed(self.records.values()), None)
        since = _EPOCH + timedelta(microseconds=last.finished) if last else None
        after: str | None = None
        while True:
            page = tasks.app.jobs.page(State.SUCCEEDED, order="asc", since=since, after=after, limit=1000)
            for record in page:
                if record.id not in self.records:
                    self.records[record.id] = record
                    self.found[record.id] = tasks.measure.signature.unpack_result(record.result or b"")
                    yield record
            if page.next is None:
                return
            after = page.next


def survived(record: Record, found: Measured) -> str:
    """What went wrong with a job that succeeded all the same; empty when nothing did."""
    if record.crashes:
        return (
            f"a runner was killed while it measured {found.path}: "
            f"its job ran again and succeeded, start {record.attempt}"
        )
    if record.failures:
        return f"measuring {found.path} raised: its job was retried and succeeded, start {record.attempt}"
    return ""
