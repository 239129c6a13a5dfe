"""What a workflow's node comes to before and after its code: whether it runs, with which arguments, what it adds.

Pure: every function takes what the claim says and returns values; execute.py calls them, workflow_growth.py
sends what is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.context import CurrentJob
from headrace.errors import ArgumentError, CorruptArguments, WorkflowTooLarge
from headrace.model import codec, slots
from headrace.model.form import UNTOLD, Form
from headrace.model.headers import unpacked
from headrace.model.job import Claim, Input
from headrace.model.workflow import MAX_NODES, Graft, NewNode, NodeFacts, Policy, pack_facts, parse_facts
from headrace.workflows.builder import Flow, collected
from headrace.workflows.definition_facts import Lookup
from headrace.workflows.graph_builder import NO_FORM, GraphBuilder
from headrace.workflows.scope import ONCE, Scope

# The output of a map over nothing.
EMPTY_LIST = b"\x90"
# Whatever holds a slot holds this byte.
_SLOT = bytes((codec.SLOT,))

_halves = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]])
_items = msgspec.msgpack.Decoder(list[msgspec.Raw])
_encode = msgspec.msgpack.Encoder().encode


def unwanted(facts: NodeFacts, inputs: Sequence[Input]) -> bool:
    """Whether the node is skipped: what its condition's node gave is falsy, or it gave nothing."""
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
    """The node's arguments with its parents' outputs in their places.

    Raises:
        CorruptArguments: no definition wrote them.
    """
    if not claim.inputs or _SLOT not in claim.args:
        # Most nodes that follow others take nothing from them.
        return claim.args
    return slots.fill(claim.args, [one.output for one in claim.inputs])


def spread(claim: Claim, facts: NodeFacts, args: bytes) -> Graft | None:
    """What a node that maps adds: a node for each item of its first argument, and their join; None if there are none.

    Raises:
        ArgumentError: the first argument is not a list.
        CorruptArguments: no definition wrote them.
        WorkflowTooLarge: the list has more items than a workflow may have nodes.
    """
    first, rest, kwargs = _parts(claim.task, args)
    try:
        items = _items.decode(first)
    except (msgspec.MsgspecError, ValueError):
        raise ArgumentError(
            f"flow.map of {claim.task} got {codec.readable(bytes(first)):.80}, which is not a list: let the node "
            f"before it return one"
        ) from None
    if len(items) >= MAX_NODES:
        raise WorkflowTooLarge(
            f"flow.map of {claim.task} got {len(items):,} items, more than {MAX_NODES - 1:,}: let each item be several"
        )
    if not items:
        return None
    form = Form(
        claim.task,
        claim.queue,
        claim.options,
        facts.priority,
        max_crashes=facts.max_crashes,
        at_most_once=claim.once,
        key=claim.key,
        headers=claim.headers,
        **{name: value for name, value in facts.untold.items() if name in UNTOLD},
    )
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


def _once(part: msgspec.Raw, given: list[NewNode]) -> Any:
    """An argument that all items take; where it is large, what stands for it, and it becomes one of ``given``."""
    if len(part) < ONCE:
        return part
    given.append(NewNode(NO_FORM, bytes(part), role="given"))
    return slots.slot(len(given) - 1)


def collecting(registered: Lookup, claim: Claim) -> Flow:
    """What collects the nodes that a running one adds."""
    facts = parse_facts(claim.facts)
    scope = Scope(registered, facts.definition, GraphBuilder(facts.definition), f"{facts.name}/")
    scope.headers = unpacked(claim.headers)
    return Flow(scope)


def added(job: CurrentJob) -> Graft | None:
    """The nodes that a job added, once its code has returned; None if it added none.

    Raises:
        WorkflowError: they cannot be stored.
    """
    return None if job.added is None else collected(job.added.scope)


def _parts(task: str, args: bytes) -> tuple[msgspec.Raw, list[Any], dict[str, Any]]:
    try:
        positions, kwargs = _halves.decode(args)
        return positions[0], positions[1:], dict(kwargs)
    except (msgspec.MsgspecError, ValueError, IndexError) as error:
        raise CorruptArguments(
            f"the stored arguments of {task} cannot be read ({error}): another program wrote or cut them"
        ) from None


def _named(facts: NodeFacts, place: str) -> bytes:
    return pack_facts(NodeFacts(facts.name + place, facts.definition))
