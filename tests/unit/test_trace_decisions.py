"""Which starts are children of their senders."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.propagate", reason="the extra otel is not installed")

from headrace.model.headers import SCHEDULE
from headrace.model.ids import flow_id, make_id, node_id
from headrace.model.job import Claim
from headrace.tasks.traces import LINK, is_child

JOB, NODE = make_id(1, 1), node_id(flow_id(1, 1), 1)
MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("id", "facts", "headers", "auto", "parent"),
    [
        (JOB, {}, {}, True, True),
        (JOB, {"ready": 5}, {}, True, True),
        (JOB, {"ready": 1, "token": MINUTE + 2}, {}, False, True),
        (JOB, {}, {LINK: "1"}, False, True),
        (JOB, {"failures": 1}, {}, False, False),
        (JOB, {"snoozes": 1}, {}, False, False),
        (JOB, {"crashes": 1}, {}, False, False),
        (JOB, {"interruptions": 1}, {}, False, False),
        (JOB, {}, {SCHEDULE: "nightly"}, False, False),
        (NODE, {"ready": 1, "token": 100 * MINUTE}, {LINK: "1"}, True, True),
        (NODE, {"failures": 1}, {}, False, False),
    ],
)
def test_child_or_link(id: str, facts: dict[str, int], headers: dict[str, str], auto: bool, parent: bool) -> None:
    claim = Claim(**{"id": id, "token": 10, "queue": "q", "ready": 1, "task": "t", "args": b"", **facts})  # type: ignore[arg-type]
    assert is_child(claim, headers, "auto") is auto
    assert is_child(claim, headers, "parent") is parent
    assert not is_child(claim, headers, "link")
