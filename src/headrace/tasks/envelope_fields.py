"""The fields of an envelope: six of its own, and one for each option, computed from the table. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.model.option_checks import OptionRow
from headrace.model.options import ROWS
from headrace.model.unique_rules import UniqueRule


class OptionField(msgspec.Struct, frozen=True):
    """How an option stands in an envelope.

    Attributes:
        kind: its type.
        default: what stands for an option that is not given.
        meaning: for the reference.
        override: it is one of those that a record keeps in ``options``.
        seconds: there in seconds, here in microseconds.
        given: makes what the caller of ``task.options(...)`` would have given.
    """

    kind: Any
    default: Any
    meaning: str
    override: bool
    seconds: bool
    given: Callable[[Any], Any]


def _limit(microseconds: int) -> float:
    return math.inf if microseconds == 0 else microseconds / 1e6


def _option_field(name: str, row: OptionRow) -> OptionField:
    if name == "headers":
        return OptionField(dict[str, str], {}, row.envelope, False, False, dict)
    if name == "unique":
        return OptionField(UniqueRule | None, None, row.envelope, False, False, _same)
    override, timed = row.travels == "override", row.unit in ("time", "limit")
    kind = int if timed else row.kind
    default = None if override and kind is not str else row.default
    back = _limit if row.unit == "limit" else _seconds if row.unit in ("wait", "time") else _same
    return OptionField(kind if default is not None else kind | None, default, row.envelope, override, timed, back)


def _part_field(name: str, meaning: str) -> OptionField:
    timed = name in ("retry_delay", "retry_max_delay")
    kind = int if timed else float
    return OptionField(kind | None, None, meaning, True, timed, _seconds if timed else _same)


def _seconds(microseconds: int) -> float:
    return microseconds / 1e6


def _same(value: Any) -> Any:
    return value


def _option_fields() -> Iterator[tuple[str, OptionField]]:
    for name, row in ROWS.items():
        yield name, _option_field(name, row)
        if name == "retries":
            yield from ((part, _part_field(part, meaning)) for part, meaning in _RETRIES.items())


_RETRIES = {
    "retry_delay": "microseconds before the first of them",
    "retry_factor": "each later delay is this many times the one before, 1 to 1000",
    "retry_max_delay": "no delay is longer, microseconds",
    "retry_jitter": "each delay moves by up to this share of itself, 0 to 1",
}
# Options as fields, by name, in the order of the table.
OPTION_FIELDS = dict(_option_fields())

if TYPE_CHECKING:

    class Envelope(msgspec.Struct, frozen=True):
        """The fields of an envelope. Durations and times are integers, in microseconds; None means not given.

        A field for each option that envelopes have, besides these.
        """

        v: int
        id: str
        task: str
        args: list[msgspec.Raw] = []
        kwargs: dict[str, msgspec.Raw] = {}
        form: Literal["msgpack", "json"] = "msgpack"

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    Envelope = msgspec.defstruct(
        "Envelope",
        [
            ("v", int),
            ("id", str),
            ("task", str),
            ("args", list[msgspec.Raw], []),
            ("kwargs", dict[str, msgspec.Raw], {}),
            ("form", Literal["msgpack", "json"], "msgpack"),
            *((name, field.kind, field.default) for name, field in OPTION_FIELDS.items()),
        ],
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        forbid_unknown_fields=True,
        module=__name__,
    )
