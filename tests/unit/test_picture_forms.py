"""DOT and Mermaid as their readers take them, which form a file gets, and views of definitions and of stored nodes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from headrace import picture
from headrace.errors import OptionsError
from headrace.model.form import Form
from headrace.model.job import State
from headrace.model.job_record import Record
from headrace.model.workflow import Graph, NewNode, NodeFacts, NodeRecord, pack_facts
from headrace.picture import View, ViewNode
from tests.unit.picture_views import DIAMOND, EVIL, Drawing, chain, evil, fan, views


def _parse_dot(text: str) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Graphviz's own reader; it has no say in what is written."""
    graph = pytest.importorskip("pygraphviz").AGraph(string=text)
    labels = {str(node): str(node.attr["label"]) for node in graph.nodes()}
    return labels, {(str(a), str(b)) for a, b in graph.edges()}


def test_dot_is_read_by_graphviz_as_it_was_meant() -> None:
    labels, edges = _parse_dot(picture.render(DIAMOND, "dot"))
    assert labels["n2"] == "resize-1"
    assert {("start", "n1"), ("n1", "n2"), ("n4", "end"), ("end", "n6"), ("n1", "n5")} <= edges
    assert ("n5", "end") not in edges


def test_dot_keeps_names_text() -> None:
    labels, edges = _parse_dot(picture.render(evil(), "dot"))
    assert set(labels) == {"start", "end", *(f"n{i}" for i in range(1, len(EVIL) + 1))}
    assert len(edges) == len(EVIL) + 1
    # As written in the source: Graphviz unescapes it when it draws.
    assert labels["n1"].replace('\\"', '"') == EVIL[0]
    assert labels["n4"] == "back\\\\slash\\\\n"


def test_dot_shows_an_ampersand_and_makes_no_entity_of_it() -> None:
    view = View("a & b", [ViewNode(1, "R&D &lt; &amp;")])
    text = picture.render(view, "dot")
    assert 'label="a &amp; b"' in text
    assert "R&amp;D &amp;lt; &amp;amp;" in text


@settings(max_examples=50, deadline=None)
@given(views())
def test_dot_of_any_graph_is_dot(view: View) -> None:
    labels, _ = _parse_dot(picture.render(view, "dot"))
    assert len(labels) == len(view.nodes) + 2


MERMAID = re.compile(
    r'(?:(?:start_|end_)\{"(?:start|end)"\}'
    r'|n\d+(?:\["(?:[^"\n<>;#]|<br>|#\d+;)*"\]|\(\["(?:[^"\n<>;#]|<br>|#\d+;)*"\]\))(?::::state_\w+)?'
    r"|(?:n\d+|start_|end_) (?:-->|-\.->|-\. \w+ \.->) (?:n\d+|end_)"
    r"|classDef state_\w+ fill:#\w{6},stroke:#\w{6},color:#\w{6}(?:,stroke-dasharray:4 3)?)"
)


@settings(max_examples=80, deadline=None)
@given(views())
def test_mermaid_of_any_graph_has_only_lines_of_its_grammar(view: View) -> None:
    first, title, last, kind, *lines = picture.render(view, "mermaid").splitlines()
    assert (first, last, kind) == ("---", "---", "flowchart TD")
    assert re.fullmatch(r'title: "(?:[^"\\]|\\.)*"', title)
    assert [line for line in lines if not MERMAID.fullmatch(line.strip())] == []


def test_mermaid_has_labels_states_and_policies() -> None:
    text = picture.render(DIAMOND, "mermaid")
    assert 'n2["resize-1"]:::state_failed' in text
    assert "n2 -. continue .-> n4" in text
    assert "n1 -. undo .-> n5" in text
    assert "end_ -.-> n6" in text
    assert "#60;script#62;" in picture.render(evil(), "mermaid")
    assert 'n22(["join-1"])' in picture.render(fan(20), "mermaid")


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a.svg", "svg"),
        ("b.SVG", "svg"),
        (Path("c.gv"), "dot"),
        ("d.dot", "dot"),
        ("e.mmd", "mermaid"),
        ("f.txt", "text"),
    ],
)
def test_a_files_ending_tells_the_form(path: str | Path, form: str) -> None:
    assert picture.form_of(path) == form


def test_unknown_forms_are_named() -> None:
    with pytest.raises(OptionsError, match=r"\.svg"):
        picture.form_of("picture.png")
    with pytest.raises(OptionsError, match=r"'png'.*svg"):
        picture.render(chain(1), "png")


def test_edges_to_nodes_that_are_not_there_are_left_out() -> None:
    view = View(
        "half", [ViewNode(1, "a"), ViewNode(2, "b")], [(1, 2, "stop"), (2, 9, "stop"), (2, 2, "stop"), (1, 2, "stop")]
    )
    for form in ("dot", "mermaid"):
        assert "n9" not in picture.render(view, form)
    edges = [(a, b) for a, b, _ in Drawing(picture.render(view, "svg")).edges]
    assert sorted(edges) == [(-1, 1), (1, 2), (2, -2)]


def test_a_cycle_is_drawn_rather_than_waited_for() -> None:
    view = View(
        "cycle",
        [ViewNode(1, "a"), ViewNode(2, "b"), ViewNode(3, "c")],
        [(1, 2, "stop"), (2, 3, "stop"), (3, 2, "stop")],
    )
    for form in picture.FORMS:
        assert "b" in picture.render(view, form)


def test_a_definition_becomes_a_view() -> None:
    def node(name: str, children: tuple[tuple[int, str], ...] = (), **more: object) -> NewNode:
        return NewNode(Form("tasks.work"), b"", children=children, facts=pack_facts(NodeFacts(name)), **more)  # type: ignore[arg-type]

    graph = Graph(
        "nightly", (node("a", ((2, "stop"), (3, "continue")), undo=4), node("b"), node("c"), node("d", role="undo"))
    )
    view = picture.of_graph(graph)
    assert view.title == "nightly"
    assert [(n.number, n.label, n.state, n.role) for n in view.nodes] == [
        (1, "a", "", ""), (2, "b", "", ""), (3, "c", "", ""), (4, "work", "", "undo"),
    ]  # fmt: skip
    assert view.edges == [(1, 2, "stop"), (1, 3, "continue"), (1, 4, "undo")]


def _stored(
    number: int, name: str, state: State, role: str = "", parents: tuple[int, ...] = (), children: str = "",
    facts: NodeFacts | None = None, **given: int,
) -> NodeRecord:  # fmt: skip
    fields: dict[str, Any] = dict.fromkeys(inspect.signature(Record).parameters, 0) | {"error": None} | given
    job = Record(**{**fields, "id": f"id{number}", "state": state, "task": "shop.tasks.work"})
    edges = tuple((int(child), "stop") for child in children.split())
    return NodeRecord(number, job, facts or NodeFacts(name), role, 0, parents, edges)


def test_stored_nodes_become_a_view() -> None:
    nodes = [
        # One child that is stored, and one that was not read.
        _stored(1, "a", State.SUCCEEDED, children="2 99"),
        _stored(2, "", State.BLOCKED),
        _stored(3, "a (undo)", State.BLOCKED, "undo", (1,)),
    ]
    view = picture.of_nodes("run", [*nodes, _stored(4, "(on_failure)", State.BLOCKED, "callback")])
    assert [(n.label, n.state, n.role) for n in view.nodes] == [
        ("a", "succeeded", ""), ("work", "blocked", ""), ("work", "blocked", "undo"), ("work (on_failure)", "blocked", "callback"),
    ]  # fmt: skip
    drawn = {(a, b) for a, b, _ in Drawing(picture.render(view, "svg")).edges}
    assert drawn == {(-1, 1), (1, 2), (1, 3), (2, -2), (-2, 4)}


SECOND = 1_000_000


def test_a_box_tells_how_long_it_took_and_what_it_survived() -> None:
    records = [
        _stored(1, "a", State.SUCCEEDED, children="2", started_us=SECOND, finished_us=SECOND + 340_000),
        _stored(
            2, "b", State.SUCCEEDED, children="3", started_us=2 * SECOND, finished_us=4 * SECOND, crashes=1, failures=2
        ),
        _stored(3, "c", State.FAILED, children="4", started_us=4 * SECOND, finished_us=604 * SECOND, failures=1),
        _stored(4, "d", State.RUNNING, children="5", started_us=4 * SECOND),
        _stored(5, "e", State.SKIPPED, started_us=9, finished_us=10),
    ]
    view = picture.of_nodes("run", records)
    assert [node.note for node in view.nodes] == ["340 ms", "2 s, 1 crash, 2 retries", "10 min", "", ""]
    for form in ("text", "svg", "dot", "mermaid"):
        assert re.search(r"2 s(, |#44; )1 crash", picture.render(view, form)), form


def _mapped() -> list[NodeRecord]:
    """A map of two items over a list that a node returned, each of which is a nested workflow."""
    times = {"started_us": SECOND, "finished_us": 2 * SECOND}
    return [
        _stored(1, "m", State.SUCCEEDED, children="3 4", facts=NodeFacts("m", map=True), **times),
        _stored(2, "after", State.BLOCKED),
        _stored(3, "m[0]", State.SUCCEEDED, children="6", **times),
        _stored(4, "m[1]", State.FAILED, children="5", crashes=1, started_us=SECOND, finished_us=5 * SECOND),
        _stored(5, "m[]", State.BLOCKED, "join", (3, 4), "2"),
        _stored(6, "m[0]/inner", State.SUCCEEDED, children="7", **times),
        _stored(7, "m[0]/join", State.SUCCEEDED, "join", (6,), "5"),
    ]


@pytest.mark.parametrize("form", ["svg", "mermaid", "text"])
def test_a_map_is_one_box(form: str) -> None:
    view = picture.of_nodes("run", _mapped())
    drawn = picture.render(view, form)
    assert drawn.count("m \N{MULTIPLICATION SIGN} 2") == (1 if form == "mermaid" else 2), (
        "the list says what comes after it"
    )
    assert re.search(r"2 succeeded(, |<br>)1 failed", drawn)
    assert re.search(r"4 s(, |#44; )1 crash", drawn)
    assert "inner" not in drawn
    if form == "text":
        assert "5 jobs: ✓ 3 succeeded, · 1 blocked, ✗ 1 failed" in drawn, "the job that fanned out is one"
    assert "inner" in picture.render(view, form, collapse=False)


def test_a_map_that_is_not_spread_yet_says_so() -> None:
    one = _stored(1, "m", State.BLOCKED, children="2", facts=NodeFacts("m", map=True))
    view = picture.of_nodes("run", [one, _stored(2, "after", State.BLOCKED)])
    assert "m \N{MULTIPLICATION SIGN} n" in picture.render(view, "text")
    empty = _stored(1, "m", State.SUCCEEDED, children="2", facts=NodeFacts("m", map=True))
    assert "m \N{MULTIPLICATION SIGN} 0" in picture.render(picture.of_nodes("run", [empty]), "text")


def test_a_map_over_a_known_list_is_one_box_and_between_its_items_comes_nothing() -> None:
    def items(children: str) -> list[NodeRecord]:
        return [
            _stored(1, "m[0]", State.READY, children=children), _stored(2, "m[1]", State.READY, children="3"),
            _stored(3, "m", State.BLOCKED, "join", (1, 2), "4"), _stored(4, "x", State.BLOCKED),
        ]  # fmt: skip

    assert "m \N{MULTIPLICATION SIGN} 2" in picture.render(picture.of_nodes("run", items("3")), "text")
    # By its name an item can be what another node waits for, which another item waits for.
    circle = [*items("3 5"), _stored(5, "between", State.BLOCKED, children="2")]
    assert "m[1]" in picture.render(picture.of_nodes("run", circle), "text")
