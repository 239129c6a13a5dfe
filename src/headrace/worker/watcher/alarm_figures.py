"""The figures of alarms, of one reading of the store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.model.alarm import FEWEST, AlarmRule
from headrace.protocol.overviews import Overview
from headrace.stats.engine_labels import TASKS, WRONG
from headrace.stats.reading import Bucket


class FoundFigure(NamedTuple):
    """A figure, and the queue or task that has it; empty for all of them."""

    value: float
    queue: str = ""
    task: str = ""


def label_of(rule: AlarmRule) -> str:
    """Where the starts that a share is of are counted."""
    return f"{TASKS}/{rule.task}" if rule.task else TASKS


def figure_of(rule: AlarmRule, seen: Overview, counted: Mapping[str, Bucket]) -> FoundFigure:
    """The figure of an alarm; ``counted``: of the last ten minutes, by label."""
    if rule.figure == "failed":
        return FoundFigure(_share(counted[label_of(rule)]), task=rule.task)
    if rule.figure == "workers":
        return FoundFigure(seen.served[rule.queue] if rule.queue else len(seen.live), rule.queue)
    values = [
        FoundFigure((queue.waited(seen.now) or 0.0) if rule.figure == "delay" else queue.size, queue.name)
        for queue in seen.queues
        if not queue.paused and rule.queue in ("", queue.name)
    ]
    return max(values, default=FoundFigure(0.0, rule.queue))


def _share(bucket: Bucket) -> float:
    wrong, started = sum(bucket[field] for field in WRONG), bucket["started"]
    return wrong / started if wrong >= FEWEST and started else 0.0
