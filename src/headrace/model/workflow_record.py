"""A workflow as the store holds it, for those who look: its fields, read when they are asked for.

Pure. A list of workflows is read far more often than all that it could say is looked at, so that nothing is decoded
that nobody wants.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from headrace.errors import CorruptArguments
from headrace.model import codec
from headrace.model.ids import milliseconds_of
from headrace.model.job import number
from headrace.model.job_record import Finder, PlainReader, ValueReader
from headrace.model.notation import EPOCH, utc
from headrace.model.workflow import FOR_EVER, WorkflowState, parse_facts

EMPTY = b"\x80"
_ENDS = ("succeeded", "failed", "cancelled", "quarantined", "skipped")
_STATES = {state.value.encode(): state for state in WorkflowState}


def flow_state(word: bytes) -> WorkflowState:
    """The state that a record names; an alien word counts as stopped, since nothing of it can be trusted to run."""
    return _STATES.get(word, WorkflowState.STOPPED)


class WorkflowRecord(msgspec.Struct, frozen=True):
    """A workflow as stored. Each time is there twice, as in :class:`headrace.Record`.

    Attributes:
        id: the workflow's.
        lapses_us: when it will be removed; 0: it was started and has not ended, or is kept for ever. One that is not
            started has an end, too.
        first_failed: what is stored of the node that failed first; :attr:`failed_node` names it.
        fields: every stored field, undecoded; a page leaves arguments and globals out.
        finder: gives what reads the arguments of a definition's workflows; None: they are read plain.
    """

    id: str
    lapses_us: int
    first_failed: bytes
    fields: dict[str, bytes]
    finder: Finder | None = None

    @property
    def definition(self) -> str:
        """The definition's name."""
        return self.fields.get("definition", b"").decode("utf-8", "replace")

    @property
    def state(self) -> WorkflowState:
        """Where it is; see :func:`flow_state`."""
        return flow_state(self.fields.get("st", b""))

    @property
    def created_us(self) -> int:
        """When it was complete, microseconds."""
        return number(self.fields.get("created")) or milliseconds_of(self.id) * 1000

    @property
    def created(self) -> datetime:
        """When it was complete."""
        return utc(self.created_us) or EPOCH

    @property
    def started_us(self) -> int:
        """When it was started first, microseconds; 0: it was not."""
        return number(self.fields.get("started"))

    @property
    def started(self) -> datetime | None:
        """When it was started first."""
        return utc(self.started_us)

    @property
    def finished_us(self) -> int:
        """When it ended last, microseconds; 0: it has not."""
        return number(self.fields.get("finished"))

    @property
    def finished(self) -> datetime | None:
        """When it ended last."""
        return utc(self.finished_us)

    @property
    def lapses(self) -> datetime | None:
        """When it will be removed; None: it was started and has not ended, or is kept for ever."""
        return utc(self.lapses_us)

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
    def packed_args(self) -> bytes:
        """MessagePack of ``[args, kwargs]`` as the definition got them; empty on a page."""
        return self.fields.get("args", b"")

    @property
    def args(self) -> tuple[Any, ...]:
        """The definition's arguments by position, decoded at each access; none on a page.

        Raises:
            ArgumentError: they do not fit the definition as it is here; ``packed_args`` has the bytes.
            CorruptArguments: no create wrote these bytes.
        """
        return self._unpacked()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments by name; see :attr:`args`."""
        return self._unpacked()[1]

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by the names of the definition's parameters, as :attr:`headrace.Record.arguments`."""
        return self._reader.by_name(*self._unpacked())

    @property
    def globals(self) -> dict[str, Any]:
        """What all nodes whose function takes it were given, as plain values; empty on a page.

        Raises:
            CorruptArguments: no create wrote these bytes.
        """
        try:
            return dict(codec.decode(self.fields.get("globals", EMPTY)))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise CorruptArguments(f"the stored globals of workflow {self.id} cannot be read ({error})") from None

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

    @property
    def secrets(self) -> str:
        """Where its secret arguments stand; see :mod:`headrace.model.hidden_values`."""
        return f"{self.fields.get('secrets', b'').decode('utf-8', 'replace')} {self._reader.secrets}".strip()

    def read_with(self, finder: Finder) -> WorkflowRecord:
        """The same record, whose arguments are read by what ``finder`` gives for its definition."""
        return msgspec.structs.replace(self, finder=finder)

    def __repr__(self) -> str:
        # Without its arguments, as a record of a job: records end up in logs.
        return f"<WorkflowRecord {self.id} of {self.definition}, {self.state}, {self.done} of {self.total} jobs>"

    def _unpacked(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self._reader.unpack(self.packed_args) if self.packed_args else ((), {})

    @property
    def _reader(self) -> ValueReader:
        return PlainReader(self.definition) if self.finder is None else self.finder(f"workflow:{self.definition}")
