"""What the design pages name is in the code, with the value that they give it.

A number that the code has as a constant is followed by that constant: ``10 ms (`assignment.STALL`)``. The part before the
dot is a module of Headrace or one of its scripts. A setting is named by its variable, or as in ``shutdown_timeout`` (25 s).
"""

from __future__ import annotations

import importlib
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from headrace import errors
from headrace.embedded import guard
from headrace.migrations import migrator
from headrace.model import workflow
from headrace.model.ended import Ended, EndKind
from headrace.picture import svg, view
from headrace.picture.render import MOST_EDGES
from headrace.pool import members
from headrace.settings import Settings, environment_name

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "headrace"
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"])
DESIGN = sorted(ROOT.glob("docs/design/*.md"))

MODULES: dict[str, list[Path]] = {}
for path in sorted(SOURCE.rglob("*.py")):
    MODULES.setdefault(path.parent.name if path.stem == "__init__" else path.stem, []).append(path)
FILES = {path.name for top in ("src", "tests", "bench", "docs") for path in (ROOT / top).rglob("*") if path.is_file()}

NAME = re.compile(r"\w+")
VALUE = re.compile(r"([\d.,]*\d) ?([^\W\d]*) \(`([\w]+)\.(_?[A-Z][A-Z_]+)`")
SETTING = re.compile(r"`([a-z_]+)`(?: (\w+))? \(([\d.,]*\d)(?: (\w+))?")
VARIABLE = re.compile(r"([\d.,]*\d) ?([^\W\d]*) \(`(HEADRACE_[A-Z_]+)`")

TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}
SIZES = {"kB": 10, "KB": 10, "KiB": 10, "MB": 20, "MiB": 20}


def meanings(number: str, unit: str) -> set[float]:
    """What a constant may be that a page writes so: seconds or microseconds, thousands or powers of two."""
    value = float(number.replace(",", ""))
    if unit in TIMES:
        return {round(value * TIMES[unit], 9), round(value * TIMES[unit] * 1e6)}
    if unit in SIZES:
        power = SIZES[unit]
        return {value * 2**power, value * 1000 ** (power // 10)}
    return {value}


def constants(module: str, name: str) -> Iterator[Any]:
    """The values of a name in the modules, or the scripts, of that name."""
    for path in MODULES.get(module, []):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        if hasattr(found, name):
            yield getattr(found, name)
    script = SOURCE / "scripts" / f"{module}.lua"
    for line in script.read_text().splitlines() if script.exists() else ():
        if line.startswith("local ") and name in (names := re.findall(r"\w+", line.partition("=")[0])[1:]):
            yield float(line.partition("=")[2].split(",")[names.index(name)])


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_constant_that_a_page_names_has_the_value_that_it_gives(page: Path) -> None:
    for number, unit, module, name in VALUE.findall(page.read_text()):
        found = list(constants(module, name))
        assert len(found) == 1, f"{module}.{name} is not one constant"
        assert float(found[0]) in meanings(number, unit), f"{module}.{name} is {found[0]}, not {number} {unit}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_default_that_a_page_names_is_that_of_the_setting(page: Path) -> None:
    defaults = {name: getattr(Settings(), name) for name in Settings.__struct_fields__}
    variables = {environment_name(name): value for name, value in defaults.items()}
    text = page.read_text()
    given = [(name, number, unit, variables) for number, unit, name in VARIABLE.findall(text)]
    for name, before, number, after in SETTING.findall(text):
        # A pool has options of its own, some of which have a setting's name.
        if name in defaults and page.name != "pool.md":
            given.append((name, number, after or before, defaults))
    for name, number, unit, values in given:
        assert float(values[name]) in meanings(number, unit), f"{name} is {values[name]}, not {number} {unit}"


def test_limits_that_users_read_are_those_of_the_code() -> None:
    """Their pages name no constants, so the sentences are made here."""
    default = Settings()
    sentences = {
        "README.md": [
            f"after the lease ({default.lease:g} s)",
            f"arguments are capped at {default.max_payload >> 20} MiB, results at {default.max_result >> 20} MiB",
        ],
        "docs/workflows.md": [f"more than {workflow.MAX_NODES:,} nodes or {workflow.MAX_EDGES:,} edges"],
        "docs/pictures.md": [
            f"more than {view.MOST} nodes",
            f"more than {svg.MOST_BOXES:,} boxes or {svg.MOST_EDGES:,} edges",
            f"at most {MOST_EDGES} edges",
        ],
        "docs/pool.md": [f"only after {members.FIRST:g}, 2, 4 and up to {members.MOST:g} seconds"],
        "docs/server.md": [
            f"refused for at most {migrator.LEASE / 1e6:g} seconds",
            f"refused for {default.lease:g} seconds (`lease`)",
        ],
        "docs/design/embedded.md": ["the quarter of a second after the removal"]
        if guard.WATCH == 0.25
        else ["(changed)"],
    }
    for page, parts in sentences.items():
        text = " ".join((ROOT / page).read_text().split())
        assert [part for part in parts if part not in text] == [], page


def test_the_pages_name_constants_at_all() -> None:
    named = [name for page in PAGES for name in VALUE.findall(page.read_text())]
    assert len(named) > 15
    assert len([name for page in PAGES for name in SETTING.findall(page.read_text()) if name[0] == "timeout"]) > 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`(?:[\w./-]*/)?([\w-]+\.(?:py|lua))`", prose(page))
    theirs = {"tasks.py", "app.py", "asgi.py", "shop.py", "test_tasks.py"}  # of the reader
    assert {name for name in named if name not in theirs} - FILES == set()


@pytest.mark.parametrize("page", DESIGN, ids=lambda page: page.name)
def test_what_a_design_page_names_in_a_module_is_there(page: Path) -> None:
    files = {"py", "lua", "md", "lock", "log", "sock", "json"}
    for module, name in re.findall(r"`([a-z_]+)\.(_?[A-Za-z]\w*)(?:\([^`]*\))?`", prose(page)):
        if module in MODULES and module not in ("headrace", "__main__") and name not in files:
            text = "".join(path.read_text() for path in MODULES[module])
            if script := SOURCE / "scripts" / f"{module}.lua":
                text += script.read_text() if script.exists() else ""
            assert re.search(rf"\b{name}\b", text), f"{module}.{name}"


@pytest.mark.parametrize("page", DESIGN, ids=lambda page: page.name)
def test_a_table_of_files_names_each_once(page: Path) -> None:
    """Files move and merge, and a table of names without their ending is found by no search for a path."""
    known = MODULES.keys() | {"scripts", "__init__"} | {path.stem for path in (SOURCE / "scripts").iterdir()}
    for table in re.findall(
        r"^\| (?:file|module|folder) \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE
    ):
        firsts = [re.split(r"(?<!\\)\|", row)[1] for row in table.splitlines()]
        named = [name for first in firsts for name in re.findall(r"`([a-z_/]+)(?:\.py)?`", first)]
        assert len(named) == len(set(named))
        assert {name.rstrip("/").rpartition("/")[2] for name in named} - known == set()


def test_each_feature_has_a_page_and_a_test() -> None:
    text = (ROOT / "docs" / "learn" / "features.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (yes|no|in part[^|]*) \|([^|]*)\|([^|]*)\|$", text, re.MULTILINE)
    assert len(rows) == 23
    for feature, has, page, test in rows:
        named = set(re.findall(r"`(\w+\.py)`", test))
        assert named <= FILES, feature
        assert has == "no" or (page.strip() and named), feature


def test_each_fault_has_its_promise_and_the_tests_that_hold_it() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    tables = re.findall(r"^\| [^|\n]* \| [^|\n]* \| test \|\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 60
    for row in rows:
        fault, promise, tests = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])
        named = re.findall(r"`(?:tests/\w+/)?(test_\w+\.py)`", tests)
        assert fault, row
        assert promise, row
        assert named, row
        assert set(named) <= FILES, row


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_a_heading_stands_apart(page: Path) -> None:
    """Two changes that add to one page are merged line by line, which joined a table and the next heading."""
    lines = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
    found = [line for before, line in itertools.pairwise(lines) if line.startswith("#") and before.strip()]
    assert found == []


def test_every_kind_of_outcome_is_explained() -> None:
    outcomes = (SOURCE / "scripts" / "outcomes.lua").read_text()
    kinds = {"succeeded", *re.findall(r"^ +(?:self\.)?(\w+) = function\(id, ", outcomes, re.MULTILINE)}
    assert {"succeeded", "grown", "parked"} < kinds
    # The dispatcher stores what a growing node adds before it settles the node as grown.
    assert set(get_args(EndKind)) - {"growing"} == kinds == {member.kind for member in get_args(Ended)} - {"growing"}
    table = (ROOT / "docs" / "design" / "states.md").read_text()
    assert {kind for kind in kinds if not re.search(rf"^\| [^|]*\b{kind}\b", table, re.MULTILINE)} == set()


def test_contributing_lists_layers_that_exist() -> None:
    layers = re.search(r"## Layers.*?```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert layers is not None
    listed = re.findall(r"^(\S+(?: {1,2}\S+)*?)(?: {3,}|$)", layers[1], re.MULTILINE)
    names = [name.rstrip("/") for line in listed for name in line.split()]
    assert {"cli", "worker", "store", "protocol", "errors", "model"} <= set(names)
    assert [name for name in names if name not in MODULES] == []


def test_an_extra_brings_what_is_used() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    code = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    imported = {"prometheus-client": "prometheus_client", "py-spy": '"py-spy"'}
    for extra, needs in extras.items():
        for name in (re.split(r"[\[<>=; ]", need)[0] for need in needs if not need.startswith("headrace[")):
            assert imported.get(name, name) in code, f"{extra}: {name}"


def test_every_error_is_raised_somewhere() -> None:
    text = (SOURCE / "errors.py").read_text()
    code = {
        word for path in SOURCE.rglob("*.py") if path.name != "errors.py" for word in NAME.findall(path.read_text())
    }
    own = {name for name, value in vars(errors).items() if isinstance(value, type) and f"class {name}" in text}
    assert {name for name in own if f"({name}" not in text} - code == set()
