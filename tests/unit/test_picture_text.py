"""Pictures for a terminal: an indented list of nodes with their states."""

from __future__ import annotations

import unicodedata

import pytest

from headrace import picture
from headrace.picture import View, ViewNode


def test_a_diamond() -> None:
    nodes = [
        ViewNode(1, "fetch", "succeeded"),
        ViewNode(2, "small", "running"),
        ViewNode(3, "large", "failed"),
        ViewNode(4, "publish", "blocked"),
    ]
    view = View("thumbnails", nodes, [(1, 2, "stop"), (1, 3, "continue"), (2, 4, "stop"), (3, 4, "stop")])
    assert picture.render(view, "text").splitlines() == [
        "thumbnails",
        "4 jobs: · 1 blocked, ✗ 1 failed, ▶ 1 running, ✓ 1 succeeded",
        "",
        "✓ fetch        succeeded",
        "  ▶ small      running    after fetch",
        "  ✗ large      failed     after fetch (continue)",
        "    · publish  blocked    after small, large",
    ]


def test_each_layer_stands_to_the_right_of_the_one_before() -> None:
    nodes = [
        ViewNode(1, "scan", "succeeded"),
        *(ViewNode(i, f"resize-{i}", "ready") for i in range(2, 42)),
        ViewNode(42, "join", "blocked", "join"),
    ]
    view = View("many", nodes, [(1, i, "stop") for i in range(2, 42)] + [(i, 42, "stop") for i in range(2, 42)])
    lines = picture.render(view, "text").splitlines()
    assert lines[3].split() == ["✓", "scan", "succeeded"]
    assert lines[4].startswith("  ○ resize-2")
    assert lines[4].split() == ["○", "resize-2", "ready", "after", "scan"]
    assert lines[-1] == "    · join (join)  blocked    after resize-2, resize-3, resize-4 and 37 more"
    assert len(lines) == 3 + 42


def test_a_deep_chain_stays_on_the_screen() -> None:
    nodes = [ViewNode(i, f"step-{i}") for i in range(1, 101)]
    view = View("deep", nodes, [(i, i + 1, "stop") for i in range(1, 100)])
    lines = picture.render(view, "text", width=80, collapse=False).splitlines()
    assert lines[-1].endswith("step-100  after step-99")
    assert len(lines[-1]) < 80


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    nodes = [ViewNode(i, f"課題.{'long' * 5}-{i}", "running") for i in range(1, 12)]
    view = View("w" * 200, nodes, [(i, j, "skip") for i in range(1, 4) for j in range(4, 12)])
    for line in picture.render(view, "text", width=width).splitlines():
        assert sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line) <= width


def test_no_name_is_obeyed_by_the_terminal() -> None:
    view = View("\x1b[2J", [ViewNode(1, "a\x1b[31m\nb\x9b"), ViewNode(2, "\u202ec\u2028")], [(1, 2, "stop")])
    text = picture.render(view, "text")
    assert [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl") and c != "\n"] == []
    assert "a\\x1b[31m\\x0ab\\x9b" in text


def test_undoing_and_callbacks_are_told() -> None:
    nodes = [ViewNode(1, "book"), ViewNode(2, "unbook", role="undo"), ViewNode(3, "tell", role="callback")]
    lines = picture.render(View("trip", nodes, [(1, 2, "undo")]), "text").splitlines()
    assert lines[-3:] == ["book", "tell (callback)", "  unbook (undo)  after book (undo)"]


def test_nothing_is_drawn_of_nothing() -> None:
    assert picture.render(View("empty"), "text").splitlines() == ["empty", "0 jobs", ""]
