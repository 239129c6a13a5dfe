"""Acts of people, events that failed or changed, and alarms. Pure.

A figure must be beyond the bound for as long as the alarm says before it is raised, and within it for as long before it
is cleared (Prometheus' ``for`` and ``keep_firing_for``). So a figure that goes to and fro raises it once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec

from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.job import number
from headrace.settings import Duration, microseconds, seconds

# Who may have acted by which means.
MEANS = ("dashboard", "cli", "api", "program")
# Characters of each text that an act keeps.
LONGEST = 500
# Acts, the newest ones, among which the one is looked for that made something so.
NEWEST = 200


class Act(msgspec.Struct, frozen=True):
    """Something that a person did, or was refused.

    Attributes:
        id: of the record; ids sort by time.
        at_us: when, microseconds of the server's clock.
        who: the visitor's name, or the user and host of a shell.
        by: ``dashboard``, ``cli``, ``api`` (a program with a token) or ``program``.
        verb: such as ``retry``.
        kind: of what it was done to, such as ``jobs``.
        name: of what it was done to; of several, the first ones; empty where ``scope`` says it.
        scope: what the verb was done to all of.
        count: how many it was meant for.
        reply: what the store replied, in words.
    """

    id: str
    at_us: int
    who: str
    by: str
    verb: str
    kind: str
    name: str
    scope: str
    count: int
    reply: str

    @property
    def refused(self) -> bool:
        return self.reply.startswith(("refused", "Nothing was done"))


# Kinds of events, and what each tells.
KINDS: Mapping[str, str] = {
    "failed": "a job failed for good",
    "quarantined": "a job crashed too often, or cannot be read",
    "parked": "no worker that claims a task's jobs knows the task",
    "cause_new": "a job failed for a cause that was not seen for 30 days",
    "cause_back": "a cause is back that was not seen for a day",
    "worker_started": "a worker began to claim jobs",
    "worker_stopped": "a worker left in order",
    "worker_lost": "a worker died or lost its lease; what it ran was recovered",
    "queue_paused": "a queue was paused",
    "queue_resumed": "a pause was ended, or ended by itself",
    "workflow_failed": "a workflow ended as failed",
    "schedule_missed": "ticks of a schedule made no jobs",
    "schedule_paused": "a schedule was paused, since its jobs failed one after the other",
    "bulk_ended": "a bulk operation has reached the last of its jobs",
    "alarm_raised": "a figure crossed the bound of an alarm",
    "alarm_cleared": "the figure is back within the bound",
}

# How the built-in task of a hook is called: this, and the name of the hook.
HOOK_TASKS = "headrace.hook."


class EventRecord(msgspec.Struct, frozen=True):
    """Something that failed or changed.

    Attributes:
        id: of the record; ids sort by time.
        at_us: when, microseconds of the server's clock.
        kind: one of ``KINDS``.
        facts: about what it is, such as ``job``, ``task``, ``queue``, ``error``.
    """

    id: str
    at_us: int
    kind: str
    facts: Mapping[str, str]


# Facts that only tell one record from another.
_HIDDEN = ("kind", "request")


def event_of(id: str, fields: Mapping[str, str]) -> EventRecord:
    facts = {name: text for name, text in fields.items() if name not in _HIDDEN}
    return EventRecord(id, time_of(id), fields.get("kind", ""), facts)


def storable(text: str, most: int = LONGEST) -> str:
    return text[:most].encode("utf-8", "backslashreplace").decode()


def pause_note(note: str | None) -> str:
    """Why something is paused, as it is stored. Raises OptionsError: it is not a text."""
    if note is not None and not isinstance(note, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"note must be a text, not {note!r:.80}")
    return storable(note or "")


def time_of(id: str) -> int:
    return number(id.partition("-")[0]) * 1000


def act_of(id: str, fields: Mapping[str, str]) -> Act:
    names = ("who", "by", "verb", "kind", "name", "scope")
    texts = {name: fields.get(name, "") for name in names}
    return Act(id, time_of(id), **texts, count=number(fields.get("count")), reply=fields.get("reply", ""))


def entry_hash(id: str, fields: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode([id, sorted(fields.items())])).hexdigest()


class ChainedAct(msgspec.Struct, frozen=True):
    """An act as it is exported: all that is stored of it."""

    id: str
    fields: dict[str, str]


def chain_breach(acts: Iterable[ChainedAct]) -> str:
    """The id of the first act without the hash of the one before; empty: all have it. The first line is the anchor."""
    before: ChainedAct | None = None
    for act in acts:
        if before is not None and act.fields.get("chain") != entry_hash(before.id, before.fields):
            return act.id
        before = act
    return ""


def newest_act(acts: Iterable[Act], verb: str, kind: str, name: str) -> Act | None:
    """The first act that did a verb to a thing, of acts whose newest is first; None: there is none."""
    return next(
        (one for one in acts if (one.verb, one.kind) == (verb, kind) and name in one.name.split() and not one.refused),
        None,
    )


AlarmFigure = Literal["delay", "ready", "workers", "failed"]
FIGURES: tuple[AlarmFigure, ...] = get_args(AlarmFigure)
# What needs a person, for the overview of the dashboard and the alert rules (alert_rules.json names them; alarms name
# their own bounds): seconds of a long wait, a high share of failures, the share of the store's memory that is used.
LONG_WAIT = 60.0
HIGH_SHARE = 0.05
FULL = 0.8
# A share of failures covers this many seconds; fewer failures than this need no person and raise no alarm.
SHARE_WINDOW = 600
FEWEST = 10
# An alarm is cleared no sooner than this (microseconds) after its figure came back within the bound.
CLEAR_US = 60_000_000


class AlarmRule(msgspec.Struct, frozen=True):
    """What raises an alarm.

    Attributes:
        name: of the alarm.
        figure: ``delay`` (seconds that the next job of a queue waits), ``ready`` (jobs of a queue), ``workers`` (live
            ones that serve a queue) or ``failed`` (share of a task's starts of the last ten minutes).
        bound: the alarm is raised above it; of ``workers`` below it.
        queue, task: that it is about; empty: the worst of all queues, or all tasks together.
        hold_us: microseconds for which the figure must be beyond the bound.
    """

    name: str
    figure: AlarmFigure
    bound: float
    queue: str
    task: str
    hold_us: int

    def beyond(self, value: float) -> bool:
        return value < self.bound if self.figure == "workers" else value > self.bound

    @property
    def words(self) -> str:
        of = f" of {self.queue or self.task}" if self.queue or self.task else ""
        side = "below" if self.figure == "workers" else "above"
        return f"{self.figure}{of} {side} {shown(self.figure, self.bound)} for {self.hold_us / 1e6:g} s"


def shown(figure: str, value: float) -> str:
    return {"delay": f"{value:g} s", "failed": f"{value * 100:.4g} %"}.get(figure, f"{value:g}")


class AlarmState(msgspec.Struct, frozen=True):
    """Where an alarm stands, as it is stored.

    Attributes:
        raised_us: when it was raised, microseconds; 0: it is not.
        since_us: since when the figure is on the side of the bound that would change this; 0: it is not there.
        value: the figure when it was raised or cleared last.
        words: the rule that was looked at last.
    """

    raised_us: int = 0
    since_us: int = 0
    value: float = 0.0
    words: str = ""

    @property
    def shown(self) -> str:
        return shown(self.words.partition(" ")[0], self.value)


def state_of(fields: Mapping[str, str]) -> AlarmState:
    try:
        value = float(fields.get("value", "0"))
    except ValueError:
        value = 0.0
    return AlarmState(number(fields.get("raised")), number(fields.get("since")), value, fields.get("words", ""))


def fields_of(state: AlarmState) -> dict[str, str | int]:
    return {"raised": state.raised_us, "since": state.since_us, "value": f"{state.value:.6g}", "words": state.words}


def next_state(rule: AlarmRule, state: AlarmState, figure: float, now_us: int) -> AlarmState:
    raised = state.raised_us > 0
    if rule.beyond(figure) == raised:
        return AlarmState(state.raised_us, 0, state.value, rule.words)
    # What began later than now began before the server's clock was set back.
    since = min(state.since_us or now_us, now_us)
    if now_us - since < (max(rule.hold_us, CLEAR_US) if raised else rule.hold_us):
        return AlarmState(state.raised_us, since, state.value, rule.words)
    return AlarmState(0 if raised else now_us, 0, figure, rule.words)


def alarm_rule(
    name: str, bounds: Mapping[str, float | Duration | None], queue: str | None, task: str | None, for_: Duration
) -> AlarmRule:
    """A rule as a program declares it; ``bounds`` has one, by figure. Raises OptionsError: it cannot be used."""
    given = {figure: bound for figure, bound in bounds.items() if bound is not None}
    if len(given) != 1:
        raise OptionsError(f"alarm {name!r} needs exactly one of {', '.join(FIGURES)}: make one alarm for each figure")
    ((word, bound),) = given.items()
    figure: AlarmFigure = next(one for one in FIGURES if one == word)
    if (task is not None and figure != "failed") or (queue is not None and figure == "failed"):
        of = "a task" if figure == "failed" else "a queue"
        raise OptionsError(f"alarm {name!r}: {figure} is a figure of {of}")
    return AlarmRule(
        _text(name), figure, _bound(name, figure, bound),
        check_name("queue", queue) if queue is not None else "", check_name("task", task) if task is not None else "",
        microseconds(seconds(for_, "for_")),
    )  # fmt: skip


def _text(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        raise OptionsError(f"the name of an alarm is a text of 1 to 100 characters, not {name!r:.80}")
    return name


def _bound(name: str, figure: AlarmFigure, bound: float | Duration) -> float:
    if figure == "delay":
        return seconds(bound, "delay")
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not 0 <= bound < 1e15:
        raise OptionsError(f"alarm {name!r}: {figure} must be a number of at least 0, not {bound!r}")
    if figure == "failed" and bound >= 1:
        raise OptionsError(f"alarm {name!r}: failed is a share, from 0 to below 1, such as 0.05, not {bound!r}")
    if figure == "workers" and bound == 0:
        raise OptionsError(
            f"alarm {name!r}: there are never fewer than 0 workers; workers=1 is raised when there is none"
        )
    return float(bound)
