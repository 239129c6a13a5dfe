"""Arguments, results and errors as text that a page can hold: bounded, redacted, and never an error of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from headrace.dashboard.wording import cut
from headrace.errors import HeadraceError
from headrace.model.codec import ParentOutput, for_json
from headrace.model.hidden_values import Redactor, hides, named_shown
from headrace.model.job_record import Record
from headrace.model.notation import size
from headrace.model.workflow import WorkflowRecord
from headrace.settings import HIDDEN

# What a visitor sees of values: all, those that have a name, which may hide one, or none; and the words in their place.
Sight = Literal["all", "named", "none"]
WITHHELD = "withheld from viewers"
# Characters of a value that a page shows; the rest is downloaded.
MOST = 64 * 1024
PREVIEW = 120
# Values that several jobs share, as a page lists them.
MOST_SHARED = 3


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
    """What JSON has no form for."""
    if isinstance(value, ParentOutput):
        return "(the result of a parent, which is not there yet)"
    return str(value)


def _told(value: Any) -> Any:
    """A value for people, who are told the size of bytes and the first of them; in documents they are base64."""
    if isinstance(value, bytes):
        return f"{size(len(value))} of bytes: {value[:32].hex(' ')}{' …' if len(value) > 32 else ''}"
    if isinstance(value, dict):
        return {key: _told(one) for key, one in cast(Any, value).items()}
    return [_told(one) for one in cast(Any, value)] if isinstance(value, list | tuple) else value


def json_text(value: Any, *, indent: int = 2, told: bool = False) -> str:
    """A value as JSON; what cannot be shown so is shown as Python would.

    Args:
        told: of bytes, the size and the first ones.
    """
    try:
        value = _told(value) if told else value
        return msgspec.json.format(msgspec.json.encode(for_json(value, _plain)), indent=indent).decode()
    except RecursionError:
        return '"nested too deeply to be shown"'
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, UnicodeError):
        # Keys that JSON cannot have, or texts with lone surrogates.
        return ascii(value)


def json_bytes(value: Any) -> bytes:
    """A document of plain values as JSON, whatever texts and keys are in it."""
    try:
        return msgspec.json.encode(for_json(value, _plain))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, UnicodeError):
        # Lone surrogates, and keys that JSON cannot have.
        return json.dumps(value, default=_plain, skipkeys=True).encode()


def shown(name: str, value: Any, redactor: Redactor) -> Shown:
    text = json_text(redactor.value({name: value})[name], told=True)
    return Shown(name, text[:MOST], max(0, len(text) - MOST))


def arguments(record: Record | WorkflowRecord, redactor: Redactor, sight: Sight = "all") -> list[Shown]:
    """The arguments of a job, or of a workflow, by name."""
    if sight == "none":
        return [Shown("", WITHHELD)]
    try:
        found = named_shown(record.secrets, record.arguments)
    except (HeadraceError, ValueError, TypeError, RecursionError) as error:
        return [Shown("", f"They cannot be read: {redactor.text(str(error))}")]
    return [
        shown(name, value, redactor) if sight == "all" or not name.isdecimal() else Shown(name, type(value).__name__)
        for name, value in found.items()
    ]


def arguments_document(record: Record | WorkflowRecord, redactor: Redactor, sight: Sight = "all") -> dict[str, Any]:
    """``args`` and ``kwargs`` of a document: what has a name is by name, so that its name can hide it."""
    if sight == "none":
        return {"args": WITHHELD, "kwargs": None}
    try:
        found = named_shown(record.secrets, record.arguments)
    except (HeadraceError, ValueError, TypeError, RecursionError) as error:
        return {"args": redactor.text(str(error)), "kwargs": None}
    numbered = [value if sight == "all" else type(value).__name__ for name, value in found.items() if name.isdecimal()]
    return {"args": numbered, "kwargs": {name: value for name, value in found.items() if not name.isdecimal()}}


def preview(record: Record, redactor: Redactor, sight: Sight = "all") -> str:
    """The arguments of a job on one line of at most 120 characters."""
    if sight == "none":
        return ""
    if record.left_out:
        return f"{size(record.left_out)} of arguments"
    try:
        found = named_shown(record.secrets, record.arguments)
    except (HeadraceError, ValueError, TypeError, RecursionError):
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
    """Arguments and headers that all of some jobs have, by name: of failures, whom they are about. Three at most."""
    common: dict[str, Any] | None = None
    for record in records:
        try:
            found = {**record.headers, **named_shown(record.secrets, record.arguments)}
        except (HeadraceError, ValueError, TypeError, RecursionError):
            return []
        common = (
            found if common is None else {name: value for name, value in common.items() if _has(found, name, value)}
        )
        if record.left_out or not common:
            return []
    named = redactor.value(common or {})
    texts = [(name, cut(json_text(value, indent=-1), 60)) for name, value in named.items() if value != HIDDEN]
    return texts[:MOST_SHARED]


def _has(found: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether a value is there; one that compares in a way of its own is not."""
    return name in found and bool(found[name] == value)


def result(record: Record, redactor: Redactor, sight: Sight = "all") -> Shown | None:
    """What a job returned; None where it has returned nothing."""
    if record.packed_result is None:
        return None
    if sight == "none":
        return Shown("result", WITHHELD)
    try:
        return shown("result", HIDDEN if hides(record.secrets, "return") else record.result, redactor)
    except (HeadraceError, ValueError, TypeError, RecursionError) as error:
        return Shown("result", f"These {size(len(record.packed_result))} cannot be read: {redactor.text(str(error))}")


def error_line(record: Record, redactor: Redactor) -> str:
    """Type and first line of a job's error; empty where it has none."""
    return "" if record.error is None else redactor.text(cut(record.error.brief, 200))
