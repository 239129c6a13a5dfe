"""How a workflow is defined: a function runs tasks on a :class:`Flow`, and each gives a :class:`Node` to go on with.

Owns what a definition's words mean and who is meant by them. Talks to no server: the graph is stored once, as it was
defined, and nobody runs a definition again to know it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack, overload

from msgspec.structs import replace

from headrace.errors import ArgumentError, EmptyWorkflow, OptionsError, WorkflowError, WorkflowTooLarge
from headrace.model.headers import added, merged
from headrace.model.headers import check as check_headers
from headrace.model.workflow import LETTERS, Graft, Policy
from headrace.workflows import graph_builder
from headrace.workflows.definition_facts import Defined, Definition, name_of
from headrace.workflows.graph_builder import NodeSpec
from headrace.workflows.node import (
    MapOptions,
    Node,
    NodeOptions,
    NodeRequest,
    R,
    Runnable,
    is_node,
    node_request,
)
from headrace.workflows.scope import Scope

# Definitions within definitions: more is one that never ends.
NESTING = 32
# The keyword by which a workflow that is built at run time gets what was given for all nodes around it.
OUTER = "__outer__"


class Flow:
    """Collects the nodes of one workflow, or of one that is nested in it. A definition gets it as its first argument.

    Attributes:
        scope: what was collected.
    """

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        """Given to definitions; in a running job: ``current_job().workflow``."""
        self.scope = scope

    @overload
    def run(self, task: Runnable[R], /, *args: Any, **given: Unpack[NodeOptions]) -> Node[R]: ...
    @overload
    def run(self, task: Defined | str, /, *args: Any, **given: Unpack[NodeOptions]) -> Node[Any]: ...
    def run(self, task: Any, /, *args: Any, **given: Any) -> Node[Any]:
        """Run a task as a node of the workflow, once those that it waits for are done.

        A node among the arguments, at any depth, makes an edge and delivers what it returned. Other arguments are
        checked as ``enqueue`` does.

        Args:
            task: or the name of one; or a workflow, whose nodes become part of this one: the node stands for all of
                them, and its output is that of those which nothing follows (a list, if several).
            args: the task's arguments by position.
            given: see :class:`headrace.workflows.node.NodeOptions`.

        Raises:
            ArgumentError: an argument is missing, unexpected, of the wrong type, or cannot be sent.
            OptionsError: an option is unknown or out of range.
            WorkflowError: a node of another workflow, a name that is taken, too many nodes or edges.

        Cost: none.
        """
        asked = self._asked(given)
        definition = self.scope.definition(task)
        if definition is not None:
            return self._nest(definition, args, asked)
        return self.scope.listed(self.scope.add(task, args, asked, self.scope.full_name(task, asked)), asked)

    @overload
    def map(self, task: Runnable[R], items: Any, /, *args: Any, **given: Unpack[MapOptions]) -> Node[list[R]]: ...
    @overload
    def map(self, task: Defined | str, items: Any, /, *args: Any, **given: Unpack[MapOptions]) -> Node[list[Any]]: ...
    def map(self, task: Any, items: Any, /, *args: Any, **given: Any) -> Node[list[Any]]:
        """Run a task once for each item of a list, which may be the output of a node; gives the list of outputs.

        The outputs are in the order of the items; an empty list gives an empty list.

        Args:
            task: gets an item as its first argument. Or a workflow, of which one is nested for each item.
            items: a node that returns a list, or a list.
            args: further arguments, the same for each item.
            given: see :class:`headrace.workflows.node.MapOptions`. ``on_failure`` is about one item: with ``continue``
                the list has None in the place of one that failed, with ``skip`` what follows the map is skipped.

        Raises:
            ArgumentError, OptionsError, WorkflowError: as :meth:`run`.

        Cost: none.
        """
        asked, scope = self._asked(given), self.scope
        if asked.undo is not None:
            raise OptionsError("flow.map takes no undo=: run the task for each item with flow.run(..., undo=...)")
        name = scope.full_name(task, asked)
        definition = scope.definition(task)
        target: Any = task if definition is None else definition.task
        if definition is not None:
            asked = self._inherited(definition, asked)
        if is_node(items):
            place = self._grows(scope.add(target, (items, *args), asked, name), asked)
        elif found := _list(items):
            place = self._spread(target, found, args, asked, name)
        else:
            place = self._grows(scope.add(target, ([], *args), asked, name, check=False), asked)
        return scope.listed(place, asked, definition.name if definition else "")

    def _asked(self, given: Mapping[str, Any]) -> NodeRequest:
        if self.scope.closed:
            raise WorkflowError(
                f"the definition of workflow {self.scope.name} has ended: no node can be added any more"
            )
        return node_request(given)

    def _grows(self, place: int, asked: NodeRequest) -> int:
        """Make a row one that fans out over its first argument at run time."""
        row = self.scope.builder.rows[place]
        row.map, row.of_items, row.on_failure = True, asked.on_failure, "stop"
        return place

    def _spread(self, task: Any, items: list[Any], args: tuple[Any, ...], asked: NodeRequest, name: str) -> int:
        """A row for each item, and one that joins them."""
        scope, first = self.scope, len(self.scope.builder.rows)
        if len(items) > 1 and (args or asked.params):
            # What stands for a large argument of all is not checked with the items.
            scope.check(task, (items[0], *args), asked)
            args = tuple(scope.once(name, args))
            params = dict(zip(asked.params, scope.once(f"{name}[*]", asked.params.values()), strict=True))
            asked = replace(asked, params=params)
        places = [scope.add(task, (item, *args), asked, f"{name}[{n}]") for n, item in enumerate(items)]
        edges: dict[int, Policy | None] = dict.fromkeys(places)
        row = NodeSpec(name, name_of(task), edges=edges, role="join", heads=tuple(places), first=first)
        return self.scope.stand_in(row)

    def _inherited(self, definition: Definition, asked: NodeRequest) -> NodeRequest:
        """For a workflow that is built at run time: what all its nodes would have got if it were built here."""
        scope, on_failure = self.scope, self._within(asked)
        queue = asked.options.get("queue", scope.queue)
        known = scope.registered.definitions.get(definition.name)
        if known is None:
            raise WorkflowError(
                f"workflow {definition.name} is of another application, whose definition no worker of this one has: "
                f"here it can only be run with arguments that are known by now"
            )
        if definition.headers:
            own = check_headers("headers", asked.options.get("headers") or {})
            asked = replace(asked, options={**asked.options, "headers": dict(merged(definition.headers, own))})
        if not queue and not scope.globals and on_failure == "stop" and definition is known.definition:
            return asked
        given = [definition.queue or queue, {**scope.globals, **definition.globals}, LETTERS[on_failure]]
        return replace(asked, params={**asked.params, OUTER: given})

    def _within(self, asked: NodeRequest) -> Policy:
        """What a failure within a nested workflow means for the node that stands for it."""
        if asked.on_failure == "stop" and self.scope.on_failure != "stop":
            return "skip"
        return asked.on_failure

    def _nest(self, definition: Definition, args: tuple[Any, ...], asked: NodeRequest) -> Node[Any]:
        """Another definition's nodes, built in place if all that it needs is known by now."""
        scope = self.scope
        if asked.undo is not None:
            raise OptionsError(f"workflow {definition.name} takes no undo=: give it to the nodes that can be undone")
        name = scope.full_name(definition.name, asked)
        kwargs = scope.shared(definition.signature, len(args)) | asked.params
        _, known = scope.pack(definition.signature, args, kwargs)
        if known or asked.when is not None or asked.options.keys() - {"queue"}:
            place = scope.add(definition.task, args, self._inherited(definition, asked), name)
            return scope.listed(place, asked, definition.name)
        if len(scope.chain) >= NESTING:
            raise WorkflowTooLarge(
                f"workflows are nested more than {NESTING} deep ({' -> '.join((*scope.chain[-3:], definition.name))}): "
                f"does one nest itself without an end?"
            )
        first = len(scope.builder.rows)
        inner = Scope(scope.registered, definition.name, scope.builder, f"{name}/", scope.chain)
        inner.headers = scope.headers
        outer = (asked.options.get("queue", scope.queue), scope.globals, self._within(asked))
        define(inner, definition, args, kwargs, outer)
        scope.places += inner.places
        heads, ends = (
            graph_builder.heads(scope.builder, inner.places),
            graph_builder.leaves(scope.builder, inner.places),
        )
        if not ends or not heads:
            scope.builder.check_acyclic()
        edges: dict[int, Policy | None] = {
            end: graph_builder.onward(scope.builder.rows[end], inner.on_failure) for end in ends
        }
        row = NodeSpec(name, definition.name, edges=edges, on_failure=asked.on_failure, heads=tuple(heads), first=first)
        row.role = "pass" if len(ends) == 1 else "join"
        return scope.listed(scope.stand_in(row), asked)

    def __repr__(self) -> str:
        return f"<Flow {self.scope.name} with {len(self.scope.places)} nodes>"


# Queue, globals, and what a failure within means, for a definition that is nested.
Outer = tuple[str, dict[str, Any], Policy]


def define(
    scope: Scope,
    definition: Definition,
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    outer: Outer = ("", {}, "stop"),
) -> None:
    """Run a definition's function to its end.

    Args:
        outer: what it is nested in gives to all nodes; its own queue and globals come first.

    Raises:
        EmptyWorkflow: it ran nothing.
        WorkflowError: it cannot be stored.
    """
    scope.queue = definition.queue or outer[0]
    scope.globals = {**outer[1], **definition.globals}
    scope.on_failure = outer[2]
    scope.headers = added(definition.headers, scope.headers) if definition.headers else scope.headers
    definition.function(Flow(scope), *args, **kwargs)
    scope.close()
    if scope.on_failure != "stop":
        graph_builder.soften(scope.builder, scope.places)
    if not scope.places:
        raise EmptyWorkflow(f"workflow {definition.name} ran no node: call flow.run(task, ...) at least once")


def collected(scope: Scope) -> Graft | None:
    """What a running job added; None if nothing.

    Raises:
        WorkflowError: it cannot be stored.
    """
    if not scope.closed:
        scope.close()
    return (
        graph_builder.graft(scope.builder, scope.prefix, scope.on_failure, gather=scope.gather)
        if scope.places
        else None
    )


def _list(items: Any) -> list[Any]:
    try:
        if not isinstance(items, (str, bytes, Mapping)):
            return list(items)
    except TypeError:
        pass
    raise ArgumentError(f"flow.map takes a node or a list of items, not {items!r:.80}")
