"""The chain of a workflow's nodes that ran for longest: a pure decision."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from headrace.model.job import State
from headrace.model.job_record import Record
from headrace.model.workflow import NodeFacts, NodeRecord

pytest.importorskip("starlette", reason="the extra dashboard is not installed")

from headrace.dashboard.flow_pages import longest_chain

SECOND = 1_000_000


def node(number: int, parents: str = "", start: int = 0, end: int = 0, role: str = "") -> NodeRecord:
    """One that ran between two seconds; without an end it runs; without a start it waits."""
    state = State.SUCCEEDED if end else State.RUNNING if start else State.BLOCKED
    fields: dict[str, Any] = dict.fromkeys(inspect.signature(Record).parameters, 0) | {"error": None}
    given = {"id": f"id{number}", "state": state, "started_us": start * SECOND, "finished_us": end * SECOND}
    return NodeRecord(
        number, Record(**{**fields, **given}), NodeFacts(f"n{number}"), role, 0, tuple(map(int, parents.split())), ()
    )


def test_the_chain_with_most_time_is_told_whatever_its_length() -> None:
    nodes = [node(1, "", 1, 2), node(2, "1", 2, 4), node(3, "2", 4, 5), node(4, "1", 2, 12), node(5, "3 4")]
    found = longest_chain(nodes, 20 * SECOND)
    assert found == (["n1", "n4"], 11)


def test_what_runs_counts_up_to_now_and_joins_are_passed_over() -> None:
    nodes = [node(3, "2", 9), node(2, "1", role="join"), node(1, "", 1, 4)]
    found = longest_chain(nodes, 10 * SECOND)
    assert found == (["n1", "n3"], 4)


@pytest.mark.parametrize("nodes", [[], [node(1)], [node(1, "2", 1, 2), node(2, "1", 1, 2)]])
def test_there_may_be_none(nodes: list[NodeRecord]) -> None:
    found = longest_chain(nodes, SECOND)
    assert found == ([], 0)


def test_a_thousand_in_a_row_and_parents_that_were_not_read_are_no_trouble() -> None:
    nodes = [node(n, str(n - 1), n, n + 1) for n in range(5, 1005)]
    assert longest_chain(nodes, 0)[1] == 1000


def test_a_node_may_wait_for_one_that_was_added_later() -> None:
    nodes = [node(1, "", 1, 2), node(2, "4", 9, 10), node(3, "1", 2, 5), node(4, "3", 5, 9)]
    found = longest_chain(nodes, 20 * SECOND)
    assert found == (["n1", "n3", "n4", "n2"], 9)
