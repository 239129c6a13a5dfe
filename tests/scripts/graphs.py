"""Workflows on a stage: graphs written as a line of text, and one that is played from its creation to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.model.form import Form
from headrace.model.ids import flow_id, node_id, number_of
from headrace.model.job import Claim
from headrace.model.workflow import (
    POLICIES,
    Graft,
    Graph,
    NewNode,
    NodeFacts,
    Policy,
    Role,
    WorkflowRecord,
    pack_facts,
    parse_facts,
)
from headrace.protocol import graph as protocol
from tests.scripts.stage import ARGS, KEEP, Stage

ENDS = {"corrupt": "quarantined"}
"""Kinds of outcomes whose state has another name."""


def names_of(text: str) -> list[str]:
    """The names of a line in the order in which they first stand there: their numbers, counted from 1."""
    words = (word.partition(":")[0] for word in text.split())
    return list(dict.fromkeys(name for word in words for name in word.split(">")))


def _nodes(text: str, given: Mapping[str, Mapping[str, Any]]) -> tuple[NewNode, ...]:
    names = names_of(text)
    numbers = {name: number for number, name in enumerate(names, 1)}
    parents: dict[str, list[int]] = {name: [] for name in names}
    children: dict[str, list[tuple[int, Policy]]] = {name: [] for name in names}
    for word in text.split():
        edge, _, letter = word.partition(":")
        above, arrow, below = edge.partition(">")
        if arrow:
            parents[below].append(numbers[above])
            children[above].append((numbers[below], POLICIES[letter or "s"]))
    found: list[NewNode] = []
    for name in names:
        facts = dict(given.get(name, {}))
        role: Role = facts.pop("role", "")
        undo = numbers[facts.pop("undo")] if "undo" in facts else 0
        args = facts.pop("args", ARGS)
        fields: dict[str, Any] = {"task": "add"} | facts
        form = Form(**fields)
        packed = pack_facts(NodeFacts(name, "shop"))
        found.append(NewNode(form, args, tuple(parents[name]), tuple(children[name]), packed, role, undo))
    return tuple(found)


def graph(text: str, *, nodes: Mapping[str, Mapping[str, Any]] | None = None, **facts: Any) -> Graph:
    """A graph of the words of a line: nodes ``a`` and edges ``a>b`` or ``a>b:c``, where ``c`` is a policy's letter.

    Args:
        nodes: by name, what a node has beyond the usual: ``role``, ``undo`` (a name), ``args``, fields of its form.
        facts: of the graph; callbacks are given by name.
    """
    given = dict(nodes or {})
    names = names_of(text)
    for kind in ("on_success", "on_failure"):
        if kind in facts:
            given[facts[kind]] = {"role": "callback"} | dict(given.get(facts[kind], {}))
            facts[kind] = names.index(facts[kind]) + 1
    for one in list(given.values()):
        if "undo" in one:
            given[one["undo"]] = {"role": "undo"} | dict(given.get(one["undo"], {}))
    return Graph("shop", _nodes(text, given), **facts)


def fan(width: int) -> Graph:
    """1 -> width -> 1."""
    middle = range(2, width + 2)
    form = Form(task="add")
    first = NewNode(form, ARGS, (), tuple((n, "stop") for n in middle), pack_facts(NodeFacts("first")))
    items = [NewNode(form, ARGS, (1,), ((width + 2, "stop"),), pack_facts(NodeFacts(f"item-{n}"))) for n in middle]
    last = NewNode(form, ARGS, tuple(middle), (), pack_facts(NodeFacts("last")))
    return Graph("fan", (first, *items, last))


def grafted(text: str, *, gather: bool = False) -> Graft:
    """A graft of the words of a line, and a join ``J`` of its leaves."""
    names = names_of(text)
    sources = {word.partition(">")[0] for word in text.split() if ">" in word}
    edges = " ".join(f"{name}>J" for name in names if name not in sources)
    nodes = _nodes(f"{text} {edges} J", {"J": {"role": "join"}})
    return Graft(nodes, len(nodes), gather)


class Flow:
    """One workflow on a stage.

    Attributes:
        id: the workflow's.
        names: of its nodes; those of grafts are added by ``grow``.
    """

    made_so_far = 0

    def __init__(self, stage: Stage, plan: Graph | str, **facts: Any) -> None:
        Flow.made_so_far += 1
        self.stage = stage
        self.graph = graph(plan, **facts) if isinstance(plan, str) else plan
        self.id = flow_id(stage.now // 1000, Flow.made_so_far)
        self.names = {parse_facts(n.facts).name: number for number, n in enumerate(self.graph.nodes, 1)}

    def create(self) -> str:
        """Store it, chunk by chunk; the last word."""
        first, word = 1, "more"
        while word == "more":
            made = self.stage.run(protocol.create(self.stage.keys, self.id, self.graph, first))
            first, word = made.next, made.word
        return word

    def made(self) -> Flow:
        assert self.create() == "ok"
        return self

    def started(self) -> Flow:
        assert self.made().start() == "running"
        return self

    def __getitem__(self, name: str) -> str:
        return node_id(self.id, self.names[name])

    # Verbs, under the names of their users.

    def start(self, *names: str) -> str:
        return self._say(protocol.start, [self.names[name] for name in names])

    def stop(self) -> str:
        return self.stage.run(protocol.stop(self.stage.keys, self.id))

    def cancel(self) -> str:
        return self._say(protocol.cancel)

    def retry(self) -> str:
        return self._say(protocol.retry_failed)

    def expire(self, ttl: int) -> str:
        return self._say(protocol.expire, ttl)

    def delete(self) -> str:
        return self._say(protocol.delete)

    def tend(self, limit: int = 500) -> int:
        return self.stage.run(protocol.tend(self.stage.keys, KEEP, limit))[0]

    def tend_all(self, limit: int = 500) -> int:
        """Tend until nothing is due; how often that took."""
        times = 1
        while self.tend(limit):
            times += 1
            assert times < 1000, "chores that never end"
        return times

    def _say(self, verb: Callable[..., Any], *args: Any) -> Any:
        return self.stage.run(verb(self.stage.keys, self.id, *args))

    # What happens.

    def claims(self, queues: Sequence[str] = ("default",), owner: str = "w1") -> dict[str, Claim]:
        """Claim all that is ready; the claims of this workflow by name."""
        names = {number: name for name, number in self.names.items()}
        taken = self.stage.take(owner, queues=queues)
        return {names[number_of(one.id)]: one for one in taken if one.id[:15] == self.id[:15]}

    def play(self, queues: Sequence[str] = ("default",), **kinds: str) -> list[str]:
        """Claim and settle until nothing is ready, a round at a time and in order; names in order of their starts.

        Args:
            kinds: by name, how a start ends that does not succeed.
        """
        order: list[str] = []
        while taken := self.claims(queues):
            for name, claim in taken.items():
                self.stage.now += 1
                self.stage.end(claim, kinds.get(name, "succeeded"), name.encode(), KEEP)
                order.append(name)
            self.tend_all()
        return order

    def end(self, name: str, kind: str = "succeeded", queues: Sequence[str] = ("default",)) -> Claim:
        """Claim what is ready, which must be this node alone, and settle it."""
        taken = self.claims(queues)
        assert list(taken) == [name]
        self.stage.end(taken[name], kind, name.encode())
        return taken[name]

    def grow(self, claim: Claim, text: str, *, gather: bool = False, owner: str = "w1") -> Graft:
        """Store a graft of a running node; its names are prefixed with ``+``."""
        graft = grafted(text, gather=gather) if text else grafted_nothing(gather=gather)
        return self.graft(claim, graft, owner)

    def graft(self, claim: Claim, graft: Graft, owner: str = "w1") -> Graft:
        """Store a graft of a running node."""
        first = self.stage.run(protocol.reserve(self.stage.keys, owner, claim.id, claim.token, len(graft.nodes)))
        assert first > 0
        at = 1
        while at <= len(graft.nodes):
            call, at = protocol.graft(self.stage.keys, owner, claim.id, claim.token, graft, first - 1, at)
            assert self.stage.run(call) == "ok"
        for number, node in enumerate(graft.nodes):
            self.names[f"+{parse_facts(node.facts).name}"] = first + number
        return graft

    # Looks.

    @property
    def record(self) -> WorkflowRecord | None:
        (found,) = self.stage.run(protocol.read_flows(self.stage.keys, [self.id]))
        return found

    @property
    def state(self) -> str | None:
        found = self.record
        return found.state.value if found else None

    @property
    def now(self) -> WorkflowRecord:
        """The record of a workflow that is there."""
        found = self.record
        assert found is not None
        return found

    @property
    def counts(self) -> dict[str, int]:
        """Nodes by final state, without zeros."""
        return {state: count for state, count in self.now.counts.items() if count}

    @property
    def states(self) -> dict[str, str | None]:
        return {name: self.stage.state(self[name]) for name in self.names}

    def views(self) -> set[str]:
        """The views that list it."""
        prefix = self.stage.keys("flows:")
        found = [key.decode() for key in self.stage.client.keys("*flows:*")]
        return {key.removeprefix(prefix) for key in found if self.stage.client.zscore(key, self.id) is not None}

    def chores(self) -> list[str]:
        return [chore.decode() for chore in self.stage.client.zrange(self.stage.keys("chores"), 0, -1)]

    def left(self) -> set[str]:
        """Keys that still name it."""
        return {key.decode() for key in self.stage.client.keys(f"*{self.id[:15]}*")}

    def output(self, name: str) -> bytes | None:
        return self.stage.record(self[name]).get("result")


def lapse(stage: Stage, limit: int) -> int:
    """Remove what is due; how many that were."""
    return stage.run(protocol.lapse(stage.keys, limit))[0]


def grafted_nothing(*, gather: bool) -> Graft:
    """What mapping an empty list adds: a join of nothing."""
    return Graft(_nodes("J", {"J": {"role": "join"}}), 1, gather)
