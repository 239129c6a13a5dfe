"""A search for jobs: the words of a search and the fields of a form, as filters, cursors and links. Pure.

1. :class:`JobSearch`: the form of a list of jobs.
2. :func:`words_of`: the words that the store can compare in a search by text or exception, so that the store reads only
   jobs that may match.

The page decides in the end, since it hides values. A script that matches too much costs a read and no more, so a word
is given to the script only if every job that shows it also stores it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from headrace.admin.job_paging import cursor_of, position
from headrace.dashboard.values_shown import link
from headrace.errors import OptionsError
from headrace.model.ids import LENGTH
from headrace.model.job_record import Record, cause_id

LISTED = (
    "running", "ready", "scheduled", "blocked", "parked", "failed", "quarantined", "cancelled", "succeeded",
)  # fmt: skip
FIELDS = ("state", "queue", "task", "key", "cause", "error", "since", "until")

_WORD = re.compile(rf'({"|".join(FIELDS)}):("[^"]*"|\S+)')
_AGO = re.compile(r"(\d{1,6})\s*(s|m|min|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
# Jobs of these states are in one structure, so that a page can go back; of others, if one is named.
_IN_ONE = ("scheduled", "failed", "quarantined", "cancelled", "succeeded")
# Behind every id that a page may end with.
_LAST = "z" * LENGTH


class JobSearch(msgspec.Struct, frozen=True):
    """A list of jobs of one state.

    Attributes:
        queue, task, key: only theirs; empty: all.
        cause: only failures of this cause, by its 16 digits.
        error: only failures with this exception, by its name with or without its module.
        since, until: only jobs of this time, as it was typed.
        text: only jobs that have it in what a list shows of them.
        after, before: the cursor of an older, and of a newer page.
    """

    state: str
    queue: str = ""
    task: str = ""
    key: str = ""
    cause: str = ""
    error: str = ""
    since: str = ""
    until: str = ""
    text: str = ""
    after: str = ""
    before: str = ""

    def link(self, **changes: str) -> str:
        changed = replace(self, **{"after": "", "before": "", **changes})
        facts = {name: getattr(changed, name) for name in (*FIELDS, "after", "before")}
        return link("/jobs", facts | {"q": changed.text})

    @property
    def narrow(self) -> bool:
        return any(getattr(self, name) for name in FIELDS if name != "state") or self.looks

    @property
    def looks(self) -> bool:
        """Whether each job must be looked at here."""
        return bool(self.text or self.cause or self.error)

    @property
    def newer(self) -> str:
        named = {"ready": self.queue, "parked": self.task, "blocked": self.key}.get(self.state)
        if not self.after or self.looks or not (self.state in _IN_ONE or named):
            return ""
        score, _, index = position(self.after, "after")
        return self.link(before=cursor_of(score - 1, _LAST, index))

    @property
    def older(self) -> str:
        score, id, index = position(self.before, "before")
        return self.link(after=cursor_of(score, id + "z", index))

    def window(self, now: int) -> tuple[datetime | None, datetime | None]:
        return moment_of(self.since, now), moment_of(self.until, now)

    def failed_so(self, record: Record) -> bool:
        kind = record.error.type if record.error is not None else ""
        if self.error not in ("", kind, kind.rpartition(".")[2]):
            return False
        return self.cause in ("", cause_id(record.task, record.error))


def moment_of(text: str, now: int) -> datetime | None:
    """A time in UTC of ``2026-11-21T22:30``, or that long ago of ``2h``; None of nothing."""
    if not text:
        return None
    found = _AGO.fullmatch(text.strip())
    try:
        if found is not None:
            return datetime.fromtimestamp(now / 1e6, UTC) - timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
        at = datetime.fromisoformat(text.strip())
    except (OverflowError, ValueError):
        raise OptionsError(
            f"{text[:40]!r} is not a time: write 2026-11-21T22:30, in UTC, or 2h for two hours ago"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def search_of(params: Mapping[str, str], counts: Mapping[str, int]) -> JobSearch:
    """What a request asks for: fields of its own, and ``state:`` and the like in the text of the search. ``counts``:
    jobs by state: without one that was asked for, the first that holds any is shown.
    """
    found = {name: params.get(name, "").strip() for name in (*FIELDS, "after", "before")}
    typed = params.get("q", "")
    for name, value in _WORD.findall(typed):
        found[name] = value.strip('"')
    text = " ".join(_WORD.sub("", typed).split())
    if found["state"] not in LISTED:
        first = ("failed", "running", "ready", "scheduled", "quarantined", "succeeded")
        found["state"] = next((state for state in first if counts.get(state)), "failed")
    return JobSearch(text=text, **found)


# A list looks for these words in what it writes itself, and not in what is stored.
_OURS = (
    "true false null bytes nested too deeply shown arguments that cannot be read the result of a parent which not there"
)

_SEARCHED = re.compile(r"[a-z]{3,}|[0-9]{3,}")


def words_of(text: str, names: Collection[str]) -> list[str]:
    """Words of a search that each job which shows the text has stored, in lower case. ``names``: of parameters: a list
    shows them beside values, and they are not stored.
    """
    found = dict.fromkeys(_SEARCHED.findall(text.lower()))
    unsure = [*_OURS.split(), *(name.lower() for name in names)]
    return [word for word in found if not any(word in other for other in unsure)]
