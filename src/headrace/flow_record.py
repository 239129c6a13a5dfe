"""A workflow as the store holds it, for those who look: its fields, read when they are asked for.

Pure. A list of workflows is read far more often than all that it could say is looked at, so that nothing is decoded
that nobody wants.
"""

from __future__ import annotations

import msgspec

from headrace.job import number
from headrace.keys import milliseconds_of
from headrace.workflow import FOR_EVER, WorkflowState, parse_facts

_ENDS = ("succeeded", "failed", "cancelled", "quarantined", "skipped")
_STATES = {state.value.encode(): state for state in WorkflowState}


class WorkflowRecord(msgspec.Struct, frozen=True):
    """A workflow as stored. Times in microseconds of server time, 0 when not reached.

    Attributes:
        id: the workflow's.
        lapses: when it will be removed; 0: it was started and has not ended, or is kept for ever. One that is not
            started has an end, too.
        first_failed: what is stored of the node that failed first; :attr:`failed_node` names it.
        fields: every stored field, undecoded; a page leaves arguments and globals out.
    """

    id: str
    lapses: int
    first_failed: bytes
    fields: dict[str, bytes]

    @property
    def definition(self) -> str:
        """The definition's name."""
        return self.fields.get("definition", b"").decode("utf-8", "replace")

    @property
    def state(self) -> WorkflowState:
        """Where it is; an alien word counts as stopped, since nothing of it can be trusted to run."""
        return _STATES.get(self.fields.get("state", b""), WorkflowState.STOPPED)

    @property
    def created(self) -> int:
        """When it was complete."""
        return number(self.fields.get("created")) or milliseconds_of(self.id) * 1000

    @property
    def started(self) -> int:
        """When it was started first."""
        return number(self.fields.get("started"))

    @property
    def finished(self) -> int:
        """When it ended last."""
        return number(self.fields.get("finished"))

    @property
    def total(self) -> int:
        """Nodes that count: all but undo and callback nodes."""
        return number(self.fields.get("total"))

    @property
    def active(self) -> int:
        """Nodes that are ready, scheduled, running, parked or held."""
        return number(self.fields.get("active"))

    @property
    def counts(self) -> dict[str, int]:
        """Nodes by final state: succeeded, failed, cancelled, quarantined, skipped."""
        return {state: number(self.fields.get(state)) for state in _ENDS}

    @property
    def args(self) -> bytes:
        """MessagePack of ``[args, kwargs]`` as the definition got them; empty on a page."""
        return self.fields.get("args", b"")

    @property
    def globals(self) -> bytes:
        """MessagePack of a dictionary; empty on a page."""
        return self.fields.get("globals", b"")

    @property
    def key(self) -> str:
        """At most one live workflow of its definition has it; empty: any number."""
        return self.fields.get("key", b"").decode("utf-8", "replace")

    @property
    def ttl(self) -> int:
        """Microseconds that it stays after its end; -1: for ever, as it does where nobody can read how long."""
        ttl = self.fields.get("ttl", b"")
        return int(ttl) if ttl.isdigit() else FOR_EVER

    @property
    def failed_node(self) -> str:
        """Name of the node that failed first; empty: none."""
        return parse_facts(self.first_failed).name if self.first_failed else ""

    @property
    def done(self) -> int:
        """How many nodes have ended, however they did."""
        return sum(number(self.fields[state]) for state in _ENDS if state in self.fields)

    @property
    def progress(self) -> float:
        """Share of the nodes that have ended, from 0 to 1."""
        total = self.total
        return min(1.0, self.done / total) if total else 0.0
