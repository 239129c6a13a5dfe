"""The startup profile: the set-up that each runner repeats after its fork, its cost, and advice about it.

A candidate is a function of a module that can be called without arguments, and either was on the stack or names one of
its module that was: the public way into a set-up is rarely the way by which a job came into it. Nothing is called. See
docs/design/warmth.md.
"""

from __future__ import annotations

import functools
import importlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import msgspec

from headrace.context import current_job
from headrace.errors import NoCurrentJob
from headrace.model.notation import duration
from headrace.model.options import Kind
from headrace.worker.child_process import only_wake
from headrace.worker.messages import Found

_CACHED: Any = type(functools.cache(int))
# More of one start are not told: such functions are rare.
MOST = 12


class Hot(NamedTuple):
    """A function that a first start spent time in: its module, qualified name, first line, and microseconds."""

    module: str
    name: str
    line: int
    cost: int


def candidates(hot: Sequence[Hot], never: Collection[object] = ()) -> list[tuple[str, int]]:
    """``module:function`` by the shortest module that has it, with the microseconds spent below it. Those first that
    people are meant to call; of these the narrowest, which do least besides. ``never``: such as tasks.
    """
    by_module: dict[str, list[Hot]] = {}
    for one in hot:
        by_module.setdefault(one.module, []).append(one)
    found: dict[str, int] = {}
    for name, told in by_module.items():
        module = sys.modules.get(name)
        if module is None or name in ("__main__", "builtins"):
            continue
        for attribute, value in list(vars(module).items()):
            code = _code(value)
            if code is None or value.__module__ != name:
                continue
            costs = [one.cost for one in told if _leads(code, one)]
            if costs and value not in never and getattr(value, "__wrapped__", value) not in never:
                found[_shortest(name, attribute, value)] = max(costs)
    return sorted(found.items(), key=lambda one: (one[0].rpartition(":")[2].startswith("_"), one[1], one[0]))[:MOST]


def _code(value: Any) -> CodeType | None:
    function = value.__wrapped__ if isinstance(value, _CACHED) else value
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    needed = code.co_argcount - len(function.__defaults__ or ())
    needed += code.co_kwonlyargcount - len(function.__kwdefaults__ or {})
    # Coroutines and generators do nothing when they are called.
    runs = not code.co_flags & (0x20 | 0x80 | 0x200)
    return code if needed == 0 and runs and code.co_qualname == code.co_name else None


def _leads(code: CodeType, hot: Hot) -> bool:
    if (code.co_qualname, code.co_firstlineno) == (hot.name, hot.line):
        return True
    # A function of the module itself, no method and nothing local: only those are found by their bare name.
    return "." not in hot.name and hot.name in code.co_names


def _shortest(module: str, attribute: str, value: object) -> str:
    parts = module.split(".")
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        outer = sys.modules.get(package)
        if isinstance(outer, ModuleType) and vars(outer).get(attribute) is value:
            return f"{package}:{attribute}"
    return f"{module}:{attribute}"


# Seconds of the process's own time between two looks at the stack; the kernel's tick may be longer.
TICK = 0.001
# A first start is watched for this many looks: what comes before its work, not all of a long job.
LOOKS = 3000
# Functions of one start that are told, deeper frames that are looked at, and different ones that are counted.
TOLD = 48
DEEP = 200
COUNTED = 2000
# What had less of a start's time than this share is not worth telling.
SHARE = 0.1
IMPORTS = 64


class StartupProfiler:
    """What one runner found; ``noted``: there is something that was not told."""

    def __init__(self, never: Collection[object] = ()) -> None:
        self.noted = self._first = False
        self._never = never
        self._known: set[str] = set()
        self._imports: list[tuple[int, str, int]] = []
        self._functions: list[tuple[str, int]] = []
        self._sampler = Sampler()

    def begin(self, task: str) -> bool:
        """Watch a start if it is the first of its task here; then call :meth:`end` when its code has ended."""
        if task in self._known:
            return False
        self._known.add(task)
        self._sampler.start()
        return True

    def end(self) -> None:
        self._functions = candidates(self._sampler.stop(), self._never)
        self._first = self.noted = True

    def imported(self, name: str, microseconds: int) -> None:
        try:
            number = current_job().number
        except NoCurrentJob:
            number = 0
        if len(self._imports) < IMPORTS:
            self._imports.append((number, name, microseconds))
            self.noted = True

    def found(self, number: int) -> Found:
        told, self._imports = self._imports, [one for one in self._imports if one[0] not in (0, number)]
        own = [(name, cost) for owner, name, cost in told if owner == number]
        early = [(name, cost) for owner, name, cost in told if owner == 0]
        found = Found(number, self._first, own, early, self._functions)
        self._first, self._functions = False, []
        self.noted = bool(self._imports)
        return found


def clock_imports(tell: Callable[[str, int], None]) -> None:
    """Call ``tell`` with each module that the code itself imports from now on, and the microseconds that it took;
    nothing of one that failed. The import system comes here for modules only that are not there yet.
    """
    system: Any = vars(importlib).get("_bootstrap")
    real = getattr(system, "_find_and_load", None)
    if real is None:
        # Another Python may have another import system: then imports are not told.
        return
    inside: set[int] = set()

    def find_and_load(name: str, *rest: Any) -> Any:
        thread = threading.get_ident()
        if thread in inside:
            return real(name, *rest)
        inside.add(thread)
        began = time.monotonic_ns()
        try:
            module = real(name, *rest)
        finally:
            inside.discard(thread)
        if name in sys.modules and not name.startswith("headrace."):
            tell(name, (time.monotonic_ns() - began) // 1000)
        return module

    system._find_and_load = find_and_load  # noqa: SLF001 - the one place that only real imports pass


class Sampler:
    """Looks at the main thread's stack while the process computes. Its timer counts the process's own time: it does not
    ring while the code waits, so no system call is interrupted.
    """

    def __init__(self) -> None:
        self._counts: dict[CodeType, list[Any]] = {}
        self._looks = 0
        self._runs = False
        self._began = 0.0
        self._main = threading.current_thread() is threading.main_thread()

    def start(self) -> None:
        # Who uses this signal itself is not disturbed.
        handler = signal.getsignal(signal.SIGVTALRM)
        if not self._main or handler not in (signal.SIG_DFL, only_wake, self._sample):
            return
        if handler != self._sample:
            # It stays: a last ring that is on its way would end the process otherwise.
            signal.signal(signal.SIGVTALRM, self._sample)
        self._counts = {}
        self._looks = 0
        self._runs = True
        self._began = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, TICK, TICK)

    def stop(self) -> list[Hot]:
        """The functions that had a good part of the time, inclusive of what they called, longest first."""
        if not self._runs:
            return []
        self._runs = False
        if signal.getsignal(signal.SIGVTALRM) == self._sample:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        looks, counts = self._looks, self._counts
        if looks < 2:
            return []
        cost = (time.process_time() - self._began) * 1e6 / looks
        hot = [(count, module, code) for code, (count, module) in counts.items() if count >= max(2, looks * SHARE)]
        hot.sort(key=lambda one: -one[0])
        return [Hot(module, c.co_qualname, c.co_firstlineno, round(count * cost)) for count, module, c in hot[:TOLD]]

    def _sample(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the form of a handler
        if not self._runs:
            return
        self._looks += 1
        if self._looks >= LOOKS:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        counts, seen = self._counts, set[CodeType]()
        for _ in range(DEEP):
            if frame is None:
                return
            code, module = frame.f_code, frame.f_globals.get("__name__")
            if module == "headrace.worker.runner.execute":
                return
            if code not in seen and isinstance(module, str):
                seen.add(code)
                if code in counts:
                    counts[code][0] += 1
                elif len(counts) < COUNTED:
                    counts[code] = [1, module]
            frame = frame.f_back


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
        self._tell_at: Counter[str] = Counter()

    def renew(self) -> None:
        self.changed = bool(self.rows)

    def profiles(self, kind: Kind) -> bool:
        number, self._spawned[kind] = self._spawned[kind], self._spawned[kind] + 1
        return self._enabled and (number < FIRST or number % EACH == 0)

    def ended(self, task: str) -> None:
        if task in self.rows:
            self.rows[task].jobs += 1

    def on_found(self, task: str, kind: Kind, found: Found) -> None:
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
            sure, likely = (msgspec.json.encode(some).decode() for some in (names, maybe[:1]))
            advice = [f"preload={sure} does it once"] if names else []
            advice += [f"if {maybe[0]} is set-up, preload={likely} does that once"] if maybe else []
            verb = "may lose" if row.functions else "loses"
            yield (
                f"{who} {verb} {duration(lost)} to what every runner does again, "
                f"{duration(total)} so far: {parts}; " + "; ".join(advice)
            )

    def summary(self) -> str:
        """The document of ``headrace workers startup --json``, of bounded size; ``changed`` is over."""
        self.changed = False
        rows = [_shown(task, row) for task, row in self.rows.items() if row.sums[0] >= WORTH]
        shown: dict[str, Any] = {
            "tasks": sorted(rows, key=lambda row: -row["lost"])[:LISTED],
            "preload": self._worth(functions=False),
            "maybe": self._worth(functions=True),
        }
        text = msgspec.json.encode(shown)
        while len(text) > SUMMARY and shown["tasks"]:
            shown["tasks"].pop()
            text = msgspec.json.encode(shown)
        return text.decode()


def _shown(task: str, row: AdviceRow) -> dict[str, Any]:
    lost, total = row.sums
    return {
        "task": task, "kind": row.kind, "jobs": row.jobs, "profiled": row.profiled, "lost_each": lost / 1e6,
        "lost": total / 1e6, "to": {name: cost / 1e6 for name, cost in row.losses[:LISTED]},
    }  # fmt: skip
