"""What may be asked for a definition and its runs, and how it is checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypedDict

import msgspec
from msgspec.structs import replace

from headrace.errors import OptionsError
from headrace.model.headers import Given, merged
from headrace.model.headers import check as check_headers
from headrace.model.ids import LENGTH, check_name
from headrace.model.option_checks import flag
from headrace.model.workflow import FOR_EVER, Graph, NewNode, NodeFacts, pack_facts
from headrace.settings import Duration, microseconds, seconds
from headrace.tasks.bound_task import BoundTask
from headrace.workflows.node import arguments
from headrace.workflows.scope import Scope

# Stands for a workflow's id until it has one, in the arguments of what is called at its end.
UNBORN = "0" * LENGTH


class CreateOptions(TypedDict, total=False):
    """What one workflow may ask for; its definition gives the defaults.

    Attributes:
        key: at most one live workflow of this definition has it: ``create`` gives that one, if there is. A text, or a
            function of the arguments that gives one.
        ttl: how long it stays after its end; None keeps it for ever. Default: the setting ``workflow_ttl``.
        queue: of nodes for which neither they nor their task name one.
        globals: arguments by name for every node whose function takes them; those of a node itself come first.
        headers: texts by name for every node, its undo and the calls at its end; see
            :class:`headrace.model.options.JobOptions`. A node's own come first.
    """

    key: str | Callable[..., str] | None
    ttl: Duration | None
    queue: str | None
    globals: Mapping[str, Any] | None
    headers: Mapping[str, str | None] | None


class WorkflowOptions(CreateOptions, total=False):
    """What ``@app.workflow(...)`` takes; see also :class:`CreateOptions`.

    Attributes:
        name: instead of ``module.function``.
        on_success, on_failure: a task, or the name of one, that runs when it has succeeded, or has failed or was
            cancelled; called with the workflow's id.
        loose: arguments without an annotation may arrive as another type in a nested workflow; see ``@app.task``.
    """

    name: str
    on_success: BoundTask[..., Any] | str | None
    on_failure: BoundTask[..., Any] | str | None
    loose: bool


class DefinitionOptions(msgspec.Struct, frozen=True):
    key: str | Callable[..., str] | None = None
    ttl: int | None = None
    queue: str = ""
    globals: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    headers: Given = ()
    on_success: Any = None
    on_failure: Any = None
    loose: bool = False


def addressed(graph: Graph, id: str) -> Graph:
    """The graph, with what is called at its end told the workflow's id."""
    nodes = list(graph.nodes)
    for number in {graph.on_success, graph.on_failure} - {0}:
        node = nodes[number - 1]
        nodes[number - 1] = msgspec.structs.replace(node, args=node.args.replace(UNBORN.encode(), id.encode(), 1))
    return msgspec.structs.replace(graph, nodes=tuple(nodes))


def callback_node(scope: Scope, task: Any, when: str) -> NewNode:
    checks, form = scope.target(task, {})
    args, _ = scope.pack(checks, (UNBORN,), {})
    return NewNode(form, args, facts=pack_facts(NodeFacts(f"({when})", scope.name)), role="callback")


def check_function(function: Any) -> None:
    """Refuse what cannot define workflows.

    Raises:
        OptionsError: says why.
    """
    if inspect.isclass(function) or not callable(function):
        raise OptionsError(f"@app.workflow takes a function, not {function!r:.80}")
    name = getattr(function, "__name__", "workflow")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise OptionsError(
            f"a workflow is defined by an ordinary function, and {name} awaits or yields, which nobody would carry on: "
            f"let nodes do the work"
        )
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise OptionsError(f"a definition takes the flow as its first argument: def {name}(flow: Flow, ...)")


def read_options(known: DefinitionOptions, given: Mapping[str, Any], names: Collection[str]) -> DefinitionOptions:
    changes = dict(given)
    for name in changes:
        if name not in names:
            raise OptionsError(f"there is no option {name!r} here: a workflow takes {', '.join(sorted(names))}")
    if "ttl" in changes:
        ttl = changes["ttl"]
        changes["ttl"] = FOR_EVER if ttl is None else microseconds(seconds(ttl, "ttl"))
    if "queue" in changes:
        changes["queue"] = check_name("queue", changes["queue"]) if changes["queue"] else ""
    if "loose" in changes:
        changes["loose"] = flag("loose", changes["loose"])
    if "globals" in changes:
        changes["globals"] = known.globals | arguments(changes["globals"], "globals")
    if "headers" in changes:
        changes["headers"] = merged(known.headers, check_headers("headers", changes["headers"] or {}))
    return replace(known, **changes)
