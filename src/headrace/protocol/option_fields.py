"""The fields that options give the record of a job, from the table of options."""

from __future__ import annotations

from typing import Any

from headrace.model.form import CLAIMED, FIELDS, Form
from headrace.protocol.script import blob


def fields_of(form: Form, without: frozenset[str] = frozenset()) -> list[Any]:
    """The fields and values that the options of a form give a record; what is default gives none."""
    fields: list[Any] = []
    for name, row in FIELDS.items():
        if name not in without and (value := getattr(form, name)):
            fields.append(row.stored or name)
            fields.append(blob(value) if row.kind is bytes else str(int(value)) if row.kind is bool else str(value))
    return fields


def is_claimed(form: Form) -> bool:
    """Whether a claim must read more of its jobs than task, arguments and ``options``."""
    return any(getattr(form, name) for name in CLAIMED)
