"""The definition of a workflow: a function runs tasks on a :class:`Flow`, and each gives a :class:`Node` to go on with.

Talks to no server: the graph is stored once, as it was defined, and a definition never runs again to rebuild it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Unpack, overload

import msgspec
from msgspec.structs import replace

from headrace.errors import ArgumentError, OptionsError, WorkflowError
from headrace.model import job_record
from headrace.model.form import Form, of_call, of_task
from headrace.model.headers import added, merged
from headrace.model.headers import check as check_headers
from headrace.model.signature import Signature, Unchecked
from headrace.model.workflow import LETTERS, Graft, Policy
from headrace.running_job import inherited_headers
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.task import Task, check_task_name
from headrace.workflows import graph_builder
from headrace.workflows.graph_builder import GraphBuilder, NodeSpec
from headrace.workflows.node import (
    REFUSED,
    Defined,
    Definition,
    Edge,
    Lookup,
    MapOptions,
    Node,
    NodeOptions,
    NodeRequest,
    R,
    Runnable,
    is_node,
    last_part,
    name_of,
    node_request,
    some,
)

# Bytes from which on a value that several nodes take is stored once: to read it takes them an exchange more.
ONCE = 1024


class Scope:
    """What one definition has run so far.

    Attributes:
        name: the definition's.
        registered: the tasks and definitions that names mean.
        builder: all rows of the graph.
        prefix: of its nodes' names.
        chain: definitions that it is nested in, itself the last.
        queue, globals: as of :class:`Definition`, those of what it is nested in included.
        headers: those that its nodes inherit.
        on_failure: what a failure in here means for those that wait for all of it.
        gather: whether the running node that adds these rows gives their output for its own.
        closed: whether the definition has ended.
        places: its rows in the builder, those of what is nested in it included.
    """

    def __init__(
        self, registered: Lookup, name: str, builder: GraphBuilder, prefix: str = "", chain: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.registered = registered
        self.context = registered.context
        self.builder = builder
        self.prefix = prefix
        self.chain = (*chain, name)
        self.queue = ""
        self.globals: dict[str, Any] = {}
        self.headers: Mapping[str, str] = inherited_headers()
        self.on_failure: Policy = "stop"
        self.gather = False
        self.closed = False
        self.places: list[int] = []
        # Rows that the name of a task or workflow, or the last part of it, may mean.
        self._meant: dict[str, list[int]] = {}
        self._pending: list[tuple[int, NodeRequest]] = []
        self._forms: dict[tuple[Any, ...] | None, Form] = {}

    def definition(self, task: Any) -> Definition | None:
        if isinstance(task, str):
            task = self.registered.definitions.get(task)
        found = getattr(task, "definition", None)
        return found if isinstance(found, Definition) else None

    def full_name(self, task: Any, asked: NodeRequest) -> str:
        if asked.name:
            self.builder.check_free(self.prefix + asked.name)
            return self.prefix + asked.name
        return self.builder.fresh(self.prefix + last_part(name_of(task)))

    def target(self, given: Any, options: dict[str, Any]) -> tuple[Signature | Unchecked, Form]:
        name = name_of(given)
        known = self.registered.tasks.get(name)
        task: BoundTask[..., Any] = given
        if isinstance(given, str):
            unchecked = Unchecked(check_task_name(name), self.context.types)
            task = known or BoundTask(self.context, unchecked, of_call(of_task({}), {}))
        checks = known or task
        signature = checks.signature if isinstance(checks, Task) else Unchecked(name, self.context.types)
        # Most nodes of a graph are of few forms. A task with options of its own is not known by its name.
        kind = None if type(given) is BoundTask else (name, *options.items())
        try:
            form = self._forms.get(kind)
        except TypeError:
            form = kind = None
        if form is None:
            form = self._form(task.options(**options), known, "queue" in options)
            if kind:
                self._forms[kind] = form
        return signature, form

    def _form(self, bound: BoundTask[..., Any], known: Task[..., Any, Any] | None, queued: bool) -> Form:
        bound.context.require()
        form = bound.form(self.headers)
        if form.at or (form.expires and form.expires != (known.defaults.expires if known else 0)):
            raise OptionsError(f"a node takes no at= and no expires=: {REFUSED['expires']}")
        if form.ordered:
            raise OptionsError(f"a node cannot be ordered: {REFUSED['ordered']}")
        if form.after:
            raise OptionsError(f"a node takes no after= of task.options: {REFUSED['after']}")
        if form.unique:
            raise OptionsError(f"a node cannot be unique: {REFUSED['unique']}")
        queue = self.queue if self.queue and form.queue == "default" and not queued else form.queue
        return msgspec.structs.replace(form, queue=queue, expires=0)

    def pack(
        self, checks: Signature | Unchecked, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[int, Policy | None]]:
        edges: dict[int, Policy | None] = {}
        positions: dict[int, int] = {}

        def position(value: object) -> int | None:
            if not is_node(value):
                return None
            place, policy = self.mine(value)
            self.builder.agree(edges, place, policy)
            return positions.setdefault(place, len(positions))

        limit = self.context.client.settings.max_payload
        return checks.pack_open(args, kwargs, limit, job_record.Slotted(position, self.context.types.encode)), edges

    def mine(self, value: Node[Any] | Edge[Any]) -> tuple[int, Policy | None]:
        node: Node[Any] = value if isinstance(value, Node) else value.node
        if node.builder is not self.builder:
            raise WorkflowError(
                f"node {node.name!r} belongs to another workflow ({node.builder.definition}) than this one "
                f"({self.builder.definition}): run its task here too, or nest that workflow with flow.run(...)"
            )
        return node.place, None if isinstance(value, Node) else value.policy

    def add(self, task: Any, args: tuple[Any, ...], asked: NodeRequest, name: str, *, check: bool = True) -> int:
        signature, form = self.target(task, asked.options)
        checks = signature if check else Unchecked(form.task, self.context.types)
        data, edges = self.pack(checks, args, self._with_globals(checks, signature, args, asked.params))
        row = NodeSpec(name, form.task, form, data, edges, asked.on_failure)
        if asked.when is not None:
            place, policy = self.mine(asked.when)
            self.builder.agree(edges, place, policy)
            row.when = list(edges).index(place)
        place = self.builder.add(row)
        self.places.append(place)
        if asked.undo is not None:
            checks, row.undo = self.target(asked.undo, {})
            # Checks that it takes one argument, which will be what the node returns.
            self.pack(checks, (Node[Any](self.builder, place),), {})
        return place

    def once(self, name: str, values: Iterable[Any]) -> list[Any]:
        """Values that several nodes take: each, or, where it is large, what stands for it and is stored once."""
        return [self._given(f"{name}[*{n}]", value, f"an argument of {name}") for n, value in enumerate(values)]

    def check(self, task: Any, args: tuple[Any, ...], asked: NodeRequest) -> None:
        signature, _ = self.target(task, asked.options)
        self.pack(signature, args, self.shared(signature, len(args)) | asked.params)

    def _given(self, name: str, value: Any, what: str) -> Any:
        slotted = job_record.Slotted(lambda inner: 0 if is_node(inner) else None, self.context.types.encode)
        data = slotted.encode(value, self.context.client.settings.max_payload, what)
        if slotted.met or len(data) < ONCE:
            return value
        return Node[Any](self.builder, self.builder.add(NodeSpec(name, "", args=data, role="given")))

    def _with_globals(
        self, checks: Signature | Unchecked, signature: Signature | Unchecked, args: tuple[Any, ...],
        params: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        shared = {name: v for name, v in self.shared(signature, len(args)).items() if name not in params}
        if not shared:
            return params
        known, light = self.builder.known, dict[str, Any]()
        for name, value in shared.items():
            if id(value) not in known:
                known[id(value)] = (value, self._given(self.builder.fresh(f"({name})"), value, f"global {name!r}"))
            light[name] = known[id(value)][1]
        if any(light[name] is not value for name, value in shared.items()):
            # What stands for a value is not checked before it is filled in; the value can be now.
            self.pack(checks, args, shared | params)
        return light | params

    def shared(self, signature: Signature | Unchecked, count: int) -> dict[str, Any]:
        return {name: value for name, value in self.globals.items() if signature.accepts(name, count)}

    def stand_in(self, row: NodeSpec) -> int:
        """A row without a job that stands for others: it waits for their ends, and they for its parents."""
        place = self.builder.add(row)
        self.places.append(place)
        return place

    def listed(self, place: int, asked: NodeRequest, also: str = "") -> Node[Any]:
        """The node of a row that is complete but for its references."""
        task = also or self.builder.rows[place].task
        for name in {task, last_part(task)}:
            self._meant.setdefault(name, []).append(place)
        if asked.after or asked.before:
            self._pending.append((place, asked))
        return Node(self.builder, place)

    def find(self, ref: Any, place: int, word: str) -> tuple[int, Policy | None]:
        if is_node(ref):
            return self.mine(ref)
        definition = self.definition(ref)
        name = definition.name if definition else name_of(ref, f"{word}=")
        whole = self.builder.names.get(self.prefix + name) if isinstance(ref, str) else None
        found = self._meant.get(name, [])
        # A name that is only the task's means the task, which may have several nodes here.
        if whole is not None and (len(found) < 2 or self.prefix + name not in self.builder.bare):
            return whole, None
        if len(found) != 1:
            self._refuse(name, found, place, word)
        return found[0], None

    def _refuse(self, name: str, found: list[int], place: int, word: str) -> NoReturn:
        rows = self.builder.rows
        start = f"{word}={name!r} of node {rows[place].name!r} in workflow {self.name}"
        if found:
            raise WorkflowError(
                f"{start} may mean any of {some(rows[n].name for n in found)}: pass the node, or give it a name="
            )
        known = [rows[n].name.removeprefix(self.prefix) for n in self.places]
        close = difflib.get_close_matches(name, [*known, *self._meant], 1)
        hint = f"did you mean {close[0]!r}?" if close else f"the nodes are {some(known)}"
        raise WorkflowError(f"{start} names no node and no task that has one here: {hint}")

    def close(self) -> None:
        """Resolve what was said of nodes that may be defined later, and take no more."""
        self.closed = True
        rows = self.builder.rows
        for place, asked in self._pending:
            for ref in asked.after:
                parent, policy = self.find(ref, place, "after")
                for head in rows[place].heads or (place,):
                    self.builder.link(parent, head, policy)
        # Afterwards, so that a node's own words come first in the order of its edges.
        for place, asked in self._pending:
            for ref in asked.before:
                child, policy = self.find(ref, place, "before")
                if policy:
                    raise WorkflowError(
                        f"before= of node {rows[place].name!r} was given a policy: the end of {rows[place].name!r} is "
                        f"what it would be about, so give that node on_failure="
                    )
                for head in rows[child].heads or (child,):
                    self.builder.link(place, head, None)


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
            given: see :class:`headrace.workflows.graph_builder.NodeOptions`.

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

        The outputs are in the order of the items; an empty list gives an empty list. Raises ArgumentError,
        OptionsError, WorkflowError: as :meth:`run`. Cost: none.

        Args:
            task: gets an item as its first argument. Or a workflow, which is nested once for each item.
            items: a node that returns a list, or a list.
            args: further arguments, the same for each item.
            given: see :class:`headrace.workflows.graph_builder.MapOptions`. ``on_failure`` is about one item: with
                ``continue`` the list has None in the place of one that failed, with ``skip`` what follows the map
                is skipped.
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
        row = self.scope.builder.rows[place]
        row.map, row.of_items, row.on_failure = True, asked.on_failure, "stop"
        return place

    def _spread(self, task: Any, items: list[Any], args: tuple[Any, ...], asked: NodeRequest, name: str) -> int:
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
        if asked.on_failure == "stop" and self.scope.on_failure != "stop":
            return "skip"
        return asked.on_failure

    def _nest(self, definition: Definition, args: tuple[Any, ...], asked: NodeRequest) -> Node[Any]:
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
            raise WorkflowError(
                f"workflows are nested more than {NESTING} deep ({' -> '.join((*scope.chain[-3:], definition.name))}): "
                f"does one nest itself without an end?"
            )
        first = len(scope.builder.rows)
        inner = Scope(scope.registered, definition.name, scope.builder, f"{name}/", scope.chain)
        inner.headers = scope.headers
        outer = (asked.options.get("queue", scope.queue), scope.globals, self._within(asked))
        define(inner, definition, args, kwargs, outer)
        scope.places += inner.places
        heads = graph_builder.heads(scope.builder, inner.places)
        ends = graph_builder.leaves(scope.builder, inner.places)
        if not ends or not heads:
            scope.builder.check_acyclic()
        rows, policy = scope.builder.rows, inner.on_failure
        edges: dict[int, Policy | None] = {end: graph_builder.onward(rows[end], policy) for end in ends}
        row = NodeSpec(name, definition.name, edges=edges, on_failure=asked.on_failure, heads=tuple(heads), first=first)
        row.role = "pass" if len(ends) == 1 else "join"
        return scope.listed(scope.stand_in(row), asked)

    def __repr__(self) -> str:
        return f"<Flow {self.scope.name} with {len(self.scope.places)} nodes>"


# Queue, globals, and what a failure within means, for a definition that is nested.
Outer = tuple[str, dict[str, Any], Policy]
_NOTHING: Outer = ("", {}, "stop")


def define(
    scope: Scope, definition: Definition, args: Iterable[Any], kwargs: Mapping[str, Any], outer: Outer = _NOTHING
) -> None:
    """Run a definition's function to its end. ``outer``: what surrounds it gives to all nodes. Raises WorkflowError."""
    scope.queue = definition.queue or outer[0]
    scope.globals = {**outer[1], **definition.globals}
    scope.on_failure = outer[2]
    scope.headers = added(definition.headers, scope.headers) if definition.headers else scope.headers
    definition.function(Flow(scope), *args, **kwargs)
    scope.close()
    if scope.on_failure != "stop":
        graph_builder.soften(scope.builder, scope.places)
    if not scope.places:
        raise WorkflowError(f"workflow {definition.name} ran no node: call flow.run(task, ...) at least once")


def collected(scope: Scope) -> Graft | None:
    """What a running job added; None if nothing. Raises WorkflowError: it cannot be stored."""
    if not scope.closed:
        scope.close()
    if not scope.places:
        return None
    return graph_builder.graft(scope.builder, scope.prefix, scope.on_failure, gather=scope.gather)


def _list(items: Any) -> list[Any]:
    try:
        if not isinstance(items, (str, bytes, Mapping)):
            return list(items)
    except TypeError:
        pass
    raise ArgumentError(f"flow.map takes a node or a list of items, not {items!r:.80}")
