"""What a definition's words come to: nodes, edges, names, policies, and each error that it can make."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Flow, Headrace, Node, Retry
from headrace.errors import (
    ArgumentError,
    HeadraceError,
    OptionsError,
    PayloadTooLarge,
    WorkflowError,
)
from headrace.model import workflow as facts_of
from headrace.model.codec import decode
from headrace.model.form import Overrides
from headrace.model.job_record import fill
from headrace.model.workflow import Graph
from tests.unit.graphs import facts, names, node, parents, policies

# Port 1: whatever connects fails the test.
app = Headrace("redis://localhost:1/0")


@dataclasses.dataclass
class Album:
    title: str
    images: list[Any]


@app.task(name="fetch")
def fetch(url: str) -> bytes: ...


@app.task(name="resize", queue="gpu", retries=2)
def resize(image: bytes, size: int, quality: int = 3) -> str: ...


@app.task(name="publish")
def publish(images: list[str], *, title: str = "") -> None: ...


@app.task(name="tick")
def tick() -> int: ...


@app.task(name="take")
def take(value: Any) -> None: ...


Define = Callable[[Flow], object]


def graph(define: Define, **options: Any) -> Graph:
    """What a definition comes to, in an application that knows the tasks above."""
    mine = Headrace("redis://localhost:1/0")
    mine.tasks.update(app.tasks)
    return mine.workflow(**{"name": "w", **options})(define).graph()


# -- nodes and edges ------------------------------------------------------------------------------------------------


def test_a_node_that_is_passed_on_makes_the_edge_and_leaves_a_slot() -> None:
    def define(flow: Flow) -> None:
        image = flow.run(fetch, "http://x")
        thumbs = [flow.run(resize, image, size) for size in (64, 128)]
        flow.run(publish, thumbs, params={"title": "all"})

    found = graph(define)
    assert parents(found) == {
        "fetch": [],
        "resize-1": ["fetch"],
        "resize-2": ["fetch"],
        "publish": ["resize-1", "resize-2"],
    }
    assert decode(found.nodes[0].args) == [["http://x"], {}]
    assert decode(fill(found.nodes[2].args, [b"\xc4\x01a"])) == [[b"a", 128], {}]
    assert decode(fill(found.nodes[3].args, [b"\x01", b"\x02"])) == [[[1, 2]], {"title": "all"}]


def test_a_node_is_found_in_lists_dictionaries_and_records_and_is_one_edge_however_often() -> None:
    def define(flow: Flow) -> None:
        first, second = flow.run(tick), flow.run(tick)
        flow.run(take, Album("t", [second, {"a": (first, second)}]))

    found = graph(define)
    assert parents(found)["take"] == ["tick-2", "tick-1"], "in the order in which they occur"
    filled = decode(fill(found.nodes[2].args, [b"\x02", b"\x01"]))
    assert filled == [[{"title": "t", "images": [2, {"a": [1, 2]}]}], {}]


def test_arguments_are_what_they_were_when_the_node_was_made() -> None:
    def define(flow: Flow) -> None:
        images = ["a"]
        flow.run(publish, images)
        images.append("b")

    assert decode(graph(define).nodes[0].args) == [[["a"]], {}]


def test_after_and_before_take_nodes_tasks_names_and_lists_and_may_look_ahead() -> None:
    def define(flow: Flow) -> None:
        flow.run(take, 1, name="a", after=["late", fetch], before="z")
        flow.run(fetch, "x", before=[publish])
        flow.run(tick, name="late")
        last = flow.run(publish, [], name="z")
        flow.run(resize, b"", 1, after=last)

    assert parents(graph(define)) == {
        "a": ["late", "fetch"],
        "fetch": [],
        "late": [],
        "z": ["a", "fetch"],
        "resize": ["z"],
    }


def test_edges_come_in_the_order_of_arguments_condition_after_and_before() -> None:
    def define(flow: Flow) -> None:
        flow.run(tick, name="b", before="x")
        a, c, d, e = (flow.run(tick, name=name) for name in "acde")
        flow.run(take, [d, a], name="x", after=["f", c, a], when=e)
        flow.run(tick, name="f")

    found = graph(define)
    assert parents(found)["x"] == ["d", "a", "e", "f", "c", "b"]
    assert facts(node(found, "x")).when == 2


def test_loops_and_conditions_are_those_of_python() -> None:
    def define(flow: Flow) -> None:
        last: Node[Any] = flow.run(tick)
        for n in range(3):
            last = flow.run(take, last) if n % 2 else flow.run(take, [last, n])

    assert [list(above) for above in parents(graph(define)).values()] == [[], ["tick"], ["take-1"], ["take-2"]]


def test_a_task_and_its_name_mean_the_same() -> None:
    def define(flow: Flow) -> None:
        flow.run("fetch", "u", name="a")
        flow.run(take, 1, after="fetch")

    found = graph(define)
    assert found.nodes[0].form.task == "fetch"
    assert parents(found)["take"] == ["a"]
    with pytest.raises(ArgumentError, match="argument 'url' of fetch"):
        graph(lambda flow: flow.run("fetch", 3))


def test_a_task_whose_code_is_elsewhere_is_run_unchecked() -> None:
    def define(flow: Flow) -> None:
        image = flow.run("other.fetch", 1, 2, queue="far")
        flow.run("other.store", image, params={"x": 1}, after="other.fetch")

    found = graph(define, globals={"quality": 1})
    assert names(found) == ["fetch", "store"]
    assert (found.nodes[0].form.task, found.nodes[0].form.queue) == ("other.fetch", "far")
    assert decode(fill(found.nodes[1].args, [b"\x07"])) == [[7], {"x": 1}], "nobody knows whether it takes globals"


# -- options --------------------------------------------------------------------------------------------------------


def test_options_of_a_job_are_those_of_the_node() -> None:
    def define(flow: Flow) -> None:
        flow.run(fetch, "u", queue="low", delay=timedelta(seconds=2), priority=3, key="k")
        flow.run(fetch, "u", options={"retries": 5, "timeout": 3, "max_crashes": 7, "at_most_once": False})
        flow.run(fetch.options(queue="mine", priority=1), "u", priority=2)
        flow.run(resize, b"", 1)

    found = graph(define)
    first, second, third, fourth = (one.form for one in found.nodes)
    assert (first.queue, first.delay, first.priority, first.key) == ("low", 2_000_000, 3, "k")
    assert msgspec.msgpack.decode(second.options, type=Overrides) == Overrides(retries=5, timeout=3.0)
    assert second.max_crashes == 7
    assert (third.queue, third.priority) == ("mine", 2)
    assert fourth.queue == "gpu"


def test_the_queue_of_a_workflow_is_for_nodes_without_one() -> None:
    def define(flow: Flow) -> None:
        flow.run(fetch, "u")
        flow.run(fetch, "u", queue="default")
        flow.run(resize, b"", 1)
        flow.run(fetch.options(queue="mine"), "u")

    assert [one.form.queue for one in graph(define, queue="low").nodes] == ["low", "default", "gpu", "mine"]


def test_globals_go_to_nodes_that_take_them_and_their_own_come_first() -> None:
    def define(flow: Flow) -> None:
        flow.run(resize, b"", 1)
        flow.run(resize, b"", 1, params={"quality": 1})
        flow.run(resize, b"", 1, 2)
        flow.run(publish, [])
        flow.run(take, 1)

    found = graph(define, globals={"quality": 9, "title": "t"})
    assert [decode(one.args) for one in found.nodes] == [
        [[b"", 1, 9], {}],
        [[b"", 1, 1], {}],
        [[b"", 1, 2], {}],
        [[[]], {"title": "t"}],
        [[1], {}],
    ]
    assert decode(found.globals) == {"quality": 9, "title": "t"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "u"}, r"no option 'url': a task's own argument goes into params=\{'url': ...\}"),
        ({"prioritty": 3}, "did you mean 'priority'"),
        ({"priority": "high"}, "priority must be a whole number"),
        ({"queue": "a b"}, "queue name 'a b' cannot be used"),
        ({"options": {"at": datetime.now(UTC)}}, "a node takes no at="),
        ({"options": {"expires": 3}}, "a node takes no expires="),
        ({"options": {"ordered": True}}, "a node takes no ordered=: its edges say"),
        ({"options": {"result_ttl": 3}}, "give ttl= to that"),
        ({"options": {"request_id": "x"}}, "key= of the workflow"),
        ({"options": {"colour": 3}}, "there is no option 'colour'"),
        ({"options": 5}, "options= takes a dictionary of arguments by name, not 5"),
        ({"params": ["url"]}, "params= takes a dictionary of arguments by name"),
        ({"params": {1: 2}}, "params= takes a dictionary of arguments by name"),
        ({"name": ""}, "the name of a node must be a printable text"),
        ({"name": "a\nb"}, "the name of a node must be a printable text"),
        ({"name": 3}, "the name of a node must be a printable text"),
    ],
)
def test_an_option_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        graph(lambda flow: flow.run(tick, **given))


def test_a_due_time_of_a_bound_task_is_refused_and_a_tasks_own_expiry_does_not_count() -> None:
    with pytest.raises(OptionsError, match="no at= and no expires="):
        graph(lambda flow: flow.run(fetch.options(expires=5), "u"))
    mine = Headrace("redis://localhost:1/0")
    brief = mine.task(name="brief", expires=5)(lambda: None)

    def define(flow: Flow) -> None:
        flow.run(brief)

    made = mine.workflow(name="w")(define).graph()
    assert made.nodes[0].form.expires == 0


def test_what_is_no_task_is_refused() -> None:
    for odd in (len, None, 3, tick.function):
        with pytest.raises(ArgumentError, match=r"takes a task, the name of one, or a workflow, not .*decorated\?"):
            graph(lambda flow, odd=odd: flow.run(odd))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (lambda flow: flow.run(fetch, 3), ArgumentError, "argument 'url' of fetch: expected str, got int"),
        (lambda flow: flow.run(fetch), ArgumentError, "fetch is missing its argument 'url'"),
        (lambda flow: flow.run(fetch, "u", params={"x": 1}), ArgumentError, "fetch takes no argument 'x'"),
        (lambda flow: flow.run(take, object()), ArgumentError, r"cannot be sent \(builtins.object\)"),
        (lambda flow: flow.run(take, {flow.run(tick): 1}), ArgumentError, "cannot be the key of a dictionary"),
        (lambda flow: flow.run(take, "x" * (2 << 20)), PayloadTooLarge, "argument '.*' of take takes 2,097,"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_where_it_is_written(
    run: Define, error: type[HeadraceError], message: str
) -> None:
    with pytest.raises(error, match=message):
        graph(run)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"retries": 3}, r"goes into options=\{'retries': \.\.\.\}"),
        ({"timeout": 3}, r"goes into options=\{'timeout': \.\.\.\}"),
        ({"retires": 3}, r"did you mean options=\{'retries': \.\.\.\}\?"),
        ({"at": 3}, "the time of a node's turn is unknown"),
        ({"afer": 3}, "did you mean 'after'"),
        ({"result_ttl": 3}, "a node stays as long as its workflow"),
        ({"url": 3}, r"goes into params=\{'url': \.\.\.\}"),
    ],
)
def test_an_option_that_a_node_does_not_have_is_told_its_place(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(OptionsError, match=f"a node has no option '{next(iter(given))}': .*{hint}"):
        graph(lambda flow: flow.run(tick, **given))


# -- policies and conditions ----------------------------------------------------------------------------------------


def test_a_failure_means_what_the_edge_says_or_else_its_parent() -> None:
    def define(flow: Flow) -> None:
        a = flow.run(tick, name="a")
        b = flow.run(tick, name="b", on_failure="continue")
        c = flow.run(tick, name="c", on_failure="skip", before="y")
        flow.run(take, [a, b.on_failure("skip"), c], name="x")
        flow.run(take, a.on_failure("continue"), name="y", after=[b, a])

    assert policies(graph(define)) == {
        ("a", "x"): "stop",
        ("b", "x"): "skip",
        ("c", "x"): "skip",
        ("a", "y"): "continue",
        ("b", "y"): "continue",
        ("c", "y"): "skip",
    }


def test_one_edge_has_one_policy() -> None:
    def define(flow: Flow) -> None:
        a = flow.run(tick)
        flow.run(take, a.on_failure("skip"), after=a.on_failure("continue"))

    with pytest.raises(WorkflowError, match="one edge from 'tick' was given two policies"):
        graph(define)
    with pytest.raises(WorkflowError, match="on_failure must be one of stop, continue, skip, not 'abort'"):
        graph(lambda flow: flow.run(tick, on_failure="abort"))
    with pytest.raises(WorkflowError, match="on_failure must be one of"):
        graph(lambda flow: flow.run(tick).on_failure("never"))  # type: ignore[arg-type]
    with pytest.raises(WorkflowError, match="before= of node 'tick-2' was given a policy"):
        graph(lambda flow: flow.run(tick, before=flow.run(tick).on_failure("skip")))


def test_a_condition_is_an_edge_whose_position_is_a_fact() -> None:
    def define(flow: Flow) -> None:
        a, b = flow.run(tick, name="a"), flow.run(tick, name="b")
        flow.run(take, a, when=b, name="x")
        flow.run(take, a, when=a.on_failure("continue"), name="y")

    found = graph(define)
    assert parents(found)["x"] == ["a", "b"]
    assert (facts(node(found, "x")).when, facts(node(found, "y")).when, facts(node(found, "a")).when) == (1, 0, -1)
    assert policies(found)["a", "y"] == "continue"
    with pytest.raises(WorkflowError, match="when= takes a node, not True"):
        graph(lambda flow: flow.run(tick, when=True))


# -- undo -----------------------------------------------------------------------------------------------------------


def test_what_undoes_a_node_is_stored_beside_it_and_called_with_its_output() -> None:
    def define(flow: Flow) -> None:
        charge = flow.run(fetch, "u", name="charge", undo=take)
        flow.run(take, charge, undo="other.revert")

    found = graph(define)
    assert [one.role for one in found.nodes] == ["", "", "undo", "undo"]
    assert [one.undo for one in found.nodes] == [3, 4, 0, 0]
    undo = found.nodes[2]
    assert (facts(undo).name, undo.form.task, undo.parents, undo.children) == ("charge (undo)", "take", (1,), ())
    assert decode(fill(undo.args, [b"\x07"])) == [[7], {}]
    assert found.nodes[0].children == ((2, "stop"),), "nothing leads to what undoes"
    with pytest.raises(ArgumentError, match="tick takes at most 0 arguments"):
        graph(lambda flow: flow.run(fetch, "u", undo=tick))
    with pytest.raises(OptionsError, match=r"flow.map takes no undo="):
        graph(lambda flow: flow.map(take, [1], undo=take))


# -- map ------------------------------------------------------------------------------------------------------------


def test_a_map_over_a_node_is_one_node_until_it_runs() -> None:
    def define(flow: Flow) -> None:
        images = flow.run(tick)
        thumbs = flow.map(resize, images, 64, on_failure="continue", queue="low", priority=4, params={"quality": 1})
        flow.run(publish, thumbs)

    found = graph(define)
    assert parents(found) == {"tick": [], "resize": ["tick"], "publish": ["resize"]}
    mapped = facts(found.nodes[1])
    assert (mapped.map, mapped.policy, mapped.priority) == (True, "continue", 4)
    assert policies(found)["resize", "publish"] == "stop", "the list is there, whatever became of an item"
    assert decode(fill(found.nodes[1].args, [b"\x91\x05"])) == [[[5], 64, 1], {}]


def test_a_map_over_a_list_is_made_at_once() -> None:
    def define(flow: Flow) -> None:
        first = flow.run(tick, name="first")
        thumbs = flow.map(resize, (b"a", b"b"), 64, name="thumbs", on_failure="skip", after="first")
        flow.run(publish, thumbs)
        flow.map(take, [first, 2])

    found = graph(define)
    assert parents(found) == {
        "first": [],
        "thumbs[0]": ["first"],
        "thumbs[1]": ["first"],
        "thumbs": ["thumbs[0]", "thumbs[1]"],
        "publish": ["thumbs"],
        "take[0]": ["first"],
        "take[1]": [],
        "take": ["take[0]", "take[1]"],
    }
    assert node(found, "thumbs").role == "join"
    assert policies(found)["thumbs[0]", "thumbs"] == "skip"
    assert decode(node(found, "thumbs[1]").args) == [[b"b", 64], {}]


def test_a_map_may_be_named_by_its_task_and_its_items_may_not() -> None:
    def define(flow: Flow) -> None:
        flow.map(take, [1, 2, 3])
        flow.run(tick, after=take)

    assert parents(graph(define))["tick"] == ["take"]


def test_a_map_over_nothing_gives_an_empty_list() -> None:
    def define(flow: Flow) -> None:
        flow.run(publish, flow.map(resize, [], 3))

    found = graph(define)
    assert (names(found), facts(found.nodes[0]).map) == (["resize", "publish"], True)
    assert decode(found.nodes[0].args) == [[[], 3], {}]


@pytest.mark.parametrize("items", ["text", b"bytes", {"a": 1}, 3, None])
def test_a_map_over_what_is_no_list_is_refused(items: Any) -> None:
    with pytest.raises(ArgumentError, match=r"flow\.map takes a node or a list of items, not"):
        graph(lambda flow: flow.map(take, items))


# -- errors of the whole graph --------------------------------------------------------------------------------------


def test_a_cycle_is_named() -> None:
    def define(flow: Flow) -> None:
        flow.run(tick, name="root")
        flow.run(tick, name="a", after=["c", "root"])
        flow.run(tick, name="b", after="a")
        flow.run(tick, name="c", after="b")

    with pytest.raises(WorkflowError, match="nodes of workflow w wait for each other: a -> b -> c -> a; none"):
        graph(define)
    with pytest.raises(WorkflowError, match="node 'a' of workflow w waits for itself"):
        graph(lambda flow: flow.run(tick, name="a", after="a"))
    with pytest.raises(WorkflowError, match="node 'tick' of workflow w waits for itself"):
        graph(lambda flow: flow.run(tick, after=tick))


@given(st.integers(1, 8), st.data())
def test_edges_are_those_that_were_said_whichever_way(size: int, data: st.DataObject) -> None:
    places = st.integers(0, size - 1)
    kinds = st.sampled_from(["argument", "after", "before", "name"])
    said = data.draw(st.lists(st.tuples(places, places, kinds), max_size=16))
    # An argument can only be a node that is there already.
    said = [(a, b, kind) for a, b, kind in said if a != b and (kind != "argument" or a < b)]
    wanted: dict[str, set[str]] = {f"n{n}": {f"n{a}" for a, b, _ in said if b == n} for n in range(size)}

    def define(flow: Flow) -> None:
        made: list[Node[Any]] = []
        for n in range(size):
            into = [(a, kind) for a, b, kind in said if b == n and kind != "before"]
            first = [made[a] if a < n and kind == "after" else f"n{a}" for a, kind in into if kind != "argument"]
            before = [f"n{b}" for a, b, kind in said if a == n and kind == "before"]
            arguments = [made[a] for a, kind in into if kind == "argument"]
            made.append(flow.run(take, arguments, name=f"n{n}", after=first, before=before))

    try:
        order = list(TopologicalSorter(wanted).static_order())
    except CycleError:
        with pytest.raises(WorkflowError):
            graph(define)
    else:
        assert len(order) == size
        assert {name: set(above) for name, above in parents(graph(define)).items()} == wanted


def test_a_long_cycle_is_cut() -> None:
    def define(flow: Flow) -> None:
        for n in range(10_000):
            flow.run(tick, name=f"n{n}", after=f"n{(n - 1) % 10_000}")

    with pytest.raises(WorkflowError, match=r"n0 -> n1 -> .* -> \(9989 more\) -> n0; none could start") as caught:
        graph(define)
    assert len(str(caught.value)) < 300


def test_a_reference_to_nobody_names_both_and_what_there_is() -> None:
    with pytest.raises(WorkflowError, match=r"after='fetsh' of node 'tick' in workflow w .* did you mean 'fetch"):
        graph(lambda flow: (flow.run(fetch, "u"), flow.run(tick, after="fetsh")))
    with pytest.raises(WorkflowError, match=r"before='xyz' of node 'tick' .*: the nodes are tick$"):
        graph(lambda flow: flow.run(tick, before="xyz"))
    with pytest.raises(WorkflowError, match="after='publish' of node 'tick'"):
        graph(lambda flow: flow.run(tick, after=publish))
    with pytest.raises(ArgumentError, match="after= takes a task"):
        graph(lambda flow: flow.run(tick, after=3))  # type: ignore[arg-type]


def test_a_task_with_several_nodes_is_no_reference() -> None:
    def define(flow: Flow) -> None:
        flow.run(fetch, "a")
        flow.run(fetch, "b", name="second")
        flow.run(tick, after=fetch)

    with pytest.raises(WorkflowError, match=r"after='fetch' of node 'tick' .* may mean any of fetch, second: pass"):
        graph(define)


def test_a_node_of_another_workflow_is_refused() -> None:
    kept: list[Node[Any]] = []
    graph(lambda flow: kept.append(flow.run(tick)), name="first")
    for use in (
        lambda flow: flow.run(take, [kept[0]]),
        lambda flow: flow.run(tick, after=kept[0]),
        lambda flow: flow.run(tick, when=kept[0].on_failure("skip")),
        lambda flow: flow.map(take, kept[0]),
    ):
        with pytest.raises(WorkflowError, match=r"node 'tick' belongs to another workflow \(first\) than this one"):
            graph(use)


def test_two_nodes_of_one_name_are_refused_and_given_numbers_are_passed_over() -> None:
    with pytest.raises(WorkflowError, match="workflow w has a node 'a' already"):
        graph(lambda flow: (flow.run(tick, name="a"), flow.run(fetch, "u", name="a")))
    found = graph(lambda flow: (flow.run(tick, name="tick-2"), flow.run(tick), flow.run(tick)))
    assert names(found) == ["tick-2", "tick-1", "tick-3"]


def test_a_large_argument_of_all_items_is_stored_once() -> None:
    big, more = "x" * 5000, ["y" * 5000]

    def define(flow: Flow) -> None:
        flow.map("elsewhere", [1, 2, 3], big, "small", params={"more": more}, after=flow.run(tick), name="m")

    made = graph(define)
    stored = [node for node in made.nodes if node.role == "given"]
    items = [node for node in made.nodes if facts(node).name.startswith("m[")]
    assert len(stored) == 2
    assert all(len(node.args) < 100 and (node.given, node.waits) == (2, 1) for node in items)
    for n, item in enumerate(items, 1):
        outputs = [made.nodes[parent - 1].args for parent in item.parents]
        assert decode(fill(item.args, outputs)) == [[n, big, "small"], {"more": more}]
    assert [node.role for node in made.nodes if not node.children] == ["given", "given", "join"]


def test_a_large_argument_is_checked_as_any() -> None:
    with pytest.raises(ArgumentError, match="argument 'size' of resize: expected int, got str"):
        graph(lambda flow: flow.map(resize, [b"a", b"b"], "x" * 5000))


def test_nodes_are_numbered_where_a_task_has_several() -> None:
    kept: list[Node[Any]] = []

    def define(flow: Flow) -> None:
        kept.append(flow.run(tick))
        assert kept[0].name == "tick"
        flow.run(fetch, "u")
        flow.map(take, [1, 2])
        flow.map(take, [3])
        flow.run(tick)

    assert names(graph(define)) == [
        "tick-1", "fetch", "take-1[0]", "take-1[1]", "take-1", "take-2[0]", "take-2", "tick-2",
    ]  # fmt: skip
    assert kept[0].name == "tick-1"


def test_a_given_name_comes_before_one_that_was_not_given() -> None:
    assert names(graph(lambda flow: (flow.run(tick), flow.run(tick, name="tick")))) == ["tick-1", "tick"]
    assert names(graph(lambda flow: (flow.run(tick), flow.run(tick, name="tick-1"), flow.run(tick)))) == [
        "tick", "tick-1", "tick-2",
    ]  # fmt: skip


def test_a_definition_that_runs_nothing_is_refused() -> None:
    with pytest.raises(WorkflowError, match="workflow w ran no node"):
        graph(lambda flow: None)


def test_a_flow_takes_nothing_after_its_definition() -> None:
    kept: list[Flow] = []
    graph(lambda flow: (kept.append(flow), flow.run(tick)))
    with pytest.raises(WorkflowError, match="the definition of workflow w has ended"):
        kept[0].run(tick)


def test_more_nodes_or_edges_than_there_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.workflows.graph_builder.MAX_NODES", 10)
    with pytest.raises(WorkflowError, match=r"more than 10 nodes \(at 'tick-11'\)"):
        graph(lambda flow: [flow.run(tick) for _ in range(11)])
    monkeypatch.setattr("headrace.workflows.graph_builder.MAX_EDGES", 10)
    with pytest.raises(WorkflowError, match=r"more than 10 edges \(at 'take-2'\)"):
        graph(lambda flow: [flow.run(take, nodes) for nodes in [[flow.run(tick) for _ in range(6)]] for _ in range(2)])
    assert (facts_of.MAX_NODES, facts_of.MAX_EDGES) == (100_000, 1_000_000)


def test_a_chain_and_a_fan_of_10_000_are_made_in_moments() -> None:
    def chain(flow: Flow) -> None:
        last: Node[Any] = flow.run(tick)
        for _ in range(10_000):
            last = flow.run(take, last)

    def fan(flow: Flow) -> None:
        first = flow.run(tick)
        flow.run(take, [flow.run(take, first) for _ in range(10_000)])

    for define in (chain, fan):
        begun = time.process_time()
        found = graph(define)
        assert len(found.nodes) >= 10_001
        # About 0.3 s on a quiet machine; something that grows with the square would take minutes.
        assert time.process_time() - begun < 10
    assert len(found.nodes[0].children) == len(found.nodes[-1].parents) == 10_000


def test_a_retry_policy_of_a_node_is_numbers() -> None:
    found = graph(lambda flow: flow.run(fetch, "u", options={"retries": Retry(max=4, delay=2)}))
    assert msgspec.msgpack.decode(found.nodes[0].form.options, type=Overrides).retries == 4


READS: list[Callable[[Any], object]] = [
    bool, list, len, int, float, range, sum,
    lambda n: n == 0, lambda n: n != "x", lambda n: n == 0, lambda n: n[0], lambda n: 1 in n, lambda n: n > 0,
    lambda n: n > 0, lambda n: n + 1, lambda n: 2 * n, lambda n: not n,
]  # fmt: skip


def test_code_that_reads_a_node_is_refused() -> None:
    refused = 0

    def define(flow: Flow) -> None:
        nonlocal refused
        node = flow.run(fetch, "u")
        for one in (node, node.on_failure("skip")):
            for read in READS:
                with pytest.raises(WorkflowError, match=r"has no value while .* when=, .* flow\.map\(.* pass the node"):
                    read(one)
                refused += 1

    app.workflow(name="reads")(define).graph()
    assert refused == 2 * len(READS)


def test_nodes_are_compared_and_collected() -> None:
    def define(flow: Flow) -> None:
        first, second = flow.run(fetch, "a"), flow.run(fetch, "b")
        assert first == first and first != second  # noqa: PT018
        assert first is not None and first != None  # noqa: E711, PT018
        assert second in [first, second]
        assert {first: 1, second: 2}[second] == 2
        assert len({first, second, first}) == 2
        assert [first, second].index(second) == 1

    app.workflow(name="compares")(define).graph()
