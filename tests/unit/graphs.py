"""What a graph holds, by the names of its nodes."""

from __future__ import annotations

from headrace.model.workflow import Graph, NewNode, NodeFacts, parse_facts


def facts(node: NewNode) -> NodeFacts:
    return parse_facts(node.facts)


def names(found: Graph) -> list[str]:
    return [facts(node).name for node in found.nodes]


def parents(found: Graph) -> dict[str, list[str]]:
    """Name -> names of its parents, in edge order; and that children say the same."""
    known = names(found)
    for number, node in enumerate(found.nodes, 1):
        if node.role == "undo":
            continue
        for parent in node.parents:
            assert [child for child, _ in found.nodes[parent - 1].children].count(number) == 1
        for child, _ in node.children:
            assert number in found.nodes[child - 1].parents
    return {facts(node).name: [known[parent - 1] for parent in node.parents] for node in found.nodes}


def policies(found: Graph) -> dict[tuple[str, str], str]:
    known = names(found)
    return {(facts(node).name, known[child - 1]): policy for node in found.nodes for child, policy in node.children}


def node(found: Graph, name: str) -> NewNode:
    return found.nodes[names(found).index(name)]
