"""Views of workflows: of a definition's graph, and of the nodes that a server has stored."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.picture.view import View, ViewNode
from headrace.workflow import Graph, NodeRecord, parse_facts


def of_graph(graph: Graph, title: str = "") -> View:
    """What a definition results in, before anything runs: boxes have no state."""
    view = View(title or graph.definition)
    for number, node in enumerate(graph.nodes, 1):
        name = _label(parse_facts(node.facts).name, node.form.task, node.role)
        view.nodes.append(ViewNode(number, name, role=node.role))
        view.edges.extend((number, child, letter) for child, letter in node.children)
        if node.undo:
            view.edges.append((number, node.undo, "undo"))
    return view


def of_nodes(title: str, records: Iterable[NodeRecord]) -> View:
    """A workflow as stored. The records may be a part of it: edges to the others are left out."""
    view = View(title)
    for node in records:
        name = _label(node.facts.name, node.job.task, node.role)
        view.nodes.append(ViewNode(node.number, name, str(node.job.state), node.role))
        view.edges.extend((node.number, child, letter) for child, letter in node.children)
        if node.role == "undo":
            # Not a child in the store, since it must not wait there: it lines up by hand after a failure.
            view.edges.extend((parent, node.number, "undo") for parent in node.parents)
    return view


def _label(name: str, task: str, role: str) -> str:
    """A job's name; of what undoes a job or is called at the end, the task's, since its name says no more than that."""
    short = task.rpartition(".")[2]
    if role == "undo":
        return short or name
    if role == "callback":
        return f"{short} {name}".strip()
    return name or short or role
