"""Nodes that add nodes: reserved, stored piece by piece, then settled; or settled without, where that may not be. No server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.model.ended import Growing
from headrace.model.form import Form
from headrace.model.ids import flow_id, node_id
from headrace.model.job import Claim
from headrace.model.workflow import Graft, NewNode, pack_grown
from headrace.protocol.graph import CHUNK
from headrace.protocol.keys import Keys
from headrace.worker.dispatcher.dispatcher_events import End
from headrace.worker.dispatcher.workflow_growth import Growth
from tests.worker.worker_states import arguments

FLOW = flow_id(1, 1)


class Ends:
    """What was concluded."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, bytes, int]] = []

    def __call__(self, end: End) -> None:
        self.all.append((end.claim.id, end.ended.kind, end.ended.data, end.ended.amount))


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def growth(ends: Ends) -> Growth:
    growth = Growth(Keys(), ends)
    growth.owner = "w1"
    return growth


def grown(items: int) -> bytes:
    form = Form("t")
    nodes = [NewNode(form, b"", children=((items + 1, "stop"),)) for _ in range(items)]
    join = NewNode(form, b"", parents=tuple(range(1, items + 1)), role="join")
    return pack_grown(b"result", Graft((*nodes, join), items + 1, gather=True))


def claim(number: int) -> Claim:
    return Claim(node_id(FLOW, number), 70 + number, "q", 0, "t", b"")


def answer(growth: Growth, reply: Any) -> str:
    """Take the one step that is due, answer it, and tell which script it is."""
    ((call, handler),) = growth.steps()
    assert growth.steps() == []
    handler(reply)
    return call.script.name


def test_a_graft_is_stored_in_pieces_before_its_node_is_settled(growth: Growth, ends: Ends) -> None:
    growth.begin(End(claim(3), Growing(grown(2 * CHUNK + 5), 5)))
    assert answer(growth, 11) == "reserve"
    assert [answer(growth, "ok") for _ in range(2)] == ["graft", "graft"]
    assert ends.all == []
    assert answer(growth, "ok") == "graft"
    assert ends.all == [(node_id(FLOW, 3), "grown", b"result", 5)]
    assert not growth
    assert growth.steps() == []


def test_numbers_are_those_that_were_reserved(growth: Growth) -> None:
    growth.begin(End(claim(3), Growing(grown(2), 5)))
    answer(growth, 11)
    ((call, _),) = growth.steps()
    nodes, link = (msgspec.msgpack.decode(arguments(call)[name]) for name in ("nodes", "link"))
    assert [code for code, _ in nodes] == ["000b", "000c", "000d"]
    fields = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in nodes]
    assert [field["pending"] for field in fields] == [1, 1, 2]
    assert [field.get("children") for field in fields] == ["000ds", "000ds", None]
    assert fields[2]["parents"] == "000b000c"
    assert link == ["000d", "000bs000cs", 2, 1]


def test_an_empty_list_leaves_a_join_that_waits_for_its_node_only(growth: Growth, ends: Ends) -> None:
    growth.begin(End(claim(3), Growing(grown(0), 5)))
    answer(growth, 11)
    ((call, handler),) = growth.steps()
    nodes, link = (msgspec.msgpack.decode(arguments(call)[name]) for name in ("nodes", "link"))
    assert (len(nodes), link) == (1, ["000b", "000bs", 0, 1])
    assert dict(zip(nodes[0][1][::2], nodes[0][1][1::2], strict=True))["pending"] == 1
    handler("ok")
    assert [kind for _, kind, *_ in ends.all] == ["grown"]


@pytest.mark.parametrize("replies", [[0], [11, "stale"]])
def test_where_nothing_may_be_added_the_end_is_still_told(growth: Growth, ends: Ends, replies: list[Any]) -> None:
    growth.begin(End(claim(3), Growing(grown(1), 5)))
    growth.begin(End(claim(4), Growing(grown(1), 5)))
    for reply in replies:
        answer(growth, reply)
    assert [kind for _, kind, *_ in ends.all] == ["succeeded"]
    assert len(growth) == 1
    assert answer(growth, 21) == "reserve"


def test_what_is_dropped_is_named(growth: Growth, ends: Ends) -> None:
    growth.begin(End(claim(3), Growing(grown(1), 5)))
    growth.steps()
    assert growth.drop_all() == [claim(3)]
    assert not growth
    assert not growth.steps()
    assert ends.all == []


def test_what_no_number_is_left_for_fails_rather_than_let_the_rest_run_without_it(growth: Growth, ends: Ends) -> None:
    growth.begin(End(claim(1), Growing(grown(3), 5)))
    assert answer(growth, -1) == "reserve"
    ((_, kind, data, _),) = ends.all
    assert (kind, b"no numbers left" in data) == ("failed", True)
    assert len(growth) == 0


def test_after_a_connection_it_begins_anew_and_old_answers_do_not_count(growth: Growth, ends: Ends) -> None:
    """The server may have forgotten the reservation or a piece, and given the numbers to another node."""
    growth.begin(End(claim(3), Growing(grown(CHUNK + 5), 5)))
    answer(growth, 11)
    ((_, handler),) = growth.steps()
    growth.restart()
    handler("ok")
    assert [answer(growth, reply) for reply in (11, "ok", "ok")] == ["reserve", "graft", "graft"]
    assert [kind for _, kind, *_ in ends.all] == ["grown"]


def test_numbers_that_are_not_its_own_any_more_are_asked_for_again(growth: Growth, ends: Ends) -> None:
    growth.begin(End(claim(3), Growing(grown(1), 5)))
    replies = [11, "unreserved", 21, "ok"]
    assert [answer(growth, reply) for reply in replies] == ["reserve", "graft", "reserve", "graft"]
    assert [kind for _, kind, *_ in ends.all] == ["grown"]
