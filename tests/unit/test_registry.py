"""Tasks that are defined apart from the application that includes them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from headrace import Flow, Headrace, Retry, Tasks
from headrace.errors import OptionsError, PayloadTooLarge


@pytest.fixture
def app() -> Headrace:
    # Port 1: whatever connects fails the test.
    return Headrace("redis://localhost:1/0", max_payload=2000)


def double(x: int) -> int:
    return 2 * x


def shout(text: str) -> str:
    return text.upper()


def pair(flow: Flow, x: int) -> None:
    flow.run("double", x)


def test_a_task_without_an_application_runs_in_place_and_says_what_its_enqueue_needs() -> None:
    tasks = Tasks()
    task = tasks.task(double)
    tasks.task(shout)
    assert task(2) == 4
    said = (
        rf"the Tasks of {__name__} \({__name__}.double and 1 more\) are in no application: call app.include\(\.\.\.\)"
    )
    for verb in (task.enqueue, task.job, task.options(queue="low").enqueue):
        with pytest.raises(OptionsError, match=said):
            verb(2)


async def test_the_asynchronous_verbs_of_a_task_without_an_application_say_so_too() -> None:
    tasks = Tasks()
    task = tasks.task(double)
    for verb in (task.aenqueue, task.abroadcast):
        with pytest.raises(OptionsError, match=r"app\.include"):
            await verb(2)


def test_a_workflow_without_an_application_says_what_its_creation_needs() -> None:
    made = Tasks().workflow(pair)
    for verb in (made.create, made.graph):
        with pytest.raises(OptionsError, match=r"app\.include"):
            verb(2)
    with pytest.raises(OptionsError, match=r"app\.include"):
        made.count()


def test_an_included_task_goes_through_the_application_with_its_settings(app: Headrace) -> None:
    tasks = Tasks()
    task, before = tasks.task(double), tasks.task(shout).options(queue="low")
    app.include(tasks)
    assert app.tasks == tasks.tasks == {f"{__name__}.double": task, f"{__name__}.shout": app.tasks[f"{__name__}.shout"]}
    assert task.job(2).bound.context.client is app.client
    assert app.by_name(task.name).job(2).args == task.job(2).args
    # A task with options that was made before the inclusion is included too.
    with pytest.raises(PayloadTooLarge, match="cap of 2,000"):
        before.job("x" * 3000)


def test_what_is_defined_after_the_inclusion_belongs_to_the_application_at_once(app: Headrace) -> None:
    tasks = Tasks()
    app.include(tasks)
    task, made = tasks.task(double), tasks.workflow(name="pair")(pair)
    assert app.tasks[task.name] is task
    assert app.workflow_definitions == {"pair": made}
    assert set(tasks.tasks) == {task.name, "workflow:pair"}
    with pytest.raises(OptionsError):
        app.task(double)


def test_workflows_are_included_with_their_tasks(app: Headrace) -> None:
    tasks, others = Tasks(), Tasks()
    task = others.task(name="double")(double)
    made = tasks.workflow(name="pair")(pair)

    @app.workflow(name="both")
    def both(flow: Flow) -> None:
        flow.run(made, 2)
        flow.run(task, 3)

    app.include(tasks, others)
    graph = both.graph()
    assert [node.form.task for node in graph.nodes if not node.role] == ["double", "double"]
    assert set(app.tasks) == {"double", "workflow:pair", "workflow:both"}


def test_a_node_of_a_task_that_no_application_includes_is_refused(app: Headrace) -> None:
    task = Tasks().task(double)

    @app.workflow(name="both")
    def both(flow: Flow) -> None:
        flow.run(task, 3)

    with pytest.raises(OptionsError, match=rf"{__name__}.double\) are in no application"):
        both.graph()


def test_the_queue_of_a_set_is_that_of_its_tasks_that_name_none(app: Headrace) -> None:
    tasks = Tasks(queue="mail")
    queues = [
        tasks.task(double).defaults.queue,
        tasks.task(name="b", queue=None)(double).defaults.queue,  # type: ignore[arg-type]
        tasks.task(name="c", queue="low")(double).defaults.queue,
        tasks.task(name="d", timeout=3)(double).defaults.queue,
    ]
    assert queues == ["mail", "mail", "low", "mail"]
    with pytest.raises(OptionsError, match="queue"):
        Tasks(queue="no queue")


def test_defaults_apply_where_neither_a_task_nor_its_set_says_more() -> None:
    app = Headrace(
        "redis://localhost:1/0", task_defaults={"queue": "mail", "retries": 3, "timeout": 9, "kind": "thread"}
    )
    tasks = Tasks(queue="low", retries=Retry(delay=[1, 2]))
    early = tasks.task(timeout=5, name="early")(double)
    assert (early.kind, early.defaults.queue, early.defaults.retries.max) == ("process", "low", 2)
    app.include(tasks)
    late, own = tasks.task(name="late")(double), app.task(name="own", retries=0)(double)
    found = [(t.kind, t.defaults.queue, t.defaults.retries.max, t.plan(b"").timeout) for t in (early, late, own)]
    assert found == [("thread", "low", 2, 5), ("thread", "low", 2, 9), ("thread", "mail", 0, 9)]
    assert early.job(3).form.queue == "low"

    @app.task(name="loop")
    async def loop() -> None: ...

    assert (loop.kind, loop.defaults.queue) == ("async", "mail")


def test_tasks_that_move_to_another_application_have_its_defaults() -> None:
    tasks = Tasks()
    task = tasks.task(double)
    first = Headrace("redis://localhost:1/0", task_defaults={"queue": "mail"})
    first.include(tasks)
    assert task.job(1).form.queue == "mail"
    Headrace("redis://localhost:1/0").include(tasks, move=True)
    assert task.job(1).form.queue == "default"


def test_defaults_that_a_task_contradicts_are_refused_and_include_nothing() -> None:
    app = Headrace("redis://localhost:1/0", task_defaults={"retries": 3})
    tasks = Tasks(at_most_once=True)
    tasks.task(double)
    with pytest.raises(OptionsError, match="at_most_once and retries contradict"):
        app.include(tasks)
    assert app.tasks == {}
    for make in (Tasks, lambda **given: Headrace("redis://localhost:1/0", task_defaults=given)):
        with pytest.raises(OptionsError, match="there is no option 'colour'"):
            make(colour=3)
        with pytest.raises(OptionsError, match="name cannot be a default of tasks"):
            make(name="x")


def test_two_tasks_of_one_name_are_refused_wherever_they_come_from(app: Headrace) -> None:
    first, second = Tasks(), Tasks()
    first.task(name="x")(double)
    with pytest.raises(OptionsError, match=r"a task x already \(.*test_registry.py:\d+\): give the one at .*test_reg"):
        first.task(name="x")(shout)
    second.task(name="x")(shout)
    second.task(name="y")(shout)
    with pytest.raises(OptionsError, match="a task x already"):
        app.include(first, second)
    # All or none.
    assert app.tasks == {}
    app.include(first)
    with pytest.raises(OptionsError, match="a task x already"):
        app.include(second)
    assert set(app.tasks) == {"x"}
    with pytest.raises(OptionsError):
        second.tasks["y"].job("")
    first.workflow(name="w")(pair)
    second.tasks.pop("x")
    second.workflow(name="w")(pair)
    with pytest.raises(OptionsError, match="workflow:w already"):
        app.include(second)


def test_a_set_that_is_included_again_stays_as_it_is(app: Headrace) -> None:
    tasks = Tasks()
    tasks.task(double)
    app.include(tasks, tasks)
    app.include(tasks)
    assert app.tasks == tasks.tasks


def test_a_set_belongs_to_one_application_and_moves_when_told(app: Headrace) -> None:
    tasks, other = Tasks(), Headrace("redis://localhost:1/1")
    task, made = tasks.task(double), tasks.workflow(name="pair")(pair)
    own = app.task(shout)
    app.include(tasks)
    with pytest.raises(OptionsError, match=r"are in another application of this process already.*move=True"):
        other.include(tasks)
    assert task.context.client is app.client
    other.include(tasks, move=True)
    assert app.tasks == {own.name: own}
    assert app.workflow_definitions == {}
    assert other.tasks == tasks.tasks
    assert other.workflow_definitions == {"pair": made}
    assert task.job(1).bound.context.client is other.client


def test_what_is_no_set_of_tasks_is_refused_with_what_was_meant(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("shop.mail")
    module.tasks = Tasks()
    monkeypatch.setitem(sys.modules, "shop.mail", module)
    task = module.tasks.task(double)
    wrong: dict[str, Any] = {
        r"did you mean shop\.mail\.tasks\?": module,
        "is a single task, give the Tasks that it was made with": task,
        r"not <Headrace with 0 tasks>: tasks = Tasks\(\) makes them": Headrace("redis://localhost:1/1"),
        r"not 'shop\.mail': tasks = Tasks\(\)": "shop.mail",
    }
    for text, value in wrong.items():
        with pytest.raises(OptionsError, match=text):
            app.include(value)
