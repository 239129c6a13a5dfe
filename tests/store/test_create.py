"""Creating workflows from their definitions, in a real store: once, wholly, and never by running the definition again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace import Flow, Headrace
from headrace.errors import ArgumentError
from headrace.model.job import State
from headrace.workflows.run import WorkflowRun
from tests.store.flows import Dispatcher


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        app.task(name="noop")(noop)
        app.task(name="alarm")(alarm)
        yield app


def noop(x: object = None, *, scale: int = 1) -> None: ...


def alarm(id: str) -> None: ...


def wide(flow: Flow, count: int, text: str = "") -> None:
    first = flow.run("noop", text, name="first")
    flow.run("noop", [flow.run("noop", first) for _ in range(count)], name="last")


def names(run: WorkflowRun) -> list[str]:
    return [node.facts.name for node in run.nodes(limit=1000)]


def test_a_workflow_is_stored_with_what_it_was_given_and_waits_for_its_start(app: Headrace) -> None:
    made = app.workflow(name="w", globals={"scale": 3}, ttl=60)(wide)
    run = made.create(2, text="t")
    record = run.refresh()
    assert (run.created, run.definition, record.state, record.total, record.done) == (True, "w", "pending", 4, 0)
    assert (record.args, record.kwargs, record.globals) == ((2, "t"), {}, {"scale": 3})
    assert (record.ttl, record.key, record.started_us) == (60_000_000, "", 0)
    assert names(run) == ["first", "noop-1", "noop-2", "last"]
    assert {node.job.state for node in run.nodes()} == {State.BLOCKED}
    assert Dispatcher(app).work() == []


@pytest.mark.parametrize("count", [498, 499, 1200])
def test_a_large_one_is_stored_in_pieces_and_runs_to_its_end(app: Headrace, count: int) -> None:
    run = app.workflow(name="w")(wide).create(count)
    assert run.refresh().total == count + 2
    run.start()
    assert len(Dispatcher(app).work()) == count + 2
    assert run.wait(5) == "succeeded"


def test_large_arguments_make_small_pieces(app: Headrace) -> None:
    @app.workflow(name="w")
    def heavy(flow: Flow) -> None:
        for _ in range(20):
            flow.run("noop", "x" * 500_000)

    assert heavy.create().refresh().total == 20


async def test_coroutines_create_them_too(app: Headrace) -> None:
    made = app.workflow(name="w")(wide)
    run = await made.acreate(600)
    assert (await run.arefresh()).total == 602
    assert await made.acount() == 1
    assert await made.aids() == [run.id]
    assert [record.id for record in await made.apage()] == [run.id]
    await app.aclose()


def test_a_key_has_one_live_workflow(app: Headrace) -> None:
    made = app.workflow(name="w", key="nightly")(wide)
    first = made.create(3)
    again = made.create(700)
    assert (again.id, again.created, again.refresh().total) == (first.id, False, 5)
    assert made.options(key="other").create(1).created
    assert app.workflow(name="v", key="nightly")(wide).create(1).created, "keys are the definition's own"
    first.start()
    Dispatcher(app).work()
    assert first.state == "succeeded"
    assert made.create(3).created


def test_many_at_once_with_one_key_make_one(app: Headrace) -> None:
    made = app.workflow(name="w", key="k")(wide)
    runs: list[WorkflowRun] = []
    # 700 nodes: each creation takes two calls, between which the others come.
    threads = [threading.Thread(target=lambda: runs.append(made.create(700))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 6
    assert {run.id for run in runs} == {made.ids()[0]}
    assert [run.created for run in runs].count(True) == 1
    assert made.count() == 1


def test_an_id_is_drawn_once_and_sorts_by_time(app: Headrace) -> None:
    made = app.workflow(name="w")(wide)
    ids = [made.create(1).id for _ in range(50)]
    assert len(set(ids)) == 50
    assert [id[:8] for id in ids] == sorted(id[:8] for id in ids)


def test_loading_runs_no_definition(app: Headrace, url: str) -> None:
    calls: list[int] = []

    @app.workflow(name="w")
    def counted(flow: Flow) -> None:
        calls.append(1)
        for n in range(1 + len(calls)):
            flow.run("noop", n)

    id = counted.create().id
    with Headrace(url, timeout=20) as other:
        assert other.workflow_definitions == {}
        run = other.workflows.get(id)
        run.start()
        assert names(run) == ["noop-1", "noop-2"]
    assert names(app.workflows.get(id)) == ["noop-1", "noop-2"]
    assert calls == [1]


def test_who_is_called_at_the_end_is_called_with_the_id(app: Headrace) -> None:
    made = app.workflow(name="w", on_success="alarm", on_failure="alarm")(wide)
    run = made.create(1)
    run.start()
    dispatcher = Dispatcher(app)
    assert dispatcher.work()[:3] == [1, 2, 3]
    called = {node.facts.name: node.job for node in run.nodes()}["(on_success)"]
    assert called.args == (run.id,)
    assert called.state == State.SUCCEEDED


def test_what_cannot_be_defined_leaves_nothing(app: Headrace) -> None:
    with pytest.raises(ArgumentError):
        app.workflow(name="w")(wide).create("many")  # type: ignore[arg-type]
    assert app.workflows.count() == 0


def test_a_definition_lists_its_own(app: Headrace) -> None:
    first, second = app.workflow(name="a")(wide), app.workflow(name="b")(wide)
    runs = [first.create(1) for _ in range(3)]
    second.create(1)
    assert (first.count(), second.count(), app.workflows.count()) == (3, 1, 4)
    assert first.ids(order="asc") == [run.id for run in runs]
    runs[1].start()
    assert [record.id for record in first.page(state="running")] == [runs[1].id]
    assert first.count(state="pending") == 2


def test_a_failure_within_a_nested_workflow_means_what_was_asked(app: Headrace) -> None:
    @app.workflow(name="inner")
    def inner(flow: Flow) -> None:
        flow.run("noop", flow.run("noop", name="a"), name="b")

    @app.workflow(name="outer")
    def outer(flow: Flow, policy: str) -> None:
        flow.run("noop", after=flow.run(inner, name="in", on_failure=policy), name="next")  # type: ignore[arg-type]

    dispatcher = Dispatcher(app)
    for policy, worked, state in (("continue", 2, "succeeded"), ("skip", 1, "succeeded"), ("stop", 1, "failed")):
        run = outer.create(policy)
        run.start()
        assert len(dispatcher.work({1: "failed"})) == worked
        assert run.wait(5) == state
        found = {node.facts.name: node.job.state for node in run.nodes()}
        ends = {"continue": "succeeded", "skip": "skipped", "stop": "blocked"}
        assert found["next"] == ends[policy]
