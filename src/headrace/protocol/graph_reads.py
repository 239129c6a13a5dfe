"""What is read of workflows: nodes, outputs, pages, and the announcement of an end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.model.ids import node_id, number_of_code, siblings_of
from headrace.model.job import moment, number
from headrace.model.job_record import Finder
from headrace.model.workflow import (
    POLICIES,
    NodeRecord,
    WorkflowState,
    parse_facts,
)
from headrace.model.workflow_record import WorkflowRecord, flow_state
from headrace.protocol.index_pages import rows_of, slice_of
from headrace.protocol.keys import Keys
from headrace.protocol.produce import record_of
from headrace.protocol.replies import pairs, text_of, texts_of
from headrace.protocol.script import Call, load

# Bytes of outputs that one reply brings.
OUTPUT_BYTES = 4 << 20


class NodeOutput(msgspec.Struct, frozen=True):
    """What one node returned.

    Attributes:
        facts, task, state: of the node.
        result: MessagePack; None when it has none.
        sources: ids of the nodes whose outputs stand for its own; None: its own counts.
        many: whether they stand for it as a list.
    """

    facts: bytes
    task: str
    state: str
    result: bytes | None
    sources: list[str] | None = None
    many: bool = False

    @property
    def name(self) -> str:
        """The node's, unique in its graph."""
        return parse_facts(self.facts).name


def outputs(keys: Keys, ids: Sequence[str]) -> Call[list[NodeOutput]]:
    """What up to 500 nodes returned; where that is more than 4 MiB, of the first ones only.

    Cost: one round trip, O(ids).
    """

    def parsed(reply: Any) -> list[NodeOutput]:
        return [_output(id, row) for id, row in zip(ids, reply, strict=False)]

    return load("outputs").bind(keys, parsed, ids=list(ids), most=OUTPUT_BYTES)


def _output(id: str, row: list[Any]) -> NodeOutput:
    task, state, facts, role, gather, parents, result = row
    codes = (gather or parents or b"").decode() if gather or role in (b"join", b"pass") else None
    sources = None if codes is None else siblings_of(id, codes)
    return NodeOutput(
        facts or b"",
        (task or b"").decode("utf-8", "replace"),
        (state or b"missing").decode("utf-8", "replace"),
        result,
        sources,
        not gather and role == b"join",
    )


def _flow(row: Any) -> WorkflowRecord | None:
    id, lapses, failed, flat = row
    return WorkflowRecord(id.decode(), moment(lapses), failed, pairs(flat)) if flat else None


def read_flows(keys: Keys, ids: Sequence[str]) -> Call[list[WorkflowRecord | None]]:
    """The records of up to 500 workflows; None where nothing is stored. Cost: one round trip."""
    return load("flow_read").bind(keys, lambda reply: [_flow(row) for row in reply], ids=list(ids))


def read_nodes(
    keys: Keys, id: str, numbers: Sequence[int], finder: Finder | None = None
) -> Call[list[NodeRecord | None]]:
    """Everything stored of up to 500 nodes of one workflow; None where nothing is. Cost: one round trip."""

    def parsed(reply: Any) -> list[NodeRecord | None]:
        return [_node(node_id(id, number), number, flat, finder) for number, flat in zip(numbers, reply, strict=True)]

    return load("flow_nodes").bind(keys, parsed, ids=[node_id(id, number) for number in numbers])


def _node(id: str, nth: int, flat: Any, finder: Finder | None) -> NodeRecord | None:
    if not flat:
        return None
    fields = pairs(flat)
    parents, children = text_of(fields.get("parents")), text_of(fields.get("children"))
    return NodeRecord(
        nth,
        record_of(id, 0, fields, finder),
        parse_facts(fields.get("facts")),
        text_of(fields.get("role")),
        number(fields.get("pending")),
        tuple(number_of_code(parents[n : n + 4]) for n in range(0, len(parents), 4)),
        tuple(
            (number_of_code(children[n : n + 4]), POLICIES.get(children[n + 4], "stop"))
            for n in range(0, len(children), 5)
        ),
    )


class FlowPage(msgspec.Struct, frozen=True):
    """A piece of the workflows of a view.

    Attributes:
        count: how many the view has.
        seen: ids of the index in this piece with their times of creation, dangling ones included, for a cursor.
        rows: their records, without arguments and globals.
    """

    count: int
    seen: list[tuple[str, int]]
    rows: list[WorkflowRecord]


def _flow_page(reply: Any) -> FlowPage:
    count, seen, names, rows = reply
    # Their names come once: a page is to be read in little more than a millisecond.
    named = texts_of(names)
    return FlowPage(
        count,
        rows_of(seen),
        [
            WorkflowRecord(
                text_of(id),
                moment(lapses),
                failed,
                {name: value for name, value in zip(named, values, strict=False) if value is not None},
            )
            for id, lapses, failed, values in rows
        ],
    )


def flow_page(
    keys: Keys,
    definition: str = "",
    state: str = "",
    limit: int = 100,
    after: tuple[int, str] | None = None,
    offset: int = 0,
    desc: bool = True,
    since: int | None = None,
    until: int | None = None,
) -> Call[FlowPage]:
    """Workflows by creation, of one definition or all, in one state or any. A row without a record is dropped.

    Args:
        limit: at most 500.
        after: creation and id of the last one seen.
        since, until: inclusive bounds of the creation, microseconds.

    Cost: one round trip, O(log n + limit).
    """
    piece = slice_of(min(limit, 500), after, offset, desc, since, until)
    return load("flow_page").bind(keys, _flow_page, view=f"{definition}|{state}", **piece)


def flow_count(keys: Keys, definition: str = "", state: str = "") -> Call[int]:
    """How many workflows a view has. Cost: one round trip."""
    return load("flow_count").bind(keys, int, view=f"{definition}|{state}")


def _watched(reply: bytes) -> WorkflowState | None:
    return None if reply == b"missing" else flow_state(reply)


def watch_flow(keys: Keys, id: str, wait: int) -> Call[WorkflowState | None]:
    """A workflow's state; its end is announced on the channel ``done:<id>`` (subscribe before calling).

    Args:
        wait: microseconds that the announcement is wanted for; 0 only reads.

    Cost: one round trip.
    """
    return load("flow_watch").bind(keys, _watched, id=id, wait=wait)
