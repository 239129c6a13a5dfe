"""``python -m headrace.picture``, which the dashboard starts for each picture."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headrace.picture.svg import MOST_BOXES


def draw(asked: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.picture"], input=json.dumps(asked).encode(), capture_output=True, check=False
    )


def node(number: int, label: str) -> dict[str, object]:
    return {"number": number, "label": label}


def test_it_draws_a_view_with_links() -> None:
    pytest.importorskip("pygraphviz")
    nodes = [node(1, "fetch"), node(2, "<b>")]
    drawn = draw({"title": "t", "nodes": nodes, "edges": [[1, 2, "stop"]], "links": {"1": "/jobs/a"}})
    assert drawn.returncode == 0, drawn.stderr
    text = drawn.stdout.decode()
    assert text.startswith("<svg")
    assert 'href="/jobs/a"' in text
    assert "<b>" not in text


def test_it_says_why_it_draws_nothing() -> None:
    # A chain, of which no box stands for several.
    nodes = [node(n, f"{n:x}") for n in range(MOST_BOXES + 1)]
    edges = [[n, n + 1, "stop"] for n in range(MOST_BOXES)]
    failed = draw({"title": "t", "nodes": nodes, "edges": edges, "links": {}})
    assert failed.returncode == 1
    assert b"more than anybody can read" in failed.stderr
    assert b"Traceback" not in failed.stderr


def test_it_imports_nothing_but_what_draws() -> None:
    """A page waits for it: with the dashboard's imports it took half a second of a processor, without a seventh."""
    program = "import sys, headrace.picture.__main__; print(*sys.modules)"
    found = set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.split()
    )
    assert not found & {"starlette", "jinja2", "redis", "msgspec", "asyncio", "headrace.app", "headrace.model.workflow"}
