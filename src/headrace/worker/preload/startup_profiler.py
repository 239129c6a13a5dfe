"""A runner's part of the startup profile: the set-up that each runner repeats after its fork, and its cost.

Owns the clock around imports and the timer that samples first starts. Says what it found beside the end of the start
in which it found it; what that means is found out elsewhere (advice.py, trial.py). See docs/design/warmth.md.
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any

from headrace.context import current_job
from headrace.errors import NoCurrentJob
from headrace.worker.messages import Found
from headrace.worker.preload.candidates import Hot, candidates

# Seconds of the process's own time between two looks at the stack; the kernel's tick may be longer.
TICK = 0.001
# A first start is watched for so many looks: what comes before its work, not all of a long job.
LOOKS = 3000
# Functions of one start that are told, deeper frames that are looked at, and different ones that are counted.
TOLD, DEEP, KINDS = 48, 200, 2000
# What had less of a start's time than this share is not worth telling.
SHARE = 0.1
IMPORTS = 64


class StartupProfiler:
    """What one runner found.

    Attributes:
        noted: there is something that was not told.
    """

    def __init__(self, forked: int, never: Collection[object] = ()) -> None:
        """Begin in a runner that was just forked.

        Args:
            forked: when the supervisor began to fork it, nanoseconds of the monotonic clock.
            never: functions that are no set-up, such as those of tasks.
        """
        self.noted = True
        self._forked = forked
        self._never = never
        self._born = 0
        self._known: set[str] = set()
        self._imports: list[tuple[int, str, int]] = []
        self._functions: list[tuple[str, int]] = []
        self._first = False
        self._sampler = Sampler()

    def ready(self) -> None:
        self._born = (time.monotonic_ns() - self._forked) // 1000

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
        """A module was imported by user code, with all that it imports itself."""
        try:
            token = current_job().token
        except NoCurrentJob:
            token = 0
        if len(self._imports) < IMPORTS:
            self._imports.append((token, name, microseconds))
            self.noted = True

    def found(self, token: int) -> Found:
        """What was noted for a start, and what nobody's code did; it is not told again."""
        told, self._imports = self._imports, [one for one in self._imports if one[0] not in (0, token)]
        found = Found(
            token,
            self._born,
            self._first,
            [(name, cost) for owner, name, cost in told if owner == token],
            [(name, cost) for owner, name, cost in told if owner == 0],
            self._functions,
        )
        self._born, self._first, self._functions = 0, False, []
        self.noted = bool(self._imports)
        return found


def clock_imports(tell: Callable[[str, int], None]) -> None:
    """Call ``tell`` with each module that is imported from now on, and the microseconds that it took.

    Only what the code itself asks for is told, not what that imports in turn; and nothing that failed. Costs nothing
    while nothing is imported: the import system comes here for modules only that are not there yet.
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
    """Looks at the main thread's stack while the process computes.

    Its timer counts the process's own time: it does not ring while the code waits, so no system call is interrupted.
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
        if not self._main or handler not in (signal.SIG_DFL, self._look):
            return
        if handler == signal.SIG_DFL:
            # It stays: a last ring that is on its way would end the process otherwise.
            signal.signal(signal.SIGVTALRM, self._look)
        self._counts, self._looks, self._runs, self._began = {}, 0, True, time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, TICK, TICK)

    def stop(self) -> list[Hot]:
        """The functions that had a good part of the time, inclusive of what they called, longest first."""
        if not self._runs:
            return []
        self._runs = False
        if signal.getsignal(signal.SIGVTALRM) == self._look:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        looks, counts = self._looks, self._counts
        if looks < 2:
            return []
        cost = (time.process_time() - self._began) * 1e6 / looks
        hot = [(count, module, code) for code, (count, module) in counts.items() if count >= max(2, looks * SHARE)]
        hot.sort(key=lambda one: -one[0])
        return [
            Hot(module, code.co_qualname, code.co_firstlineno, round(count * cost))
            for count, module, code in hot[:TOLD]
        ]

    def _look(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the form of a handler
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
                elif len(counts) < KINDS:
                    counts[code] = [1, module]
            frame = frame.f_back
