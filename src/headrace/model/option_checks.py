"""How one option is described, and the checks of what is given for it; ``options.py`` has the rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeGuard, cast

import msgspec

from headrace.errors import OptionsError
from headrace.model.ids import check_name, is_plain
from headrace.model.job import MOST_PRIORITY
from headrace.model.notation import EPOCH
from headrace.settings import seconds

Travel = Literal["field", "enqueue", "override", "request", "task"]
Unit = Literal["", "moment", "wait", "time", "limit"]
# Seconds.
YEAR = 366 * 86400


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """The flag of ``headrace enqueue`` that gives an option.

    Attributes:
        text: its help.
        value: what the help calls its value; empty: it takes none.
    """

    text: str
    value: str = ""


class OptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One option: everything that is said of it anywhere.

    Attributes:
        check: makes the checked value of a given one, or raises ``OptionsError``. Takes the option's name first.
        doc: what it means, for the reference.
        travels: how it gets to the worker. ``field``: as a field of the record. ``override``: in the record's field
            ``options``, where it differs from the task's. ``enqueue``: only the script that stores the job learns it.
            ``request``: beside the job. ``task``: not at all, since the code of the worker says it.
        kind: type of the checked value.
        default: the checked value where nothing is given.
        stored: name of the record's field, or in ``options``, where it is not the option's own.
        claimed: a claim brings it; records that have it say that there is more to read.
        unit: ``wait``: checked as microseconds. ``time``: as seconds. ``limit``: as seconds, 0 is no limit. ``moment``:
            as microseconds since 1970. Empty: the value has no unit.
        envelope: what it means in an envelope; empty: no envelope has it.
        flag: of ``headrace enqueue``; None: that has none.
    """

    check: Callable[[str, Any], Any]
    doc: str
    travels: Travel
    kind: type = str
    default: Any = None
    stored: str = ""
    claimed: bool = False
    unit: Unit = ""
    envelope: str = ""
    flag: Flag | None = None


def rows_of(kind: Any) -> dict[str, OptionRow]:
    return {name: wanted.__metadata__[0] for name, wanted in kind.__annotations__.items()}


def whole(least: int, most: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise OptionsError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        return value

    return check


priority = whole(-MOST_PRIORITY, MOST_PRIORITY)


def is_name(value: object) -> TypeGuard[str]:
    """Whether it is a text of 1 to 256 characters that can be sent; half a surrogate pair of a shell cannot."""
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def text(name: str, value: Any) -> str:
    if not is_name(value):
        raise OptionsError(f"{name} must be a text of 1 to 256 characters, not {value!r:.80}")
    return value


def transaction(name: str, value: Any) -> Any:
    """True, False, a name, or an object of the tie to a database, which checks it."""
    return text(name, value) if isinstance(value, str) else value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionsError(f"{name} must be True or False, not {value!r}")
    return value


def moment(name: str, value: Any) -> int:
    """A datetime as microseconds since 1970, at least 1."""
    if not isinstance(value, datetime):
        raise OptionsError(
            f"{name} must be a datetime with a time zone, not {value!r:.80}: of seconds since 1970 "
            f"datetime.fromtimestamp(..., tz=UTC) makes one"
        )
    if value.utcoffset() is None:
        raise OptionsError(
            f"{name}={value.isoformat()} has no time zone, so its moment is unknown: give one, such as "
            f"datetime(..., tzinfo=UTC) or ZoneInfo('Europe/Berlin')"
        )
    return max(1, (value - EPOCH) // timedelta(microseconds=1))


def span(name: str, value: Any) -> float:
    found = seconds(value, name, zero=False)
    if not 0.001 <= found <= YEAR:
        raise OptionsError(f"{name} must be from a millisecond to a year, not {value!r}")
    return found


def limit(name: str, value: Any) -> float:
    if value == math.inf:
        return 0.0
    if value == 0 and type(value) is not bool:
        raise OptionsError(f"{name}=0 would leave a job no time: for no limit give math.inf, or leave {name} out")
    return seconds(value, name, zero=False)


def queue(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise OptionsError(f"{name} must be the name of a queue, not {value!r}")
    return check_name("queue", value)


def predecessors(name: str, value: Any) -> str:
    """The ids of jobs, with a space between two: of handles or ids, one or several, each once."""
    several = list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else [value]
    ids = tuple(dict.fromkeys(getattr(one, "id", one) for one in several))
    if not 0 < len(ids) <= 1000:
        raise OptionsError(f"{name} must name 1 to 1,000 jobs, not {len(ids):,}")
    for id in ids:
        if not isinstance(id, str) or not is_plain(id):
            raise OptionsError(
                f"{name} takes handles or ids of jobs, not {id!r:.80}: nodes follow each other by flow.run(after=...)"
            )
    return " ".join(ids)


def places(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise OptionsError(f"{name} must be a text of at most 4,096 characters, not {value!r:.80}")
    return value


def word(*known: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in known:
            *some, last = map(repr, known)
            raise OptionsError(f"{name} must be {', '.join(some)} or {last}, not {value!r:.80}")
        return str(value)

    return check


durability = word("memory", "fsync", "replicated")
trace = word("parent", "link")
