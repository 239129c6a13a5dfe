"""A board for Grafana, made of the names in the table of metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

# Grafana's grid has 24 columns.
_WIDTH, _HEIGHT = 8, 8


class BoardPanel(msgspec.Struct, frozen=True):
    """One panel.

    Attributes:
        unit: as Grafana calls it.
        exprs: what each line shows, with its legend.
    """

    title: str
    unit: str
    exprs: tuple[tuple[str, str], ...]


# Every worker with --metrics tells the same figures: the greatest of each is shown, not their sum.
_MATCH = '{queue=~"$queue"}'


def _queue(name: str) -> str:
    return f"max by (queue) ({name}{_MATCH})"


def _rate(by: str, name: str, keep: str) -> str:
    return f"sum by ({by}) (max by ({keep}) (rate({name}[$__rate_interval])))"


def _p95(by: str, name: str) -> str:
    return f"histogram_quantile(0.95, sum by (le, {by}) (rate({name}[$__rate_interval])))"


_WRONG = 'headrace_task_jobs_total{outcome=~"failed|crashed|quarantined|retried"}'
_WAIT = f"headrace_queue_wait_seconds_bucket{_MATCH}"

PANELS: tuple[BoardPanel, ...] = (
    BoardPanel("Jobs by state", "short", (
        ('max by (state) (headrace_jobs{state=~"ready|running|scheduled|blocked|parked"})', "{{state}}"),)),
    BoardPanel("Ends per second", "ops", (
        (_rate("outcome", "headrace_queue_jobs_total", "queue, outcome"), "{{outcome}}"),)),
    BoardPanel("Failed and quarantined, kept", "short", (
        ('max by (state) (headrace_jobs{state=~"failed|quarantined"})', "{{state}}"),)),
    BoardPanel("Delay of the next job", "s", ((_queue("headrace_queue_delay_seconds"), "{{queue}}"),)),
    BoardPanel("Ready", "short", ((_queue("headrace_queue_ready"), "{{queue}}"),)),
    BoardPanel("Running, and due within a minute", "short", (
        (_queue("headrace_queue_running"), "{{queue}} runs"), (_queue("headrace_queue_due"), "{{queue}} due"))),
    BoardPanel("Come and ended per second", "ops", (
        (_rate("queue", f"headrace_queue_enqueued_total{_MATCH}", "queue"), "{{queue}} come"),
        (_rate("queue", f"headrace_queue_jobs_total{_MATCH}", "queue, outcome"), "{{queue}} ended"))),
    BoardPanel("Wait, 95 of 100", "s", ((_p95("queue", _WAIT), "{{queue}}"),)),
    BoardPanel("Paused, and workers that serve", "short", (
        (_queue("headrace_queue_paused"), "{{queue}} paused"),
        (_queue("headrace_queue_workers"), "{{queue}} workers"))),
    BoardPanel("Behind limits", "short", (
        (_queue("headrace_queue_held"), "{{queue}} held"),
        ("max by (limit) (headrace_limit_waiting)", "{{limit}} waiting"))),
    BoardPanel("Limits that are open, and paused", "short", (
        ("max by (limit) (headrace_limit_open)", "{{limit}} open"),
        ("max by (limit) (headrace_limit_paused)", "{{limit}} paused"))),
    BoardPanel("Run, 95 of 100", "s", (
        (f"topk(10, {_p95('task', 'headrace_task_run_seconds_bucket')})", "{{task}}"),)),
    BoardPanel("Time in tasks", "s", (
        (f"topk(10, {_rate('task', 'headrace_task_run_seconds_sum', 'task')})", "{{task}}"),)),
    BoardPanel("Failures of tasks per second", "ops", (
        (f"topk(10, {_rate('task', _WRONG, 'task, outcome')})", "{{task}}"),)),
    BoardPanel("Slots", "short", (
        ("max by (kind) (headrace_runners_busy)", "{{kind}} busy"),
        ("max by (kind) (headrace_runner_slots)", "{{kind}} slots"),
        ("sum(max by (kind) (headrace_runners))", "runners"))),
    BoardPanel("Workers", "short", (("max(headrace_workers)", "live"), ("max(headrace_workers_silent)", "silent"))),
    BoardPanel("Busy runners of each worker", "short", (
        ("topk(20, max by (worker) (headrace_worker_running))", "{{worker}} jobs"),
        ("topk(20, max by (worker) (rate(headrace_worker_busy_seconds_total[$__rate_interval])))", "{{worker}} busy"))),
    BoardPanel("Memory of the server", "bytes", (
        ("max(headrace_server_memory_used_bytes)", "used"), ("max(headrace_server_memory_max_bytes) > 0", "most"),
        ("max(headrace_kept_bytes)", "kept results"))),
    BoardPanel("Late", "s", (
        ("max(headrace_schedule_overdue_seconds)", "schedules"), ("max(headrace_lapsed_lease_seconds)", "leases"),
        ("max(headrace_stats_lag_seconds)", "statistics"))),
    BoardPanel("Ticks of schedules per second", "ops", (
        (_rate("result", "headrace_schedule_ticks_total", "schedule, result"), "{{result}}"),)),
    BoardPanel("Parked", "short", (("max by (task) (headrace_task_parked)", "{{task}}"),)),
)  # fmt: skip


def board() -> dict[str, Any]:
    """The board, for Grafana's import. The data source is chosen there."""
    return {
        "title": "Headrace",
        "uid": "headrace",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_SOURCE, _QUEUES]},
        "panels": list(_panels()),
    }


_SOURCE = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"}
_DATA = {"type": "prometheus", "uid": "${source}"}
_QUEUES: dict[str, Any] = {
    "name": "queue", "type": "query", "label": "Queue", "datasource": _DATA, "multi": True, "includeAll": True,
    "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "refresh": 2,
    "query": {"query": "label_values(headrace_queue_workers, queue)", "refId": "queue"},
}  # fmt: skip


def _panels() -> Iterator[dict[str, Any]]:
    for number, panel in enumerate(PANELS):
        row, column = divmod(number, 3)
        yield {
            "id": number + 1,
            "type": "timeseries",
            "title": panel.title,
            "datasource": _DATA,
            "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(65 + n), "datasource": _DATA, "expr": expr, "legendFormat": legend}
                for n, (expr, legend) in enumerate(panel.exprs)
            ],
        }
