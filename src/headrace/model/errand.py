"""An errand: a verb on all jobs that a filter means, as a record. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.job import number
from headrace.model.option_checks import is_name

# The states whose jobs each verb is for.
VERBS: Mapping[str, tuple[str, ...]] = {
    "retry": ("failed", "quarantined", "cancelled", "succeeded"),
    "cancel": ("ready", "scheduled", "parked"),
    "delete": ("failed", "quarantined", "cancelled", "succeeded", "ready", "scheduled", "parked"),
}
_CAUSE = re.compile(r"[0-9a-f]{16}")


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs a verb is for.

    Attributes:
        state: theirs. Ready jobs need a queue, parked ones a task.
        queue, task, key, cause: only theirs; empty: any.
    """

    state: str
    queue: str = ""
    task: str = ""
    key: str = ""
    cause: str = ""

    def check(self, verb: str) -> None:
        """Refuse what no errand can be.

        Raises:
            OptionsError: it cannot.
        """
        if verb not in VERBS:
            raise OptionsError(f"there is no verb {verb!r} for many jobs: there are {', '.join(VERBS)}")
        if self.state not in VERBS[verb]:
            raise OptionsError(f"{verb} is for jobs that are {', '.join(VERBS[verb])}, not {self.state!r}")
        for kind, name, needed in (("queue", self.queue, "ready"), ("task", self.task, "parked")):
            if name:
                check_name(kind, name)
            elif self.state == needed:
                raise OptionsError(f"name the {kind} of the {needed} jobs: these are listed by {kind}")
        if self.key and not is_name(self.key):
            raise OptionsError(f"key must be a text of 1 to 256 characters, not {self.key!r:.80}")
        if self.cause and not _CAUSE.fullmatch(self.cause):
            raise OptionsError(f"{self.cause!r:.80} is not the name of a cause, which has 16 hexadecimal digits")
        if self.cause and self.state not in ("failed", "quarantined"):
            raise OptionsError("only failed and quarantined jobs have a cause")

    @property
    def words(self) -> str:
        """The filter as the search takes it: ``state:failed task:tasks.fetch``."""
        names = ("state", "queue", "task", "key", "cause")
        return " ".join(f"{name}:{getattr(self, name)}" for name in names if getattr(self, name))

    @property
    def whole(self) -> bool:
        """Whether all jobs of one structure are meant, so that they need not be looked at to be counted."""
        return not (self.key or self.cause) and (
            not self.task if self.state == "ready" else not self.queue if self.state == "parked"
            else not (self.task or self.queue)
        )  # fmt: skip


class Errand(msgspec.Struct, frozen=True):
    """A verb on many jobs, and how far it has come.

    Attributes:
        id: names it.
        verb: ``retry``, ``cancel`` or ``delete``.
        which: for which jobs.
        phase: ``running``, ``stopped`` or ``ended``.
        who, by: who began it, and by which means.
        bound_us: jobs that came to their state later are left alone; microseconds.
        total: how many were counted before; ``exact`` says whether these were all.
        rate: jobs a second at most; 0: as fast as pieces are done.
        looked, done: jobs that were looked at, and on which the verb was done.
        refused: how many refused, by the reason.
        ended_us: when it ended or was stopped; 0: not yet.
    """

    id: str
    verb: str
    which: JobFilter
    phase: str
    who: str
    by: str
    bound_us: int
    total: int
    exact: bool
    rate: int
    looked: int
    done: int
    refused: Mapping[str, int]
    ended_us: int

    @property
    def words(self) -> str:
        """How far it has come, in words."""
        refused = "".join(f", {count:,} refused ({why})" for why, count in sorted(self.refused.items()))
        return f"{self.done:,} done{refused}"


def errand_of(id: str, fields: Mapping[str, str]) -> Errand:
    text = {name: fields.get(name, "") for name in ("verb", "phase", "who", "by")}
    which = JobFilter(*(fields.get(name, "") for name in ("state", "queue", "task", "key", "cause")))
    refused = {name.partition(":")[2]: number(count) for name, count in fields.items() if name.startswith("refused:")}
    numbers = {name: number(fields.get(name)) for name in ("total", "rate", "looked", "done")}
    return Errand(
        id, text["verb"], which, text["phase"], text["who"], text["by"], number(fields.get("bound")),
        numbers["total"], fields.get("exact") == "1", numbers["rate"], numbers["looked"], numbers["done"], refused,
        number(fields.get("ended")),
    )  # fmt: skip
