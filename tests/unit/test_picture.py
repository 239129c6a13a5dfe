"""What SVG pictures show: every label, every state, no box on another, every edge from box to box, whatever the names are."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings

from headrace import picture
from headrace.errors import MissingExtra, OptionsError
from headrace.model.job import State
from headrace.picture import View, ViewNode
from headrace.picture.view import LOOKS
from tests.unit.picture_views import DIAMOND, EVIL, SVG, Drawing, chain, evil, fan, views


@pytest.mark.parametrize(
    "view", [chain(1), chain(12), DIAMOND, fan(20), fan(60), View("nothing")], ids=lambda v: f"{v.title}-{len(v.nodes)}"
)
def test_boxes_do_not_overlap_and_edges_go_from_box_to_box(view: View) -> None:
    drawing = Drawing(picture.render(view, "svg"))
    drawing.check()
    assert drawing.crossed() == []
    assert set(drawing.boxes) == {node.number for node in view.nodes} | {-1, -2}
    drawn = {(a, b) for a, b, _ in drawing.edges}
    assert drawn >= {(a, b) for a, b, _ in view.edges}


def test_two_hundred_nodes_are_readable() -> None:
    nodes = [ViewNode(i, f"work-{i}", "running") for i in range(200)]
    edges = [(i - 33 + (i * 7) % 5, i, "stop") for i in range(38, 200)] + [(i - 33, i, "stop") for i in range(33, 200)]
    drawing = Drawing(picture.render(View("large", nodes, edges), "svg"))
    drawing.check()
    assert drawing.crossed() == []
    assert {node.label for node in nodes} <= set(drawing.texts)


@settings(max_examples=60, deadline=None)
@given(views())
def test_any_graph_becomes_a_sound_picture(view: View) -> None:
    drawing = Drawing(picture.render(view, "svg"))
    drawing.check()
    assert len(drawing.tips) == len(view.nodes)


@pytest.mark.parametrize("seed", range(12))
def test_edges_go_round_boxes(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randint(4, 60)
    names = {i: f"task{'x' * dice.choice([0, 2, 9, 20])}{i}" for i in range(1, count + 1)}
    pairs = [(a, b) for b in range(2, count + 1) for a in range(max(1, b - 12), b)]
    edges = dice.sample(pairs, min(len(pairs), dice.randint(count // 2, 2 * count)))
    view = View("dice", [ViewNode(i, name, "running") for i, name in names.items()], [(a, b, "stop") for a, b in edges])
    drawing = Drawing(picture.render(view, "svg"))
    drawing.check()
    assert drawing.crossed() == []


def test_start_leads_to_the_roots_and_leaves_lead_to_the_end() -> None:
    edges = {(a, b) for a, b, _ in Drawing(picture.render(DIAMOND, "svg")).edges}
    # The undo node is no leaf, and the callback comes after the end.
    assert {(a, b) for a, b in edges if -1 in (a, b)} == {(-1, 1)}
    assert {(a, b) for a, b in edges if -2 in (a, b)} == {(4, -2), (-2, 6)}


def test_names_stay_text() -> None:
    text = picture.render(evil(), "svg")
    assert "<script" not in text
    assert "\x1b" not in text
    drawing = Drawing(text)
    assert {element.tag.removeprefix(SVG) for element in drawing.root.iter()} <= {
        "svg", "title", "desc", "defs", "marker", "path", "rect", "text", "g",
    }  # fmt: skip
    assert not [
        name for element in drawing.root.iter() for name in element.attrib if name.startswith("on") or "href" in name
    ]
    assert drawing.tips[1] == f"{EVIL[0]}: running"
    assert drawing.root.findtext(f"{SVG}title") == EVIL[0]
    assert drawing.tips[7] == "tab\\x09here\\x1b[31m\\x00: running"
    text.encode()


def test_a_long_name_is_cut_in_its_box_and_whole_in_its_tooltip() -> None:
    name = "shop.orders.tasks." + "x" * 60 + ".send_invoice-17"
    drawing = Drawing(picture.render(View("long", [ViewNode(1, name)]), "svg"))
    (shown,) = [text for text in drawing.texts if "…" in text]
    assert shown.startswith("shop.orders")
    assert shown.endswith("invoice-17")
    assert drawing.tips[1] == name


def test_every_state_has_a_look_and_a_glyph_of_its_own() -> None:
    assert set(LOOKS) == set(map(str, State))
    assert len({look.glyph for look in LOOKS.values()}) == len(LOOKS)
    # Who sees no colour tells them by these.
    assert len({look.icon for look in LOOKS.values()}) == len(LOOKS)


def test_the_legend_has_what_the_picture_has() -> None:
    texts = Drawing(picture.render(DIAMOND, "svg")).texts
    assert {"blocked 1", "succeeded 1", "failed 1", "running 1"} <= set(texts)
    assert {"runs however the first ended", "undoes the first after a failure", "is called at the end"} <= set(texts)
    plain = Drawing(picture.render(chain(3), "svg")).texts
    assert [text for text in plain if text.startswith("runs")] == []


@pytest.mark.parametrize("form", picture.FORMS)
def test_the_same_view_gives_the_same_picture(form: str) -> None:
    assert picture.render(fan(30), form) == picture.render(fan(30), form)


def test_without_the_library_svg_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    with pytest.raises(MissingExtra, match=r"headrace\[viz\]"):
        picture.render(chain(2), "svg")
    for form in ("dot", "mermaid", "text"):
        assert "step-1" in picture.render(chain(2), form)


def test_graphviz_is_loaded_by_the_first_svg_only() -> None:
    code = (
        "import sys; from headrace.picture import View, render; "
        "[render(View('v'), form) for form in ('dot', 'mermaid', 'text')]; print('pygraphviz' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_more_than_anybody_can_read_is_refused() -> None:
    with pytest.raises(OptionsError, match="collapsed"):
        picture.render(chain(5000), "svg")


def test_a_wide_fan_out_becomes_one_box() -> None:
    view = fan(300)
    view.nodes[5:25] = [ViewNode(node.number, node.label, "running") for node in view.nodes[5:25]]
    drawing = Drawing(picture.render(view, "svg"))
    drawing.check()
    assert len(drawing.tips) == 4
    assert {"resize \N{MULTIPLICATION SIGN} 300", "280 ready, 20 running"} <= set(drawing.texts)
    text = picture.render(view, "text")
    assert "280 ready, 20 running" in text
    assert "302 jobs" in text, "the join is none"


def test_collapsing_is_a_choice() -> None:
    assert len(Drawing(picture.render(fan(60), "svg")).tips) == 63
    assert len(Drawing(picture.render(fan(60), "svg", collapse=True)).tips) == 4
    assert len(Drawing(picture.render(fan(250), "svg", collapse=False)).tips) == 253
    # Few alike nodes stay what they are.
    assert len(Drawing(picture.render(DIAMOND, "svg", collapse=True)).tips) == 6


def test_different_edges_between_collapsed_boxes_are_all_kept() -> None:
    view = fan(50)
    view.edges.append((2, 52, "skip"))
    assert len([1 for a, b, _ in Drawing(picture.render(view, "svg", collapse=True)).edges if (a, b) == (2, 52)]) == 2


def test_nested_workflows_collapse_too() -> None:
    nodes = [
        ViewNode(2 * i + k, f"crawl-{i}/{name}", "ready")
        for i in range(1, 200)
        for k, name in enumerate(("get", "put"))
    ]
    view = View("nested", nodes, [(2 * i, 2 * i + 1, "stop") for i in range(1, 200)])
    text = picture.render(view, "text")
    assert "crawl/get \N{MULTIPLICATION SIGN} 199" in text
    assert "crawl/put \N{MULTIPLICATION SIGN} 199" in text
