"""The page that newcomers read first shows the code as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.architecture import PACKAGE, PICTURE, draw, imports, reduced, sizes


def test_the_picture_shows_todays_imports_and_the_page_names_each_folder() -> None:
    graph = imports()
    shown = re.search(r"<desc>(.*)</desc>", PICTURE.read_text())
    assert shown is not None
    wanted = "; ".join(f"{a} imports {b}" for a, b in reduced(graph))
    assert shown[1] == wanted, "draw it again: python -m tests.docs.architecture"
    page = PICTURE.with_suffix(".md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert named == folders
    assert {name for name in graph if name not in folders and f"`{name}`" not in page} == set()


def test_each_folder_has_a_page_and_each_page_is_linked() -> None:
    page = PICTURE.with_suffix(".md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", page, re.MULTILINE)
    assert [name for name, links in rows if "](" not in links] == []
    pages = {path.name for path in PICTURE.parent.glob("*.md")} - {"architecture.md"}
    assert pages - set(re.findall(r"\]\(([\w-]+\.md)", page)) == set()


@pytest.mark.parametrize("path", sorted(PICTURE.parent.glob("*.md")), ids=lambda path: path.name)
def test_a_design_page_ends_with_what_was_rejected(path: Path) -> None:
    headings = re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)
    assert headings[-1] == "Rejected"


def test_arrows_that_follow_from_others_are_left_out() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert reduced(graph) == [("a", "b"), ("b", "c")]
    assert draw(graph, {"a": 120, "b": 10, "c": 99}).count("marker-end") == 2


def test_imports_for_types_alone_are_no_arrows(tmp_path: Path) -> None:
    package = tmp_path / "headrace"
    (package / "low").mkdir(parents=True)
    (package / "low" / "one.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from headrace.high import x\n"
    )
    (package / "high.py").write_text("def f():\n    from headrace import low\n")
    assert imports(package) == {"low": set(), "high": {"low"}}
    assert sizes(package) == {"low": 3, "high": 2}
