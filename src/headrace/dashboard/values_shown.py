"""Stored values as pages show them: bounded, redacted, and never a cause of an error.

1. :func:`count` to :func:`link`: figures, durations, times and ids. A function that returns ``Markup`` escapes its
   texts. Pure.
2. :class:`Shown`: arguments, results and errors as text.
3. :func:`document_answer`: a page's document as JSON, or its rows as CSV: those of its list or, where it has a plot,
   the numbers of the plot.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, cast
from urllib.parse import quote, urlencode

import msgspec
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headrace.errors import HeadraceError
from headrace.model import notation
from headrace.model.codec import ParentOutput, for_json
from headrace.model.hidden_values import Redactor, hides, named_shown
from headrace.model.job_record import Record
from headrace.model.notation import shown_share, size, utc
from headrace.model.workflow import WorkflowRecord
from headrace.picture.view import look_of
from headrace.settings import HIDDEN

_STATE = Markup(
    '<span class="state s-{0}"><svg class="glyph" viewBox="0 0 12 12" aria-hidden="true"><path d="{1}"/></svg>{0}'
    "</span>"
)
FRESHER = 3  # seconds by which a row may be read later than the frame beside it
# A line that names a frame, and files of Headrace and of Python's own library.
_FRAME = re.compile(r'  File "([^"]*)"')
_OURS = re.compile(r"[/\\]headrace[/\\]|^<frozen |[/\\]lib[/\\]python3[^/\\]*[/\\](?!site-packages|dist-packages)")
# What stands where there is nothing to say.
DASH = "\N{EN DASH}"
NONE = Markup('<span class="none">{}</span>').format(DASH)


def count(number: float) -> str:
    """``12,345``; a share of one keeps two digits."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:,.2g}"


def short(number: float) -> str:
    """A figure in at most five characters: ``12``, ``3.4k``, ``1.2M``."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= scale * 0.9995:
            amount = number / scale
            return f"{amount:.1f}{unit}" if amount < 99.95 else f"{amount:.0f}{unit}"
    return count(round(number, 2) if abs(number) < 10 else round(number))


def percent(share: float) -> str:
    """``0 %``, ``0.3 %``, ``12 %``."""
    amount = 100 * shown_share(share)
    return f"{amount:.1f} %" if 0 < amount < 9.95 else f"{amount:.0f} %"


def duration(seconds: float | None) -> str:
    return DASH if seconds is None else notation.duration(seconds * 1e6)


def distance(microseconds: int, now: int) -> str:
    """``3 min ago`` or ``in 3 min``: one unit, since a list is read at a glance."""
    away = (now - microseconds) / 1e6
    # A row may be fresher than the frame whose time this is, so it is not in the future.
    if -FRESHER < away < 1:
        return "now"
    units = (("s", 1, 90), ("min", 60, 90), ("h", 3600, 36), ("d", 86400, math.inf))
    words = next(f"{abs(away) / length:,.0f} {unit}" for unit, length, most in units if abs(away) < length * most)
    return f"{words} ago" if away > 0 else f"in {words}"


def when(microseconds: int, now: int) -> Markup:
    at = utc(microseconds)
    if at is None:
        return NONE
    iso, full, words = at.isoformat(timespec="milliseconds"), f"{at:%Y-%m-%d %H:%M:%S}", distance(microseconds, now)
    # Numbers and words of our own: escaping them took most of the time of a long list.
    return Markup(f'<time datetime="{iso}" title="{full} UTC" data-at="{microseconds // 1000}">{words}</time>')  # noqa: S704


def stamp(microseconds: int) -> str:
    at = utc(microseconds)
    return DASH if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC"


def minute(microseconds: int) -> str:
    at = utc(microseconds)
    return "" if at is None else f"{at:%Y-%m-%dT%H:%M}"


@lru_cache(64)
def state(name: str) -> Markup:
    """A state as an icon and its word: its colour is never alone."""
    return _STATE.format(name, look_of(name).icon)


def cut(text: str, longest: int = 120) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def breaks(name: str, longest: int = 60) -> Markup:
    """A text on one line at most so long, which may break behind dots and underscores of its names."""
    return Markup("<wbr>").join(re.split(r"(?<=[^\d._][._])(?=[^._])", cut(name, longest)))


def frames(trace: str) -> list[tuple[bool, str]]:
    """The text of a traceback or stack in pieces, each with whether it is of Headrace or Python, not of the user."""
    found: list[tuple[bool, list[str]]] = []
    ours = False
    for line in trace.splitlines():
        if frame := _FRAME.match(line):
            ours = _OURS.search(frame[1]) is not None
        elif not line.startswith("    "):
            ours = False
        if not found or found[-1][0] is not ours:
            found.append((ours, []))
        found[-1][1].append(line)
    return [(ours, "\n".join(lines)) for ours, lines in found]


def quoted(name: object) -> str:
    """A name as a part of a link. At the end of a path ``.json`` asks for JSON, so within a name it is escaped."""
    return quoted_path(str(name), safe="")


def quoted_path(path: str, safe: str = "/") -> str:
    return quote(path, safe=safe).replace(".json", "%2Ejson").replace(".csv", "%2Ecsv")


def quoted_base(root: str) -> str:
    return quote(root.rstrip("/"), safe="/!$&'()*+,:=@")


def jobs_wait(number: int) -> str:
    """``1 job waits``, ``2,000 jobs wait``."""
    return f"{number:,} job waits" if number == 1 else f"{number:,} jobs wait"


def plural(number: int, noun: str, several: str = "") -> str:
    """``1 job``, ``2,000 jobs``."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def link(path: str, query: Mapping[str, object]) -> str:
    text = urlencode({name: str(value) for name, value in query.items() if value not in (None, "")})
    return f"{path}?{text}" if text else path


# What a visitor sees of values: all, those that have a name, which may hide one, or none; and the words in their place.
Sight = Literal["all", "named", "none"]
WITHHELD = "withheld from viewers"
# Characters of a value that a page shows; the rest is downloaded.
MOST = 64 * 1024
PREVIEW = 120
MOST_SHARED = 3  # values that several jobs share, as a page lists them


class Shown(msgspec.Struct, frozen=True):
    """One value.

    Attributes:
        name: what it is called.
        text: JSON over several lines, as much as a page shows.
        left: characters that are left out.
    """

    name: str
    text: str
    left: int = 0


def _plain(value: object) -> object:
    if isinstance(value, ParentOutput):
        return "(the result of a parent, which is not there yet)"
    return str(value)


def _told(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{size(len(value))} of bytes: {value[:32].hex(' ')}{' …' if len(value) > 32 else ''}"
    if isinstance(value, dict):
        return {key: _told(one) for key, one in cast(Any, value).items()}
    return [_told(one) for one in cast(Any, value)] if isinstance(value, list | tuple) else value


def json_text(value: Any, *, indent: int = 2, told: bool = False) -> str:
    """A value as JSON; what JSON cannot hold as Python shows it. ``told``: of bytes, the size and the first ones."""
    try:
        value = _told(value) if told else value
        return msgspec.json.format(msgspec.json.encode(for_json(value, _plain)), indent=indent).decode()
    except RecursionError:
        return '"nested too deeply to be shown"'
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, UnicodeError):
        # Keys that JSON cannot have, or texts with lone surrogates.
        return ascii(value)


def json_bytes(value: Any) -> bytes:
    try:
        return msgspec.json.encode(for_json(value, _plain))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, UnicodeError):
        # Lone surrogates, and keys that JSON cannot have.
        return json.dumps(value, default=_plain, skipkeys=True).encode()


def shown(name: str, value: Any, redactor: Redactor) -> Shown:
    text = json_text(redactor.value({name: value})[name], told=True)
    return Shown(name, text[:MOST], max(0, len(text) - MOST))


def given(record: Record | WorkflowRecord) -> Mapping[str, Any] | str:
    """The arguments by name, or why they cannot be read."""
    try:
        return named_shown(record.secrets, record.arguments)
    except (HeadraceError, ValueError, TypeError, RecursionError) as error:
        return str(error)


def arguments(record: Record | WorkflowRecord, redactor: Redactor, sight: Sight = "all") -> list[Shown]:
    if sight == "none":
        return [Shown("", WITHHELD)]
    if isinstance(found := given(record), str):
        return [Shown("", f"They cannot be read: {redactor.text(found)}")]
    return [
        shown(name, value, redactor) if sight == "all" or not name.isdecimal() else Shown(name, type(value).__name__)
        for name, value in found.items()
    ]


def arguments_document(record: Record | WorkflowRecord, redactor: Redactor, sight: Sight = "all") -> dict[str, Any]:
    """``args`` and ``kwargs`` of a document: what has a name is by name, so that its name can hide it."""
    if sight == "none":
        return {"args": WITHHELD, "kwargs": None}
    if isinstance(found := given(record), str):
        return {"args": redactor.text(found), "kwargs": None}
    numbered = [value if sight == "all" else type(value).__name__ for name, value in found.items() if name.isdecimal()]
    return {"args": numbered, "kwargs": {name: value for name, value in found.items() if not name.isdecimal()}}


def preview(record: Record, redactor: Redactor, sight: Sight = "all") -> str:
    if sight == "none":
        return ""
    if record.left_out:
        return f"{size(record.left_out)} of arguments"
    if isinstance(found := given(record), str):
        return "arguments that cannot be read"
    hidden = redactor.value(found)
    parts = [
        (json_text(value, indent=-1, told=True) if sight == "all" else type(value).__name__)
        if name.isdecimal()
        else f"{name}={json_text(value, indent=-1, told=True)}"
        for name, value in hidden.items()
    ]
    return cut(", ".join(parts), PREVIEW)


def shared_values(records: Sequence[Record], redactor: Redactor) -> list[tuple[str, str]]:
    common: dict[str, Any] | None = None
    for record in records:
        named = given(record)
        if record.left_out or isinstance(named, str):
            return []
        found = {**record.headers, **named}
        both = (common or found).items()
        common = {name: value for name, value in both if name in found and found[name] == value}
        if not common:
            return []
    shown = redactor.value(common or {})
    texts = [(name, cut(json_text(value, indent=-1), 60)) for name, value in shown.items() if value != HIDDEN]
    return texts[:MOST_SHARED]


def result(record: Record, redactor: Redactor, sight: Sight = "all") -> Shown | None:
    if record.packed_result is None:
        return None
    if sight == "none":
        return Shown("result", WITHHELD)
    try:
        return shown("result", HIDDEN if hides(record.secrets, "return") else record.result, redactor)
    except (HeadraceError, ValueError, TypeError, RecursionError) as error:
        return Shown("result", f"These {size(len(record.packed_result))} cannot be read: {redactor.text(str(error))}")


def error_line(record: Record, redactor: Redactor) -> str:
    return "" if record.error is None else redactor.text(cut(record.error.brief, 200))


# Pages that are a list or have a plot.
_IN_ROWS = re.compile(
    r"/(jobs|queues(/.*)?|tasks(/.*)?|workers|workflows|schedules|limits|cache|causes|bulk|activity)?", re.DOTALL
)

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a text that begins so is a formula to a program for tables

Row = dict[str, Any]


def rows_of(document: Any) -> list[Row] | None:
    """The rows of a document, a column for each figure; None: it has none. A plot's come first, else a list's."""
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
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def csv_text(rows: Sequence[Row]) -> str:
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
