"""What a page of jobs asks for: checked, and as a decision on each record. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from headrace.admin.pagination import check_limit, descending, position, window
from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.job import HEAD_START, MOST_PRIORITY, State
from headrace.model.job_record import Record


class JobQuery(msgspec.Struct, frozen=True):
    """A page of jobs of one state; :meth:`headrace.admin.jobs.Jobs.page` says what each means."""

    state: State
    queue: str | None
    task: str | None
    key: str | None
    limit: int
    after: tuple[str, int, str] | None
    desc: bool
    since: int | None
    until: int | None
    values: bool

    @property
    def compared(self) -> dict[str, str | None]:
        """What the records of jobs are compared with: the structures of some states say it already."""
        named = {State.READY: "queue", State.PARKED: "task", State.BLOCKED: "key"}.get(self.state)
        return {name: None if name == named else getattr(self, name) for name in ("queue", "task", "key")}

    @property
    def filters(self) -> bool:
        """Whether jobs are looked at that the page may not want."""
        return self._by_due or any(value is not None for value in self.compared.values())

    @property
    def scores(self) -> tuple[int | None, int | None]:
        """Between which scores to look. Those of ready jobs are not their times: a priority moves them."""
        most = MOST_PRIORITY * HEAD_START if self.state is State.READY else 0
        return None if self.since is None else self.since - most, None if self.until is None else self.until + most

    @property
    def _by_due(self) -> bool:
        return self.state is State.READY and (self.since is not None or self.until is not None)

    def wants(self, record: Record) -> bool:
        """Whether a job that was looked at belongs to the page."""
        if self._by_due and not (self.since or 0) <= record.due_us <= (self.until or record.due_us):
            return False
        return (
            self.queue in (None, record.queue) and self.task in (None, record.task) and self.key in (None, record.key)
        )


def state_of(state: State | str) -> State:
    """The state of this name.

    Raises:
        OptionsError: there is none.
    """
    try:
        return State(state)
    except ValueError:
        raise OptionsError(f"there is no state {state!r}: the states are {', '.join(State)}") from None


def query_of(
    state: State | str,
    queue: str | None,
    task: str | None,
    key: str | None,
    limit: int,
    after: str | None,
    order: str,
    since: datetime | None,
    until: datetime | None,
    values: bool,
) -> JobQuery:
    """The query of these arguments.

    Raises:
        OptionsError: one is out of range.
    """
    score, id, index = (0, "", "") if after is None else position(after, "after")
    low, high = window(since, until)
    for kind, name in (("queue", queue), ("task", task)):
        if name is not None:
            check_name(kind, name)
    return JobQuery(
        state_of(state),
        queue,
        task,
        key,
        check_limit(limit),
        (index, score, id) if index else None,
        descending(order),
        low,
        high,
        values,
    )
