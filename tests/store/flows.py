"""Workflows without a definition or a worker: graphs by hand, and a dispatcher whose jobs end as a test says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace import Headrace
from headrace.model.form import Form
from headrace.model.ids import flow_id, number_of, shard_of
from headrace.model.job import Claim, Outcome
from headrace.model.workflow import FOR_EVER, Graph, NewNode, NodeFacts, pack_facts
from headrace.protocol import consume, graph
from headrace.workflows.run import WorkflowRun

OWNER = "host:1:flows"
NOTHING = b"\x92\x90\x80"
HOUR = 3_600_000_000


def node(
    name: str, *parents: int, task: str = "noop", role: Any = "", children: tuple[int, ...] = (), **form: Any
) -> NewNode:
    """A node; its children's policies are all ``stop``."""
    edges = tuple((number, "stop") for number in children)
    return NewNode(Form(task, **form), NOTHING, parents, edges, pack_facts(NodeFacts(name)), role)


def chain(*names: str, definition: str = "chain", key: str = "", ttl: int = FOR_EVER) -> Graph:
    """One node after the other."""
    last = len(names)
    nodes = [
        node(name, *([n - 1] if n > 1 else []), children=(n + 1,) if n < last else ())
        for n, name in enumerate(names, 1)
    ]
    return Graph(definition, tuple(nodes), key=key, ttl=ttl)


def wide(count: int, definition: str = "wide") -> Graph:
    """One node, then ``count`` beside each other, then one."""
    inner = range(2, count + 2)
    nodes = [node("first", children=tuple(inner))]
    nodes += [node(f"part-{n - 1}", 1, children=(count + 2,)) for n in inner]
    return Graph(definition, (*nodes, node("last", *inner)))


def create(app: Headrace, drawn: Graph) -> WorkflowRun:
    """Store a graph."""
    id = flow_id(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(4)))
    first = 1
    while True:
        made = app.client.run(graph.create(app.client.keys, id, drawn, first))
        if made.word != "more":
            return WorkflowRun(app.client, made.id, drawn.definition, created=made.word == "ok", tasks=app.tasks)
        first = made.next


End = str | tuple[str, Any]
NONE: Mapping[int, End] = {}


class Dispatcher:
    """Claims nodes and ends them at once, or when told.

    Attributes:
        held: claims that are not settled yet.
    """

    def __init__(self, app: Headrace) -> None:
        self.app = app
        self.held: list[Claim] = []
        self._request = 0
        for keys in app.client.shards:
            app.client.run(consume.register(keys, OWNER, 60_000_000, ["place", OWNER]))

    def claim(self, limit: int = 100) -> list[int]:
        """Claim what is ready; the numbers of the nodes."""
        found: list[Claim] = []
        for keys in self.app.client.shards:
            self._request += 1
            found += self.app.client.run(
                consume.claim(keys, OWNER, self._request, limit - len(found), ["default"])
            ).jobs
            if len(found) == limit:
                break
        self.held += found
        return [number_of(claim.id) for claim in found]

    def end(self, ends: Mapping[int, End] | Callable[[int], End] = NONE) -> list[str]:
        """End what is held, by numbers: as ``succeeded`` with None unless told otherwise. Returns the stale ids."""
        outcomes: dict[int, list[tuple[Outcome, int]]] = {}
        for claim in self.held:
            number = number_of(claim.id)
            word = ends(number) if callable(ends) else ends.get(number, "succeeded")
            kind, value = word if isinstance(word, tuple) else (word, None)
            data = msgspec.msgpack.encode(value) if kind == "succeeded" else b'{"type":"Boom","message":"no"}'
            ended = Outcome(claim.id, claim.token, kind, data, HOUR), claim.ready
            outcomes.setdefault(shard_of(claim.id), []).append(ended)
        self.held, stale = [], list[str]()
        for shard, some in outcomes.items():
            self._request += 1
            keys = self.app.client.shards[shard]
            stale += self.app.client.run(consume.settle(keys, OWNER, self._request, some, 0)).stale
        return stale

    def work(self, ends: Mapping[int, End] | Callable[[int], End] = NONE) -> list[int]:
        """Claim and end until nothing is ready; the numbers in the order of their claims."""
        done: list[int] = []
        while found := self.claim():
            done += found
            self.end(ends)
            for keys in self.app.client.shards:
                while self.app.client.run(graph.tend(keys, 0))[0]:
                    pass
        return done
