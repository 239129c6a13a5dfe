"""A node of a workflow that is being defined, and what may be asked for one. Pure: checks, and decides nothing.

A definition as its graphs see it, and what messages call its nodes. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeAlias, TypedDict, TypeGuard, TypeVar, cast

import msgspec

from headrace.errors import ArgumentError, OptionsError, WorkflowError
from headrace.model.headers import Given
from headrace.model.options import JobOptions
from headrace.model.signature import Signature
from headrace.model.workflow import Policy, check_policy
from headrace.settings import Duration
from headrace.tasks.app_context import AppContext
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.task import Task
from headrace.workflows.graph_builder import GraphBuilder

# Names that an error tells.
TOLD = 12


class Definition(msgspec.Struct, frozen=True):
    """A function that defines a workflow, and what it gives to all its nodes.

    Attributes:
        signature: of the function, without the flow.
        task: runs it as a node, where its arguments are known at run time only.
        queue: of nodes for which neither they nor their task name one.
        globals: arguments by name, for each node whose function takes them.
        headers: for each node, besides those that it inherits.
    """

    name: str
    function: Callable[..., object]
    signature: Signature
    task: Task[..., Any, Any]
    queue: str = ""
    globals: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    headers: Given = ()


class Defined(Protocol):
    """What has a definition, and can be run within a workflow besides tasks: a workflow."""

    @property
    def definition(self) -> Definition: ...


class Lookup(Protocol):
    @property
    def context(self) -> AppContext: ...
    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]: ...
    @property
    def definitions(self) -> Mapping[str, Defined]: ...


def name_of(task: Any, what: str = "flow.run") -> str:
    if isinstance(task, str):
        return task
    if isinstance(task, BoundTask):
        return cast("BoundTask[..., Any]", task).task
    definition = getattr(task, "definition", None)
    if isinstance(definition, Definition):
        return definition.name
    raise ArgumentError(f"{what} takes a task, the name of one, or a workflow, not {task!r:.80}: is it decorated?")


def last_part(name: str) -> str:
    return name.rpartition(".")[2].rpartition(":")[2]


def some(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:TOLD]) + (f" and {len(known) - TOLD:,} more" if len(known) > TOLD else "")


R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_BY_CALL = ("queue", "delay", "priority", "key")
REFUSED = {
    "at": "the time of a node's turn is unknown; delay= counts from the moment its parents are done",
    "expires": "the time of a node's turn is unknown; a timeout limits how long it runs",
    "result_ttl": "a node stays as long as its workflow: give ttl= to that",
    "failure_ttl": "a node stays as long as its workflow: give ttl= to that",
    "ordered": "its edges say what a node waits for; jobs outside of workflows can be ordered by key",
    "unique": "a node runs once for each run, and key= of the workflow keeps that from running twice; a task that is "
    "unique otherwise is a node with task.options(unique=False)",
    "durability": "it is stored with its workflow, as the setting durability says",
    "replicas": "it is stored with its workflow, as the setting replicas says",
    "after_commit": "it is stored with its workflow: give after_commit= to that",
    "after": "it follows nodes of its workflow, which flow.run(after=...) names",
    "after_failure": "on_failure= of a node, or of an edge, says what its failure means for this one",
    "request_id": "key= of the workflow keeps it from running twice",
}


class Node(Generic[R_co]):
    """A job that will run in the workflow. Passed as an argument, it makes an edge and delivers what it returned.

    Attributes:
        builder, place: where it is defined.
    """

    __slots__ = ("builder", "place")

    def __init__(self, builder: GraphBuilder, place: int) -> None:
        self.builder = builder
        self.place = place

    @property
    def name(self) -> str:
        """Unique in its graph. One that was not given, but made of the task's, is numbered once there is a second."""
        return self.builder.rows[self.place].name

    def on_failure(self, policy: Policy) -> Edge[R_co]:
        """This node, for one use as an argument or in ``after=``, with this edge's own policy. ``policy``: ``stop``:
        what follows waits until it has succeeded. ``continue``: what follows goes on, with None for its output.
        ``skip``: what follows is skipped. Raises WorkflowError: there is no such policy.
        """
        return Edge(self, check_policy(policy))

    def __repr__(self) -> str:
        return f"<Node {self.name}>"


class Edge(Generic[R_co]):
    """A node together with what its failure means for one other: see :meth:`Node.on_failure`."""

    __slots__ = ("node", "policy")

    def __init__(self, node: Node[R_co], policy: Policy) -> None:
        self.node = node
        self.policy: Policy = policy

    def __repr__(self) -> str:
        return f"<Edge from {self.node.name}>"


def _refuse(node: Node[Any] | Edge[Any], *_: object) -> NoReturn:
    raise WorkflowError(
        f"{node!r} has no value while its workflow is defined: a worker runs it later. Run a node on a condition with "
        f"when=, a task for each item with flow.map(...), or pass the node to a task that reads its value"
    )


def _same(node: Node[Any] | Edge[Any], other: object) -> bool:
    return node is other if other is None or is_node(other) else _refuse(node)


# Code that reads a node would silently go on with an object that is true. Set here, so that type checkers still refuse
# what the classes do not define.
_READS = "bool iter len getitem contains lt le gt ge add radd sub rsub mul rmul int float index"
for _kind in (Node, Edge):
    setattr(_kind, "__eq__", _same)  # noqa: B010 - as the others
    for _read in _READS.split():
        setattr(_kind, f"__{_read}__", _refuse)

Ref: TypeAlias = Node[Any] | Edge[Any] | BoundTask[..., Any] | Defined | str
Runnable: TypeAlias = BoundTask[..., R]


class MapOptions(TypedDict, total=False):
    """What ``flow.map(...)`` takes besides the task and its arguments by position.

    Attributes:
        after, before: a node, a task or workflow that has one node here, a name, or a list of them; those that are
            defined later may be named too.
        queue, delay, priority, key: of the job; ``delay`` counts from the moment its parents are done.
        params: the task's arguments by name.
        name: instead of ``task``, or of ``task-1``, ``task-2``, ... where there are several; unique in the graph.
        on_failure: what its failure means for those that follow: ``stop``, ``continue`` or ``skip``.
        when: a node: this one is skipped unless that gave something truthy.
        options: the other options of a job, such as ``retries`` and ``timeout``.
    """

    after: Ref | Sequence[Ref] | None
    before: Ref | Sequence[Ref] | None
    queue: str | None
    delay: Duration | None
    priority: int | None
    key: str | None
    params: Mapping[str, Any] | None
    name: str | None
    on_failure: Policy
    when: Node[Any] | Edge[Any] | None
    options: JobOptions | None


class NodeOptions(MapOptions, total=False):
    """What ``flow.run(...)`` takes besides the task and its arguments by position; see :class:`MapOptions`.

    Attributes:
        undo: the task that undoes it when the workflow fails or is cancelled later; called with what it returned.
    """

    undo: BoundTask[..., Any] | str | None


_OPTIONS = tuple(NodeOptions.__annotations__)


class NodeRequest(msgspec.Struct):
    """What was asked for one node, as far as it can be checked without its task.

    Attributes:
        on_failure: the policy of the edges that lead on from it.
        options: the job's own.
    """

    after: list[Any]
    before: list[Any]
    params: dict[str, Any]
    name: str | None
    on_failure: Policy
    when: Node[Any] | Edge[Any] | None
    undo: Any
    options: dict[str, Any]


def node_request(given: Mapping[str, Any]) -> NodeRequest:
    """What is asked for. Raises OptionsError: no option of nodes. Raises WorkflowError: a wrong policy or condition."""
    for name in given:
        if name not in _OPTIONS:
            raise OptionsError(f"a node has no option {name!r}: {_hint(name)}")
    options = {name: given[name] for name in _BY_CALL if given.get(name) is not None}
    for name, value in arguments(given.get("options"), "options").items():
        if name in REFUSED:
            raise OptionsError(f"a node takes no {name}=: {REFUSED[name]}")
        options.setdefault(name, value)
    when = given.get("when")
    if when is not None and not isinstance(when, (Node, Edge)):
        raise WorkflowError(f"when= takes a node, not {when!r:.80}: what is known by now needs only an `if`")
    params, on_failure = arguments(given.get("params"), "params"), check_policy(given.get("on_failure", "stop"))
    return NodeRequest(
        _several(given.get("after")), _several(given.get("before")), params,
        _name(given.get("name")), on_failure, cast(Any, when), given.get("undo"), options,
    )  # fmt: skip


def _hint(name: str) -> str:
    if name in REFUSED:
        return REFUSED[name]
    if name in JobOptions.__annotations__:
        return f"what its job may ask for goes into options={{{name!r}: ...}}"
    if close := difflib.get_close_matches(name, _OPTIONS, 1, 0.8):
        return f"did you mean {close[0]!r}?"
    if close := difflib.get_close_matches(name, JobOptions.__annotations__, 1, 0.8):
        return f"did you mean options={{{close[0]!r}: ...}}?"
    return f"a task's own argument goes into params={{{name!r}: ...}}"


def is_node(value: object) -> TypeGuard[Node[Any] | Edge[Any]]:
    return isinstance(value, (Node, Edge))


def arguments(value: Any, what: str) -> dict[str, Any]:
    """Arguments by name, as ``params=`` and ``globals=`` give them. Raises OptionsError: they are something else."""
    try:
        found: dict[Any, Any] = dict(value or {})
    except (TypeError, ValueError):
        found = {None: None}
    if not all(isinstance(name, str) for name in found):
        raise OptionsError(f"{what}= takes a dictionary of arguments by name, not {value!r:.80}")
    return found


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else [value]


def _name(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise OptionsError(f"the name of a node must be a printable text of 1 to 200 characters, not {value!r:.80}")
    return value
