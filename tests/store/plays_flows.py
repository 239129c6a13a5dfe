"""Plays of scripts about workflows, and of those that treat a node otherwise than a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.model.job import Claim, Outcome
from headrace.model.workflow import Graft
from headrace.protocol import graph, operations, produce
from headrace.protocol.graph import CHUNK
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from tests.scripts.graphs import Flow, fan, grafted
from tests.scripts.stage import KEEP, SECOND, Stage
from tests.store.play import Play, claim, claims_alike, fewer, reclaim, says, settle, settled_before

KINDS = {"walk", "roots", "held", "retry", "cancel", "drop", "abandon"}
"""Of chores."""


def of(verb: Callable[..., Call[Any]], *args: Any) -> Callable[[Keys, Flow, int], Call[Any]]:
    """The call of a verb that is said of one workflow."""
    return lambda keys, flow, now: verb(keys, flow.id, *args).at(now)


def create(keys: Keys, flow: Flow, now: int) -> Call[graph.Created]:
    return graph.create(keys, flow.id, flow.graph).at(now)


def nodes(stage: Stage) -> Flow:
    """A workflow with nodes that wait, and some that are ready."""
    return Flow(stage, "a>x b>x:c c").started()


def running(stage: Stage) -> Claim:
    """A node that may grow."""
    return Flow(stage, "a>b").started().claims()["a"]


def endings(stage: Stage) -> list[tuple[Outcome, int]]:
    """Nodes that end in each way that matters to what comes after them, and one that leaves a chore."""
    flow = Flow(stage, "a>x b>x c>y d>y:c e>z:k f g>z u", nodes={"a": {"undo": "u"}}).started()
    Flow(stage, fan(600)).started()
    ends = {flow[name]: "failed" for name in "bde"} | {flow["g"]: "crashed", flow["f"]: "retry"}
    return [(stage.outcome(c, ends.get(c.id, "succeeded"), b"{}"), c.ready) for c in stage.take()]


def added(stage: Stage) -> list[tuple[Outcome, int]]:
    """What a node added, and is yet to be linked."""
    flow = Flow(stage, "a>b").started()
    one = flow.claims()["a"]
    flow.grow(one, "x y>z")
    return [(stage.outcome(one, "grown", b"r"), one.ready)]


def reserved(stage: Stage) -> tuple[Claim, Graft, int]:
    """A node that runs, what it adds, and the number before the first of that."""
    one, more = running(stage), grafted("x y>z")
    first = stage.run(graph.reserve(stage.keys, "w1", one.id, one.token, len(more.nodes)))
    return one, more, first - 1


def graft(keys: Keys, scene: tuple[Claim, Graft, int], now: int) -> Call[str]:
    one, more, base = scene
    return graph.graft(keys, "w1", one.id, one.token, more, base)[0]


def failed(stage: Stage) -> Flow:
    flow = Flow(stage, "a>b c d>e:c", key="k", ttl=SECOND).started()
    flow.play(a="failed", c="crashed", d="failed")
    return flow


def stopped(stage: Stage) -> Flow:
    """Its ready nodes are in their queue still."""
    stage.register()
    flow = nodes(stage)
    flow.stop()
    return flow


def held(stage: Stage) -> Flow:
    """Its nodes came up for a claim after it was stopped."""
    flow = stopped(stage)
    flow.claims()
    return flow


def lapsing(stage: Stage) -> None:
    """Two whose retention is over, and one that still tells of its end."""
    for plan in ("a>b", "c d"):
        Flow(stage, plan, ttl=0).started().play()
    Flow(stage, "a yes", on_success="yes", ttl=0).started().end("a")


def twin(stage: Stage) -> Flow:
    """A second one of a key that lives."""
    Flow(stage, "a", key="k").made()
    return Flow(stage, "a", key="k")


def chores(stage: Stage) -> None:
    """What scripts leave of each kind; together less than one call does."""
    wide = " ".join(f"n{n}" for n in range(600))
    thawed = Flow(stage, wide).started()
    thawed.tend_all()
    thawed.stop()
    stage.take()
    thawed.start()
    Flow(stage, fan(300)).started().end("first")
    broken = Flow(stage, " ".join(f"n{n}" for n in range(300))).started()
    stage.settle(*(stage.outcome(one, "failed", b"{}") for one in broken.claims().values()))
    broken.retry()
    Flow(stage, wide).started()
    Flow(stage, "a>b c").started().cancel()
    Flow(stage, fan(600)).made().delete()
    stage.run(create(stage.keys, Flow(stage, fan(CHUNK)), stage.now))
    stage.now += 3600 * SECOND
    assert {chore.partition(":")[0] for chore in stage.members("chores")} == KINDS


FLOWS: dict[str, Play] = {
    "flow_create": Play(lambda s: Flow(s, "a>b b>c", key="k", ttl=SECOND), create),
    "flow_create, a part": Play(lambda s: Flow(s, fan(CHUNK)), create),
    "flow_create, of a key that lives": Play(twin, create),
    "flow_start": Play(lambda s: Flow(s, "a>b c").made(), of(graph.start)),
    "flow_start, one node": Play(lambda s: Flow(s, "a>b c").made(), of(graph.start, [2])),
    "flow_start, what was held": Play(held, of(graph.start)),
    "flow_stop": Play(nodes, lambda k, flow, _: graph.stop(k, flow.id)),
    "flow_cancel": Play(nodes, of(graph.cancel)),
    "flow_retry": Play(failed, of(graph.retry_failed)),
    "flow_expire": Play(failed, of(graph.expire, KEEP)),
    "flow_delete": Play(nodes, of(graph.delete), says("missing")),
    "flow_watch": Play(nodes, of(graph.watch_flow, KEEP)),
    "flow_read": Play(failed, lambda k, flow, _: graph.read_flows(k, [flow.id])),
    "read, nodes": Play(failed, lambda k, flow, _: graph.read_nodes(k, flow.id, [1, 2, 3])),
    "flow_page": Play(lambda s: [nodes(s), failed(s)], lambda k, _, __: graph.flow_page(k)),
    "flow_count": Play(nodes, lambda k, _, __: graph.flow_count(k)),
    "outputs": Play(failed, lambda k, flow, _: graph.outputs(k, [flow["a"], flow["e"]])),
    "reserve": Play(running, lambda k, one, _: graph.reserve(k, "w1", one.id, one.token, 3)),
    "graft": Play(reserved, graft),
    "lapse": Play(lapsing, lambda k, _, t: graph.lapse(k, 10).at(t), fewer),
    "tend": Play(chores, lambda k, _, t: graph.tend(k, KEEP, 1000).at(t)),
    "settle, nodes": Play(endings, settle, settled_before),
    "settle, what was added": Play(added, settle, settled_before),
    "claim, nodes": Play(lambda s: (nodes(s), s.register())[1], claim, claims_alike),
    "claim, nodes of one that was stopped": Play(lambda s: (stopped(s), "w1")[1], claim, claims_alike),
    "cancel, a node": Play(lambda s: nodes(s)["x"], lambda k, id, t: produce.cancel(k, id, KEEP).at(t)),
    "purge, nodes": Play(nodes, lambda k, _, t: operations.purge(k, "default", 1000).at(t), fewer),
    "reclaim, nodes": Play(lambda s: nodes(s).claims(), reclaim, lambda *_: True),
}
