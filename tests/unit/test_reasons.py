"""What a job waits for, in words: the table of reasons is whole, and each sentence is one that a person can read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.model.job import State
from headrace.protocol.overviews import WhyFacts, WorkerSeen
from headrace.tasks.reasons import CODES, TABLE, reasons

NOW = 1_000_000_000
SOURCES = Path(__file__).resolve().parents[2] / "src" / "headrace" / "tasks"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "waiting.md"


def facts(state: str, *workers: WorkerSeen, **server: str) -> WhyFacts:
    record = {"st": state, "queue": "mail", "task": "app.send"}
    place = {"score": str(NOW)}
    return WhyFacts("0" * 21, NOW, "hash", record, place=place, live=len(workers), workers=workers, server=server)


def test_every_state_has_its_row() -> None:
    assert TABLE.keys() == set(State)


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_an_answer_where_nothing_else_is_known(state: State) -> None:
    for found in (WhyFacts("0" * 21, NOW, "hash", {"st": state}), facts(state)):
        assert reasons(found)[0].text


def test_every_code_is_given_somewhere_and_documented() -> None:
    given: set[str] = set()
    for path in SOURCES.glob("reasons*.py"):
        given |= set(re.findall(r'Reason\(\s*"(\w+)"', path.read_text()))
    assert given == set(CODES)
    page = PAGE.read_text()
    assert [code for code in CODES if f"`{code}`" not in page] == []


def test_it_lists_no_more_names_than_one_can_read() -> None:
    many = WorkerSeen("a:1", tuple(f"q{n}" for n in range(50)), lease=NOW + 1)
    assert reasons(facts("ready", many))[0].text.endswith("workers serve q0, q1, q2, q3, q4 and 45 more")


def test_a_server_that_cannot_write_its_file_refuses() -> None:
    found = reasons(facts("ready", aof_last_write_status="err"))
    assert [one.code for one in found] == ["store_refuses", "no_worker_serves"]


def test_a_server_that_removes_keys_may_remove_jobs() -> None:
    server = {"maxmemory": "1", "used_memory": "2", "maxmemory_policy": "allkeys-lru"}
    found = reasons(facts("ready", **server))[-1]
    assert found.code == "store_refuses"
    assert "those of jobs too" in found.text
