"""The labels under which workers count: what each holds, in which units, and how long.

Pure. Jobs are counted twice, by task and by queue, under labels that have nothing above them in common: a sum over
both would count each job twice.
"""

from __future__ import annotations

from headrace.stats.resolutions import DAY, Level, Resolutions

# Below each: a task, a queue, a worker's host and pid.
TASKS, QUEUES, WORKERS = "jobs", "queues", "workers"
ALL = (TASKS, QUEUES, WORKERS)
# How a start ended: fields of tasks and of queues.
OUTCOMES = (
    "succeeded", "failed", "retried", "snoozed", "cancelled", "crashed", "interrupted", "quarantined", "skipped",
    "parked", "limited",
)  # fmt: skip
# How a start ended that gave its job no result.
WRONG = ("failed", "crashed", "quarantined")
UNITS = {"run": "seconds", "wait": "seconds", "busy": "microseconds", "memory": "bytes"}
# What is counted of a worker stays no longer, seconds: each start is another label.
WORKER_KEEP = 7 * DAY


def queue_label(queue: str) -> str:
    """Where the jobs of a queue are counted; what was broadcast to workers, each of which has a queue, is ``@``."""
    return f"{QUEUES}/{'@' if queue[0] == '@' else queue}"


def unit_of(label: str, field: str) -> str:
    """What a field of a label is counted in; empty for what is a mere number, and for labels of a program's own."""
    return UNITS.get(field, "") if label.partition("/")[0] in ALL else ""


def workers_layout(layout: Resolutions) -> Resolutions:
    """How long what is counted of workers is kept: the resolutions finer than a day, each a week at most."""
    fine = [level for level in layout.levels if 0 < level.cut.step < DAY] or layout.levels[:1]
    return Resolutions(tuple(Level(level.cut, min(level.keep, WORKER_KEEP)) for level in fine), layout.slot)
