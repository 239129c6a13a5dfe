"""The demo's application: what its worker imports, and what its jobs do. Written as any user's would be.

Owns no process and prints nothing.
"""

from __future__ import annotations

import ast
import os
import signal
import sysconfig
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from headrace import Headrace, Retry, current_job

app = Headrace()

LIBRARY = Path(sysconfig.get_path("stdlib"))

Fault = Literal["", "killed", "failed"]


@dataclass(frozen=True)
class Measured:
    """What one source file holds.

    Attributes:
        path: below the library's directory.
        lines, functions, classes, imports: how many; methods are functions.
        longest: name of the longest function, empty when there is none.
        length: its lines.
        refused: why Python cannot parse the file; empty when it can.
        seconds: how long this took.
    """

    path: str
    lines: int = 0
    functions: int = 0
    classes: int = 0
    imports: int = 0
    longest: str = ""
    length: int = 0
    refused: str = ""
    seconds: float = 0.0


@app.task(retries=Retry(max=3, delay=0.5))
def measure(path: str, fault: Fault = "") -> Measured:
    """Parse one file of the library and count what it holds.

    Args:
        path: below the library's directory.
        fault: what goes wrong at the first start, for the viewer to see it survived.
    """
    if fault and current_job().attempt == 1:
        _go_wrong(fault)
    began = time.perf_counter()
    source = (LIBRARY / path).read_bytes()
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        found = Measured(path, refused=str(error))
    else:
        found = _count(path, tree)
    return replace(found, lines=len(source.splitlines()), seconds=time.perf_counter() - began)


@app.task
def delay(called: float) -> float:
    """Seconds since ``called``, by the clock that all processes of a machine share."""
    return time.monotonic() - called


def sources() -> list[str]:
    """Every source file of the library, below its directory.

    What was installed into it is not the library; and its own tests are more than half of its lines, take four times as
    long to parse as the rest, and are absent from some systems' Python.
    """
    strangers = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    found = (path.relative_to(LIBRARY) for path in LIBRARY.rglob("*.py"))
    return sorted(path.as_posix() for path in found if not strangers.intersection(path.parts))


def _go_wrong(fault: Fault) -> None:
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConnectionError("the demo cuts this connection once")


def _count(path: str, tree: ast.Module) -> Measured:
    functions = classes = imports = length = 0
    longest = ""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions += 1
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > length:
                length, longest = size, node.name
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports += 1
    return Measured(path, 0, functions, classes, imports, longest, length)
