"""What the tests of the statistics' scripts share: counts to send, and looks at what is stored."""

from __future__ import annotations

from typing import Any

from headrace.protocol import stats_calls
from headrace.protocol.stats_calls import Applied, Counts
from tests.scripts.stage import START, Stage

NOW = START // 1_000_000
DATE = ("2023111422", NOW + 3600)
"""The hour of the stage's clock, and a bucket's end."""


def counts(label: str = "a", index: dict[str, dict[str, int]] | None = None, **fields: int) -> Counts:
    return Counts({DATE: {label: fields}}, index or {})


def add(stage: Stage, number: int, what: Counts, sender: str = "s") -> Applied:
    return stage.run(stats_calls.add(stage.keys, sender, number, what))


def held(stage: Stage, label: str = "a", date: str = DATE[0]) -> dict[str, int]:
    found: dict[Any, Any] = stage.client.hgetall(stage.keys(f"stat:{date}:{label}"))
    return {field.decode(): int(n) for field, n in found.items()}


def fresh(stage: Stage) -> None:
    """Let the stage's clock be the server's: keys that expire by the server's time must live."""
    seconds, micro = stage.client.time()
    stage.now = seconds * 1_000_000 + micro
