"""Views of workflows: of a definition's graph, and of the nodes that a server has stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from headrace.picture.view import View, ViewNode

if TYPE_CHECKING:
    from headrace.model.workflow import Graph, NodeRecord


def of_graph(graph: Graph, title: str = "") -> View:
    """What a definition results in, before anything runs: boxes have no state."""
    from headrace.model.workflow import parse_facts

    view = View(title or graph.definition)
    found = [parse_facts(node.facts) for node in graph.nodes]
    names = {facts.name for facts in found}
    for number, (node, facts) in enumerate(zip(graph.nodes, found, strict=True), 1):
        name = _label(facts.name, node.form.task, node.role)
        maps = facts.map or _joins_items(facts.name, node.role, names)
        if node.role != "given":
            view.nodes.append(ViewNode(number, name, role=node.role, map=maps))
        view.edges.extend((number, child, policy) for child, policy in node.children)
        if node.undo:
            view.edges.append((number, node.undo, "undo"))
    return view


def of_nodes(title: str, records: Iterable[NodeRecord]) -> View:
    """A workflow as stored. The records may be a part of it: edges to the others are left out."""
    view = View(title)
    stored = list(records)
    names = {node.facts.name for node in stored}
    for node in stored:
        maps = node.facts.map or _joins_items(node.facts.name, node.role, names)
        view.nodes.append(_box(node, maps=maps))
        view.edges.extend((node.number, child, policy) for child, policy in node.children)
        if node.role == "undo":
            # Not a child in the store, since it must not wait there: it lines up by hand after a failure.
            view.edges.extend((parent, node.number, "undo") for parent in node.parents)
    return view


def _box(node: NodeRecord, *, maps: bool) -> ViewNode:
    job = node.job
    began = job.started_us if job.attempt else 0
    return ViewNode(
        node.number, _label(node.facts.name, job.task, node.role), str(job.state), node.role, map=maps,
        began=began,
        ended=job.finished_us if began else 0,
        crashes=job.crashes,
        # The last one that raised was followed by none.
        retries=max(0, job.failures - (job.state == "failed")),
    )  # fmt: skip


def _joins_items(name: str, role: str, names: Collection[str]) -> bool:
    """Whether it is what waits for the items of a map over a list that was known."""
    return role == "join" and f"{name}[0]" in names


def _label(name: str, task: str, role: str) -> str:
    """A job's name; of what undoes a job or is called at the end, the task's, since its name says no more than that."""
    short = task.rpartition(".")[2]
    if role == "undo":
        return short or name
    if role == "callback":
        return f"{short} {name}".strip()
    return name or short or role
