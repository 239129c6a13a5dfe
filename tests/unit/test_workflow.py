"""The facts of workflows: states, records of nodes, cycles."""

from __future__ import annotations

import time
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import WorkflowError
from headrace.model.workflow import (
    FINAL,
    LETTERS,
    POLICIES,
    NodeFacts,
    WorkflowRecord,
    WorkflowState,
    check_policy,
    cycle,
    pack_facts,
    parse_facts,
)


def test_three_states_are_final() -> None:
    assert {state for state in WorkflowState if state.final} == FINAL == {"succeeded", "failed", "cancelled"}
    assert [str(state) for state in WorkflowState][:3] == ["pending", "running", "stopped"]


def test_each_policy_has_a_letter() -> None:
    assert {LETTERS[check_policy(policy)] for policy in LETTERS} == {"s", "c", "k"} == set(POLICIES)
    for odd in ("abort", "", None, 3, ["stop"]):
        with pytest.raises(WorkflowError, match="on_failure must be one of stop, continue, skip, not"):
            check_policy(odd)


def test_facts_survive_storage_and_alien_bytes_do_not_hurt() -> None:
    facts = NodeFacts("fetch-1", "thumbnails", True, 2, "c", 5, 7)
    assert parse_facts(pack_facts(facts)) == facts
    assert parse_facts(pack_facts(NodeFacts("x"))) == NodeFacts("x")
    for alien in (None, b"", b"\xc1", b"\x93", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([1, 2])):
        assert parse_facts(alien).name == ""


def test_facts_of_an_older_version_can_be_read() -> None:
    assert parse_facts(msgspec.msgpack.encode(["fetch-1", "thumbnails"])) == NodeFacts("fetch-1", "thumbnails")


def record(total: int, **counts: int) -> WorkflowRecord:
    return WorkflowRecord("0" * 21, 0, b"", {"total": b"%d" % total} | {name: b"%d" % n for name, n in counts.items()})


def test_progress_counts_every_end() -> None:
    assert record(4, succeeded=1, skipped=1, failed=1).done == 3
    assert record(4, succeeded=1, skipped=1, failed=1).progress == 0.75
    assert record(0).progress == 0.0
    assert record(2, succeeded=3).progress == 1.0


@given(st.integers(1, 12), st.data())
def test_a_cycle_is_found_if_there_is_one_and_is_one(size: int, data: st.DataObject) -> None:
    places = st.integers(0, size - 1)
    parents = [data.draw(st.lists(places, max_size=3, unique=True)) for _ in range(size)]
    found = cycle(parents)
    if found:
        assert found[0] == found[-1]
        assert len(found) == len(set(found)) + 1
        assert all(parent in parents[child] for parent, child in pairwise(found))
    else:
        order: list[int] = []
        while len(order) < size:
            free = [n for n in range(size) if n not in order and set(parents[n]) <= set(order)]
            assert free, "no cycle was found, but nobody could go on"
            order += free


def test_a_deep_graph_is_a_graph_like_any_other() -> None:
    chain = [[n - 1] if n else [] for n in range(100_000)]
    begun = time.process_time()
    assert cycle(chain) == []
    chain[0] = [99_999]
    assert len(cycle(chain)) == 100_001
    assert time.process_time() - begun < 10


def test_the_text_of_a_record_has_no_arguments() -> None:
    """They may be secret, and records end up in logs."""
    fields = {
        "definition": b"shop.pay",
        "st": b"running",
        "total": b"3",
        "succeeded": b"2",
        "args": b"\x92\x91\xa4pin1\x80",
    }
    record = WorkflowRecord("0" * 21, 0, b"", fields)
    assert record.args == ("pin1",)
    assert f"{record} {record!r}" == " ".join([f"<WorkflowRecord {'0' * 21} of shop.pay, running, 2 of 3 jobs>"] * 2)
