"""Alert rules for Prometheus, made of the names in the table of metrics. Pure.

A board for Grafana, made of the names in the table of metrics. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec


class AlertRule(msgspec.Struct, frozen=True):
    """One alert.

    Attributes:
        expr: in PromQL.
        hold: for how long that must hold.
        severity: ``page`` where jobs wait or are lost, else ``ticket``.
        summary, description: for people, as Prometheus' templates.
        command: what answers in a terminal.
        page: what answers on the dashboard.
    """

    name: str
    expr: str
    hold: str
    severity: str
    summary: str
    description: str
    command: str
    page: str


_QUEUE = "headrace queues load {{ $labels.queue }}"
_QUEUE_PAGE = "/queues/{{ $labels.queue }}"
# Every worker with --metrics tells the same figures: the greatest of each counts, not their sum.
_ENDED = "sum by (task) (max by (task, outcome) (increase(headrace_task_jobs_total{}[10m])))"
_FAILED = _ENDED.format('{outcome=~"failed|crashed|quarantined"}')

RULES: tuple[AlertRule, ...] = (
    AlertRule(
        "HeadraceQueueSlow",
        "max by (queue) (headrace_queue_delay_seconds) > 60 and on(queue) headrace_queue_paused == 0",
        "5m", "page", "Jobs of {{ $labels.queue }} wait for {{ $value | humanizeDuration }}",
        "The next job of the queue waits for more than a minute: add workers, or find what keeps them busy. "
        "headrace_queue_held tells how many jobs wait behind limits.",
        _QUEUE, _QUEUE_PAGE,
    ),
    AlertRule(
        "HeadraceNoWorker",
        "max by (queue) (headrace_queue_ready) > 0 and on(queue) headrace_queue_workers == 0",
        "2m", "page", "No worker serves {{ $labels.queue }}",
        "Jobs wait in a queue that no live worker serves: start one with --queues {{ $labels.queue }}, or look for a "
        "wrong name.",
        "headrace queues list", _QUEUE_PAGE,
    ),
    AlertRule(
        "HeadraceClaimsStopped",
        "max by (queue) (headrace_queue_ready) > 0 and on(queue) headrace_queue_paused == 0 "
        "and on(queue) headrace_queue_workers > 0 and on(queue) headrace_queue_running == 0 "
        "unless on(queue) increase(headrace_queue_jobs_total[5m]) > 0 "
        "unless on(queue) (max by (queue) (headrace_queue_held) >= max by (queue) (headrace_queue_ready)) "
        # No metric tells of which kind the waiting jobs are, so each kind must have room.
        "unless on() (max by (kind) (headrace_runners_busy) >= max by (kind) (headrace_runner_slots))",
        "5m", "page", "Workers have room and take no job of {{ $labels.queue }}",
        "Jobs are ready that limits do not hold back, slots of each kind are free, and nothing of the queue ran for "
        "five minutes: collect the workers' logs and restart them.",
        _QUEUE, _QUEUE_PAGE,
    ),
    AlertRule(
        "HeadraceFailing",
        f"{_FAILED} > 10 and {_FAILED} / {_ENDED.format('')} > 0.05",
        "0m", "ticket", "{{ $value | humanize }} jobs of {{ $labels.task }} failed within ten minutes",
        "More than ten starts of the task failed for good or crashed, and more than 5 % of all.",
        "headrace jobs list --state failed --task {{ $labels.task }}", "/tasks/{{ $labels.task }}",
    ),
    AlertRule(
        "HeadraceQuarantined",
        'max(delta(headrace_jobs{state="quarantined"}[10m])) > 0',
        "0m", "ticket", "{{ $value | humanize }} jobs were quarantined",
        "Jobs crashed the process that ran them too often, or their record cannot be read. They hold the evidence.",
        "headrace jobs list --state quarantined", "/jobs?state=quarantined",
    ),
    AlertRule(
        "HeadraceParked",
        "max by (task) (headrace_task_parked) > 0",
        "5m", "ticket", "{{ $value }} jobs of {{ $labels.task }} are parked",
        "No worker that claimed them knows their task: start one whose code has it, or look for a wrong name.",
        "headrace jobs list --state parked", "/tasks/{{ $labels.task }}",
    ),
    AlertRule(
        "HeadraceWorkerSilent",
        "max(headrace_lapsed_lease_seconds) > 30",
        "1m", "page", "A worker fell silent {{ $value | humanizeDuration }} ago, and its jobs are not taken over",
        "Its lease is over and no live worker took its jobs over: start a worker.",
        "headrace workers list", "/workers",
    ),
    AlertRule(
        "HeadraceStoreFull",
        "max(headrace_server_memory_used_bytes / (headrace_server_memory_max_bytes > 0)) > 0.85",
        "5m", "page", "The server's memory is used to {{ $value | humanizePercentage }}",
        "When it is full, programs can enqueue no more: give it more memory, or keep results for a shorter time.",
        "headrace top --once", "/",
    ),
    AlertRule(
        "HeadraceStatsLost",
        "max(increase(headrace_stats_lost_total[10m])) > 0",
        "0m", "ticket", "{{ $value | humanize }} batches of statistics were lost",
        "The line of statistics was full: start headrace stats consume, or another one.",
        "headrace stats consume", "/",
    ),
    AlertRule(
        "HeadraceScheduleMissed",
        "max(headrace_schedule_overdue_seconds) > 60",
        "1m", "page", "A tick of a schedule is late by {{ $value | humanizeDuration }}",
        "Live workers fire schedules: start one, or look at its log.",
        "headrace cron list", "/schedules",
    ),
    AlertRule(
        "HeadraceBacklogGrows",
        "max by (queue) (headrace_queue_ready) > 100 and max by (queue) (headrace_queue_ready) > "
        "1.5 * max by (queue) (headrace_queue_ready offset 30m) and on(queue) headrace_queue_paused == 0",
        "30m", "ticket", "{{ $labels.queue }} holds {{ $value | humanize }} jobs, and grows",
        "For an hour more jobs came than were run: add workers, or find what makes so many.",
        _QUEUE, _QUEUE_PAGE,
    ),
)  # fmt: skip


def rules_document(dashboard: str = "") -> dict[str, Any]:
    """The rules as Prometheus reads them from a file.

    Args:
        dashboard: where the dashboard is; each alert then links to the page that answers.
    """
    return {"groups": [{"name": "headrace", "rules": [_told(rule, dashboard.rstrip("/")) for rule in RULES]}]}


def _told(rule: AlertRule, dashboard: str) -> dict[str, Any]:
    notes = {"summary": rule.summary, "description": rule.description, "command": rule.command}
    if dashboard:
        notes["dashboard"] = quote(dashboard, safe=":/") + rule.page
    labels = {"severity": rule.severity}
    return {"alert": rule.name, "expr": rule.expr, "for": rule.hold, "labels": labels, "annotations": notes}


def rules_file(dashboard: str = "") -> str:
    """The same as YAML. Its texts are written as JSON's, which are YAML's, too."""
    lines = ["groups:"]
    for group in rules_document(dashboard)["groups"]:
        lines += [f"  - name: {group['name']}", "    rules:"]
        for rule in group["rules"]:
            lines += [f"      - alert: {rule['alert']}", f"        expr: {json.dumps(rule['expr'])}"]
            lines += [f"        for: {rule['for']}"]
            for part in ("labels", "annotations"):
                lines.append(f"        {part}:")
                lines += [f"          {name}: {json.dumps(text)}" for name, text in rule[part].items()]
    return "\n".join(lines)


# Grafana's grid has 24 columns.
_WIDTH = 8
_HEIGHT = 8


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
