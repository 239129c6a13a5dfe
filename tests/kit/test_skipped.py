"""One rule for all that is skipped, whatever it is and whatever skipped it; docs/workflows.md says it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from headrace import Flow, Headrace, current_job
from headrace.model.workflow import Policy, WorkflowState
from headrace.testing import Kit
from headrace.workflows.node import Node
from headrace.workflows.run import WorkflowRun

app = Headrace()


@app.task(name="add")
def add(a: int = 0, b: int = 0) -> int:
    return a + b


@app.task(name="fail", retries=0)
def fail() -> None:
    raise ValueError


@app.task(name="numbers")
def numbers(count: int) -> list[int]:
    return list(range(count))


@app.task(name="echo")
def echo(value: Any) -> list[Any]:
    return [value]


@app.task(name="payloads")
def payloads() -> list[list[Any]]:
    return [[one.name, one.state, one.output] for one in current_job().payloads]


@app.workflow(name="inner")
def inner(flow: Flow, count: int) -> None:
    flow.run(echo, flow.map(add, list(range(count)), 1))


@app.workflow(name="nothing")
def nothing(flow: Flow, count: int) -> None:
    """Its last node is skipped."""
    flow.run(add, 1, 1, when=flow.run(add, count, -count))


@pytest.fixture
def headrace_target() -> Headrace:
    return app


def drained(kit: Kit, function: Callable[[Flow], None]) -> WorkflowRun:
    """A run that has succeeded; each test defines its own."""
    name = function.__name__
    known = app.workflow_definitions
    run = (known[name] if name in known else app.workflow(name=name)(function)).create()
    run.start()
    kit.drain(run, raises=False)
    assert run.state is WorkflowState.SUCCEEDED, states(run)
    return run


def states(run: WorkflowRun) -> dict[str, str]:
    return {node.facts.name: node.job.state.value for node in run.nodes(limit=1000)}


POLICIES: tuple[Policy, ...] = ("stop", "continue", "skip")
Make = Callable[..., Node[Any]]


def _plain(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.run("add", 1, *args, **given)


def _static(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.map("add", [1, 2], *args, **given)


def _empty(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.map("add", [], *args, **given)


def _dynamic(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.map("add", flow.run("numbers", 2), *args, **given)


def _nested(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.run("workflow:inner", *(args or (2,)), **given)


def _inline(flow: Flow, **given: Any) -> Node[Any]:
    """A nested workflow whose nodes are known: what it follows is what its first ones follow."""
    return flow.run("test.inline", **given)


@app.workflow(name="test.inline")
def _two(flow: Flow) -> None:
    flow.run("add", flow.run("add", 1, 1), 1)


FORMS: dict[str, Make] = {
    "plain": _plain, "static": _static, "empty": _empty, "dynamic": _dynamic, "nested": _nested, "inline": _inline,
}  # fmt: skip


def _causes(flow: Flow, make: Make, **given: Any) -> dict[str, Node[Any]]:
    """The same node, skipped for each reason that there is."""
    name = given.pop("name")
    no = flow.run("add", 0, 0, name=f"no {name}")
    skipped = flow.run("add", 1, when=no, name=f"skipped {name}")
    failed = flow.run("fail", name=f"failed {name}", on_failure="skip")
    found = {
        "what it follows": make(flow, after=skipped, name=f"{name} by what it follows", **given),
        "a failure": make(flow, after=failed, name=f"{name} by a failure", **given),
    }
    if make is not _inline:
        # With these it is built at run time.
        found["its condition"] = make(flow, when=no, name=f"{name} by its condition", **given)
        found["what it takes"] = make(flow, skipped, name=f"{name} by what it takes", **given)
    return found


def _everything(flow: Flow) -> None:
    for (form, make), policy in product(FORMS.items(), POLICIES):
        for cause, node in _causes(flow, make, on_failure=policy, name=f"{form} {policy}").items():
            name = f"{form}, {policy}, {cause}"
            flow.run("echo", node, name=f"after: {name}")
            flow.run("echo", node.on_failure("continue"), name=f"goes on: {name}")
            flow.run("payloads", after=node.on_failure("continue"), name=f"sees: {name}")


def test_all_that_is_skipped_follows_one_rule(headrace_app: Kit) -> None:
    run = drained(headrace_app, _everything)
    found = states(run)
    goes_on = [name for name in found if name.startswith("goes on: ")]
    assert len(goes_on) == len(POLICIES) * (4 * len(FORMS) - 2)
    taken = run.outputs(*goes_on)
    sees = run.outputs(*(name.replace("goes on", "sees") for name in goes_on))
    for name in (name.removeprefix("goes on: ") for name in goes_on):
        assert taken[f"goes on: {name}"] == [None], name
        ((_, state, output),) = sees[f"sees: {name}"]
        assert (state, output) == ("skipped", None), name
        # on_failure= of a map is about its items: what follows the map itself was told nothing.
        continues = name.startswith(("plain, continue", "nested, continue", "inline, continue"))
        assert found[f"after: {name}"] == ("succeeded" if continues else "skipped"), name


def test_a_map_whose_items_were_not_all_skipped_has_none_in_their_places(headrace_app: Kit) -> None:
    def some(flow: Flow) -> None:
        no = flow.run("add", 0, 0, name="no")
        skipped = flow.run("add", 1, when=no, name="skipped")
        there = flow.run("add", 4, name="there")
        mapped = flow.map("add", [skipped, there], 10, on_failure="continue", name="mapped")
        flow.run("echo", mapped, name="follows")
        strict = flow.map("add", [skipped, there], 10, name="strict")
        flow.run("echo", strict, name="is skipped")

    run = drained(headrace_app, some)
    assert run.outputs("follows") == {"follows": [[None, 14]]}
    assert states(run)["is skipped"] == "skipped"


def test_the_output_of_a_node_that_only_added_skipped_ones_is_left_out(headrace_app: Kit) -> None:
    def nested(flow: Flow) -> None:
        flow.run("workflow:nothing", flow.run("add", 0, 0), name="nested")

    assert drained(headrace_app, nested).outputs() == {}
