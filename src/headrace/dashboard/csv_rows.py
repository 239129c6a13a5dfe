"""A page's document as JSON, or its rows as CSV: those of its list or, where it has a plot, the numbers of that."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.responses import Response

from headrace.dashboard.values_shown import json_bytes

# Pages that are a list or have a plot.
_IN_ROWS = re.compile(
    r"/(jobs|queues(/.*)?|tasks(/.*)?|workers|workflows|schedules|limits|cache|causes|errands|activity|statistics)?",
    re.DOTALL,
)

# A text that begins so is a formula to a program for tables.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Row = dict[str, Any]


def rows_of(document: Any) -> list[Row] | None:
    """The rows of a document, with a column for each figure inside of them; None: it has none.

    A plot's come first: ``series``, or that of ``course``; else the first list.
    """
    if not isinstance(document, Mapping):
        return None
    found = cast("Mapping[str, Any]", document)
    parts: list[Any] = [found.get("series"), found.get("course"), *found.values()]
    for part in parts:
        if isinstance(part, Mapping) and "series" in part:
            return rows_of(part)
        rows: list[Any] = part if isinstance(part, list) else [None]  # pyright: ignore[reportUnknownVariableType]
        if all(isinstance(row, Mapping) for row in rows):
            return [_flat(row) for row in rows]
    return None


def _flat(row: Mapping[str, Any], prefix: str = "") -> Row:
    """Figures inside of figures by their path: ``observed.run.p50``."""
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def csv_text(rows: Sequence[Row]) -> str:
    """The rows with a line of names; empty for no rows. Times are ISO 8601 in UTC, lists are JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([_cell(name) for name in names])
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    return out.getvalue() if names else ""


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    text = str(value) if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA) else text


def has_rows(path: str) -> bool:
    """Whether a page leads to itself as CSV."""
    return _IN_ROWS.fullmatch(path) is not None


def document_answer(form: str, path: str, document: Any, status: int) -> Response:
    """A page's document as JSON or, of its rows, CSV; HTTPException where it has none."""
    if form == "json":
        return Response(json_bytes(document), status, media_type="application/json")
    rows = rows_of(document)
    if rows is None:
        raise HTTPException(404, "This page has no rows: ask for .json in place of .csv.")
    name = path.strip("/").partition("/")[0] or "overview"
    # A job's text may hold half a surrogate pair.
    answer = Response(csv_text(rows).encode("utf-8", "replace"), status, media_type="text/csv; charset=utf-8")
    # Where the list goes on, the file says that it is not all of it.
    part = f"-{len(rows)}-of-{document.get('count', 'more')}" if document.get("next") else ""
    answer.headers["content-disposition"] = f'attachment; filename="headrace-{name}{part}.csv"'
    return answer
