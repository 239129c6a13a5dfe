"""Alert rules for Prometheus and a board for Grafana, which are the data files beside this module.

Every worker with ``--metrics`` tells the same figures: expressions take the greatest of each, not their sum. An alert
is a ``page`` where jobs wait or are lost, else a ``ticket``; its annotations name the command and the page of the
dashboard that answer. A test compares all names with the table of metrics.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.model import activity

_FILES = Path(__file__).parent


def rules_document(dashboard: str = "") -> dict[str, Any]:
    """The rules as Prometheus reads them from a file. ``dashboard``: where the dashboard is; each alert then links to
    the page that answers.
    """
    text = (_FILES / "alert_rules.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(re.sub(r"<([A-Z_]+)>", lambda name: f"{getattr(activity, name[1]):g}", text))
    for rule in document["groups"][0]["rules"]:
        page = rule["annotations"].pop("dashboard")
        if dashboard:
            rule["annotations"]["dashboard"] = quote(dashboard.rstrip("/"), safe=":/") + page
    return document


def rules_file(dashboard: str = "") -> str:
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


def board() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((_FILES / "board.json").read_text("utf-8"))
    return document
