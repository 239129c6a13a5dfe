"""Advice about set-up that each runner of a worker repeats: its costs and its remedy. Bounded for any task; the sums go
out as a fact of the worker with its next renewal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.model.notation import duration
from headrace.model.options import Kind
from headrace.worker.messages import Found

# The first runners of each kind are profiled, then one in this many.
FIRST = 16
EACH = 16
# Below this (microseconds of a first start) nothing is worth doing before; above the other, in all, worth a line.
WORTH = 500
TELL = 250_000
# Bounds: tasks, and different imports or functions of one.
TASKS = 64
KINDS = 64
# Bytes of the summary, and how much of each list it has.
SUMMARY = 6_000
LISTED = 12


class AdviceRow(msgspec.Struct):
    """One task.

    Attributes:
        jobs: that ended since the first one here; ``profiled``: first starts that were watched.
        imports: microseconds in all of them, by module.
        functions: the same below functions that may be set-up, by ``module:function``.
    """

    kind: Kind
    jobs: int = 0
    profiled: int = 0
    imports: Counter[str] = msgspec.field(default_factory=Counter[str])
    functions: Counter[str] = msgspec.field(default_factory=Counter[str])

    @property
    def certain(self) -> bool:
        """Whether it was seen often enough to be no accident: in a fork, twice is the least."""
        return self.profiled >= (2 if self.kind == "fork" else 1)

    @property
    def losses(self) -> list[tuple[str, int]]:
        count = max(1, self.profiled)
        return [(name, cost // count) for name, cost in (self.imports + self.functions).most_common()]

    @property
    def sums(self) -> tuple[int, int]:
        # The function that had most of the time had the others below it.
        lost = (self.imports.total() + max(self.functions.values(), default=0)) // max(1, self.profiled)
        # A fork child starts once, and only some were watched; other runners lose it once in their lives.
        return lost, lost * max(self.jobs, self.profiled) if self.kind == "fork" else lost * self.profiled


class Advice:
    """The startup profile of one worker.

    Attributes:
        rows: by task; the empty name is what happens outside of jobs.
        changed: the summary says something new.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.rows: dict[str, AdviceRow] = {}
        self.renew()
        self._enabled = enabled
        self._spawned: Counter[str] = Counter()
        self._born: dict[str, tuple[int, int]] = {}
        self._tell_at: Counter[str] = Counter()

    def renew(self) -> None:
        self.changed = bool(self.rows)

    def profiles(self, kind: Kind) -> bool:
        number, self._spawned[kind] = self._spawned[kind], self._spawned[kind] + 1
        return self._enabled and (number < FIRST or number % EACH == 0)

    def ended(self, task: str) -> None:
        row = self.rows.get(task)
        if row is not None:
            row.jobs += 1

    def on_found(self, task: str, kind: Kind, found: Found) -> None:
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
        self, task: str, kind: Kind, imports: list[tuple[str, int]], functions: list[tuple[str, int]], *, first: bool
    ) -> None:
        row = self.rows.get(task)
        if row is None:
            if len(self.rows) >= TASKS:
                return
            row = self.rows[task] = AdviceRow(kind)
        row.profiled += first
        for counts, told in ((row.imports, imports), (row.functions, functions)):
            for name, cost in told:
                if name in counts or len(counts) < KINDS:
                    counts[name] += cost
        self.changed = True

    # -- what to say ------------------------------------------------------------------------------------------------

    def _worth(self, *, functions: bool) -> list[str]:
        worth: Counter[str] = Counter()
        for row in self.rows.values():
            if row.certain:
                for name, cost in row.losses:
                    worth[name] = max(worth[name], cost)
        return [name for name, cost in worth.most_common() if cost >= WORTH and (":" in name) == functions][:LISTED]

    def lines(self) -> Iterator[str]:
        """What the log should say now: of each task once when it is worth it, then whenever that has doubled."""
        for task, row in self.rows.items():
            lost, total = row.sums
            if not row.certain or total < max(TELL, self._tell_at[task]):
                continue
            self._tell_at[task] = 2 * total
            parts = ", ".join(f"{name} {duration(cost)}" for name, cost in row.losses[:4])
            who = f"each first start of {task} in a runner" if task else f"each new {row.kind} runner"
            names, maybe = self._worth(functions=False), self._worth(functions=True)
            advice = [f"preload={_pasted(names)} does it once"] if names else []
            advice += [f"if {maybe[0]} is set-up, preload={_pasted(maybe[:1])} does that once"] if maybe else []
            verb = "may lose" if row.functions else "loses"
            yield (
                f"{who} {verb} {duration(lost)} to what every runner does again, "
                f"{duration(total)} so far: {parts}; " + "; ".join(advice)
            )

    def summary(self) -> str:
        """What people are shown of it, as JSON of bounded size; ``changed`` is over."""
        self.changed = False
        rows = [_shown(task, row) for task, row in self.rows.items()]
        rows = sorted((row for row in rows if row["lost"] >= WORTH), key=lambda row: -row["total"])[:LISTED]
        shown: dict[str, Any] = {
            "rows": rows,
            "preload": self._worth(functions=False),
            "maybe": self._worth(functions=True),
            "born": {kind: cost // count for kind, (count, cost) in self._born.items()},
        }
        text = msgspec.json.encode(shown)
        while len(text) > SUMMARY and shown["rows"]:
            shown["rows"].pop()
            text = msgspec.json.encode(shown)
        return text.decode()


def _pasted(names: list[str]) -> str:
    return msgspec.json.encode(names).decode()


def _shown(task: str, row: AdviceRow) -> dict[str, Any]:
    lost, total = row.sums
    return {
        "task": task, "kind": row.kind, "jobs": row.jobs, "profiled": row.profiled, "lost": lost, "total": total,
        "what": [[name, cost] for name, cost in row.losses[:LISTED]],
    }  # fmt: skip
