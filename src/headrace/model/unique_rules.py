"""Uniqueness of jobs: what code asks for, checked, and what the store learns of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec

from headrace.errors import OptionsError
from headrace.model.option_checks import YEAR, Flag, OptionRow, is_name, span
from headrace.settings import Duration, microseconds

# Until when a job holds its name: it has ended, has started, or a time is over. A window stays whatever becomes of it.
Hold: TypeAlias = Literal["done", "start", "within", "window"]
# What becomes of a job whose name another one holds.
Clash: TypeAlias = Literal["existing", "raise", "replace", "cancel"]
_Wire: TypeAlias = Literal["existing", "raise", "replace", "cancel", "latest", "debounce", "trailing"]
# These say themselves when their job becomes ready.
_TIMING = frozenset({"cancel", "latest", "debounce", "trailing"})


class UniqueRule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the store learns of the uniqueness of a job.

    Attributes:
        text: the name itself; empty: the name is made of the task and its arguments.
        hold: until when the job holds its name.
        clash: what becomes of a job whose name another one holds.
        span: of ``within``, ``window`` and ``debounce``, microseconds.
        most: of ``debounce``: the longest wait in all, microseconds; 0: none.
        by: arguments that make the name; empty: all of them.
    """

    text: str = ""
    hold: Hold = "done"
    clash: _Wire = "existing"
    span: int = 0
    most: int = 0
    by: tuple[str, ...] = ()

    @property
    def packed(self) -> list[str | int] | bool:
        """What the scripts read. True is the most common rule: a list costs them 4,000 instructions a call."""
        common = (self.hold, self.clash) == ("done", "existing")
        return common or [self.hold, self.clash, self.span, self.most]

    def check_times(self, *, delayed: bool, expires: int) -> None:
        """Raises OptionsError: the job has a time of its own, or would expire before it becomes ready."""
        if delayed and self.clash in _TIMING:
            raise OptionsError(f"unique ({self.clash}) says when the job becomes ready: give no delay= and no at=")
        if self.clash == "debounce" and 0 < expires <= self.span:
            raise OptionsError("expires must be more than Debounce waits: the job would expire before it is ready")
        if self.clash == "trailing" and 0 < expires <= self.span:
            raise OptionsError("expires must be more than per of Throttle: the job may expire before the window ends")


class Uniqueness(msgspec.Struct, frozen=True):
    """What :class:`Unique` and the like are; they check what they are given."""

    @property
    def rule(self) -> UniqueRule:
        raise NotImplementedError

    def __post_init__(self) -> None:
        _ = self.rule


class Unique(Uniqueness, frozen=True):
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
            it raises :class:`headrace.errors.DuplicateJob`, and nothing of that call is stored. ``replace``: the job
            that holds the name gets the new arguments, time, priority and other options, if it has not started; one
            that waits for a retry gets the arguments; one that runs is left alone. ``cancel``: as ``replace``, and one
            that runs is asked to stop; the new job starts when that one has ended.

    Raises:
        OptionsError: a value cannot be, or two contradict each other.
    """

    by: str | Sequence[str] | None = None
    text: str | None = None
    until: Literal["done", "start"] | None = None
    within: Duration | None = None
    clash: Clash = "existing"

    @property
    def rule(self) -> UniqueRule:
        text, by = _named(self.text, self.by)
        if self.until not in (None, "done", "start"):
            raise OptionsError(f"Unique: until must be 'done' or 'start', not {self.until!r:.80}")
        if self.until and self.within is not None:
            raise OptionsError("Unique: until and within contradict each other: give the one or the other")
        if self.clash not in get_args(Clash):
            raise OptionsError(f"Unique: clash must be one of {', '.join(get_args(Clash))}, not {self.clash!r:.80}")
        if self.clash == "cancel" and (self.until == "start" or self.within is not None):
            raise OptionsError("Unique: clash='cancel' waits for the end of the job that runs: give until='done'")
        if self.within is not None:
            return UniqueRule(text, "within", self.clash, microseconds(span("Unique: within", self.within)), by=by)
        return UniqueRule(text, self.until or "done", self.clash, by=by)


class Latest(Uniqueness, frozen=True):
    """One job of a name runs, and at most one waits, with the newest arguments.

    While a job of the name runs, an enqueue makes one that follows its end. Each later one replaces the arguments and
    options of the one that waits. The idea is BullMQ's ``keepLastIfActive``.

    Attributes:
        by, text: as of :class:`Unique`.

    Raises:
        OptionsError: a value cannot be.
    """

    by: str | Sequence[str] | None = None
    text: str | None = None

    @property
    def rule(self) -> UniqueRule:
        text, by = _named(self.text, self.by)
        return UniqueRule(text, clash="latest", by=by)


class Debounce(Uniqueness, frozen=True):
    """A job becomes ready when its name was not enqueued for some time; the last enqueue wins.

    Each enqueue before that replaces the arguments and options, and begins the wait anew. One that comes while the job
    waits for a worker replaces its arguments. One that comes after its start makes another job.

    Attributes:
        wait: seconds or a timedelta without another enqueue of the name, from a millisecond to a year.
        most: the job becomes ready at most this long after the first enqueue; None: however long it takes.
        by, text: as of :class:`Unique`.

    Raises:
        OptionsError: a value cannot be.
    """

    wait: Duration
    most: Duration | None = None
    by: str | Sequence[str] | None = None
    text: str | None = None

    @property
    def rule(self) -> UniqueRule:
        text, by = _named(self.text, self.by)
        wait, most = microseconds(span("Debounce: wait", self.wait)), 0
        if self.most is not None and (most := microseconds(span("Debounce: most", self.most))) < wait:
            raise OptionsError(f"Debounce: most must be at least wait, not {self.most!r}")
        return UniqueRule(text, "start", "debounce", wait, most, by)


class Throttle(Uniqueness, frozen=True):
    """One job of a name in each window of time, which begins with the first enqueue and does not end with the job.

    Attributes:
        per: length of the window, seconds or a timedelta, from a millisecond to a year.
        trailing: False: a later enqueue in the window makes no job. True: one more job becomes ready at the end of the
            window, with the arguments of the last enqueue; a window follows it.
        by, text: as of :class:`Unique`.

    Raises:
        OptionsError: a value cannot be.
    """

    per: Duration
    trailing: bool = False
    by: str | Sequence[str] | None = None
    text: str | None = None

    @property
    def rule(self) -> UniqueRule:
        text, by = _named(self.text, self.by)
        if not isinstance(self.trailing, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"Throttle: trailing must be True or False, not {self.trailing!r:.80}")
        clash: _Wire = "trailing" if self.trailing else "existing"
        return UniqueRule(text, "window", clash, microseconds(span("Throttle: per", self.per)), by=by)


# What may be given for the option; False: not unique, though the task is.
GivenUnique: TypeAlias = Uniqueness | str | Literal[False] | None


def unique_rule(option: str, value: object) -> UniqueRule | None:
    """The rule of what was given for the option; a text is ``Unique(text=...)``. Raises OptionsError: it is none."""
    if value is False:
        return None
    if isinstance(value, UniqueRule):
        return _carried(value)
    if isinstance(value, str):
        return Unique(text=value).rule
    if not isinstance(value, Uniqueness):
        kinds = "Unique(...), Latest(...), Debounce(...), Throttle(...), a text or False"
        raise OptionsError(f"{option} must be {kinds}, not {value!r:.80}")
    return value.rule


def _carried(rule: UniqueRule) -> UniqueRule:
    if rule.by or not 0 < len(rule.text) <= 256:
        raise OptionsError("unique.text must be the name, a text of 1 to 256 characters, and unique.by is not carried")
    spans = rule.hold in ("within", "window") or rule.clash == "debounce"
    if spans != (rule.span > 0) or not all(0 <= one <= microseconds(YEAR) for one in (rule.span, rule.most)):
        raise OptionsError("unique.span is the microseconds of within, window and debounce, at most a year")
    if rule.clash in _TIMING and (rule.hold != "done") != (rule.clash in ("debounce", "trailing")):
        raise OptionsError(f"unique.clash {rule.clash} does not go with unique.hold {rule.hold}")
    return rule


def _named(text: object, by: object) -> tuple[str, tuple[str, ...]]:
    if text is not None and by is not None:
        raise OptionsError("unique: by and text contradict each other: a text is the whole name")
    if text is not None and not is_name(text):
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


UNIQUE = OptionRow(
    check=unique_rule,
    doc="what becomes of a second job of the same name: ``Unique(...)``, ``Latest(...)``, ``Debounce(...)`` or "
    "``Throttle(...)``; a text stands for ``Unique(text=...)``. ``False``: nothing, though the task says something.",
    travels="enqueue",
    envelope="no second job of this name: a map with `text`, the name, and `hold`, `clash`, `span`, `most`; the id "
    "must say so, too",
    flag=Flag(value="TEXT", text="Make no second job of this name until the first has ended."),
)
