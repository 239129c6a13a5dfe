"""What a worker's jobs lose to what each runner does again: sums per task, what to try about it, what to say.

Owns the sums of one dispatcher, bounded whatever the tasks do. Sends nothing: what is to be tried goes out as a message
to the supervisor, what is known as a fact of the worker with its next renewal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.worker.messages import Found, Function, Judged, Rehearse, Rehearsed
from headrace.worker.preload.trial import FAILED, UNRELATED, WARM, WORK

# The first runners of each kind are profiled, then one in so many.
FIRST, EACH = 16, 16
# Below this (microseconds of a first start) nothing is worth a rehearsal; above the other, in all, worth a line.
WORTH, TELL = 2_000, 250_000
# Bounds: tasks, different imports or functions of one, functions tried at once, names that were tried in all.
TASKS, KINDS, TRIED_AT_ONCE, TRIED = 64, 64, 48, 512
# Bytes of the summary, and how much of each list it has.
SUMMARY, LISTED = 6_000, 12

Where = tuple[str, str, int]


@dataclass(slots=True)
class Row:
    """One task.

    Attributes:
        kind: of its runners.
        jobs: that ended since the first one here.
        profiled: first starts that were watched.
        imports: microseconds in all of them, by module; ``functions``: the same by function.
    """

    kind: str
    jobs: int = 0
    profiled: int = 0
    imports: Counter[str] = field(default_factory=Counter[str])
    functions: Counter[Where] = field(default_factory=Counter[Where])


class Waste:
    """The startup profile of one worker.

    Attributes:
        rows: by task; the empty name is what happens outside of jobs.
        changed: the summary says something new.
        news: there may be something to try.
        done: what the supervisor has done by itself, with the microseconds that each runner spares.
    """

    def __init__(self, *, enabled: bool, auto: bool) -> None:
        self.rows: dict[str, Row] = {}
        self.changed = False
        self.news = False
        self.done: dict[str, int] = {}
        self._enabled = enabled
        self._auto = auto
        self._spawned: Counter[str] = Counter()
        self._born: dict[str, tuple[int, int]] = {}
        self._judged: dict[str, Judged] = {}
        # Which function each set-up stands for, and all that was tried, whatever came of it.
        self._stands: dict[str, set[Where]] = {}
        self._tried: set[str | Where] = set()
        self._asked: Rehearse | None = None
        self._tell_at: Counter[str] = Counter()
        self._stale = 0

    def profiles(self, kind: str) -> bool:
        """Whether the next runner of this kind is to be profiled."""
        number, self._spawned[kind] = self._spawned[kind], self._spawned[kind] + 1
        return self._enabled and (number < FIRST or number % EACH == 0)

    def ended(self, task: str) -> None:
        """A job of this task ended."""
        row = self.rows.get(task)
        if row is not None:
            row.jobs += 1

    def heard(self, runner: int, task: str, kind: str, found: Found) -> None:
        """A profiled runner said what it found in a start."""
        if runner <= self._stale:
            return
        if found.born:
            count, cost = self._born.get(kind, (0, 0))
            self._born[kind] = count + 1, cost + found.born
            self.changed = True
        if found.early:
            self._add("", kind, found.early, [], first=True)
        if found.imports or found.functions:
            self._add(task, kind, found.imports, found.functions, first=found.first or not found.functions)
        elif found.first and task in self.rows:
            # It lost nothing: that counts, too.
            self.rows[task].profiled += 1

    def _add(
        self, task: str, kind: str, imports: list[tuple[str, int]], functions: list[Function], *, first: bool
    ) -> None:
        row = self.rows.get(task)
        if row is None:
            if len(self.rows) >= TASKS:
                return
            row = self.rows[task] = Row(kind)
        row.profiled += first
        for name, cost in imports:
            if name in row.imports or len(row.imports) < KINDS:
                row.imports[name] += cost
        for one in functions:
            where = (one.module, one.name, one.line)
            if where in row.functions or len(row.functions) < KINDS:
                row.functions[where] += one.cost
        self.changed = self.news = True

    # -- what to try ------------------------------------------------------------------------------------------------

    def request(self) -> Rehearse | None:
        """What to try now: what costs something, was not tried, and was seen often enough to be no accident."""
        self.news = False
        if self._asked is not None or len(self._tried) >= TRIED:
            return None
        imports: Counter[str] = Counter()
        functions: Counter[Where] = Counter()
        for row in self.rows.values():
            if row.profiled >= (2 if row.kind == "fork" else 1):
                for name, cost in row.imports.items():
                    imports[name] = max(imports[name], cost // row.profiled)
                for where, cost in row.functions.items():
                    functions[where] = max(functions[where], cost // row.profiled)
        # All imports that are dear enough, since set-up may need them; and a function for its own sake only.
        names = [name for name, _ in imports.most_common(KINDS) if name not in self._tried]
        places = [(w, cost) for w, cost in functions.most_common(KINDS) if w not in self._tried and cost >= WORTH]
        if sum(imports[name] for name in names) < WORTH and not places:
            return None
        told = [Function(*where, cost) for where, cost in places[:TRIED_AT_ONCE]]
        self._asked = Rehearse(sorted(names, key=_depth), told)
        return self._asked

    def judged(self, reply: Rehearsed) -> None:
        """The supervisor says what came of the last request."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        words = {one.name: one.word for one in reply.judged}
        places = [(one.module, one.name, one.line) for one in asked.functions]
        self._tried.update(words)
        # After an import that left something behind nothing more was tried: that is asked for again, without it.
        if not words or all(words.get(name, "") == WARM or FAILED in words.get(name, "") for name in asked.imports):
            self._tried.update(asked.imports, places)
        for one in reply.judged:
            self._judged[one.name] = one
            if one.word == WARM and one.seen:
                self._stands.setdefault(one.name, set()).update(places[n] for n in one.seen)
        self.changed = self.news = True
        if reply.done:
            warm = [one for one in reply.judged if one.word == WARM]
            self.done.update((one.name, one.cost) for one in warm[: KINDS - len(self.done)])
            # What jobs lose from now on is to be seen, not what runners that were forked before still lose.
            self._stale = reply.done
            self._spawned.clear()
            self.rows.clear()
            self._tell_at.clear()

    # -- what to say ------------------------------------------------------------------------------------------------

    @property
    def preload(self) -> list[str]:
        """What a user should write after ``preload=``: modules first, as set-up needs them; costly ones only."""
        worth: Counter[str] = Counter()
        for row in self.rows.values():
            for name, cost in self._losses(row):
                worth[name] = max(worth[name], cost)
        names = [name for name, cost in worth.most_common(LISTED) if self._warm(name) and cost >= WORTH // 4]
        return sorted(names, key=lambda name: ":" in name)

    def _warm(self, name: str) -> bool:
        return name in self._judged and self._judged[name].word == WARM

    def _losses(self, row: Row) -> list[tuple[str, int]]:
        """What one first start loses, in microseconds, by name; the dearest first."""
        found: Counter[str] = Counter(row.imports)
        for name, places in self._stands.items():
            # The function that had most of it had the others below it.
            if cost := max((row.functions[where] for where in places), default=0):
                found[name] = cost
        count = max(1, row.profiled)
        return [(name, cost // count) for name, cost in found.most_common()]

    def _sums(self, row: Row) -> tuple[int, int]:
        """Microseconds that one first start loses, and all starts so far."""
        lost = sum(cost for _, cost in self._losses(row))
        # A fork child starts once, and only some were watched; other runners lose it once in their lives.
        return lost, lost * max(row.jobs, row.profiled) if row.kind == "fork" else lost * row.profiled

    def lines(self) -> Iterator[str]:
        """What the log should say now: of each task once when it is worth it, then whenever that has doubled."""
        if self._asked is not None:
            return
        for task, row in self.rows.items():
            lost, total = self._sums(row)
            known = any(name in self._judged for name, _ in self._losses(row))
            if not known or total < max(TELL, self._tell_at[task]):
                continue
            self._tell_at[task] = 2 * total
            parts = ", ".join(f"{name} {spell(cost)}{self._why(name)}" for name, cost in self._losses(row)[:4])
            who = f"each first start of {task} in a runner" if task else f"each new {row.kind} runner"
            names = self.preload
            advice = f"; preload={msgspec.json.encode(names).decode()} does it once, as does --preload auto"
            yield f"{who} loses {spell(lost)} to what every runner does again, {spell(total)} so far: {parts}" + (
                advice if names else ""
            )

    def _why(self, name: str) -> str:
        one = self._judged.get(name)
        return "" if one is None or one.word == WARM else f" (not preloaded: {one.word})"

    def summary(self) -> str:
        """What people are shown of it, as JSON of bounded size; ``changed`` is over."""
        self.changed = False
        rows = [_shown(task, row, self._losses(row), self._sums(row)) for task, row in self.rows.items()]
        rows = sorted((row for row in rows if row["lost"] >= WORTH // 4), key=lambda row: -row["total"])[:LISTED]
        refused = [one for one in self._judged.values() if one.word not in (WARM, WORK, UNRELATED)]
        shown: dict[str, Any] = {
            "auto": self._auto,
            "rows": rows,
            "preload": self.preload,
            "done": dict(list(self.done.items())[:LISTED]),
            "refused": {one.name: one.word for one in refused[-LISTED:]},
            "born": {kind: cost // count for kind, (count, cost) in self._born.items()},
        }
        text = msgspec.json.encode(shown)
        while len(text) > SUMMARY and shown["rows"]:
            shown["rows"].pop()
            shown["refused"] = {}
            text = msgspec.json.encode(shown)
        return text.decode()


def _shown(task: str, row: Row, losses: list[tuple[str, int]], sums: tuple[int, int]) -> dict[str, Any]:
    return {
        "task": task, "kind": row.kind, "jobs": row.jobs, "profiled": row.profiled, "lost": sums[0], "total": sums[1],
        "what": [[name, cost] for name, cost in losses[:LISTED]],
    }  # fmt: skip


def _depth(name: str) -> tuple[int, str]:
    return name.count("."), name


def spell(microseconds: int) -> str:
    """A duration in three digits: ``105 ms``, ``1.47 s``; from 1,000 s on in whole seconds."""
    if microseconds < 1_000_000:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds / 1e6:.3g} s" if microseconds < 1e9 else f"{microseconds / 1e6:.0f} s"
