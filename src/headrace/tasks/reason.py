"""A reason why a job does not run, and how reasons are worded. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

Evidence: TypeAlias = dict[str, str | int | float | bool]

# Names that one sentence lists.
_MOST_NAMES = 5


class Reason(msgspec.Struct, frozen=True):
    """One reason why a job does not run.

    Attributes:
        code: a word that programs compare; ``headrace.tasks.reasons.CODES`` has all.
        text: a sentence without a full stop.
        evidence: what was found, by name; names that end in ``_us`` are microseconds of server time.
        next_step: what helps, such as a command; empty: nothing need be done, or the text says it.
    """

    code: str
    text: str
    evidence: Evidence
    next_step: str = ""

    @property
    def sentence(self) -> str:
        """The text, and what helps."""
        return f"{self.text}: {self.next_step}" if self.next_step else self.text


def names_of(names: Iterable[str]) -> str:
    """The names, each once, in order; many are counted."""
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return (", ".join(found[:_MOST_NAMES]) or "none") + more


def lasting(microseconds: int | float) -> str:
    """A duration."""
    seconds = max(0.0, microseconds / 1e6)
    for unit, size, least in (("days", 86_400, 172_800), ("h", 3600, 7200), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def several(count: int, noun: str) -> str:
    """``1 job is``, ``3 jobs are``."""
    return f"{count:,} {noun} is" if count == 1 else f"{count:,} {noun}s are"
