"""One rule for all that is skipped, whatever it is and whatever skipped it; docs/workflows.md says it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from headrace import Flow
from headrace.model.workflow import Policy, WorkflowState
from headrace.workflows.node import Node
from tests.system.fleet import Fleet
from tests.system.test_flows import create, states

POLICIES: tuple[Policy, ...] = ("stop", "continue", "skip")
Make = Callable[..., Node[Any]]


def _plain(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.run("thread.add", 1, *args, **given)


def _static(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.map("thread.add", [1, 2], *args, **given)


def _empty(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.map("thread.add", [], *args, **given)


def _dynamic(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.map("thread.add", flow.run("thread.numbers", 2), *args, **given)


def _nested(flow: Flow, *args: Any, **given: Any) -> Node[Any]:
    return flow.run("workflow:process.inner", *(args or (2,)), **given)


def _inline(flow: Flow, **given: Any) -> Node[Any]:
    """A nested workflow whose nodes are known: what it follows is what its first ones follow."""
    return flow.run("test.inline", **given)


def _two(flow: Flow) -> None:
    flow.run("thread.add", flow.run("thread.add", 1, 1), 1)


FORMS: dict[str, Make] = {
    "plain": _plain, "static": _static, "empty": _empty, "dynamic": _dynamic, "nested": _nested, "inline": _inline,
}  # fmt: skip


def _causes(flow: Flow, make: Make, **given: Any) -> dict[str, Node[Any]]:
    """The same node, skipped for each reason that there is."""
    name = given.pop("name")
    no = flow.run("thread.add", 0, 0, name=f"no {name}")
    skipped = flow.run("thread.add", 1, when=no, name=f"skipped {name}")
    failed = flow.run("thread.fail", 9, name=f"failed {name}", on_failure="skip")
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
            flow.run("thread.echo", node, name=f"after: {name}")
            flow.run("thread.echo", node.on_failure("continue"), name=f"goes on: {name}")
            flow.run("thread.payloads", after=node.on_failure("continue"), name=f"sees: {name}")


def test_all_that_is_skipped_follows_one_rule(fleet: Fleet) -> None:
    fleet.worker(kinds="process,thread")
    fleet.app.workflow(name="test.inline")(_two)
    run = create(fleet, _everything)
    assert run.wait(60) is WorkflowState.SUCCEEDED, states(run)
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


def test_a_map_whose_items_were_not_all_skipped_has_none_in_their_places(fleet: Fleet) -> None:
    def some(flow: Flow) -> None:
        no = flow.run("thread.add", 0, 0, name="no")
        skipped = flow.run("thread.add", 1, when=no, name="skipped")
        there = flow.run("thread.add", 4, name="there")
        mapped = flow.map("thread.add", [skipped, there], 10, on_failure="continue", name="mapped")
        flow.run("thread.echo", mapped, name="follows")
        strict = flow.map("thread.add", [skipped, there], 10, name="strict")
        flow.run("thread.echo", strict, name="is skipped")

    fleet.worker(kinds="thread")
    run = create(fleet, some)
    assert run.wait(60) is WorkflowState.SUCCEEDED, states(run)
    assert run.outputs("follows") == {"follows": [[None, 14]]}
    assert states(run)["is skipped"] == "skipped"


def test_the_output_of_a_node_that_only_added_skipped_ones_is_left_out(fleet: Fleet) -> None:
    fleet.worker(kinds="process,thread")

    def nothing(flow: Flow) -> None:
        flow.run("workflow:process.nothing", flow.run("thread.add", 0, 0), name="nested")

    run = create(fleet, nothing)
    assert run.wait(60) is WorkflowState.SUCCEEDED, states(run)
    assert run.outputs() == {}
