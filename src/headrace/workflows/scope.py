"""One definition while it runs: what its words mean, and who is meant by them.

Owns names, references and the checks of arguments of one definition. Its rows are in the builder of the whole graph,
which those of nested definitions share.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from headrace.errors import AmbiguousNode, ForeignNode, OptionsError, UnknownNode, WorkflowError
from headrace.model import job_record
from headrace.model.form import Form, of_call, of_task
from headrace.model.signature import Signature, Unchecked
from headrace.model.workflow import Policy
from headrace.running_job import inherited
from headrace.tasks import naming
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.task import Task
from headrace.workflows.definition_facts import Definition, Lookup, name_of, some, stem
from headrace.workflows.graph_builder import GraphBuilder, NodeSpec
from headrace.workflows.node import REFUSED, Edge, Node, NodeRequest, is_node

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
        self.headers: Mapping[str, str] = inherited()
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
        """The full name of a new node."""
        if asked.name:
            self.builder.check_free(self.prefix + asked.name)
            return self.prefix + asked.name
        return self.builder.fresh(self.prefix + stem(name_of(task)))

    def target(self, given: Any, options: dict[str, Any]) -> tuple[Signature | Unchecked, Form]:
        """What checks the arguments of a job, and all of it but these."""
        name = name_of(given)
        known = self.registered.tasks.get(name)
        task: BoundTask[..., Any] = given
        if isinstance(given, str):
            unchecked = Unchecked(naming.check(name), self.context.types)
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
        if form.unique:
            raise OptionsError(f"a node cannot be unique: {REFUSED['unique']}")
        queue = self.queue if self.queue and form.queue == "default" and not queued else form.queue
        return msgspec.structs.replace(form, queue=queue, expires=0)

    def pack(
        self, checks: Signature | Unchecked, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[int, Policy | None]]:
        """Arguments with slots, and the edges that the nodes among them make."""
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
            raise ForeignNode(
                f"node {node.name!r} belongs to another workflow ({node.builder.definition}) than this one "
                f"({self.builder.definition}): run its task here too, or nest that workflow with flow.run(...)"
            )
        return node.place, None if isinstance(value, Node) else value.policy

    def add(self, task: Any, args: tuple[Any, ...], asked: NodeRequest, name: str, *, check: bool = True) -> int:
        """A row for a task, without its references."""
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
        """Values that several nodes take: each, or where it is large, what stands for it and is stored once.

        Args:
            name: of the nodes that take them.
        """
        return [self._given(f"{name}[*{n}]", value, f"an argument of {name}") for n, value in enumerate(values)]

    def check(self, task: Any, args: tuple[Any, ...], asked: NodeRequest) -> None:
        """Refuse arguments that a task does not take."""
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
        """Arguments by name: a node's own, and the globals that it takes, of which large ones are stored once."""
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
        for name in {task, stem(task)}:
            self._meant.setdefault(name, []).append(place)
        if asked.after or asked.before:
            self._pending.append((place, asked))
        return Node(self.builder, place)

    def find(self, ref: Any, place: int, word: str) -> tuple[int, Policy | None]:
        """The row that a reference means, and the policy that it was given."""
        if is_node(ref):
            return self.mine(ref)
        definition = self.definition(ref)
        name = definition.name if definition else name_of(ref, f"{word}=")
        whole = self.builder.names.get(self.prefix + name) if isinstance(ref, str) else None
        found = self._meant.get(name, [])
        # A name that is only the task's means the task, of which there may be several here.
        if whole is not None and (len(found) < 2 or self.prefix + name not in self.builder.bare):
            return whole, None
        if len(found) != 1:
            self._refuse(name, found, place, word)
        return found[0], None

    def _refuse(self, name: str, found: list[int], place: int, word: str) -> NoReturn:
        rows = self.builder.rows
        start = f"{word}={name!r} of node {rows[place].name!r} in workflow {self.name}"
        if found:
            raise AmbiguousNode(
                f"{start} may mean any of {some(rows[n].name for n in found)}: pass the node, or give it a name="
            )
        known = [rows[n].name.removeprefix(self.prefix) for n in self.places]
        close = difflib.get_close_matches(name, [*known, *self._meant], 1)
        hint = f"did you mean {close[0]!r}?" if close else f"the nodes are {some(known)}"
        raise UnknownNode(f"{start} names no node and no task that has one here: {hint}")

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
