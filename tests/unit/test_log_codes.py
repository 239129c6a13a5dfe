"""Each line that a worker logs has a code, and the docs list all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.cli.log_codes import CODES, code_of
from headrace.worker.dispatcher import job_log

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "src/headrace/worker").rglob("*.py"), ROOT / "src/headrace/cli/worker_process.py"]
# Where lines pass that were given their code before, or have it in what they pass on.
PASSES = {"job_log.py", "schedule_ticks.py:no_log"}
LEVELS = {"debug", "info", "warning", "error", "critical"}


def calls() -> Iterator[tuple[str, str, str]]:
    """Each call that logs a line: where, its template (empty if it is computed) and its source."""
    for path in SOURCES:
        text = path.read_text()
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            texts: dict[str, list[tuple[int, str]]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    for target in node.targets:
                        texts.setdefault(ast.unparse(target), []).append((node.lineno, str(node.value.value)))
            for node in ast.walk(function):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                    continue
                whole = ast.unparse(node.func)
                if whole.startswith("log.") and node.func.attr in LEVELS:
                    found = node.args[0]
                elif (whole in ("log.log", "self._log") or whole.endswith("actions.log")) and len(node.args) > 1:
                    found = node.args[1]
                else:
                    continue
                template = ""
                if isinstance(found, ast.Constant):
                    template = str(found.value)
                elif isinstance(found, ast.Name):
                    known = [text for line, text in texts.get(found.id, []) if line <= node.lineno]
                    template = known[-1] if known else ""
                yield f"{path.name}:{node.lineno}", template, ast.unparse(node)


def test_each_line_has_a_code() -> None:
    found = [call for call in calls() if not call[0].startswith("job_log.py") and "(claim, ended" not in call[2]]
    assert len(found) > 40
    missing = [
        where for where, text, source in found if not code_of(text) and "code=" not in source and "'code'" not in source
    ]
    assert missing == []


def test_no_code_is_left_of_a_line_that_is_gone() -> None:
    whole = "".join(path.read_text() for path in SOURCES)
    # Several branches of one function may give the text of one call.
    used = {text for _, text, _ in calls()} | {"waiting for %s%s"} | {text for text in CODES if f'"{text}"' in whole}
    assert set(CODES) - used == set()


def test_each_end_has_a_code() -> None:
    assert job_log.CODES.keys() == job_log._WORDS.keys()


def test_the_docs_list_all_codes() -> None:
    page = (ROOT / "docs/logs.md").read_text().partition("## Codes")[2]
    listed = set(re.findall(r"`([a-z]+\.[a-z_]+)`", page))
    given = set(
        re.findall(r"""(?:code=|"code": )"([a-z]+\.[a-z_]+)\"""", "".join(path.read_text() for path in SOURCES))
    )
    given |= {"store.refuses", "store.away"}
    assert listed == {*CODES.values(), *job_log.CODES.values(), *given}
