"""Each line that a worker logs has a code, given where it is logged, and the docs list all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.worker.dispatcher import endings

ROOT = Path(__file__).parents[2]
SOURCES = [
    *(ROOT / "src/headrace/worker").rglob("*.py"),
    *(ROOT / "src/headrace" / name for name in ("cli/worker_process.py", "store/reach.py", "store/shards.py")),
]
CODE = re.compile(r"[a-z]+\.[a-z_]+")
# ``log.info(...)`` of a process, ``actions.log(...)`` of the dispatcher's core, and functions that lead there.
LOGS = re.compile(
    r"log\.(debug|info|warning|error|exception|critical|log)|(\w+\.)*_?actions\.log|self\._log|self\.(links\.)?report"
)


def lines() -> Iterator[tuple[str, ast.expr | None]]:
    """Each call that logs a line: where it is, and the code that it gives."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and LOGS.fullmatch(ast.unparse(node.func)):
                given = {one.arg: one.value for one in node.keywords}
                code = given.get("code")
                if code is None and isinstance(extra := given.get("extra"), ast.Dict):
                    code = extra.values[0]
                yield f"{path.name}:{node.lineno}", code


def codes(given: ast.expr) -> set[str]:
    """The codes that an expression may be; none of one that passes on what another call gave."""
    return {str(one.value) for one in ast.walk(given) if isinstance(one, ast.Constant)}


def test_each_line_gives_its_code() -> None:
    found = dict(lines())
    assert len(found) > 60
    assert [where for where, given in found.items() if given is None] == []
    passed = [where.partition(":")[0] for where, given in found.items() if given is not None and not codes(given)]
    assert sorted(passed) == ["endings.py", "endings.py", "store_links.py"]
    assert [
        code for given in found.values() if given is not None for code in codes(given) if not CODE.fullmatch(code)
    ] == []


def test_each_end_has_a_code() -> None:
    assert endings.CODES.keys() == endings._WORDS.keys()


def test_the_docs_list_the_codes_that_are_given() -> None:
    page = (ROOT / "docs/observability.md").read_text().partition("### Codes")[2].partition("\n## ")[0]
    listed = re.findall(rf"`({CODE.pattern})`", page)
    given = {code for _, line in lines() if line is not None for code in codes(line)}
    assert sorted(listed) == sorted(given | set(endings.CODES.values()))
