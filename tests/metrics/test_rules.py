"""The alert rules and the board: every name in them is one that is told."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands import program
from headrace.dashboard import needs
from headrace.dashboard.mounting import PAGES
from headrace.metrics import FAMILIES, MetricFamily, board, rules_document

NAME = re.compile(r"headrace_\w+")


def samples(family: MetricFamily) -> set[str]:
    if family.type == "histogram":
        return {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
    return {family.name}


TOLD = {name for family in FAMILIES for name in samples(family)}
RULES = rules_document()["groups"][0]["rules"]
PANELS = board()["panels"]
EXPRESSIONS = [rule["expr"] for rule in RULES] + [line["expr"] for panel in PANELS for line in panel["targets"]]


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_each_expression_names_only_what_is_told(expr: str) -> None:
    names = set(NAME.findall(expr))
    assert names
    assert names <= TOLD


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_each_expression_uses_labels_that_its_metric_has(expr: str) -> None:
    by_sample = {name: family.labels for family in FAMILIES for name in samples(family)}
    for name, labels in re.findall(r"(headrace_\w+)\{([^}]*)\}", expr):
        used = re.findall(r"(\w+)=", labels)
        assert set(used) <= set(by_sample[name]), name


def test_rules_and_the_overview_call_the_same_things_long_many_and_full() -> None:
    by_name = {rule["alert"]: rule for rule in RULES}
    assert f"> {needs.LONG_WAIT:g} and" in by_name["HeadraceQueueSlow"]["expr"]
    assert f">= {needs.FEWEST} and" in by_name["HeadraceFailing"]["expr"]
    assert by_name["HeadraceFailing"]["expr"].endswith(f"> {needs.HIGH_SHARE}")
    assert by_name["HeadraceStoreFull"]["expr"].endswith(f"> {needs.FULL}")


def test_the_board_shows_each_figure() -> None:
    shown = {name for panel in PANELS for line in panel["targets"] for name in NAME.findall(line["expr"])}
    shown |= set(NAME.findall(json.dumps(board()["templating"])))
    unseen = [family.name for family in FAMILIES if not samples(family) & shown]
    assert set(unseen) == {"headrace_build_info", "headrace_stats_waiting", "headrace_stats_lost_total"}
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(PANELS)


def test_each_alert_links_to_a_page_and_names_a_command() -> None:
    patterns = [re.compile(re.sub(r"\{[^}]*\}", ".+", path) + r"(\?.*)?") for path in PAGES]
    commands = set(names(program()))
    for rule in rules_document("http://board.example/jobs/")["groups"][0]["rules"]:
        notes = rule["annotations"]
        start, _, page = notes["dashboard"].partition("/jobs/")
        assert start == "http://board.example"
        assert any(pattern.fullmatch(f"/{page}") for pattern in patterns), page
        assert notes["command"].split()[1] in commands, notes["command"]


def names(typer: Any) -> list[str]:
    return [one.name or "" for one in (*typer.registered_groups, *typer.registered_commands)]


def test_promtool_finds_no_fault_with_the_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on this machine")
    (tmp_path / "rules.yml").write_text(json.dumps(rules_document("http://board.example")))
    checked = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(RULES)} rules found" in checked.stdout


def row(family: MetricFamily) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels) or "none"
    return f"| `{family.name}` | {family.type} | {labels} | {family.unit} | {family.help} |"


def test_the_page_has_the_table_and_the_rules(root: Path) -> None:
    page = (root / "docs" / "observability.md").read_text().splitlines()
    rows = [line for line in page if line.startswith("| `headrace_")]
    assert rows == [row(family) for family in FAMILIES]
    assert [line.split()[1] for line in page if line.startswith("| Headrace")] == [rule["alert"] for rule in RULES]
