"""Each alert rule on a course of figures, played by Prometheus' own promtool: when it fires, and when it must not."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.metrics import rules_document

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool on this machine")

RULES = rules_document()["groups"][0]["rules"]
# All is well: minute by minute for three hours, as promtool writes it. Two workers tell the same figures.
QUEUE, TASK = '{queue="mail"}', '{task="send"}'
CALM = {
    f"headrace_queue_delay_seconds{QUEUE}": "5x180",
    f"headrace_queue_paused{QUEUE}": "0x180",
    f"headrace_queue_ready{QUEUE}": "50x180",
    f"headrace_queue_workers{QUEUE}": "2x180",
    f"headrace_queue_running{QUEUE}": "3x180",
    'headrace_queue_jobs_total{queue="mail",outcome="succeeded"}': "0+60x180",
    'headrace_task_jobs_total{task="send",outcome="succeeded"}': "0+60x180",
    'headrace_task_jobs_total{task="send",outcome="failed"}': "0+1x180",
    'headrace_jobs{state="quarantined"}': "4x180",
    f"headrace_task_parked{TASK}": "0x180",
    "headrace_lapsed_lease_seconds": "0x180",
    "headrace_server_memory_used_bytes": "80x180",
    "headrace_server_memory_max_bytes": "100x180",
    "headrace_stats_lost_total": "7x180",
    "headrace_schedule_overdue_seconds": "0x180",
    'headrace_runners_busy{kind="process"}': "3x180",
    'headrace_runner_slots{kind="process"}': "8x180",
}
_MAIL, _SEND = {"queue": "mail"}, {"task": "send"}
_IDLE = {
    f"headrace_queue_running{QUEUE}": "0x180",
    'headrace_queue_jobs_total{queue="mail",outcome="succeeded"}': "9x180",
}
_PAUSED = {f"headrace_queue_paused{QUEUE}": "1x180"}
# What changes, the labels of the alert (None: it must not fire), and the minute by which it does.
COURSES: dict[str, list[tuple[dict[str, str], dict[str, str] | None, int]]] = {
    "HeadraceQueueSlow": [
        ({f"headrace_queue_delay_seconds{QUEUE}": "90x180"}, None, 4),
        ({f"headrace_queue_delay_seconds{QUEUE}": "90x180"}, _MAIL, 6),
        ({f"headrace_queue_delay_seconds{QUEUE}": "90x180", **_PAUSED}, None, 60),
    ],
    "HeadraceNoWorker": [
        ({f"headrace_queue_workers{QUEUE}": "0x180"}, _MAIL, 3),
        ({f"headrace_queue_workers{QUEUE}": "0x180", f"headrace_queue_ready{QUEUE}": "0x180"}, None, 60),
    ],
    "HeadraceClaimsStopped": [
        (_IDLE, _MAIL, 12),
        ({**_IDLE, **_PAUSED}, None, 60),
        # All of its jobs wait behind limits, then one does not.
        ({**_IDLE, f"headrace_queue_held{QUEUE}": "50x180"}, None, 60),
        ({**_IDLE, f"headrace_queue_held{QUEUE}": "49x180"}, _MAIL, 12),
        ({**_IDLE, 'headrace_runners_busy{kind="process"}': "8x180"}, None, 60),
        # Coroutines are free, and the jobs that wait need a process.
        (
            {
                **_IDLE,
                'headrace_runners_busy{kind="process"}': "8x180",
                'headrace_runners_busy{kind="async"}': "0x180",
                'headrace_runner_slots{kind="async"}': "100x180",
            },
            None,
            60,
        ),
        # Another kind alone, which is free as well, hides nothing.
        (
            {
                **_IDLE,
                'headrace_runners_busy{kind="async"}': "0x180",
                'headrace_runner_slots{kind="async"}': "100x180",
            },
            _MAIL,
            12,
        ),
        ({f"headrace_queue_running{QUEUE}": "0x180"}, None, 60),
    ],
    "HeadraceFailing": [
        ({'headrace_task_jobs_total{task="send",outcome="failed"}': "0+6x180"}, _SEND, 20),
        # A first burst; many, and few of all; most of all, and few.
        ({'headrace_task_jobs_total{task="send",outcome="failed"}': "0x60 60x120"}, _SEND, 62),
        ({'headrace_task_jobs_total{task="send",outcome="failed"}': "0+2x180"}, None, 60),
        (
            {
                'headrace_task_jobs_total{task="send",outcome="failed"}': "0x60 5x120",
                'headrace_task_jobs_total{task="send",outcome="succeeded"}': "9x180",
            },
            None,
            62,
        ),
    ],
    "HeadraceQuarantined": [
        ({'headrace_jobs{state="quarantined"}': "4x60 5x120"}, {}, 62),
        ({'headrace_jobs{state="quarantined"}': "5x60 4x120"}, None, 62),
    ],
    "HeadraceParked": [({f"headrace_task_parked{TASK}": "2x180"}, _SEND, 6)],
    "HeadraceWorkerSilent": [({"headrace_lapsed_lease_seconds": "0x20 40+60x60"}, {}, 23)],
    "HeadraceStoreFull": [
        ({"headrace_server_memory_used_bytes": "90x180"}, {}, 6),
        ({"headrace_server_memory_used_bytes": "90x180", "headrace_server_memory_max_bytes": "0x180"}, None, 60),
    ],
    "HeadraceShardAway": [({"headrace_shards_away": "0x20 1x60"}, {}, 23)],
    "HeadraceStatsLost": [({"headrace_stats_lost_total": "7x60 9x120"}, {}, 62)],
    "HeadraceScheduleMissed": [({"headrace_schedule_overdue_seconds": "0x20 70+60x60"}, {}, 23)],
    "HeadraceBacklogGrows": [
        ({f"headrace_queue_ready{QUEUE}": "50+20x180"}, _MAIL, 70),
        ({f"headrace_queue_ready{QUEUE}": "1+0.5x180"}, None, 170),
        ({f"headrace_queue_ready{QUEUE}": "50+20x180", **_PAUSED}, None, 70),
    ],
}


def series(figures: dict[str, str]) -> list[dict[str, str]]:
    """As two workers tell them."""
    found: list[dict[str, str]] = []
    for name, values in figures.items():
        family, _, labels = name.partition("{")
        for worker in "ab":
            more = f",{labels.rstrip('}')}" if labels else ""
            found.append({"series": f'{family}{{instance="{worker}"{more}}}', "values": values})
    return found


def course(alert: str, changed: dict[str, str], labels: dict[str, str] | None, minute: int) -> dict[str, Any]:
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in RULES}[alert]
    fires = [] if labels is None else [{"exp_labels": {**labels, "severity": severity}}]
    asked = [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": fires}]
    return {"interval": "1m", "input_series": series({**CALM, **changed}), "alert_rule_test": asked}


def play(tmp_path: Path, *courses: dict[str, Any]) -> None:
    assert PROMTOOL is not None
    document = rules_document()
    for rule in document["groups"][0]["rules"]:
        del rule["annotations"]
    (tmp_path / "rules.json").write_text(json.dumps(document))
    asked = {"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": courses}
    (tmp_path / "test.json").write_text(json.dumps(asked))
    played = subprocess.run(
        [PROMTOOL, "test", "rules", "test.json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert played.returncode == 0, played.stdout + played.stderr


def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    play(tmp_path, *(course(rule["alert"], {}, None, minute) for rule in RULES for minute in (5, 30, 90, 170)))


def test_each_alert_has_a_course() -> None:
    assert list(COURSES) == [rule["alert"] for rule in RULES]


@pytest.mark.parametrize("alert", COURSES)
def test_an_alert_fires_when_it_is_to_and_not_else(alert: str, tmp_path: Path) -> None:
    play(tmp_path, *(course(alert, *one) for one in COURSES[alert]))
