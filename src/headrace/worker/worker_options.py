"""What one worker was asked to be: a record that the command line fills and supervisor and dispatcher read."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.options import OWN, OWN_AT_ONCE, Kind

if TYPE_CHECKING:
    from headrace.tasks.task import Task

# Which option says how many jobs of a kind run at once.
COUNTS = {"process": "processes", "fork": "forks", "thread": "threads", "async": "concurrency"}

# Kinds whose jobs share a process; a runner of the others runs one job at a time.
SHARED = ("thread", "async")


def kinds_of(tasks: Mapping[str, Task[..., Any, Any]]) -> tuple[Kind, ...]:
    """Which kinds of runners a worker of these tasks has, besides that of Headrace's own jobs; one at least."""
    kinds: set[Kind] = {task.kind for task in tasks.values() if task.kind != OWN}
    return tuple(sorted(kinds)) or ("process",)


def usable_cores(groups: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup") -> int:
    """How many cores this process may use, by its affinity and the limit of its control group; half a core is one."""
    count = getattr(os, "process_cpu_count", os.cpu_count)() or 1  # from Python 3.13 on
    if hasattr(os, "sched_getaffinity"):
        count = min(count, len(os.sched_getaffinity(0)))
    return max(1, min([count, *_group_cores(groups, mounted)]))


def _group_cores(groups: str, mounted: str) -> list[int]:
    try:
        lines = Path(groups).read_text().splitlines()
    except OSError:
        return []
    found: list[int] = []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has no controllers here. Where both versions are mounted, it has a directory of its own.
        root = Path(mounted, controllers)
        group = root / path.strip("/")
        # A container may see its own group as the root, whatever the path says: a group that is absent has no limit.
        for place in (group, *group.parents):
            if not place.is_relative_to(root):
                break
            with suppress(OSError, ValueError):
                if controllers:
                    quota, period = ((place / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    quota, period = (place / "cpu.max").read_text().split()
                if int(quota) > 0:  # "max" and -1 are no limit
                    found.append(math.ceil(int(quota) / int(period)))
    return found


class QueueOrder(msgspec.Struct, frozen=True):
    """The queues that a worker serves, in the order of preference; ``weights``: chances of coming first."""

    names: tuple[str, ...] = ("default",)
    weights: tuple[float, ...] = ()

    def draw_order(self, randoms: list[float]) -> tuple[str, ...]:
        if not self.weights:
            return self.names
        drawn = zip(self.names, self.weights, randoms, strict=True)
        return tuple(name for name, _, _ in sorted(drawn, key=lambda row: row[2] ** (1 / row[1]), reverse=True))


def parse_queues(text: str) -> QueueOrder:
    """``high,low`` (strict order) or ``high:3,low:1`` (weights). Raises OptionsError."""
    names: list[str] = []
    weights: list[float] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part:
            raise OptionsError(f"{part!r} names no queue: write a weight behind a colon: {part.replace('=', ':', 1)}")
        name, colon, weight = part.rpartition(":")
        if colon and weight.removeprefix("-").replace(".", "", 1).isdecimal():
            if float(weight) <= 0:
                raise OptionsError(f"the weight in {part!r} must be more than 0")
            weights.append(float(weight))
        else:
            name = part
        names.append(check_name("queue", name))
    if not names:
        raise OptionsError("name at least one queue, such as --queues default")
    if len(set(names)) != len(names):
        raise OptionsError(f"a queue is named twice in {text!r}")
    if weights and len(weights) != len(names):
        raise OptionsError(
            f"{text!r} gives weights to some queues only: give one to each (high:3,low:1) or to none (high,low)"
        )
    return QueueOrder(tuple(names), tuple(weights))


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One worker.

    Attributes:
        processes: process runners; forks: children at once that run one job each; threads: threads of the one thread
            runner; concurrency: coroutines at once of the one async runner. A kind that no task uses is not started.
        queues: what it serves.
        burst: leave when the queues are empty.
        max_jobs: leave after this many jobs; 0 means never.
        max_idle: leave when there was nothing to run for this many seconds; 0 means never.
        recycle_jobs: a runner is replaced after this many jobs; 0 means never.
        recycle_memory: a runner is replaced when its peak resident memory exceeds this many bytes; 0 means never.
        quiet: claim nothing.
    """

    processes: int = msgspec.field(default_factory=usable_cores)
    forks: int = 2
    threads: int = 16
    concurrency: int = 100
    queues: QueueOrder = msgspec.field(default_factory=QueueOrder)
    burst: bool = False
    max_jobs: int = 0
    max_idle: float = 0.0
    recycle_jobs: int = 0
    recycle_memory: int = 0
    quiet: bool = False

    def __post_init__(self) -> None:
        ends = ("max_jobs", "max_idle", "recycle_jobs", "recycle_memory")
        for name in ("processes", "forks", "threads", "concurrency", *ends):
            if getattr(self, name) < 0:
                raise OptionsError(f"{name.replace('_', ' ')} must be 0 or more, not {getattr(self, name)}")
        if max(self.processes, self.forks, self.threads) > 1024 or self.concurrency > 100_000:
            raise OptionsError(
                "at most 1,024 runners or threads and 100,000 coroutines a worker: start more workers instead"
            )

    def jobs_at_once(self, kind: Kind) -> int:
        return OWN_AT_ONCE if kind == OWN else int(getattr(self, COUNTS[kind]))

    def resized(self, kind: Kind, size: int) -> WorkerOptions:
        """The same with this many of a kind at once. Raises OptionsError: a worker cannot have this many, or none."""
        if size < 1:
            raise OptionsError(f"a worker that has {kind} runners keeps one at least: stop the worker instead")
        count: dict[str, Any] = {COUNTS[kind]: size}
        return replace(self, **count)

    def runners(self, kind: Kind) -> int:
        return min(self.jobs_at_once(kind), 1) if kind in SHARED else self.jobs_at_once(kind)

    def slots(self, kind: Kind) -> int:
        return self.jobs_at_once(kind) if kind in SHARED else 1
