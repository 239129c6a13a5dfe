"""The demo's application: what its worker imports, its jobs and its workflow. Written as any user's would be.

Owns no process and prints nothing.
"""

from __future__ import annotations

import ast
import os
import signal
import sysconfig
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from headrace import Flow, Headrace, Retry, current_job

app = Headrace()

LIBRARY = Path(sysconfig.get_path("stdlib"))

Fault = Literal["", "killed", "failed"]


@dataclass(frozen=True)
class Source:
    """One source file.

    Attributes:
        path: below the library's directory.
        fault: what goes wrong at the first start of its job, for the viewer to see it survived.
    """

    path: str
    fault: Fault = ""


@dataclass(frozen=True)
class Package:
    """What a source file, a directory of the library, or several of them together hold.

    Attributes:
        name: of a file its path below the library's directory; ``single files`` are the modules that are in none.
        files, lines, functions, classes, imports: how many; methods are functions.
        longest: file and name of the longest function, empty when there is none.
        length: its lines.
        refused: why Python cannot parse some of the files, by path.
        seconds: how long it took to measure them.
    """

    name: str
    files: int = 0
    lines: int = 0
    functions: int = 0
    classes: int = 0
    imports: int = 0
    longest: str = ""
    length: int = 0
    refused: dict[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0


@app.workflow(name="survey")
def survey(flow: Flow, limit: int | None = None) -> None:
    """Measure the library's files, one job each, and sum up each package; how many there are is known on the way."""
    files = flow.run(scan, limit, name="scan")
    # A file that is given up must not keep the viewer from what the others hold.
    measured = flow.map(measure, files, name="measure each file", on_failure="continue")
    groups = flow.run(group, measured, name="group by package")
    flow.run(report, flow.map(add_up, groups, name="sum up each package"), name="report")


@app.task
def scan(limit: int | None) -> list[Source]:
    """The library's files, two of which will go wrong once.

    Args:
        limit: so many of them, spread over the library; None: all.
    """
    paths = sources()
    if limit is not None and limit < len(paths):
        paths = [paths[number * len(paths) // limit] for number in range(limit)]
    faults: dict[int, Fault] = {len(paths) // 3: "killed", len(paths) * 2 // 3: "failed"}
    return [Source(path, faults.get(number, "")) for number, path in enumerate(paths)]


@app.task(retries=Retry(max=3, delay=0.5))
def measure(source: Source) -> Package:
    """Parse one file of the library and count what it holds."""
    if source.fault and current_job().attempt == 1:
        _go_wrong(source.fault)
    path = source.path
    began = time.perf_counter()
    text = (LIBRARY / path).read_bytes()
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        found = Package(path, refused={path: str(error)})
    else:
        found = _count(path, tree)
    return replace(found, files=1, lines=len(text.splitlines()), seconds=time.perf_counter() - began)


@app.task
def group(found: list[Package | None]) -> list[list[Package]]:
    """What was measured, by package; without files that were given up."""
    groups: dict[str, list[Package]] = defaultdict(list)
    for one in found:
        if one is not None:
            groups[_package(one.name)].append(one)
    return [groups[name] for name in sorted(groups)]


@app.task
def add_up(group: list[Package]) -> Package:
    """What one package holds."""
    return together(_package(group[0].name), group)


@app.task
def report(packages: list[Package]) -> list[Package]:
    """All packages, the most lines first."""
    return sorted(packages, key=lambda package: -package.lines)


@app.task
def delay(called: float) -> float:
    """Seconds since ``called``, by the clock that all processes of a machine share."""
    return time.monotonic() - called


@app.task
def load() -> float:
    """How busy the machine is: processes that want to run, over the last minute."""
    return os.getloadavg()[0]


# No process of its own counts the seconds: any worker fires a tick, and each makes one job. It goes before the files.
each_second = app.every(1, load.options(priority=9), name="each-second")


def sources() -> list[str]:
    """Every source file of the library, below its directory.

    What was installed into it is not the library; and its own tests are more than half of its lines, take four times as
    long to parse as the rest, and are absent from some systems' Python.
    """
    strangers = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    found: list[str] = []
    for directory, below, files in os.walk(LIBRARY):
        # Not entered: what is installed may be a hundred times the library.
        below[:] = set(below) - strangers
        inside = Path(directory).relative_to(LIBRARY)
        found += [(inside / file).as_posix() for file in files if file.endswith(".py")]
    return sorted(found)


def together(name: str, parts: Sequence[Package]) -> Package:
    """Several packages, or files, as one."""
    longest = max(parts, key=lambda part: part.length, default=Package(""))
    return Package(
        name,
        sum(part.files for part in parts),
        sum(part.lines for part in parts),
        sum(part.functions for part in parts),
        sum(part.classes for part in parts),
        sum(part.imports for part in parts),
        longest.longest,
        longest.length,
        {path: why for part in parts for path, why in part.refused.items()},
        sum(part.seconds for part in parts),
    )


def _package(path: str) -> str:
    head, slash, _ = path.partition("/")
    return head if slash else "single files"


def _go_wrong(fault: Fault) -> None:
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConnectionError("the demo cuts this connection once")


def _count(path: str, tree: ast.Module) -> Package:
    functions = classes = imports = length = 0
    longest = ""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions += 1
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > length:
                length, longest = size, f"{Path(path).stem}.{node.name}"
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports += 1
    return Package(path, functions=functions, classes=classes, imports=imports, longest=longest, length=length)
