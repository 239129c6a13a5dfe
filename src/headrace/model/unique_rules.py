"""Uniqueness of jobs: what code asks for, checked, and what the store learns of it. Pure.

The scripts keep names (docs/design/uniqueness.md); ``unique_names.py`` makes the name of one job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

import msgspec

from headrace.errors import OptionsError
from headrace.model.option_checks import Flag, OptionRow
from headrace.settings import Duration, microseconds, seconds

# Until when a job holds its name: it has ended, has started, or a time is over. A window stays whatever becomes of it.
Hold: TypeAlias = Literal["done", "start", "within", "window"]
# What becomes of a job whose name another one holds.
Clash: TypeAlias = Literal["existing", "raise"]
_LONGEST = 366 * 86400


class UniqueRule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the store learns of the uniqueness of a job.

    Attributes:
        text: the name itself; empty: the name is made of the task and its arguments.
        hold: until when the job holds its name.
        clash: what becomes of a job whose name another one holds.
        span: of ``within`` and ``window``, microseconds.
        by: arguments that make the name; empty: all of them.
    """

    text: str = ""
    hold: Hold = "done"
    clash: Clash = "existing"
    span: int = 0
    by: tuple[str, ...] = ()

    @property
    def packed(self) -> list[str | int]:
        """What the scripts read."""
        return [self.hold, self.clash, self.span]


@dataclass(frozen=True, slots=True)
class Unique:
    """One job of a name at a time; the name is made of the task and its arguments.

    While a job holds the name, an enqueue of the same name makes no second one: see ``clash``. Every end of the job
    frees its name, in the step that ends it, and a name whose job is lost is taken over.

    Attributes:
        by: names of the arguments that count, or one of them; None: all of them.
        text: the name itself, which tasks may share; not with ``by``. It shows in lists, so it must not be a secret.
        until: ``done``: the job holds the name until it has ended; retries and snoozes count as not ended. ``start``:
            until a worker claims it for the first time.
        within: instead of ``until``: seconds or a timedelta, at most a year, from the enqueue; a job that ends without
            success frees its name at once.
        clash: ``existing``: the enqueue gives a handle of the job that holds the name, with ``fresh`` False. ``raise``:
            it raises :class:`headrace.errors.DuplicateJob`, and nothing of that call is stored.

    Raises:
        OptionsError: a value cannot be, or two contradict each other.
    """

    by: str | Sequence[str] | None = None
    text: str | None = None
    until: Literal["done", "start"] | None = None
    within: Duration | None = None
    clash: Clash = "existing"

    def __post_init__(self) -> None:
        _ = self.rule

    @property
    def rule(self) -> UniqueRule:
        """What the store learns of it."""
        text, by = _named(self.text, self.by)
        if self.until not in (None, "done", "start"):
            raise OptionsError(f"Unique: until must be 'done' or 'start', not {self.until!r:.80}")
        if self.until and self.within is not None:
            raise OptionsError("Unique: until and within contradict each other: give the one or the other")
        if self.clash not in get_args(Clash):
            raise OptionsError(f"Unique: clash must be one of {', '.join(get_args(Clash))}, not {self.clash!r:.80}")
        if self.within is not None:
            return UniqueRule(text, "within", self.clash, _span("Unique: within", self.within), by)
        return UniqueRule(text, self.until or "done", self.clash, by=by)


class Uniqueness(Protocol):
    """What :class:`Unique` and the like are."""

    @property
    def rule(self) -> UniqueRule: ...


# What may be given for the option; False: not unique, though the task is.
GivenUnique: TypeAlias = Uniqueness | str | Literal[False] | None


def unique_rule(option: str, value: object) -> UniqueRule | None:
    """The rule of what was given for the option; a text stands for ``Unique(text=...)``.

    Raises:
        OptionsError: it is none.
    """
    if value is False:
        return None
    if isinstance(value, UniqueRule):
        return _carried(value)
    if isinstance(value, str):
        return Unique(text=value).rule
    if not isinstance(value, Unique):
        raise OptionsError(f"{option} must be Unique(...), a text or False, not {value!r:.80}")
    return value.rule


def _carried(rule: UniqueRule) -> UniqueRule:
    """A rule that an envelope carries, which any program may have written."""
    if rule.by or not 0 < len(rule.text) <= 256:
        raise OptionsError("unique.text must be the name, a text of 1 to 256 characters, and unique.by is not carried")
    if (rule.hold in ("within", "window")) != (rule.span > 0) or not 0 <= rule.span <= _LONGEST * 1_000_000:
        raise OptionsError("unique.span is the microseconds of hold within, at most a year, and of no other")
    return rule


def _named(text: object, by: object) -> tuple[str, tuple[str, ...]]:
    """The checked text, and the checked names of arguments."""
    if text is not None and by is not None:
        raise OptionsError("unique: by and text contradict each other: a text is the whole name")
    if text is not None and not (isinstance(text, str) and 0 < len(text) <= 256):
        raise OptionsError(f"unique: text must be a text of 1 to 256 characters, not {text!r:.80}")
    names: Any = (by,) if isinstance(by, str) else by
    if names is None:
        return text or "", ()
    if not isinstance(names, Sequence) or not names:
        raise OptionsError(f"unique: by must be names of arguments, not {by!r:.80}; leave it out for all of them")
    found = cast(Sequence[object], names)
    for one in found:
        if not isinstance(one, str) or not one.isidentifier():
            raise OptionsError(f"unique: by must be names of arguments: {one!r:.80} is none")
    return "", tuple(sorted({str(one) for one in found}))


def _span(name: str, value: Any) -> int:
    """A time in microseconds."""
    found = seconds(value, name, zero=False)
    if not 0.001 <= found <= _LONGEST:
        raise OptionsError(f"{name} must be from a millisecond to a year, not {value!r}")
    return microseconds(found)


UNIQUE = OptionRow(
    check=unique_rule,
    doc="no second job of the same name: ``Unique(...)``, or a text as the name. ``False``: none, though the task has "
    "one.",
    travels="enqueue",
    envelope="no second job of this name: a map with `text`, the name, and `hold`, `clash`, `span`; the id must say "
    "so, too",
    flag=Flag(value="TEXT", text="Make no second job of this name until the first has ended."),
)
