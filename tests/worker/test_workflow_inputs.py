"""What claimed nodes take from their parents: read once, in pieces, remembered for the next batch. No server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.model.ids import code_of, flow_id, node_id
from headrace.model.job import Claim
from headrace.model.workflow import NodeFacts, pack_facts
from headrace.protocol.graph import NodeOutput
from headrace.protocol.keys import Keys
from headrace.worker.dispatcher import workflow_growth as module
from headrace.worker.dispatcher.workflow_growth import Inputs

FLOW = flow_id(1, 1)
pack = msgspec.msgpack.encode


def claim(number: int, *parents: int) -> Claim:
    return Claim(node_id(FLOW, number), number, "q", 0, "t", b"", parents="".join(map(code_of, parents)))


def out(
    value: Any = None, sources: list[int] | None = None, *, many: bool = False, state: str = "succeeded"
) -> NodeOutput:
    ids = None if sources is None else [node_id(FLOW, number) for number in sources]
    return NodeOutput(pack_facts(NodeFacts("n")), "t", state, None if value is None else pack(value), ids, many)


class Store:
    """Answers steps from a dictionary, and counts what it was asked for."""

    def __init__(self, **outputs: NodeOutput) -> None:
        self.outputs = {node_id(FLOW, int(number[1:])): output for number, output in outputs.items()}
        self.asked: list[list[str]] = []

    def serve(self, inputs: Inputs, most: int = 10**6) -> None:
        while steps := inputs.steps():
            for call, read in steps:
                ids = msgspec.msgpack.decode(call.args[1])  # type: ignore[arg-type]
                self.asked.append(ids)
                read([self.outputs.get(id, NodeOutput(b"", "", "missing", None)) for id in ids][:most])


@pytest.fixture
def inputs() -> Inputs:
    return Inputs(Keys())


def taken(inputs: Inputs) -> list[list[Any]]:
    return [[msgspec.msgpack.decode(one.output) for one in found] for found, claims in inputs.ready() for _ in claims]


def test_outputs_come_in_the_order_of_the_edges(inputs: Inputs) -> None:
    inputs.add(claim(9, 2, 1, 2))
    assert taken(inputs) == []
    Store(n1=out("one"), n2=out("two")).serve(inputs)
    assert taken(inputs) == [["two", "one", "two"]]
    assert not inputs


def test_a_parent_of_many_is_read_once_also_by_the_next_batch(inputs: Inputs) -> None:
    store = Store(n1=out("one"))
    for number in range(2, 5):
        inputs.add(claim(number, 1))
    store.serve(inputs)
    assert taken(inputs) == [["one"]] * 3
    inputs.add(claim(5, 1))
    assert not inputs.steps()
    assert taken(inputs) == [["one"]]
    assert len(store.asked) == 1


def test_a_join_gives_the_list_of_its_parents_and_a_growing_node_what_its_join_gives(inputs: Inputs) -> None:
    inputs.add(claim(9, 1, 6))
    store = Store(
        n1=out("mine", [5]), n5=out(None, [2, 3], many=True), n2=out(2), n3=out(None, [4], many=True), n4=out(4),
        n6=out(None, [], many=True),
    )  # fmt: skip
    store.serve(inputs)
    assert taken(inputs) == [[[2, [4]], []]]


def test_a_pass_gives_what_its_only_parent_gives(inputs: Inputs) -> None:
    inputs.add(claim(9, 1))
    Store(n1=out(None, [2]), n2=out("inner")).serve(inputs)
    assert taken(inputs) == [["inner"]]


def test_what_did_not_succeed_or_is_gone_gives_nothing(inputs: Inputs) -> None:
    inputs.add(claim(9, 1, 2))
    Store(n1=out(state="failed")).serve(inputs)
    ((fed, _),) = inputs.ready()
    assert [one.state for one in fed] == ["failed", "missing"]
    assert [msgspec.msgpack.decode(one.output) for one in fed] == [None, None]


@pytest.mark.parametrize("state", ["failed", "running", "missing"])
def test_a_parent_that_has_not_succeeded_is_read_again_for_the_next_child(inputs: Inputs, state: str) -> None:
    """A workflow was retried, its node succeeded on another worker, and its child got nothing here, as before."""
    store = Store(n1=out(state=state), n2=out(None, [1, 3], many=True), n3=out("three"))
    inputs.add(claim(9, 1, 2))
    store.serve(inputs)
    assert taken(inputs) == [[None, [None, "three"]]]
    store.outputs[node_id(FLOW, 1)] = out("one")
    inputs.add(claim(9, 1, 2))
    store.serve(inputs)
    assert taken(inputs) == [["one", ["one", "three"]]]
    assert store.asked[-1] == [node_id(FLOW, 1)], "what has succeeded stays as it is"


def test_many_parents_are_read_in_pieces_and_a_reply_that_was_cut_is_asked_for_again(inputs: Inputs) -> None:
    many = 1200
    inputs.add(claim(2000, *range(1, many + 1)))
    store = Store(**{f"n{number}": out(number) for number in range(1, many + 1)})
    store.serve(inputs, most=300)
    assert taken(inputs) == [list(range(1, many + 1))]
    assert max(map(len, store.asked)) == module.BATCH


def test_who_leaves_takes_the_waiting_claims_along(inputs: Inputs) -> None:
    first, second = claim(2, 1), claim(3, 1)
    inputs.add(first)
    inputs.add(second)
    assert inputs.take_all() == [first, second]
    assert not inputs.steps()
    assert inputs.steps() == []


def test_what_was_read_is_forgotten_when_it_is_too_much(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY", 500)
    store = Store(n1=out("x" * 200))
    for number in (2, 3):
        inputs.add(claim(number, 1))
        store.serve(inputs)
        assert taken(inputs) == [["x" * 200]]
    assert len(store.asked) == 2


def test_what_ended_here_is_not_read(inputs: Inputs) -> None:
    store = Store(n2=out("two"))
    for number in (1, 3):
        inputs.learn(msgspec.structs.replace(claim(number), facts=pack_facts(NodeFacts("here"))), pack(number))
    inputs.add(claim(9, 1, 2, 3))
    store.serve(inputs)
    ((fed, _),) = inputs.ready()
    assert [msgspec.msgpack.decode(one.output) for one in fed] == [1, "two", 3]
    assert [one.name for one in fed] == ["here", "n", "here"]
    assert store.asked == [[node_id(FLOW, 2)]]


def test_what_ends_here_before_it_was_asked_for_is_not_asked_for(inputs: Inputs) -> None:
    """The child may be claimed by a wake-up before the settle that made it ready is answered."""
    store = Store()
    inputs.add(claim(9, 1))
    inputs.learn(claim(1), pack("one"))
    store.serve(inputs)
    assert taken(inputs) == [["one"]]
    assert store.asked == []


def test_what_ended_here_is_forgotten_when_it_is_too_much(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY", 5 * module.OVERHEAD)
    for number in range(1, 100):
        inputs.learn(claim(number), pack(number))
    store = Store(n1=out(1))
    inputs.add(claim(200, 1, 99))
    store.serve(inputs)
    assert taken(inputs) == [[1, 99]]
    assert store.asked == [[node_id(FLOW, 1)]]
