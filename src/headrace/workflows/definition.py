"""Workflows as a program declares them: a function that defines graphs, its options, the verbs that store a graph."""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, Unpack

import msgspec
from msgspec.structs import replace

from headrace.errors import NotConfirmed, OptionsError, StateError, StoreFull, StoreUnavailable, WorkflowNotFound
from headrace.model import codec, elsewhere
from headrace.model.form import of_task
from headrace.model.headers import Given, merged
from headrace.model.headers import check as check_headers
from headrace.model.ids import LENGTH, check_name, flow_id, is_ordered, milliseconds_of, node_id, run_id_of
from headrace.model.job_record import Page
from headrace.model.option_checks import flag, is_name, transaction
from headrace.model.retry import Retry
from headrace.model.signature import Signature
from headrace.model.workflow import (
    FOR_EVER,
    POLICIES,
    Graph,
    NewNode,
    NodeFacts,
    Policy,
    WorkflowRecord,
    WorkflowState,
    pack_facts,
)
from headrace.protocol import graph as verbs
from headrace.running_job import RunningJob, running_job
from headrace.settings import Duration, microseconds, seconds
from headrace.store.client import Steps
from headrace.tasks.app_context import AppContext
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.submission import Submission, around, postponed, submission_of_nodes
from headrace.tasks.task import Task
from headrace.workflows import graph_builder
from headrace.workflows.collection import OwnFilter, Workflows
from headrace.workflows.graph_builder import GraphBuilder
from headrace.workflows.node import Definition, Lookup, arguments
from headrace.workflows.run import WorkflowRun
from headrace.workflows.scope import OUTER, Flow, Scope, define

if TYPE_CHECKING:
    from headrace.store.client import Client

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
        after_commit: whether ``create`` and ``start`` wait for the commit of a transaction; see there, too.
    """

    key: str | Callable[..., str] | None
    ttl: Duration | None
    queue: str | None
    globals: Mapping[str, Any] | None
    headers: Mapping[str, str | None] | None
    after_commit: Any


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
    after_commit: Any = None
    on_success: Any = None
    on_failure: Any = None
    loose: bool = False


def addressed(graph: Graph, id: str) -> Graph:
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
    if inspect.isclass(function) or not callable(function):
        raise OptionsError(f"@app.workflow takes a function, not {function!r:.80}")
    name = getattr(function, "__name__", "workflow")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise OptionsError(
            f"a workflow is defined by an ordinary function, and {name} awaits or yields, which no code continues: "
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
    if "after_commit" in changes:
        changes["after_commit"] = transaction("after_commit", changes["after_commit"])
    if "headers" in changes:
        changes["headers"] = merged(known.headers, check_headers("headers", changes["headers"] or {}))
    return replace(known, **changes)


P = ParamSpec("P")


class Workflow(Generic[P]):
    """A function that defines workflows. ``P``: what it takes besides the flow.

    Attributes:
        name: in the store.
        definition: the function, and what it gives to all nodes.
    """

    def __init__(
        self, registered: Lookup, name: str, function: Callable[..., object], options: Mapping[str, Any]
    ) -> None:
        """Use ``@app.workflow``. Raises OptionsError: an option is unknown or out of range."""
        self.name = name
        self._registered = registered
        self._context = registered.context
        self._options = read_options(DefinitionOptions(), options, WorkflowOptions.__annotations__.keys() - {"name"})
        bare = partial(function, None)
        own, task = self._options, _task(self, registered, function)
        signature = Signature(name, bare, registered.context.types, loose=own.loose)
        self.definition = Definition(name, function, signature, task, own.queue, own.globals, own.headers)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            workflow = self.__dict__.get("name", "workflow")
            raise AttributeError(elsewhere.of_workflow(workflow, name), name=name, obj=self)

    def create(self, /, *args: P.args, **kwargs: P.kwargs) -> WorkflowRun:
        """Store a workflow, which does not run until ``start``.

        The function runs here and now, once. Where the definition has a key and a live workflow has it too, nothing
        is stored: the handle is on that one, and its ``created`` is False.

        Raises:
            ArgumentError: an argument is missing, unexpected, of the wrong type, or cannot be sent; of the function or
                of a node.
            WorkflowError: the graph cannot be stored: a cycle, a name that means nothing or several, too many nodes.
            StoreUnavailable: no answer; a workflow that was stored in part is removed within about an hour.
            StoreFull: the server refused to store it.
            NotConfirmed: it is stored, and not as safe as the setting ``durability`` asks for.

        Cost: one round trip per 250 nodes (or mebibyte).
        """
        return self.create_as("", args, kwargs)

    async def acreate(self, /, *args: P.args, **kwargs: P.kwargs) -> WorkflowRun:
        """See :meth:`create`."""
        act, graph = self._submission(self.graph(*args, **kwargs))
        async with around(self._context.client, act):
            steps = self._kept(act, graph)
            return self._later(act, steps) or self._run(await self._context.client.adrive(steps))

    def graph(self, /, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """What ``create`` would store, without a server: for tests, pictures. Raises as :meth:`create`. Cost: none."""
        client, options = self._context.client, self._options
        data = self.definition.signature.pack(args, kwargs, client.settings.max_payload)
        scope = Scope(self._registered, self.name, GraphBuilder(self.name))
        define(scope, self.definition, args, kwargs)
        nodes = graph_builder.nodes(scope.builder)
        ends: dict[str, int] = {}
        for when in ("on_success", "on_failure"):
            task = getattr(options, when)
            if task is not None:
                nodes.append(callback_node(scope, task, when))
                ends[when] = len(nodes)
        ttl = microseconds(client.settings.workflow_ttl) if options.ttl is None else options.ttl
        what, most = f"globals of workflow {self.name}", client.settings.max_payload
        shared = codec.encode(scope.globals, most, what, client.types.encoder)
        waits = microseconds(client.settings.unstarted_workflow_ttl)
        key = self._key(args, kwargs)
        secrets = self.definition.signature.hidden(client.settings.redact)
        return Graph(self.name, tuple(nodes), data, shared, key=key, ttl=ttl, unstarted=waits, secrets=secrets, **ends)

    def options(self, **options: Unpack[CreateOptions]) -> Workflow[P]:
        """The same workflow with other options for its creations. Raises OptionsError: one is unknown or wrong."""
        made: Workflow[P] = Workflow.__new__(Workflow)
        made.__dict__.update({name: value for name, value in self.__dict__.items() if name != "_lists"})
        made._options = read_options(self._options, options, CreateOptions.__annotations__.keys())
        own = made._options
        made.definition = replace(self.definition, queue=own.queue, globals=own.globals, headers=own.headers)
        return made

    def page(self, *, after: str | None = None, **which: Unpack[OwnFilter]) -> Page[WorkflowRecord]:
        """Stored workflows of this definition; see :meth:`headrace.workflows.collection.Workflows.page`."""
        return self._lists.page(after=after, definition=None, **which)

    async def apage(self, *, after: str | None = None, **which: Unpack[OwnFilter]) -> Page[WorkflowRecord]:
        """See :meth:`page`."""
        return await self._lists.apage(after=after, definition=None, **which)

    def ids(self, **which: Unpack[OwnFilter]) -> list[str]:
        """Ids of stored workflows of this definition; see :meth:`headrace.workflows.collection.Workflows.ids`."""
        return self._lists.ids(definition=None, **which)

    async def aids(self, **which: Unpack[OwnFilter]) -> list[str]:
        """See :meth:`ids`."""
        return await self._lists.aids(definition=None, **which)

    def count(self, *, state: WorkflowState | str | None = None) -> int:
        """How many workflows of this definition are stored. Cost: one round trip."""
        return self._lists.count(state=state)

    async def acount(self, *, state: WorkflowState | str | None = None) -> int:
        """See :meth:`count`."""
        return await self._lists.acount(state=state)

    @cached_property
    def _lists(self) -> Workflows:
        return Workflows(self._context.client, self.name, self._registered.tasks)

    def run_with(self, id: str) -> WorkflowRun:
        """A handle on the run of an id, whether one is stored or not. Cost: none."""
        run = WorkflowRun(self._context.client, id, self.name, tasks=self._registered.tasks)
        run.wish = self._options.after_commit
        return run

    def create_as(self, id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> WorkflowRun:
        """As :meth:`create`, under an id that the caller made, or an empty one; one that is stored stays as it is."""
        act, graph = self._submission(self.graph(*args, **kwargs), id)
        with around(self._context.client, act):
            steps = self._kept(act, graph)
            return self._later(act, steps) or self._run(self._context.client.drive(steps))

    def _submission(self, graph: Graph, id: str = "") -> tuple[Submission, Graph]:
        client = self._context.client
        shard = client.shard_for(f"{self.name}:{graph.key}" if graph.key else "")
        id = id or flow_id(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(5)) >> 5, shard)
        graph = addressed(graph, id)
        # Without middleware the graph is not read, and a graph may have a hundred thousand nodes.
        nodes = graph.nodes if client.enqueue_middlewares else ()
        return submission_of_nodes("create", nodes, id, partial(node_id, id), self.name), graph

    def _kept(self, act: Submission, graph: Graph) -> Steps[verbs.Created]:
        client, id = self._context.client, act.workflow_id
        return client.kept(self._creation(act, graph), id, keys=client.keys_for(id))

    def _creation(self, act: Submission, graph: Graph) -> Steps[verbs.Created]:
        keys, id = self._context.client.keys, act.workflow_id
        if act.jobs:
            graph = msgspec.structs.replace(graph, nodes=act.nodes(graph.nodes))
        created: verbs.Created = yield verbs.create(keys, id, graph)
        while created.word == "more":
            created = yield verbs.create(keys, id, graph, created.next)
        return created

    def _later(self, act: Submission, steps: Steps[verbs.Created]) -> WorkflowRun | None:
        """The handle on a run that is stored when a transaction is committed; None: it is to be stored now."""
        run = self.run_with(act.workflow_id)
        return run if postponed(self._context.client, run.wish, f"workflow {run.id}", steps, run.was_created) else None

    def _run(self, created: verbs.Created) -> WorkflowRun:
        run = self.run_with(created.id)
        run.created = created.word != "live"
        return run

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        key = self._options.key
        if key is None:
            return ""
        text: Any = key(*args, **kwargs) if callable(key) else key
        if not is_name(text):
            raise OptionsError(f"key of workflow {self.name} must be a text of 1 to 256 characters, not {text!r:.80}")
        return text

    def __repr__(self) -> str:
        return f"<Workflow {self.name}>"


def _task(workflow: Workflow[...], registered: Lookup, function: Callable[..., object]) -> Task[..., Any, Any]:
    @wraps(function)
    def grow(*args: Any, **kwargs: Any) -> None:
        job = running_job()
        if job.tick is not None:
            run_of_tick(workflow, job, args, kwargs)
            return
        definition = workflow.definition
        on_failure: Policy = "stop"
        if (given := kwargs.pop(OUTER, None)) is not None:
            definition, on_failure = replace(definition, queue=given[0], globals=given[1]), POLICIES[given[2]]
        flow = job.workflow
        assert isinstance(flow, Flow)
        flow.scope.gather = True
        define(flow.scope, definition, args, kwargs, ("", {}, on_failure))

    plain = inspect.signature(partial(function, None))
    parameters = list(plain.parameters.values())
    extra = inspect.Parameter(OUTER, inspect.Parameter.KEYWORD_ONLY, default=None)
    at = next((n for n, one in enumerate(parameters) if one.kind is inspect.Parameter.VAR_KEYWORD), len(parameters))
    parameters.insert(at, extra)
    grow.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
    # What it is given was checked where the workflow's own signature packed it.
    options = of_task({"retries": _RETRIES})
    return Task(registered.context, f"workflow:{workflow.name}", grow, "process", options, loose=True)


# A tick has left the store with its job, and comes no second time: its workflow is made when the server can take it.
# The run has its id from the job, so a start that follows a lost reply makes no second one.
_RETRIES = Retry(max=20, max_delay=300, on=(StoreFull, StoreUnavailable, NotConfirmed))
# Seconds between two looks at the run of a tick: a tenth of the time since its tick, within these bounds.
_LEAST = 0.5
_MOST = 30.0


def run_of_tick(workflow: Workflow[...], job: RunningJob, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Have the workflow of a schedule's tick run; the job's log names the run, whose id follows from the job's. Where
    ticks of the schedule must not overlap, the job is snoozed until the run has ended: so it has the turn. Raises
    Snooze: the run has not ended. Raises StateError: it failed or was cancelled.
    """
    run = workflow.run_with(run_id_of(job.id))
    state: WorkflowState | None = None
    with contextlib.suppress(WorkflowNotFound):
        state = run.state
    if state is None and job.snoozes:
        # It ended, and did not stay for as long as this job slept.
        return
    if state is None:
        job.log(f"workflow {run.id}")
        state = workflow.create_as(run.id, args, kwargs).state
    if state is WorkflowState.PENDING:
        state = run.start()
    if not is_ordered(job.id):
        return
    if not state.final:
        away = time.time() - milliseconds_of(job.id) / 1000
        job.snooze(min(_MOST, max(_LEAST, away / 10)))
    if state is not WorkflowState.SUCCEEDED:
        text = f"the workflow of this tick ended as {state}, not as succeeded; what failed in it is shown by"
        raise StateError(f"{text} `headrace workflows show {run.id}`")


class Registered:
    """Tasks and definitions by name.

    Attributes:
        tasks, definitions: those of the whole application, or before there is one, those that share this.
        context: what the tasks know of the application.
    """

    __slots__ = ("context", "definitions", "tasks")

    def __init__(self, client: Client | None = None) -> None:
        """Make one. Without a client it has no application yet: :meth:`join` gives it one."""
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.definitions: dict[str, Workflow[...]] = {}
        self.context = AppContext(self.tasks, client)

    def join(self, app: Registered) -> None:
        self.context.join(app.context)
        self.tasks, self.definitions = app.tasks, app.definitions
