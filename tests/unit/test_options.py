"""The table of options and what follows from it agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.model.form import CLAIMED, FIELDS, OVERRIDES, Form, Options, Overrides
from headrace.model.option_checks import OptionRow, rows_of
from headrace.model.options import ROWS, CallOptions, JobOptions, TaskOptions
from headrace.protocol import graph
from headrace.protocol.produce import fields_of
from headrace.tasks.envelope import OPTION_FIELDS

# A value of each option that jobs have, as it is checked, that differs from the default.
GIVEN: dict[str, Any] = {
    "queue": "low", "priority": 7, "delay": 5, "at": 9, "expires": 11, "max_crashes": 4, "at_most_once": True,
    "key": "k", "ordered": True, "headers": b"h",
}  # fmt: skip


def lua(name: str) -> str:
    place = Path(__file__).resolve().parents[2] / "src" / "headrace"
    (script,) = place.rglob(f"{name}.lua")
    return script.read_text()


@pytest.mark.parametrize("kind", [JobOptions, CallOptions, TaskOptions])
def test_each_option_has_one_row(kind: Any) -> None:
    assert all(isinstance(row, OptionRow) and row.doc for row in rows_of(kind).values())


def test_the_records_have_what_travels_and_nothing_else() -> None:
    assert set(Options.__struct_fields__) == {*ROWS, "overrides"}
    assert OVERRIDES.keys() <= set(Overrides.__struct_fields__)
    travels = {name for name, row in ROWS.items() if row.travels in ("field", "enqueue")}
    assert set(Form.__struct_fields__) == {*travels, "task", "options"}
    assert {name for name, row in ROWS.items() if row.envelope} <= OPTION_FIELDS.keys()
    assert ROWS.keys() - OPTION_FIELDS.keys() == {"after", "after_commit", "after_failure", "durability", "replicas"}


def test_a_job_has_the_fields_that_the_table_names() -> None:
    assert fields_of(Form("add")) == []
    for name, row in FIELDS.items():
        form = Form("add", **{name: GIVEN.get(name, "text")})
        assert fields_of(form)[::2] == [row.stored or name]
        assert "more" in graph._of_form(form) if row.claimed else "more" not in graph._of_form(form)


def test_a_claim_reads_what_the_table_says() -> None:
    """Expiry is stored as a moment by the script that stores the job."""
    rest = re.findall(r"HMGET', job .. id, ('options',[^)]*)\)", lua("claim").replace("\n", " "))
    read = set(re.findall(r"'(\w+)'", rest[0]))
    assert {ROWS[name].stored or name for name in CLAIMED} <= read
    assert read & {row.stored or name for name, row in FIELDS.items() if not row.claimed} == set()
