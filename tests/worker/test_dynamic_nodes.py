"""What a node comes to in its runner: skipped, filled, spread over a list, or grown by its own code."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from headrace import CurrentJob, Headrace, current_job
from headrace.errors import ArgumentError, CorruptRecord, NoCurrentJob, WorkflowError
from headrace.model import codec, job_record
from headrace.model.form import CLAIMED
from headrace.model.ids import flow_id, node_id
from headrace.model.job import Claim, Input
from headrace.model.workflow import Graft, NodeFacts, Payload, pack_facts
from headrace.running_job import running
from headrace.worker.runner import runner_context
from tests.unit.graphs import facts

ID = node_id(flow_id(5, 6), 7)


@pytest.fixture
def app() -> Headrace:
    # Port 1: whatever connects fails the test.
    app = Headrace("redis://localhost:1/0")
    app.task(name="add")(add)
    return app


def add(x: int, y: int = 0) -> int:
    return x + y


def packed(value: object) -> bytes:
    return codec.encode(value, 1 << 20, "value")


def given(*outputs: object) -> tuple[Input, ...]:
    return tuple(
        Input(ID, f"p{n}", "add", "failed" if value is None else "succeeded", packed(value))
        for n, value in enumerate(outputs)
    )


def claim(args: bytes = b"", inputs: tuple[Input, ...] = (), about: NodeFacts | None = None, **more: Any) -> Claim:
    return Claim(ID, 1, "low", 0, "add", args, facts=pack_facts(about or NodeFacts("me", "w")), inputs=inputs, **more)


@pytest.mark.parametrize("value", [False, 0, 0.0, "", [], {}, None, b""])
def test_a_node_is_skipped_when_its_condition_gave_nothing(value: Any) -> None:
    assert runner_context.is_skipped(NodeFacts("me", when=1), given(1, value))


@pytest.mark.parametrize("value", [True, 1, "no", [0], {"a": 0}, -0.5])
def test_and_runs_when_it_gave_something(value: Any) -> None:
    assert not runner_context.is_skipped(NodeFacts("me", when=0), given(value, 0))


def test_a_node_without_a_condition_runs() -> None:
    assert not runner_context.is_skipped(NodeFacts("me"), given(0))


def test_a_condition_whose_node_is_gone_is_not_met() -> None:
    assert runner_context.is_skipped(NodeFacts("me", when=3), given(1))


def test_outputs_take_their_places() -> None:
    args = b"\x92\x92\xd4\x07\x00\xd4\x07\x01\x80"
    assert codec.decode(runner_context.filled(claim(args, given([1], None)))) == [[[1], None], {}]
    assert runner_context.filled(claim(b"\x92\x90\x80")) == b"\x92\x90\x80"
    with pytest.raises(CorruptRecord):
        runner_context.filled(claim(args, given(1)))


def spread(items: object, about: NodeFacts | None = None, rest: tuple[object, ...] = (), **more: Any) -> Graft | None:
    about = about or NodeFacts("me", "w", map=True)
    return runner_context.spread(claim(about=about, **more), about, packed([[items, *rest], {"y": 1}]))


def test_a_large_argument_of_all_items_is_a_node_that_holds_it() -> None:
    graft = spread([1, 2, 3], rest=("x" * 5000, "small"))
    assert graft is not None
    *items, value, join = graft.nodes
    assert (value.role, codec.decode(value.args), value.waits) == ("given", "x" * 5000, 0)
    assert (join.role, join.parents, graft.join) == ("join", (1, 2, 3), 5)
    for n, one in enumerate(items, 1):
        assert (len(one.args) < 50, one.parents, one.waits) == (True, (4,), 0)
        assert codec.decode(job_record.fill(one.args, [value.args])) == [[n, "x" * 5000, "small"], {"y": 1}]
    alone = spread([1], rest=("x" * 5000,))
    assert alone is not None
    assert [one.role for one in alone.nodes] == ["", "join"]


def test_a_map_adds_a_node_for_each_item_and_their_join() -> None:
    about = NodeFacts("me", "w", True, -1, "c", 3, 9)
    graft = spread([5, [6], {"a": b"x"}], about, ("more",), options=b"o", key="k", once=True)
    assert graft is not None
    assert (len(graft.nodes), graft.join, graft.gather) == (4, 4, True)
    *items, join = graft.nodes
    assert [codec.decode(one.args) for one in items] == [[[value, "more"], {"y": 1}] for value in (5, [6], {"a": b"x"})]
    assert [facts(one).name for one in graft.nodes] == ["me[0]", "me[1]", "me[2]", "me[]"]
    assert {one.children for one in items} == {((4, "continue"),)}
    assert (join.role, join.parents, join.children) == ("join", (1, 2, 3), ())
    form = items[0].form
    assert (form.task, form.queue, form.options, form.priority, form.max_crashes) == ("add", "low", b"o", 3, 9)
    assert (form.at_most_once, form.key, form.delay) == (True, "k", 0)
    assert not any(facts(one).map for one in items), "an item does not fan out again"


def test_items_of_a_map_have_each_option_that_a_claim_tells() -> None:
    options: dict[str, Any] = {"at_most_once": True, "key": "k", "cost": 30, "headers": b"tenant\0a"}
    # A node has no expiry, and its facts have its priority.
    assert options.keys() == {*CLAIMED} - {"expires", "priority"}
    graft = spread([1], **{"once" if name == "at_most_once" else name: value for name, value in options.items()})
    assert graft is not None
    assert {name: getattr(graft.nodes[0].form, name) for name in options} == options
    plain = spread([1])
    assert plain is not None
    assert plain.nodes[0].form.cost == 0


def test_a_map_over_nothing_adds_nothing() -> None:
    assert spread([]) is None
    assert codec.decode(runner_context.EMPTY_LIST) == []


@pytest.mark.parametrize("items", [None, 3, "text", b"x", {"a": 1}])
def test_a_map_over_what_is_no_list_fails_with_the_value(items: Any) -> None:
    with pytest.raises(ArgumentError, match=r"flow\.map of add got .*, which is not a list"):
        spread(items)


def test_a_map_of_alien_arguments_is_corrupt() -> None:
    for data in (b"", b"\x90", b"\x92\x90\x80", b"\xc1"):
        with pytest.raises(CorruptRecord):
            runner_context.spread(claim(), NodeFacts("me", map=True), data)


def test_a_map_over_more_than_a_workflow_may_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_context, "MAX_NODES", 10)
    with pytest.raises(WorkflowError, match="got 10 items, more than 9"):
        spread(list(range(10)))
    assert spread(list(range(9))) is not None


def test_a_map_over_50_000_items_takes_moments() -> None:
    begun = time.process_time()
    graft = spread(list(range(50_000)))
    assert graft is not None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(graft), type=Graft) == graft
    assert time.process_time() - begun < 10


# -- what a job adds ------------------------------------------------------------------------------------------------


def job(app: Headrace, inputs: tuple[Input, ...] = ()) -> CurrentJob:
    return CurrentJob(
        claim(inputs=inputs), lambda note: None, lambda one: runner_context.collecting(app.registered, one)
    )


def test_a_job_that_adds_nothing_grows_nothing(app: Headrace) -> None:
    mine = job(app)
    assert runner_context.added(mine) is None
    assert mine.workflow is mine.workflow
    assert runner_context.added(mine) is None, "asking for the workflow is not adding to it"


def test_what_a_job_adds_is_joined_and_its_own_output_stays(app: Headrace) -> None:
    mine = job(app)
    with running(mine):
        flow = current_job().workflow
        first = flow.run("add", 1)
        flow.run("add", first, 2, name="second", undo="add")
        flow.run("add", 5, name="alone", on_failure="continue")
    graft = runner_context.added(mine)
    assert graft is not None
    assert not graft.gather
    assert [facts(one).name for one in graft.nodes] == [
        "me/add", "me/second", "me/alone", "me/second (undo)", "me/join",
    ]  # fmt: skip
    assert {facts(one).definition for one in graft.nodes} == {"w"}
    join = graft.nodes[graft.join - 1]
    assert (join.role, join.parents) == ("join", (2, 3))
    assert [one.children for one in graft.nodes] == [((2, "stop"),), ((5, "stop"),), ((5, "continue"),), (), ()]
    assert (graft.nodes[1].undo, graft.nodes[3].role, graft.nodes[3].parents) == (4, "undo", (2,))


def test_a_job_may_map_and_nest(app: Headrace) -> None:
    @app.workflow(name="inner")
    def inner(flow: Any, n: int) -> None:
        flow.run("add", n)

    mine = job(app)
    mine.workflow.run("add", mine.workflow.run(inner, 4), after=mine.workflow.map("add", [1, 2]))
    graft = runner_context.added(mine)
    assert graft is not None
    assert [facts(one).name for one in graft.nodes] == [
        "me/inner/add", "me/inner", "me/add-1[0]", "me/add-1[1]", "me/add-1", "me/add-2", "me/join",
    ]  # fmt: skip


def test_a_nested_workflow_gives_what_its_last_nodes_give(app: Headrace) -> None:
    @app.workflow(name="inner", globals={"y": 3})
    def inner(flow: Any, n: int, *, wide: bool = False) -> None:
        for k in range(1 + wide):
            flow.run("add", n + k)

    for wide, role in ((False, "pass"), (True, "join")):
        mine = job(app)
        with running(mine):
            assert app.tasks["workflow:inner"](4, wide=wide, __outer__=["mine", {"y": 1}, "c"]) is None
        graft = runner_context.added(mine)
        assert graft is not None
        assert (graft.gather, graft.nodes[-1].role) == (True, role)
        assert {policy for one in graft.nodes for _, policy in one.children} == {"continue"}
        assert (graft.nodes[0].form.queue, codec.decode(graft.nodes[0].args)) == ("mine", [[4, 1], {}])


def test_what_is_added_is_checked_like_any_definition(app: Headrace) -> None:
    mine = job(app)
    mine.workflow.run("add", 1, name="a", after="b")
    mine.workflow.run("add", 1, name="b", after="a")
    with pytest.raises(WorkflowError, match="me/a -> me/b -> me/a"):
        runner_context.added(mine)
    with pytest.raises(ArgumentError):
        job(app).workflow.run("add", "x")


def test_a_plain_job_has_no_workflow_and_no_payloads() -> None:
    mine = CurrentJob(Claim("0" * 21, 1, "low", 0, "add", b""), lambda note: None)
    with pytest.raises(NoCurrentJob, match="is not a node of a workflow"):
        _ = mine.workflow
    assert (mine.payloads, mine.workflow_id) == ([], "")


def test_payloads_are_those_of_direct_parents_in_edge_order(app: Headrace) -> None:
    mine = job(app, given({"a": 1}, None))
    assert mine.payloads == [
        Payload(ID, "p0", "add", "succeeded", {"a": 1}),
        Payload(ID, "p1", "add", "failed", None),
    ]
    assert mine.workflow_id == flow_id(5, 6)
