"""The page that newcomers read first shows the code as it is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.architecture import PACKAGE, PICTURE, draw, imports, reduced, sizes


def test_the_picture_shows_todays_imports() -> None:
    shown = re.search(r"<desc>(.*)</desc>", PICTURE.read_text())
    assert shown is not None
    wanted = "; ".join(f"{a} imports {b}" for a, b in reduced(imports()))
    assert shown[1] == wanted, "draw it again: python -m tests.docs.architecture"


def test_the_page_names_each_folder() -> None:
    page = PICTURE.with_suffix(".md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert named == folders
    assert {name for name in imports() if name not in folders and f"`{name}`" not in page} == set()


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
