from __future__ import annotations

import pytest

from headrace.model.ids import OWN_QUEUE, ordered_id
from headrace.model.job import JobError, error_json
from headrace.protocol import operations
from headrace.protocol.operations import DueCall, due_calls, pause, store_own
from tests.scripts.stage import KEEP, SECOND, Stage
from tests.scripts.test_own_store import claim_own, own_id, store

HOOK = "hook:tasks.told"
ERROR = error_json(JobError(type="ValueError", message="no"))


def ask(stage: Stage, *kinds: str, limit: int = 100) -> DueCall:
    (found,) = stage.run(due_calls(stage.keys, [(HOOK, SECOND, list(kinds))], limit))
    return found


def line_up(stage: Stage, call: DueCall, name: str) -> str:
    """Store the job of a call as a dispatcher does."""
    id = ordered_id(own_id(name))
    fields = {"task": "headrace.hook.tasks.told", "args": b"\x92\x90\x80", "key": "told"}
    return stage.run(store_own(stage.keys, id, fields, key="told", hook=HOOK, was=call.was, at=call.last))


def pauses(stage: Stage, *queues: str) -> None:
    for queue in queues:
        stage.run(pause(stage.keys, queue))


def test_a_new_hook_begins_with_what_happens_from_now_on(stage: Stage) -> None:
    pauses(stage, "before")
    assert ask(stage).rows == []
    pauses(stage, "after")
    found = ask(stage)
    assert [fields["queue"] for _, fields in found.rows] == ["after"]
    assert found.last == found.rows[0][0] != found.was


def test_each_event_is_in_one_call_and_the_next_one_waits_for_its_end(stage: Stage) -> None:
    ask(stage, "queue_paused")
    pauses(stage, "a", "b")
    first, second = ask(stage, "queue_paused"), ask(stage, "queue_paused")
    assert first == second
    assert line_up(stage, first, "1") == "stored"
    # Another dispatcher had read the same.
    assert line_up(stage, second, "2") == "moved"
    assert len(stage.ready(OWN_QUEUE)) == 1
    pauses(stage, "c")
    stage.now += 2 * SECOND
    assert not ask(stage, "queue_paused").due
    (claim,) = claim_own(stage)
    assert not ask(stage, "queue_paused").due
    stage.end(claim, "succeeded", b"\xc0", 0)
    third = ask(stage, "queue_paused")
    assert [fields["queue"] for _, fields in third.rows] == ["c"]


def test_a_hook_is_called_once_a_second_at_most(stage: Stage) -> None:
    ask(stage)
    pauses(stage, "a")
    line_up(stage, ask(stage), "1")
    (claim,) = claim_own(stage)
    stage.end(claim, "failed", ERROR, KEEP)
    pauses(stage, "b")
    stage.now += SECOND - 1
    assert not ask(stage).due
    stage.now += 1
    assert ask(stage).due
    # The clock was set back.
    stage.now -= 3600 * SECOND
    assert ask(stage).due


@pytest.mark.parametrize("limit", [1, 2])
def test_a_call_has_so_many_events_of_its_kinds(stage: Stage, limit: int) -> None:
    ask(stage, "failed")
    for n in range(3):
        pauses(stage, f"q{n}")
        stage.finished("failed", ERROR)
    found = ask(stage, "failed", limit=limit)
    assert [fields["kind"] for _, fields in found.rows] == ["failed"] * limit
    # What it does not want it does not read again.
    assert found.last == found.rows[-1][0]
    assert ask(stage, "queue_resumed").rows == []
    assert ask(stage, "queue_resumed").last == stage.run(operations.told(stage.keys, "events", 0)).newest


def test_what_happens_to_built_in_jobs_calls_no_hook(stage: Stage) -> None:
    ask(stage)
    store(stage, "7")
    (claim,) = claim_own(stage)
    stage.end(claim, "failed", ERROR, KEEP)
    assert {fields.get("queue", "") for _, fields in ask(stage).rows} <= {""}


def test_one_dispatcher_looks_at_alarms_when_the_time_has_come(stage: Stage) -> None:
    def due() -> bool:
        (one,) = stage.run(due_calls(stage.keys, [("alarms", 10 * SECOND, [])], 9))
        assert one.rows == []
        return one.due

    assert (due(), due()) == (True, False)
    pauses(stage, "a")
    stage.now += 10 * SECOND - 1
    assert not due()
    stage.now += 1
    assert (due(), due()) == (True, False)


def test_what_no_worker_declares_is_kept_for_a_week(stage: Stage) -> None:
    ask(stage)
    for key in ("watches", f"watch:{HOOK}"):
        assert 0 < stage.client.ttl(stage.keys(key)) <= 7 * 86400
