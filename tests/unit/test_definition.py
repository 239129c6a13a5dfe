"""A workflow as a program knows it: its options, its callbacks, what is nested in it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from headrace import Flow, Headrace, Node, Workflow
from headrace.errors import (
    ArgumentError,
    OptionsError,
    WorkflowError,
)
from headrace.model import elsewhere
from headrace.model.codec import decode
from headrace.model.job_record import fill
from headrace.model.workflow import FOR_EVER, Graph, NewNode
from headrace.workflows.definition import CreateOptions, WorkflowOptions, addressed
from tests.unit.graphs import facts, names, node, parents, policies


@pytest.fixture
def app() -> Headrace:
    # Port 1: whatever connects fails the test.
    app = Headrace("redis://localhost:1/0")
    app.task(name="tick")(tick)
    app.task(name="take")(take)
    app.task(name="add")(add)
    return app


def tick() -> int: ...


def take(value: Any) -> None: ...


def add(x: int, y: int = 0, *, scale: int = 1) -> int: ...


def plain(flow: Flow, url: str, sizes: list[int], *, deep: bool = False) -> None:
    """Thumbnails of an image."""
    for size in sizes:
        flow.run("add", size, name=f"{url}-{size}")
    if deep:
        flow.run("tick")


# -- the decorator and its options ----------------------------------------------------------------------------------


def test_a_workflow_is_named_as_a_task_and_keeps_what_python_knows(app: Headrace) -> None:
    flow = app.workflow(plain)
    assert isinstance(flow, Workflow)
    assert flow.name == f"{plain.__module__}.plain"
    assert flow.__doc__ == "Thumbnails of an image."
    assert app.workflow_definitions[flow.name] is flow
    assert app.workflow(name="other")(plain).name == "other"
    assert "store" not in app.client._made


@pytest.mark.parametrize("verb", elsewhere._OF_WORKFLOW)
def test_it_says_which_verbs_start_it(app: Headrace, verb: str) -> None:
    flow: Any = app.workflow(name="thumbnails")(plain)
    with pytest.raises(AttributeError, match=rf"has no '{verb}': write thumbnails.create\(...\).start\(\)"):
        getattr(flow, verb)
    assert not hasattr(flow, "zzz")


def test_it_is_defined_once(app: Headrace) -> None:
    app.workflow(name="w")(plain)
    with pytest.raises(OptionsError, match=r"there is a workflow w already .*@app.workflow\(name=...\)"):
        app.workflow(name="w")(plain)


def test_the_definition_runs_once_per_creation_and_its_arguments_are_kept(app: Headrace) -> None:
    calls: list[object] = []

    @app.workflow(name="w")
    def counted(flow: Flow, url: str, sizes: list[int], *, deep: bool = False) -> None:
        calls.append(url)
        plain(flow, url, sizes, deep=deep)

    assert calls == []
    made = counted.graph("u", sizes=[1, 2], deep=True)
    assert calls == ["u"]
    assert names(made) == ["u-1", "u-2", "tick"]
    assert decode(made.args) == [["u", [1, 2]], {"deep": True}]
    assert (made.definition, made.key, made.ttl) == ("w", "", 7 * 86_400_000_000)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((3, []), {}, "argument 'url' of w: expected str, got int"),
        (("u",), {}, r"w is missing its argument 'sizes': it is w\(url, sizes, \*, deep=...\)"),
        (("u", [], 3), {}, "w takes at most 2 arguments by position"),
        (("u", []), {"fast": True}, "w takes no argument 'fast'"),
        (("u", [object()]), {}, "cannot be sent"),
    ],
)
def test_arguments_of_a_definition_are_checked(
    app: Headrace, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        app.workflow(name="w")(plain).graph(*args, **kwargs)


async def _coroutine(flow: Flow) -> None: ...


def _generator(flow: Flow) -> Any:
    yield flow.run("tick")


def _keyword(*, flow: Flow) -> None: ...


def _nothing() -> None: ...


def test_what_cannot_define_a_workflow_is_refused(app: Headrace) -> None:
    for odd in (_coroutine, _generator):
        with pytest.raises(OptionsError, match="a workflow is defined by an ordinary function, and _"):
            app.workflow(odd)
    for odd in (_keyword, _nothing):
        with pytest.raises(OptionsError, match="takes the flow as its first argument: def _"):
            app.workflow(odd)
    for odd in (3, None, dict):
        with pytest.raises(OptionsError, match=r"@app\.workflow takes a function"):
            app.workflow(odd)
    with pytest.raises(OptionsError, match="has no name of its own"):
        app.workflow(lambda flow: None)


def test_what_a_definition_raises_is_the_callers(app: Headrace) -> None:
    @app.workflow(name="w")
    def broken(flow: Flow) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken.graph()


def test_a_key_is_a_text_or_comes_from_the_arguments(app: Headrace) -> None:
    made = app.workflow(name="w", key=lambda url, sizes, **more: f"{url}/{len(sizes)}")(plain)
    assert made.graph("u", [1]).key == "u/1"
    assert made.options(key="mine").graph("u", [1]).key == "mine"
    assert made.options(key=None).graph("u", [1]).key == ""
    for odd in ("", "x" * 257, 3, "\udcff"):
        with pytest.raises(OptionsError, match="key of workflow w must be a text"):
            made.options(key=lambda *_, odd=odd: odd).graph("u", [1])  # type: ignore[misc]
    with pytest.raises(OptionsError, match="key of workflow w must be a text"):
        made.options(key=7).graph("u", [1])  # type: ignore[arg-type]


def test_retention_counts_in_microseconds_and_none_is_for_ever(app: Headrace) -> None:
    made = app.workflow(name="w", ttl=60)(plain)
    assert made.graph("u", [1]).ttl == 60_000_000
    assert made.options(ttl=timedelta(minutes=2)).graph("u", [1]).ttl == 120_000_000
    assert made.options(ttl=None).graph("u", [1]).ttl == FOR_EVER
    assert made.options(ttl=0).graph("u", [1]).ttl == 0
    brief = Headrace("redis://localhost:1/0", workflow_ttl=5.0)
    brief.task(name="add")(add)
    assert brief.workflow(plain).graph("u", [1]).ttl == 5_000_000
    with pytest.raises(OptionsError, match="ttl must be at least 0"):
        made.options(ttl=-1)


def test_options_of_one_creation_leave_the_others_alone(app: Headrace) -> None:
    made = app.workflow(name="w", globals={"scale": 2, "y": 5})(plain)
    other = made.options(queue="low", globals={"scale": 3})
    one, two = made.graph("u", [1]).nodes[0], other.graph("u", [1]).nodes[0]
    assert (one.form.queue, decode(one.args)) == ("default", [[1, 5], {"scale": 2}])
    assert (two.form.queue, decode(two.args)) == ("low", [[1, 5], {"scale": 3}])
    assert other.name == made.name
    for odd in ({"name": "x"}, {"on_success": "take"}):
        with pytest.raises(
            OptionsError,
            match=r"there is no option .* here: a workflow takes after_commit, globals, headers, key, queue, ttl",
        ):
            made.options(**odd)  # type: ignore[arg-type]
    for odd in ({"colour": 1}, {"globals": [1]}, {"globals": {1: 2}}, {"queue": "a b"}):
        with pytest.raises(OptionsError):
            made.options(**odd)  # type: ignore[arg-type]
        with pytest.raises(OptionsError):
            app.workflow(name="x", **odd)(plain)  # type: ignore[call-overload]


def test_each_option_is_documented() -> None:
    for options in (CreateOptions, WorkflowOptions):
        own = set(options.__annotations__) - (set() if options is CreateOptions else set(CreateOptions.__annotations__))
        assert all(name in (options.__doc__ or "") for name in own)


def test_what_is_called_at_the_end_gets_the_id_and_is_not_part_of_the_run(app: Headrace) -> None:
    made = app.workflow(name="w", on_success="take", on_failure="elsewhere.alarm")(plain)
    graph = made.graph("u", [1])
    assert [one.role for one in graph.nodes] == ["", "callback", "callback"]
    assert (graph.on_success, graph.on_failure) == (2, 3)
    assert (graph.nodes[1].form.task, graph.nodes[2].form.task) == ("take", "elsewhere.alarm")
    assert graph.nodes[0].children == graph.nodes[1].parents == ()
    told = addressed(graph, "a" * 21)
    assert [decode(one.args) for one in told.nodes[1:]] == [[["a" * 21], {}]] * 2
    assert told.nodes[0] is graph.nodes[0]
    with pytest.raises(ArgumentError, match="tick takes at most 0 arguments"):
        app.workflow(name="x", on_success="tick")(plain).graph("u", [1])


# -- workflows in workflows -----------------------------------------------------------------------------------------


@pytest.fixture
def inner(app: Headrace) -> Workflow[[int]]:
    @app.workflow(name="mine.inner", globals={"scale": 7})
    def inner(flow: Flow, n: int) -> None:
        first = flow.run("tick")
        for k in range(n):
            flow.run("add", first, k)

    return inner


def outer(app: Headrace, define: Any, **options: Any) -> Graph:
    app.workflow_definitions.pop("outer", None)
    return app.workflow(**{"name": "outer", **options})(define).graph()


def test_a_workflow_whose_arguments_are_known_becomes_part_of_the_graph(app: Headrace, inner: Workflow[[int]]) -> None:
    def define(flow: Flow) -> None:
        before = flow.run("tick")
        both = flow.run(inner, 2, after=before)
        one = flow.run("mine.inner", 1, name="one")
        flow.run("take", [both, one])

    made = outer(app, define)
    assert parents(made) == {
        "tick": [],
        "inner/tick": ["tick"],
        "inner/add-1": ["inner/tick"],
        "inner/add-2": ["inner/tick"],
        "inner": ["inner/add-1", "inner/add-2"],
        "one/tick": [],
        "one/add": ["one/tick"],
        "one": ["one/add"],
        "take": ["inner", "one"],
    }
    assert (node(made, "inner").role, node(made, "one").role) == ("join", "pass")
    assert {facts(one).definition for one in made.nodes} == {"outer"}


def test_what_is_given_for_all_nodes_is_given_to_nested_ones_after_their_own(
    app: Headrace, inner: Workflow[[int]]
) -> None:
    def define(flow: Flow) -> None:
        flow.run(inner, 1)
        flow.run(inner, 1, queue="mine")

    made = outer(app, define, queue="low", globals={"scale": 1, "y": 9})
    first, second = node(made, "inner-1/add"), node(made, "inner-2/add")
    assert (first.form.queue, second.form.queue) == ("low", "mine")
    assert decode(fill(first.args, [b"\x05"])) == [[5, 0], {"scale": 7}]


def run_of(made: Graph, name: str) -> NewNode:
    found = node(made, name)
    assert found.form.task == "workflow:mine.inner"
    return found


def test_a_workflow_whose_arguments_come_from_nodes_is_built_when_they_have(
    app: Headrace, inner: Workflow[[int]]
) -> None:
    def define(flow: Flow) -> None:
        count = flow.run("tick")
        flow.run(inner, count, name="a")
        flow.run(inner, 1, when=count, name="b")
        flow.run(inner, 1, delay=5, name="c", after=count)
        flow.map(inner, count, name="d")
        flow.map(inner, [1, 2], name="e")

    made = outer(app, define)
    assert decode(fill(run_of(made, "a").args, [b"\x03"])) == [[3], {}]
    assert facts(run_of(made, "b")).when == 0
    assert (run_of(made, "c").form.delay, run_of(made, "c").parents) == (5_000_000, (1,))
    assert facts(run_of(made, "d")).map
    assert [run_of(made, f"e[{n}]").args for n in (0, 1)] == [b"\x92\x91\x01\x80", b"\x92\x91\x02\x80"]
    shared = outer(app, define, name="shared", queue="low", globals={"y": 2})
    assert decode(run_of(shared, "b").args) == [[1], {"__outer__": ["low", {"y": 2, "scale": 7}, "s"]}]
    changed = outer(app, lambda flow: flow.run(inner.options(queue="low"), flow.run("tick"), name="a"))
    assert decode(fill(run_of(changed, "a").args, [b"\x03"])) == [[3], {"__outer__": ["low", {"scale": 7}, "s"]}]


def test_arguments_of_a_nested_workflow_are_checked_where_it_is_run(app: Headrace, inner: Workflow[[int]]) -> None:
    with pytest.raises(ArgumentError, match=r"argument 'n' of mine\.inner: expected int, got str"):
        outer(app, lambda flow: flow.run(inner, "x"))
    with pytest.raises(ArgumentError, match=r"mine\.inner takes at most 1 argument"):
        outer(app, lambda flow: flow.run(inner, flow.run("tick"), 2))
    with pytest.raises(OptionsError, match=r"workflow mine\.inner takes no undo="):
        outer(app, lambda flow: flow.run(inner, 1, undo="take"))


def test_a_workflow_of_another_application_can_be_built_here_only(app: Headrace, inner: Workflow[[int]]) -> None:
    other = Headrace("redis://localhost:1/0")
    other.tasks.update({name: task for name, task in app.tasks.items() if not name.startswith("workflow:")})
    assert len(outer(other, lambda flow: flow.run(inner, 1)).nodes) == 3
    with pytest.raises(WorkflowError, match=r"workflow mine\.inner is of another application"):
        outer(other, lambda flow: flow.run(inner, flow.run("tick")))


def test_names_within_a_nested_workflow_are_its_own(app: Headrace) -> None:
    @app.workflow(name="named")
    def named(flow: Flow) -> None:
        flow.run("tick", name="a", before="b")
        flow.run("tick", name="b")

    def define(flow: Flow) -> None:
        flow.run("tick", name="a")
        flow.run(named)
        flow.run(named)
        flow.run("take", 1, after=["a", "named-1/a", "named-2"])

    made = outer(app, define)
    assert parents(made)["named-1/b"] == ["named-1/a"]
    assert parents(made)["take"] == ["a", "named-1/a", "named-2"]


def test_a_failure_within_a_nested_workflow_may_leave_what_follows_alone(app: Headrace) -> None:
    @app.workflow(name="deep")
    def deep(flow: Flow) -> None:
        flow.run("take", flow.run("tick", name="x"), name="y")

    @app.workflow(name="steps")
    def steps(flow: Flow) -> None:
        a = flow.run("tick", name="a")
        b = flow.run("take", a, name="b", after=a.on_failure("continue"))
        flow.run("take", b, name="c")
        flow.map("take", b, name="m", on_failure="continue")
        flow.map("take", b, name="n")
        flow.run(deep, name="d", after=b)
        flow.run(deep, name="e", when=b)

    def define(flow: Flow) -> None:
        flow.run("tick", after=flow.run(steps, name="s", on_failure="continue"))

    found = outer(app, define)
    assert policies(found) == {
        ("s/a", "s/b"): "continue",
        ("s/b", "s/c"): "skip",
        ("s/b", "s/m"): "skip",
        ("s/b", "s/n"): "skip",
        ("s/b", "s/d/x"): "skip",
        ("s/b", "s/e"): "skip",
        ("s/d/x", "s/d/y"): "skip",
        ("s/d/y", "s/d"): "skip",
        ("s/c", "s"): "continue",
        ("s/m", "s"): "continue",
        ("s/n", "s"): "continue",
        ("s/d", "s"): "continue",
        ("s/e", "s"): "continue",
        ("s", "tick"): "continue",
    }
    assert [facts(node(found, name)).policy for name in ("s/m", "s/n")] == ["continue", "skip"]
    assert decode(node(found, "s/e").args) == [[], {"__outer__": ["", {}, "k"]}]


def test_a_failure_within_stops_what_follows_otherwise(app: Headrace) -> None:
    @app.workflow(name="steps")
    def steps(flow: Flow) -> None:
        flow.run("take", flow.run("tick", name="a"), name="b")
        flow.run("tick", name="c", on_failure="continue")

    found = outer(app, lambda flow: flow.run("tick", after=flow.run(steps, name="s")))
    assert policies(found) == {
        ("s/a", "s/b"): "stop",
        ("s/b", "s"): "stop",
        ("s/c", "s"): "continue",
        ("s", "tick"): "stop",
    }


def test_a_nested_workflow_may_be_referred_to_and_followed(app: Headrace, inner: Workflow[[int]]) -> None:
    def define(flow: Flow) -> None:
        flow.run("take", 1, after=inner, before=[])
        flow.run("tick", before=inner)
        flow.run(inner, 1)

    made = outer(app, define)
    assert parents(made)["take"] == ["inner"]
    assert parents(made)["inner/tick"] == ["tick"], "who comes before it comes before its first nodes"


def test_a_large_global_is_stored_once_for_all_nodes_and_checked(app: Headrace) -> None:
    @app.task(name="reads")
    def reads(n: int, config: dict[str, str], small: int = 0) -> None: ...

    @app.workflow(name="nested")
    def nested(flow: Flow) -> None:
        flow.run(reads, 1)

    def define(flow: Flow) -> None:
        for n in range(3):
            flow.run(reads, n)
        flow.run(nested)
        flow.run(reads, 9, params={"config": {}})

    made = outer(app, define, globals={"config": {"a": "x" * 5000}, "small": 7})
    assert [one.role for one in made.nodes].count("given") == 1
    assert sum(len(one.args) for one in made.nodes) < 6000
    for taker in (one for one in made.nodes if one.given):
        outputs = [made.nodes[parent - 1].args for parent in taker.parents]
        args, kwargs = decode(fill(taker.args, outputs))
        assert {"config": args[1], "small": args[2]} | kwargs == {"config": {"a": "x" * 5000}, "small": 7}
    with pytest.raises(ArgumentError, match="argument 'config' of reads: expected object, got str"):
        outer(app, lambda flow: flow.run(reads, 1), globals={"config": "x" * 5000})


def test_a_nested_workflow_is_numbered_with_all_its_nodes(app: Headrace, inner: Workflow[[int]]) -> None:
    made = outer(app, lambda flow: (flow.run(inner, 2), flow.run(inner, 1), flow.run("tick")))
    assert sorted(parents(made)) == [
        "inner-1", "inner-1/add-1", "inner-1/add-2", "inner-1/tick", "inner-2", "inner-2/add", "inner-2/tick", "tick",
    ]  # fmt: skip


def test_a_node_from_around_may_be_used_within(app: Headrace) -> None:
    kept: list[Node[Any]] = []

    @app.workflow(name="within")
    def within(flow: Flow) -> None:
        flow.run("take", kept[0])

    def define(flow: Flow) -> None:
        kept.append(flow.run("tick"))
        flow.run(within, after=flow.run("tick", name="first"))

    assert parents(outer(app, define))["within/take"] == ["tick", "first"]


def test_a_workflow_may_nest_itself_if_it_ends(app: Headrace) -> None:
    @app.workflow(name="tree")
    def tree(flow: Flow, depth: int) -> None:
        flow.run("tick")
        if depth:
            flow.run("tree", depth - 1)

    assert len(tree.graph(5).nodes) == 6 + 5
    with pytest.raises(WorkflowError, match=r"nested more than 32 deep \(tree -> tree -> tree -> tree\)"):
        tree.graph(40)


def test_a_nested_workflow_is_no_worse_than_another(app: Headrace) -> None:
    @app.workflow(name="empty")
    def empty(flow: Flow) -> None: ...

    @app.workflow(name="circle")
    def circle(flow: Flow) -> None:
        flow.run("tick", name="a", after="b")
        flow.run("tick", name="b", after="a")

    with pytest.raises(WorkflowError, match="workflow empty ran no node"):
        outer(app, lambda flow: flow.run(empty))
    with pytest.raises(WorkflowError, match="circle/a -> circle/b -> circle/a"):
        outer(app, lambda flow: flow.run(circle), name="x")


def test_a_definition_cannot_be_run_as_a_task_outside_of_a_worker(app: Headrace, inner: Workflow[[int]]) -> None:
    assert asyncio.iscoroutinefunction(inner.acreate)
    task = app.tasks["workflow:mine.inner"]
    assert task.kind == "process"
    with pytest.raises(LookupError, match="no job runs here"):
        task(1)
