"""A small model of workflows: what edges, ends and verbs mean, in plain Python, each at once and without chores."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.model.workflow import Graft, Graph, NewNode

FAILED = ("failed", "cancelled", "quarantined")
ENDED = ("succeeded", "skipped", *FAILED)
ACTIVE = ("ready", "scheduled", "running", "parked", "stopped")
FINAL = ("succeeded", "failed", "cancelled")
MINUTE = 60_000_000


@dataclass
class Node:
    number: int
    role: str
    delay: int
    budget: int
    undo: int
    children: list[tuple[int, str]]
    pending: int
    soft: bool
    linked: bool = True
    state: str = "blocked"
    skip: bool = False
    skips: int = 0
    """Skipped parents whose edge says that it goes on."""
    above: int = 0
    """Parents that a join stands for; one more where the node that added it gives its own output."""
    again: int = 0
    """Of a callback: the start during which its workflow ended again."""
    token: int = 0
    crashes: int = 0
    asked: bool = False
    counted: set[int] = field(default_factory=set[int])
    """Positions of the edges that have been counted."""
    graft: tuple[int, int, Graft] | None = None
    """Token of the start that added nodes, their first number less one, and they themselves."""

    @property
    def part(self) -> bool:
        return self.linked and not self.role


def node_of(new: NewNode, number: int, base: int = 0, extra: int = 0) -> Node:
    children = [(child + base, policy) for child, policy in new.children]
    soft = bool(children) and all(policy != "stop" for _, policy in children)
    return Node(
        number,
        new.role,
        new.form.delay,
        new.form.max_crashes or 3,
        new.undo + base if new.undo else 0,
        children,
        len(new.parents) + extra,
        soft,
        above=len(new.parents),
    )


class Model:
    """One workflow.

    Attributes:
        now: the clock, set before each verb.
        lapses: when it leaves; 0: never, as far as is known.
    """

    def __init__(self, graph: Graph, now: int) -> None:
        self.now = now
        self.key = graph.key
        self.ttl = graph.ttl
        self.nodes = {n: node_of(new, n) for n, new in enumerate(graph.nodes, 1)}
        self.roots = [n for n, new in enumerate(graph.nodes, 1) if not new.parents and new.role in ("", "join")]
        self.calls = {"succeeded": graph.on_success, "failed": graph.on_failure, "cancelled": graph.on_failure}
        self.state = "pending"
        self.cancelled = self.undoing = self.begun = self.stirred = False
        self.undo: list[tuple[int, int]] = []
        self.unstarted = graph.unstarted
        self.lapses = now + graph.unstarted if graph.unstarted >= 0 else 0

    # Looks.

    def states(self) -> dict[int, str]:
        return {number: node.state for number, node in self.nodes.items()}

    def where(self, *states: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.state in states]

    def counts(self) -> dict[str, int]:
        found = {state: sum(node.part for node in self.where(state)) for state in ENDED}
        return {state: count for state, count in found.items() if count}

    @property
    def active(self) -> int:
        return sum(node.role != "callback" for node in self.where(*ACTIVE))

    # What follows from what.

    def begin(self, node: Node, delay: int = 0) -> None:
        self.stirred = True
        node.state = "stopped" if self.state == "pending" else "scheduled" if delay else "ready"

    def open(self, node: Node) -> None:
        if node.state != "blocked" or self.cancelled:
            return
        if node.skip or (node.role == "join" and node.skips == node.above > 0):
            self.end(node, "skipped")
        elif node.role == "join":
            self.end(node, "succeeded")
        else:
            self.begin(node, node.delay)

    def end(self, node: Node, state: str) -> None:
        self.stirred = self.stirred or (node.state != "blocked" and node.role != "callback")
        node.state, node.asked = state, False
        if node.role == "callback" and node.again and node.again == node.token:
            node.state, node.crashes, node.again = "ready", 0, 0
        if node.role in ("undo", "callback"):
            return
        if state == "succeeded" and node.undo:
            self.undo.append((self.now, node.number))
        if not self.cancelled:
            self.count(node)

    def count(self, node: Node) -> None:
        failed = node.state in FAILED
        for at, (number, policy) in enumerate(node.children):
            if at in node.counted or (failed and policy == "stop"):
                continue
            node.counted.add(at)
            child = self.nodes[number]
            if (failed and policy == "skip") or (node.state == "skipped" and policy != "continue"):
                child.skip = True
            elif node.state == "skipped":
                child.skips += 1
            child.pending -= 1
            if not child.pending:
                self.open(child)

    def conclude(self) -> None:
        """To be called when a verb or an outcome is through."""
        stirred, self.stirred = self.stirred, False
        if not stirred or self.active or self.state not in ("running", "stopped"):
            return
        hard = any(node.part and not node.soft for node in self.where(*FAILED))
        final = "cancelled" if self.cancelled else "failed" if hard else "succeeded"
        if final == "succeeded" and any(node.part and node.state not in ENDED for node in self.nodes.values()):
            self.state = "stopped" if self.state == "stopped" else "pending"
            self.lapses = self.now + self.unstarted if self.unstarted >= 0 else 0
        elif final != "succeeded" and self.undo:
            last = max(self.undo)
            self.undo.remove(last)
            self.undoing = True
            self.begin(self.nodes[self.nodes[last[1]].undo])
            self.stirred = False
        else:
            self.over(final)

    def over(self, final: str) -> None:
        self.state, self.undo = final, []
        self.lapses = self.now + self.ttl if self.ttl >= 0 else 0
        call = self.nodes.get(self.calls[final])
        if call and call.state == "running":
            call.again = call.token
        elif call and call.state not in ("ready", "scheduled", "parked"):
            call.state, call.crashes, call.again = "ready", 0, 0

    # Verbs; each returns its word.

    def start(self, numbers: list[int]) -> str:
        if self.cancelled or self.state in FINAL:
            return "cancelled" if self.cancelled else self.state
        self.state, self.stirred, self.lapses = "running", True, 0
        if not self.undoing:
            for number in numbers:
                if self.nodes[number].part:
                    self.open(self.nodes[number])
            if not numbers and not self.begun:
                self.begun = True
                for number in self.roots:
                    self.open(self.nodes[number])
        for node in self.where("stopped"):
            node.state = "ready"
        self.conclude()
        return self.state

    def stop(self) -> str:
        if self.cancelled:
            return "cancelled"
        if self.state in ("pending", "running"):
            self.state = "stopped"
        return self.state

    def cancel(self) -> str:
        if self.state in FINAL:
            return self.state
        if not self.cancelled:
            self.cancelled, self.state, self.stirred, self.lapses = True, "running", True, 0
            for node in list(self.nodes.values()):
                if node.role not in ("undo", "callback"):
                    self.withdraw(node)
                elif node.state == "stopped":
                    node.state = "ready"
            self.conclude()
        return "asked"

    def withdraw(self, node: Node) -> str:
        if node.state == "running":
            node.asked = True
            return "asked"
        closed = self.state in FINAL or (self.undoing and not self.cancelled)
        if node.state in ENDED or (node.state == "blocked" and (closed or not node.part)):
            return node.state
        self.end(node, "cancelled")
        return "cancelled"

    def cancel_one(self, number: int) -> str:
        word = self.withdraw(self.nodes[number])
        self.conclude()
        return word

    def retry(self, taken: bool) -> str:
        if self.cancelled:
            return "cancelled"
        broken = [node for node in self.where(*FAILED) if node.part]
        if self.state == "succeeded" or not broken:
            return self.state
        if self.undoing:
            return "undone"
        if self.state == "failed":
            if taken:
                return "live"
            self.state, self.lapses = "running", 0
        for node in broken:
            node.crashes = 0
            if node.token or node.pending <= 0:
                self.begin(node)
            else:
                node.state = "blocked"
        self.stirred = True
        self.conclude()
        return self.state

    def expire(self, ttl: int) -> str:
        self.ttl = ttl
        if self.state in FINAL:
            self.lapses = self.now + ttl if ttl >= 0 else 0
        return "ok"

    def lapse(self) -> bool:
        """Whether it leaves now."""
        if not self.lapses or self.lapses > self.now:
            return False
        if self.state not in (*FINAL, "pending") and (self.state != "stopped" or self.active):
            self.lapses = 0
            return False
        if any(node.role == "callback" for node in self.where("ready", "running", "scheduled")):
            self.lapses = self.now + MINUTE
            return False
        return True

    # Workers.

    def claim(self) -> set[int]:
        taken: set[int] = set()
        for node in self.where("ready"):
            if node.role != "callback" and (self.state == "stopped" or (self.cancelled and node.role != "undo")):
                node.state = "stopped"
            else:
                node.state = "running"
                taken.add(node.number)
        return taken

    def settle(self, node: Node, kind: str, amount: int) -> None:
        if kind == "grown":
            self.link(node)
        self.outcome(node, kind, amount)
        self.conclude()

    def outcome(self, node: Node, kind: str, amount: int) -> None:
        if kind in ("succeeded", "failed", "cancelled", "skipped", "grown", "corrupt"):
            self.end(node, {"grown": "succeeded", "corrupt": "quarantined"}.get(kind, kind))
        elif kind == "crashed":
            node.crashes += 1
            if node.asked:
                self.end(node, "cancelled")
            elif node.crashes >= node.budget:
                self.end(node, "quarantined")
            else:
                node.state = "ready"
        elif node.asked:
            self.end(node, "cancelled")
        elif kind == "parked":
            node.state = "parked"
        else:
            node.state = "scheduled" if kind in ("retry", "snoozed") and amount > 0 else "ready"

    def grow(self, node: Node, base: int, added: Graft) -> None:
        node.graft = (node.token, base, added)
        for number, new in enumerate(added.nodes, 1):
            extra = int(not new.parents and new.role not in ("undo", "callback"))
            one = node_of(new, number + base, base, extra)
            one.linked = False
            one.above += number == added.join and not added.gather
            self.nodes[number + base] = one

    def link(self, node: Node) -> None:
        if not node.graft or self.cancelled:
            return
        _, base, added = node.graft
        join = self.nodes[base + added.join]
        join.children, join.counted = node.children, node.counted
        node.children, node.counted = (
            [(base + n, "stop") for n, new in enumerate(added.nodes, 1) if not new.parents],
            set(),
        )
        for number in range(base + 1, base + len(added.nodes) + 1):
            self.nodes[number].linked = True
