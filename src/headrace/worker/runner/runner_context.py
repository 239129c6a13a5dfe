"""The values that the starts of one runner share, and the steps of workflow nodes around their code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.app import Headrace
from headrace.context import CurrentJob
from headrace.errors import ArgumentError, CorruptRecord, WorkflowError
from headrace.model import codec, job_record
from headrace.model.form import UNTOLD, Form
from headrace.model.headers import unpacked
from headrace.model.hidden_values import hiding, with_all
from headrace.model.job import Claim, Input
from headrace.model.options import Kind
from headrace.model.workflow import MAX_NODES, Graft, NewNode, NodeFacts, Policy, pack_facts, parse_facts
from headrace.protocol.consume import Note
from headrace.settings import microseconds
from headrace.tasks.app_context import AppContext
from headrace.tasks.limit import name_of_own
from headrace.tasks.submission import Middleware
from headrace.tasks.task import NO_PLAN, RunPlan, Task
from headrace.worker.channel import Channel
from headrace.worker.messages import ToRunner
from headrace.worker.warmup import StoreUse
from headrace.workflows.graph_builder import NO_FORM, GraphBuilder
from headrace.workflows.node import Lookup
from headrace.workflows.scope import ONCE, Flow, Scope, collected

if TYPE_CHECKING:
    from headrace.model.sealing import Seal

# The output of a map over nothing.
EMPTY_LIST = b"\x90"
# Whatever holds a slot holds this byte.
_SLOT = bytes((codec.SLOT,))

_halves = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]])
_items = msgspec.msgpack.Decoder(list[msgspec.Raw])
_encode = msgspec.msgpack.Encoder().encode


def is_skipped(facts: NodeFacts, inputs: Sequence[Input]) -> bool:
    if facts.when < 0:
        return False
    if facts.when >= len(inputs):
        return True
    try:
        return not codec.decode(inputs[facts.when].output or codec.NONE)
    except (msgspec.MsgspecError, ValueError):
        # It cannot be read, but it is something.
        return False


def filled(claim: Claim) -> bytes:
    """The node's arguments with its parents' outputs in their places. Raises CorruptRecord."""
    if not claim.inputs or _SLOT not in claim.args:
        # Most nodes that follow others take nothing from them.
        return claim.args
    return job_record.fill(claim.args, [one.output for one in claim.inputs])


def spread(claim: Claim, facts: NodeFacts, args: bytes) -> Graft | None:
    """What a node that maps adds: a node for each item of its first argument, and their join; None if there are none.
    Raises ArgumentError, WorkflowError: the argument is not a list, or has more items than a workflow may have nodes.
    """
    first, rest, kwargs = _parts(claim.task, args)
    try:
        items = _items.decode(first)
    except (msgspec.MsgspecError, ValueError):
        text = f"flow.map of {claim.task} got {codec.readable(bytes(first)):.80}, which is not a list"
        raise ArgumentError(f"{text}: let the node before it return one") from None
    if len(items) >= MAX_NODES:
        raise WorkflowError(
            f"flow.map of {claim.task} got {len(items):,} items, more than {MAX_NODES - 1:,}: let each item be several"
        )
    if not items:
        return None
    form = Form(
        claim.task, claim.queue, claim.options, facts.priority, max_crashes=facts.max_crashes,
        at_most_once=claim.once, key=claim.key, headers=claim.headers, cost=claim.cost if claim.cost > 1 else 0,
        **{name: value for name, value in facts.untold.items() if name in UNTOLD},
    )  # fmt: skip
    given: list[NewNode] = []
    if len(items) > 1:
        rest = [_once(part, given) for part in rest]
        kwargs = {name: _once(part, given) for name, part in kwargs.items()}
    above = tuple(range(len(items) + 1, len(items) + len(given) + 1))
    join = len(items) + len(given) + 1
    onward: tuple[tuple[int, Policy]] = ((join, facts.policy),)
    nodes = [
        NewNode(form, _encode(((item, *rest), kwargs)), above, onward, _named(facts, f"[{n}]"), given=len(given))
        for n, item in enumerate(items)
    ]
    nodes += given
    nodes.append(NewNode(NO_FORM, b"", tuple(range(1, len(items) + 1)), (), _named(facts, "[]"), "join"))
    return Graft(tuple(nodes), join, gather=True)


def with_all_encrypted(graft: Graft) -> Graft:
    nodes = [
        msgspec.structs.replace(one, form=msgspec.structs.replace(one.form, secrets=with_all(one.form.secrets)))
        for one in graft.nodes
        if one.form.task
    ]
    return msgspec.structs.replace(graft, nodes=(*nodes, *graft.nodes[len(nodes) :]))


def _once(part: msgspec.Raw, given: list[NewNode]) -> Any:
    if len(part) < ONCE:
        return part
    given.append(NewNode(NO_FORM, bytes(part), role="given"))
    return job_record.slot(len(given) - 1)


def collecting(registered: Lookup, claim: Claim) -> Flow:
    facts = parse_facts(claim.facts)
    scope = Scope(registered, facts.definition, GraphBuilder(facts.definition), f"{facts.name}/")
    scope.headers = unpacked(claim.headers)
    return Flow(scope)


def added(job: CurrentJob) -> Graft | None:
    """The nodes that a job added, once its code has returned. Raises WorkflowError: they cannot be stored."""
    return None if job.added is None else collected(job.added.scope)


def _parts(task: str, args: bytes) -> tuple[msgspec.Raw, list[Any], dict[str, Any]]:
    try:
        positions, kwargs = _halves.decode(codec.signed_parts(args)[0])
        return positions[0], positions[1:], dict(kwargs)
    except (msgspec.MsgspecError, ValueError, IndexError) as error:
        raise CorruptRecord(
            f"the stored arguments of {task} cannot be read ({error}): another program wrote or cut them"
        ) from None


def _named(facts: NodeFacts, place: str) -> bytes:
    return pack_facts(NodeFacts(facts.name + place, facts.definition))


Emit = Callable[[Note], None]


class RunnerOptions(msgspec.Struct, frozen=True):
    """What one runner is told by the supervisor that forked it.

    Attributes:
        tickets: reading end of the ticket pipe, not blocking.
        slots: jobs at once: threads or coroutines; 1 for the process and fork kinds.
        measure_memory: whether each outcome carries the peak memory of the process; one system call per job.
        place: ``host:pid`` of the worker, for errors.
        profiled: whether it is to note what is done again in it.
        is_fork_server: be one that forks a child for each job; the fork kind only.
        exit_deadline: seconds that leaving lifespans, exit hooks and the flushing of logs and streams may take.
    """

    kind: Kind
    channel: Channel[ToRunner]
    tickets: int
    slots: int
    measure_memory: bool
    place: str
    profiled: bool = False
    is_fork_server: bool = False
    store_use: StoreUse | None = None
    exit_deadline: float = 5.0


class RunnerContext(msgspec.Struct, frozen=True, eq=False):
    """What every start of one runner needs. A structure, since traces copy it for each start.

    Attributes:
        failure_ttl: microseconds that a job stays whose own options cannot be read.
        context: the context variables that every start begins with: the next job must not see what one sets.
        registered: what the nodes may name that a job adds to its workflow.
        state: what the runner's lifespans yielded.
        seal: checks and decrypts jobs, and encrypts results; None: the application has no keys.
        raised: told what left the code of a start, before its tracebacks are taken off; only the test kit listens.
    """

    tasks: dict[str, Task[..., Any, Any]]
    middlewares: Sequence[Middleware]
    failure_ttl: int
    context: Context
    place: str
    random: Callable[[], float]
    app: AppContext
    registered: Lookup
    state: Any = None
    raised: Callable[[BaseException], None] | None = None
    seal: Seal | None = None

    def job(self, claim: Claim, emit: Emit, args: Any, kwargs: Any, plan: RunPlan = NO_PLAN) -> CurrentJob:
        flow = partial(collecting, self.registered) if claim.facts else None
        hide = hiding(plan.secrets, args, kwargs) if plan.secrets else str
        return CurrentJob(claim, emit, flow, self.state, args, kwargs, self.limit_of, plan.retry, hide)

    def limit_of(self, claim: Claim, limit: object) -> str:
        """The name of one of the job's limits; raises ``NotFound`` for any other."""
        return name_of_own(self.app.limits_of(self.tasks[claim.task].limits, claim.queue), claim.task, limit)


def runner_context(app: Headrace, place: str, random: Callable[[], float], state: Any = None) -> RunnerContext:
    ttl = microseconds(app.settings.failure_ttl)
    return RunnerContext(
        app.tasks, app.middlewares, ttl, copy_context(), place, random, app.context, app.registered, state,
        seal=app.client.keys.seal,
    )  # fmt: skip
