"""The demo's workflow without a server: what its jobs find, and its pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace import demo as demo_tasks
from headrace.cli import demo as command
from headrace.cli.demo import PICTURE, place_of
from headrace.cli.session import UsageFault
from headrace.demo import Package, Source
from headrace.errors import OptionsError

FOUND = [
    Package("json/decoder.py", 1, lines=30, functions=2, longest="decoder.decode", length=9),
    Package("abc.py", 1, lines=5),
    None,
    Package("json/__init__.py", 1, lines=20, functions=1, longest="__init__.dump", length=12),
    Package("this.py", 1, lines=1),
]


def test_files_are_grouped_summed_up_and_reported() -> None:
    packages = demo_tasks.report([demo_tasks.add_up(one) for one in demo_tasks.group(FOUND)])
    assert packages == [
        Package("json", 2, 50, 3, "__init__.dump", 12),
        Package("single files", 2, 6, 0, "", 0),
    ]
    whole = demo_tasks.together("all", packages)
    assert (whole.files, whole.lines, whole.functions) == (4, 56, 3)


def test_nothing_is_the_sum_of_nothing() -> None:
    assert demo_tasks.group([None]) == demo_tasks.report([]) == []
    assert demo_tasks.together("all", []) == Package("all")


def test_a_scan_is_spread_over_the_library_and_two_files_go_wrong() -> None:
    files = demo_tasks.scan(9)
    assert len({one.path for one in files}) == 9
    assert files[0].path == demo_tasks.sources()[0]
    assert {number: one.fault for number, one in enumerate(files) if one.fault} == {3: "killed", 6: "failed"}
    assert len(demo_tasks.scan(None)) == len(demo_tasks.scan(10**6)) == len(demo_tasks.sources())


def test_a_file_is_measured() -> None:
    found = demo_tasks.measure(Source("abc.py"))
    assert (found.name, found.files) == ("abc.py", 1)
    assert found.longest.startswith("abc.")
    assert found.lines > 100
    assert found.functions > 1


def test_the_definition_fits_a_narrow_terminal() -> None:
    graph = demo_tasks.survey.graph(None)
    lines = command.sketch(graph, 72).splitlines()
    assert max(map(len, lines)) <= 72
    nodes = [line.partition("  after ")[0].strip() for line in lines]
    assert nodes == [
        "scan", "measure each file \N{MULTIPLICATION SIGN} n", "group by package", "sum up each package \N{MULTIPLICATION SIGN} n", "report",
    ]  # fmt: skip


def test_without_the_library_the_picture_is_mermaid_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    path, line = command.draw(tmp_path / "run.svg", "survey", [])
    assert path == str(tmp_path / "run.mmd")
    assert "headrace[viz]" in line
    assert "flowchart" in Path(path).read_text()


def test_a_picture_has_a_place_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of(None) == PICTURE
    assert place_of(tmp_path / "other.dot") == tmp_path / "other.dot"
    PICTURE.mkdir()
    assert place_of(None) is None
    with pytest.raises(UsageFault, match="--picture"):
        place_of(PICTURE)
    with pytest.raises(OptionsError):
        place_of(Path("run.pdf"))
