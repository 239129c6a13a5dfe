"""Advice about set-up that each runner of a worker repeats: its costs, its remedy, and ``preload=auto``.

1. :class:`Advice`: sums per task, of one dispatcher, bounded for any task. Sends nothing: the sums go out as a fact of
   the worker with its next renewal, and the names learned go to the store, for the next start.
2. :class:`Learned` and :func:`apply_learned`: ``preload=auto``: the set-up that earlier runs of an application learned
   is done before the first fork. Owns the form in the store: a line ``TASK NAME`` for set-up that a task's starts
   repeated, and ``TASK NAME WHY`` for set-up that must not be done before the fork.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from headrace.app import Headrace
from headrace.errors import HeadraceError
from headrace.model.notation import duration
from headrace.model.options import Kind
from headrace.protocol import operations
from headrace.settings import AUTO, preload_names
from headrace.worker.forking import lifecycle_hooks
from headrace.worker.forking.standard_streams import log
from headrace.worker.messages import Found
from headrace.worker.preload import warmup
from headrace.worker.preload.warmup import UNRELATED, WORK

# The first runners of each kind are profiled, then one in so many.
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


class Learned(msgspec.Struct, frozen=True):
    """What came of what earlier runs learned.

    Attributes:
        done: what this worker did before its first fork, with microseconds.
        refused: what must not be done there, with the reason.
    """

    done: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    refused: dict[str, str] = msgspec.field(default_factory=dict[str, str])


NOTHING = Learned()


class AdviceRow(msgspec.Struct):
    """One task.

    Attributes:
        kind: of its runners.
        jobs: that ended since the first one here.
        profiled: first starts that were watched.
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
        """What one first start loses, in microseconds, by name; the dearest first."""
        count = max(1, self.profiled)
        return [(name, cost // count) for name, cost in (self.imports + self.functions).most_common()]

    @property
    def sums(self) -> tuple[int, int]:
        """Microseconds that one first start loses, and all starts so far."""
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

    def __init__(self, learned: Learned, *, enabled: bool, auto: bool) -> None:
        self.rows: dict[str, AdviceRow] = {}
        self._learned = learned
        self.renew()
        self._enabled = enabled
        self._auto = auto
        self._spawned: Counter[str] = Counter()
        self._born: dict[str, tuple[int, int]] = {}
        self._written: set[str] = set()
        self._tell_at: Counter[str] = Counter()

    def renew(self) -> None:
        """Nobody was told anything: a new incarnation begins."""
        self.changed = bool(self.rows or self._learned.done or self._learned.refused)

    def profiles(self, kind: Kind) -> bool:
        """Whether the next runner of this kind is to be profiled."""
        number, self._spawned[kind] = self._spawned[kind], self._spawned[kind] + 1
        return self._enabled and (number < FIRST or number % EACH == 0)

    def ended(self, task: str) -> None:
        row = self.rows.get(task)
        if row is not None:
            row.jobs += 1

    def heard(self, task: str, kind: Kind, found: Found) -> None:
        """A profiled runner said what it found in a start."""
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
                if name not in self._learned.refused and (name in counts or len(counts) < KINDS):
                    counts[name] += cost
        self.changed = True

    # -- what to say ------------------------------------------------------------------------------------------------

    def _worth(self, *, functions: bool) -> list[str]:
        """What each first start loses most to, of those that are worth doing before; modules, or functions."""
        worth: Counter[str] = Counter()
        for row in self.rows.values():
            if row.certain:
                for name, cost in row.losses:
                    worth[name] = max(worth[name], cost)
        return [name for name, cost in worth.most_common() if cost >= WORTH and (":" in name) == functions][:LISTED]

    def learned(self) -> list[str]:
        """What is to be written down for the next start, and was not yet: ``TASK NAME``, in the order of trial."""
        names = set(self._worth(functions=False) + self._worth(functions=True))
        lines = [
            f"{task} {name}"
            for task, row in self.rows.items()
            # In the order in which they are to be tried: the cheapest first.
            for name, _ in reversed(row.losses)
            if name in names and f"{task} {name}" not in self._written
        ]
        self._written.update(lines)
        return lines

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
            advice = [f"preload={msgspec.json.encode(names).decode()} does it once"] if names else []
            advice += [f"--preload auto finds out at the next start whether {maybe[0]} is set-up"] if maybe else []
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
        refused = [(name, why) for name, why in self._learned.refused.items() if why not in (WORK, UNRELATED)]
        shown: dict[str, Any] = {
            "auto": self._auto,
            "rows": rows,
            "preload": self._worth(functions=False),
            "maybe": self._worth(functions=True),
            "done": dict(list(self._learned.done.items())[:LISTED]),
            "refused": dict(refused[-LISTED:]),
            "born": {kind: cost // count for kind, (count, cost) in self._born.items()},
        }
        text = msgspec.json.encode(shown)
        while len(text) > SUMMARY and shown["rows"]:
            shown["rows"].pop()
            shown["refused"] = {}
            text = msgspec.json.encode(shown)
        return text.decode()


def _shown(task: str, row: AdviceRow) -> dict[str, Any]:
    lost, total = row.sums
    return {
        "task": task, "kind": row.kind, "jobs": row.jobs, "profiled": row.profiled, "lost": lost, "total": total,
        "what": [[name, cost] for name, cost in row.losses[:LISTED]],
    }  # fmt: skip


def apply_learned(app: Headrace) -> Learned:
    """With ``preload=auto``: try in a child what earlier runs learned, and do here what stands the trial.

    Call it in the process that forks, after its warm-up and before it forks. Its store connection is closed again.

    Cost: one round trip; another one if something was refused.
    """
    if AUTO not in preload_names(app.settings.preload):
        return NOTHING
    keys = app.client.keys
    try:
        lines = app.client.run(operations.learned(keys))
        wanted, refused = _sorted_out(lines, app.tasks.keys())
        app.disconnect()
        verdicts = _tried(app, wanted)
        news = {name: word for name, word in verdicts.items() if word != warmup.WARM}
        if news:
            app.client.run(operations.learn(keys, [f"{wanted[name]} {name} {word}" for name, word in news.items()]))
            app.disconnect()
    except HeadraceError as error:
        log.warning("what earlier runs learned is not known: %s", error, code="preload.unknown")
        return NOTHING
    done = {name: cost for name, word in verdicts.items() if word == warmup.WARM and (cost := _do(name)) is not None}
    if done:
        shown = ", ".join(f"{name} ({duration(cost)})" for name, cost in done.items())
        log.info("done before the fork, since earlier runs did it in each runner: %s", shown, code="preload.done")
    return Learned(done, refused | news)


def _sorted_out(lines: Iterable[str], tasks: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """What to try, with a task that needs it, in the order of trial; and what was refused before, with the reason."""
    # The empty name: what runners did outside of jobs.
    known = {"", *tasks}
    rows = [row for line in lines if len(row := line.split(" ", 2)) > 1 and row[0] in known]
    refused = {row[1]: row[2] for row in rows if len(row) == 3}
    wanted = {row[1]: row[0] for row in rows if row[1] not in refused and row[1] not in sys.modules}
    # Modules before functions, and packages before what is in them.
    order = sorted(wanted, key=lambda name: (":" in name, 0 if ":" in name else name.count(".")))
    return {name: wanted[name] for name in order}, refused


def _tried(app: Headrace, names: Iterable[str]) -> warmup.Verdicts:
    """The verdicts on all; after an import that left something behind, the rest is tried in another child."""
    verdicts: warmup.Verdicts = {}
    never = {task.function for task in app.tasks.values()}
    left = list(names)
    warmup.write_out()
    while left:
        try:
            found = warmup.attempt(left, never)
        except OSError as error:
            log.warning("no trial can be forked (%s): nothing more is preloaded", error, code="preload.no_trial")
            break
        if not found:
            break
        verdicts |= found
        left = [name for name in left if name not in verdicts]
    return verdicts


def _do(name: str) -> int | None:
    """Do what stood the trial; the microseconds that it took, or None if it failed all the same."""
    before, began = lifecycle_hooks.look(), time.monotonic_ns()
    try:
        warmup.preload(name)
    except (Exception, SystemExit):
        log.exception("the preload of %s failed, which its trial had not", name, code="preload.failed")
        return None
    cost = (time.monotonic_ns() - began) // 1000
    for complaint in warmup.complaints(f"the preload of {name}", before):
        log.error("%s", complaint, code="setup.unsafe")
    return cost
