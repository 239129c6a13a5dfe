"""The application of ``headrace demo``: its tasks and its workflow, as any user would write them."""

from __future__ import annotations

import ast
import os
import signal
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace import Flow, Headrace, Retry, current_job

app = Headrace()

LIBRARY = Path(sysconfig.get_path("stdlib"))

Fault = Literal["", "killed", "failed"]


@dataclass(frozen=True)
class Source:
    """One source file below the library's directory; ``fault`` goes wrong at the first start of its job."""

    path: str
    fault: Fault = ""


@dataclass(frozen=True)
class Package:
    """Counts of a source file, of a directory of the library, or of several together.

    Attributes:
        name: a path below the library's directory; ``single files`` are the modules in no directory.
        longest: file and name of the longest function, which has ``length`` lines.
    """

    name: str
    files: int = 0
    lines: int = 0
    functions: int = 0
    longest: str = ""
    length: int = 0


@app.workflow(name="survey")
def survey(flow: Flow, limit: int | None = None) -> None:
    """Measure the library's files, one job each, and sum up each package; how many there are is known on the way."""
    files = flow.run(scan, limit, name="scan")
    # A file that is given up must not keep the viewer from what the others hold.
    measured = flow.map(measure, files, name="measure each file", on_failure="continue")
    groups = flow.run(group, measured, name="group by package")
    flow.run(report, flow.map(add_up, groups, name="sum up each package"), name="report")


@app.task(name="demo.scan")
def scan(limit: int | None) -> list[Source]:
    paths = sources()
    if limit is not None and limit < len(paths):
        paths = [paths[number * len(paths) // limit] for number in range(limit)]
    faults: dict[int, Fault] = {len(paths) // 3: "killed", len(paths) * 2 // 3: "failed"}
    return [Source(path, faults.get(number, "")) for number, path in enumerate(paths)]


@app.task(name="demo.measure", retries=Retry(max=3, delay=0.5))
def measure(source: Source) -> Package:
    if source.fault and current_job().attempt == 1:
        if source.fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionError("the demo cuts this connection once")
    text = (LIBRARY / source.path).read_bytes()
    with warnings.catch_warnings(action="ignore"):
        nodes = ast.walk(ast.parse(text))
    functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    sizes = {f"{Path(source.path).stem}.{node.name}": (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    longest = max(sizes, key=sizes.__getitem__, default="")
    return Package(source.path, 1, len(text.splitlines()), len(functions), longest, sizes.get(longest, 0))


@app.task(name="demo.group")
def group(found: list[Package | None]) -> list[list[Package]]:
    groups: dict[str, list[Package]] = defaultdict(list)
    for one in found:
        if one is not None:
            groups[_package(one.name)].append(one)
    return [groups[name] for name in sorted(groups)]


@app.task(name="demo.add_up")
def add_up(group: list[Package]) -> Package:
    return together(_package(group[0].name), group)


@app.task(name="demo.report")
def report(packages: list[Package]) -> list[Package]:
    return sorted(packages, key=lambda package: -package.lines)


def sources() -> list[str]:
    """List the library's files without its tests, which some systems' Python does not have."""
    strangers = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    found: list[str] = []
    for directory, below, files in os.walk(LIBRARY):
        below[:] = set(below) - strangers
        inside = Path(directory).relative_to(LIBRARY)
        found += [(inside / file).as_posix() for file in files if file.endswith(".py")]
    return sorted(found)


def together(name: str, parts: Sequence[Package]) -> Package:
    longest = max(parts, key=lambda part: part.length, default=Package(""))
    files, lines, functions = (sum(getattr(part, count) for part in parts) for count in ("files", "lines", "functions"))
    return Package(name, files, lines, functions, longest.longest, longest.length)


def _package(path: str) -> str:
    head, slash, _ = path.partition("/")
    return head if slash else "single files"
