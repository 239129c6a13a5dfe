from __future__ import annotations

import msgspec
import pytest

from headrace.model.job import JobError, error_json
from headrace.model.job_record import cause_id
from headrace.protocol import consume, operations
from headrace.protocol.operations import KEPT_FOR, told
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row
from tests.scripts.graphs import Flow
from tests.scripts.stage import KEEP, SECOND, Stage

DAY = 86400 * SECOND

ERRORS = [
    JobError(type="ValueError", message="no: 0x1f and 12\nsecond line"),
    JobError(type="ValueError", message="no: 10x1f", where="tasks.py:8 in mean"),
    JobError(type="Crashed", message="died", signal=9, exit_code=-9),
    JobError(type="Corrupt"),
    JobError(type="OSError", message="grün " * 40 + "5"),
    JobError(type="KeyError", message="'a\"b\\c'", where="a:5 in b:6 in c"),
    JobError(
        type="A", message='","traceback":"\\', traceback='File "a"\n","attempt":5 \\', attempt=2, where="a:5 in b"
    ),
    JobError(type="B", message="a long way", traceback="without an attempt", signal=9, stderr='","attempt":7'),
    JobError(type="C", message="died", attempt=1, signal=9),
]


def happened(stage: Stage, *kinds: str) -> list[dict[str, str]]:
    return [fields for _, fields in stage.run(told(stage.keys, "events", 1000, desc=False, kinds=kinds)).rows]


def test_success_cancellation_and_retries_tell_nothing(stage: Stage) -> None:
    stage.register()
    before = happened(stage)
    for kind in ("succeeded", "cancelled", "retry", "snoozed", "released", "interrupted"):
        stage.end(stage.running(), kind, b"{}")
        for id in stage.ready():
            stage.client.zrem(stage.keys("ready:default"), id)
            stage.client.delete(stage.keys.job(id))
    assert happened(stage) == before
    stage.client.flushall()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.message[:20] or error.type)
def test_a_failure_names_its_cause_as_python_does(stage: Stage, error: JobError) -> None:
    id = stage.finished("failed", error_json(error), queue="mail")
    (event,) = happened(stage, "failed")
    assert (event["job"], event["task"], event["queue"]) == (id, "add", "mail")
    assert event["cause"] == cause_id("add", error)
    assert event["error"].startswith(error.type)
    assert "\n" not in event["error"]
    assert len(event["error"].encode()) <= 203
    assert set(stage.members("causes")) == {event["cause"]}
    assert 0 < stage.client.ttl(stage.keys("events")) <= KEPT_FOR["events"]


def test_a_cause_is_new_once_and_back_after_a_day(stage: Stage) -> None:
    error = error_json(ERRORS[0])
    for _ in range(3):
        stage.finished("failed", error)
    assert len(happened(stage, "failed")) == 3
    assert len(happened(stage, "cause_new")) == 1
    first = stage.now
    stage.now += DAY + SECOND
    stage.finished("failed", error, queue="later")
    (back,) = happened(stage, "cause_back")
    assert (back["last"], back["queue"]) == (str(first), "later")
    assert len(happened(stage, "cause_new")) == 1


def test_a_thousand_causes_are_known_at_most(stage: Stage) -> None:
    stage.client.zadd(stage.keys("causes"), {f"c{n}": n + 1 for n in range(1000)})
    stage.client.hset(stage.keys("cause:c0"), "number", 1)
    stage.finished("failed", error_json(ERRORS[0]))
    causes = stage.members("causes")
    assert len(causes) == 1000
    assert "c0" not in causes
    assert not stage.client.exists(stage.keys("cause:c0"))
    assert "c1" in causes


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b"null", b'{"type": 5, "message": [], "where": {}, "signal": "x"}']
)
def test_an_error_that_cannot_be_read_is_told_too(stage: Stage, data: bytes) -> None:
    id = stage.finished("failed", data)
    assert [event["job"] for event in happened(stage, "failed")] == [id]
    assert stage.state(id) == "failed"


def test_a_job_that_crashed_too_often_and_one_that_cannot_be_read_are_told(stage: Stage) -> None:
    dead = stage.running(max_crashes=2)
    stage.end(dead, "crashed", error_json(ERRORS[2]))
    assert happened(stage, "quarantined") == []
    (dead,) = stage.take()
    stage.end(dead, "crashed", error_json(ERRORS[2]))
    bad = stage.finished("corrupt", error_json(ERRORS[3]), queue="mail")
    found = [(event["job"], event["queue"], event["error"], event["cause"]) for event in happened(stage, "quarantined")]
    assert found == [
        (dead.id, "default", "Crashed: died", cause_id("add", ERRORS[2])),
        (bad, "mail", "Corrupt", cause_id("add", ERRORS[3])),
    ]


def test_a_workflow_that_ends_badly_is_told_once_and_no_other(stage: Stage) -> None:
    for ends in ({}, {"a": "failed"}, {"b": "corrupt"}):
        flow = Flow(stage, "a>b").started()
        flow.play(**ends)
    cancelled = Flow(stage, "a>b").started()
    cancelled.cancel()
    found = [event["workflow"] for event in happened(stage, "workflow_failed")]
    assert len(found) == 2
    assert found[1] == flow.id
    # Tried again it may fail again.
    flow.retry()
    flow.play(b="failed")
    assert [event["workflow"] for event in happened(stage, "workflow_failed")] == [*found, flow.id]


def test_ticks_that_were_missed_are_told_together_and_a_pause_for_failures_is_too(stage: Stage) -> None:
    put(stage, row("late"), row("broken", pause_after=1))
    fire(stage)
    stage.now = FIRST
    assert fire(stage).ran == 2
    for claim in stage.take():
        stage.end(claim, "failed", error_json(ERRORS[0]))
    assert happened(stage, "schedule_missed") == []
    stage.now = FIRST + MINUTE
    assert fire(stage).ran == 1
    stage.now = FIRST + 10 * MINUTE + 40 * SECOND
    fire(stage)
    found = [(event["schedule"], event["count"], event["why"]) for event in happened(stage, "schedule_missed")]
    assert found == [("late", "8", "a later tick was due")]
    (paused,) = happened(stage, "schedule_paused")
    assert (paused["schedule"], paused["why"]) == ("broken", "1 jobs failed, one after the other")


def test_ten_thousand_events_are_kept(stage: Stage) -> None:
    pipe = stage.client.pipeline()
    for _ in range(10_300):
        pipe.xadd(stage.keys("events"), {"kind": "failed"})
    pipe.execute()
    stage.finished("failed", error_json(ERRORS[0]))
    assert 10_000 <= stage.client.xlen(stage.keys("events")) < 10_200
    ((_, newest),) = stage.client.xrevrange(stage.keys("events"), count=1)
    assert newest[b"kind"] == b"cause_new"


def test_a_task_is_parked_once(stage: Stage) -> None:
    stage.put(3)
    stage.settle(*(stage.outcome(claim, "parked") for claim in stage.take()))
    (event,) = happened(stage, "parked")
    assert (event["task"], event["queue"]) == ("add", "default")


def test_workers_come_leave_and_die(stage: Stage) -> None:
    stage.register("w1", queues="a,b")
    stage.run(consume.retire(stage.keys, "w1"))
    stage.run(consume.retire(stage.keys, "w1"))
    stage.register("w3")
    stage.run(consume.retire(stage.keys, "w3", why="its supervisor died"))
    stage.running("w2")
    stage.run(consume.reclaim(stage.keys, "w2", True, 500, KEEP))
    stage.run(consume.reclaim(stage.keys, "w2", True, 500, KEEP))
    found = [(event["kind"], event["worker"], event.get("queues", event.get("why"))) for event in happened(stage)]
    assert found == [
        ("worker_started", "w1", "a,b"),
        ("worker_stopped", "w1", None),
        ("worker_started", "w3", "default"),
        ("worker_lost", "w3", "its supervisor died"),
        ("worker_started", "w2", "default"),
        ("worker_lost", "w2", "its process died"),
    ]


def test_a_pause_begins_and_ends_once(stage: Stage) -> None:
    stage.run(operations.pause(stage.keys, "a", SECOND))
    stage.run(operations.pause(stage.keys, "a", 2 * SECOND))
    stage.now += 3 * SECOND
    stage.run(operations.resume_due(stage.keys, 10))
    stage.run(operations.resume(stage.keys, "a"))
    stage.run(operations.pause(stage.keys, "b"))
    stage.run(operations.resume(stage.keys, "b"))
    found = [(event["kind"], event["queue"], event.get("until", "")) for event in happened(stage)]
    assert found == [
        ("queue_paused", "a", str(stage.now - 2 * SECOND)),
        ("queue_resumed", "a", ""),
        ("queue_paused", "b", "0"),
        ("queue_resumed", "b", ""),
    ]


def test_a_batch_of_failures_costs_four_commands_each_at_most(stage: Stage) -> None:
    def cost(count: int, kind: str) -> int:
        stage.put(count)
        claims = stage.take()
        before = stage.commands()
        stage.settle(*(stage.outcome(claim, kind, error_json(ERRORS[0])) for claim in claims))
        return stage.commands() - before

    for kind in ("failed", "cancelled"):  # to load scripts, and know the cause
        cost(1, kind)
    failed = cost(101, "failed") - cost(1, "failed")
    cancelled = cost(101, "cancelled") - cost(1, "cancelled")
    # One that counts the failure, one that reads the task, one that counts it of its cause, and one that tells.
    # The last one is amid a flood, of which a cause keeps no ids.
    assert 3 * 100 <= failed - cancelled <= 4 * 100 + 1
    assert msgspec.json.decode(error_json(ERRORS[0]))


def test_a_flood_of_one_cause_does_not_push_other_events_out(stage: Stage) -> None:
    error = error_json(ERRORS[0])
    stage.put(1002)
    for claims in (stage.take(limit=501), stage.take(limit=501)):
        stage.settle(*(stage.outcome(claim, "failed", error) for claim in claims))
    assert [event.get("count") for event in happened(stage, "failed")] == [None] * 100 + ["1000"]
    # Another cause, and the next minute, are told of.
    stage.finished("failed", error_json(ERRORS[1]))
    assert len(happened(stage, "failed")) == 102
    stage.now += 60 * SECOND
    stage.finished("failed", error)
    assert len(happened(stage, "failed")) == 103
    assert 0 < stage.client.ttl(stage.keys("floods")) <= 120
