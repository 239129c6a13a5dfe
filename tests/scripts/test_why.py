from __future__ import annotations

import pytest

from headrace.model.ids import flow_id, make_id, node_id
from headrace.protocol import operations, produce
from headrace.protocol.keys import SCHEMA
from headrace.protocol.overviews import MOST_WORKERS, RunnerFacts, WhyFacts
from headrace.protocol.overviews import why as read
from headrace.tasks.edited_job import not_found
from headrace.tasks.reasons_of_state import scheduled
from headrace.worker.messages import before_start
from tests.scripts.asked import codes, runner_facts, says, why
from tests.scripts.graphs import Flow
from tests.scripts.stage import KEEP, SECOND, Stage

# -- it is not there, or over ---------------------------------------------------------------------------------------


def test_an_id_that_is_not_stored_is_unknown_and_tells_its_age(stage: Stage) -> None:
    stage.register()
    (id,) = stage.put()
    stage.run(produce.cancel(stage.keys, id, 0))
    stage.now += 5 * SECOND
    found = why(stage, id, trips=1)
    assert (found.state, found.code) == ("", "unknown")
    assert "made 5.0 s ago" in found.reasons[0].text


@pytest.mark.parametrize(
    ("hours", "over"),
    [
        (0.5, "; the id was made 30 min ago"),
        (2, "; the id was made 2 h ago, longer than result_ttl (60 min)"),
        (24 * 30, "; the id was made 30 days ago, longer than result_ttl (60 min) and failure_ttl (7 days)"),
    ],
)
def test_an_unknown_id_is_compared_with_the_retentions_that_may_have_ended_it(
    stage: Stage, hours: float, over: str
) -> None:
    stage.run(operations.greet(stage.keys, SCHEMA))
    id = stage.job().id
    stage.now += round(hours * 3600 * SECOND)
    (reason,) = why(stage, id, trips=1).reasons
    never = (
        "no job of this id is stored: it never existed here, it ended and its retention is over, or the server lost it"
    )
    assert reason.text == never + over
    assert reason.evidence["namespace"] == "hr"
    assert reason.evidence["schema"] != "none"
    assert (reason.evidence["result_ttl"], reason.evidence["failure_ttl"]) == (3600, 7 * 86_400)
    assert reason.next_step == "compare server, database and namespace with those of the worker"


def test_a_namespace_where_nothing_was_ever_stored_says_so(stage: Stage) -> None:
    (reason,) = why(stage, stage.job().id, trips=1).reasons
    assert reason.text.endswith("; nothing was ever stored under the namespace hr")
    assert reason.evidence["schema"] == "none"


def test_the_id_of_a_workflow_is_told_from_that_of_a_job(stage: Stage) -> None:
    id = flow_id(1, 1)
    assert why(stage, id, trips=1).reasons[0].next_step == f"headrace workflows show {id}"
    assert f"{id} is the id of a workflow, not of a job" in str(not_found(id))


def test_a_request_id_tells_which_job_it_made(stage: Stage) -> None:
    job = stage.job()
    stage.run(produce.enqueue(stage.keys, [job], "sender", 1, ["order-7"]))
    found = why(stage, "order-7")
    assert (found.code, found.reasons[0].evidence) == ("unknown", {"job": job.id})
    assert found.reasons[0].next_step == f"headrace jobs why {job.id}"


def test_a_node_that_is_not_stored_tells_of_its_workflow(stage: Stage) -> None:
    flow = Flow(stage, "a").made()
    assert f"; its workflow {flow.id} is stored" in why(stage, node_id(flow.id, 9)).reasons[0].text
    gone = flow_id(1, 1)
    assert f"; its workflow {gone} is not stored either" in why(stage, node_id(gone, 9)).reasons[0].text


@pytest.mark.parametrize("kind", ["succeeded", "failed", "corrupt", "cancelled"])
def test_a_job_that_has_ended_says_how(stage: Stage, kind: str) -> None:
    id = stage.finished(kind, b'{"type":"ValueError","message":"no","attempt":1,"signal":9}')
    stage.now += SECOND
    (reason,) = why(stage, id).reasons
    assert reason.code == "ended"
    assert "1.0 s ago" in reason.text
    if kind != "succeeded":
        assert "ValueError: no" in reason.text
        assert (reason.evidence["error"], reason.evidence["signal"]) == ("ValueError", 9)


def test_a_job_that_expired_before_its_start_says_so(stage: Stage) -> None:
    claim = stage.running(expires=SECOND)
    ended = before_start(claim, stage.now + 2 * SECOND, KEEP)
    assert ended is not None
    stage.end(claim, ended.kind, ended.data)
    reason = why(stage, claim.id).reasons[0]
    assert reason.text == "it has ended: cancelled 0.0 s ago, Expired: it did not start before its time was over"
    assert reason.evidence["error"] == "Expired"


@pytest.mark.parametrize(("plan", "said"), [("a>b:k", "since a is failed"), ("c>b", "its condition did not hold")])
def test_a_skipped_node_says_for_which_parent(stage: Stage, plan: str, said: str) -> None:
    flow = Flow(stage, plan).started()
    flow.play(a="failed", b="skipped")
    found = why(stage, flow["b"])
    assert (found.state, found.code) == ("skipped", "ended")
    assert said in found.reasons[0].text


# -- it runs ----------------------------------------------------------------------------------------------------------


def test_a_job_that_runs_says_where_and_since_when(stage: Stage) -> None:
    claim = stage.running()
    stage.now += SECOND
    (reason,) = why(stage, claim.id, trips=1).reasons
    assert (reason.code, reason.text) == ("runs", "it runs on host:w1 since 1.0 s")
    assert reason.evidence == {"worker": "w1", "since_us": claim.token}


def test_a_claimed_job_that_no_runner_runs_was_sent_ahead(stage: Stage) -> None:
    stage.register(tasks={"add": "process"})
    first, second = stage.running(), stage.running()
    stage.now += SECOND
    runner = RunnerFacts(kind="process", pid=7, job=first.id, task="add", since=first.token, holds=2)
    says(stage, "sizes", "process:1", "runner_facts", runner_facts(runner))
    assert codes(stage, first.id) == ["runs"]
    assert why(stage, first.id).reasons[0].evidence["pid"] == 7
    reason = why(stage, second.id).reasons[0]
    assert (reason.code, reason.evidence["job"]) == ("sent_ahead", first.id)
    assert f"one of them runs add ({first.id}) since 1.0 s" in reason.text


def test_a_job_whose_worker_is_silent_says_who_takes_it_back(stage: Stage) -> None:
    claim = stage.running()
    stage.now += 16 * SECOND
    reason = why(stage, claim.id).reasons[0]
    assert (reason.code, reason.evidence["workers"]) == ("owner_silent", 0)
    assert "ended 1.0 s ago, and no worker lives to take the job back" in reason.text
    stage.register("w2")
    stage.now += 6 * SECOND
    assert "another worker takes the job back" in why(stage, claim.id).reasons[0].text


def test_a_job_that_was_asked_to_stop_says_so(stage: Stage) -> None:
    claim = stage.running()
    stage.run(produce.cancel(stage.keys, claim.id, KEEP))
    found = why(stage, claim.id)
    assert (found.code, found.reasons[0].evidence) == ("asked_to_stop", {"worker": "w1", "told": True})


def test_a_job_whose_soft_limit_is_over_says_when_it_is_killed(stage: Stage) -> None:
    stage.register(tasks={"add": "process"})
    claim = stage.running()
    stage.now += 5 * SECOND
    facts = {"kind": "process", "job": claim.id, "task": "add", "since": claim.token, "holds": 1}
    soft, kill = stage.now - 2 * SECOND, stage.now + 8 * SECOND
    says(stage, "runner_facts", runner_facts(RunnerFacts(**facts, soft=soft, kill=kill)))  # type: ignore[arg-type]
    reason = why(stage, claim.id).reasons[0]
    said = "it runs on host:w1, and its soft limit was over 2.0 s ago: it is interrupted, and killed in 8.0 s"
    assert (reason.code, reason.text) == ("asked_to_stop", said)
    assert reason.evidence == {"worker": "w1", "told": True, "soft_us": soft, "kill_us": kill}
    stage.run(produce.cancel(stage.keys, claim.id, KEEP))
    says(stage, "runner_facts", runner_facts(RunnerFacts(**facts, kill=kill)))  # type: ignore[arg-type]
    assert why(stage, claim.id).reasons[0].text.endswith("was asked to stop: it is interrupted, and killed in 8.0 s")


# -- it waits for a time ----------------------------------------------------------------------------------------------


def test_a_delayed_job_says_when_it_is_due(stage: Stage) -> None:
    (id,) = stage.put(delay=90 * SECOND)
    (reason,) = why(stage, id, trips=1).reasons
    assert (reason.code, reason.text) == ("scheduled", "it is due in 90.0 s")
    assert reason.evidence["due_us"] == stage.now + 90 * SECOND


@pytest.mark.parametrize(
    ("kind", "said"), [("retry", ": retry 1, after ValueError: no"), ("snoozed", ": it was snoozed")]
)
def test_a_retry_and_a_snooze_say_so(stage: Stage, kind: str, said: str) -> None:
    claim = stage.running()
    stage.end(claim, kind, b'{"type":"ValueError","message":"no"}', 5 * SECOND)
    assert why(stage, claim.id).reasons[0].text == f"it is due in 5.0 s{said}"


def test_a_job_of_another_shard_may_have_been_snoozed_for_a_limit() -> None:
    record, place = {"st": "scheduled", "snoozes": "4"}, {"score": str(5 * SECOND)}
    said = [scheduled(WhyFacts(make_id(1, 1, shard), 0, record=record, place=place)).sentence for shard in (0, 1)]
    assert said[0] == "it is due in 5.0 s: it was snoozed 4 times"
    full = ", by its task or since a limit was full on the first shard: headrace limits list says which are"
    assert said[1] == said[0] + full


def test_a_due_job_that_no_worker_made_ready_is_overdue(stage: Stage) -> None:
    (id,) = stage.put(delay=SECOND)
    stage.now += 2 * SECOND
    reason = why(stage, id).reasons[0]
    assert (reason.code, reason.text) == (
        "overdue", "it was due 1.0 s ago, and no worker lives that would make it ready",
    )  # fmt: skip
    stage.register()
    assert codes(stage, id) == ["scheduled"]
    stage.now += 5 * SECOND
    assert codes(stage, id) == ["overdue", "scheduled"]


# -- its queue, its workflow ------------------------------------------------------------------------------------------


def test_a_paused_queue_is_told_with_the_end_of_the_pause(stage: Stage) -> None:
    stage.register(tasks={"add": "process"})
    (id,) = stage.put()
    stage.run(operations.pause(stage.keys, "default", 5 * SECOND))
    reason = why(stage, id).reasons[0]
    assert (reason.code, reason.text) == ("queue_paused", "queue default is paused for another 5.0 s")
    stage.run(operations.pause(stage.keys, "default", 0))
    assert why(stage, id).reasons[0].text == "queue default is paused"
    stage.run(operations.pause(stage.keys, "default", 0, "the bank is shut"))
    reason = why(stage, id).reasons[0]
    assert (reason.text, reason.evidence["note"]) == ("queue default is paused (the bank is shut)", "the bank is shut")
    assert why(stage, id).reasons[0].next_step == "headrace queues resume default lets its jobs start"


def test_a_pause_and_a_cancellation_tell_who_made_them(stage: Stage) -> None:
    acts = [("pause", "queues", "default low"), ("cancel", "jobs", ""), ("pause", "queues", "mail")]
    first, second = stage.put(2)
    for n, (verb, kind, name) in enumerate(acts):
        fields = {"who": f"person-{n}", "by": "cli", "verb": verb, "kind": kind, "name": name or second}
        stage.run(operations.tell(stage.keys, "acts", f"r{n}", fields))
    stage.run(operations.pause(stage.keys, "default", 0))
    stage.run(produce.cancel(stage.keys, second, KEEP))
    paused, cancelled = why(stage, first).reasons[0], why(stage, second).reasons[0]
    assert (paused.text, paused.evidence["by"]) == ("queue default is paused, by person-0", "person-0")
    assert cancelled.text.endswith("cancelled before it started, by person-1")


def test_a_node_of_a_workflow_that_is_not_started(stage: Stage) -> None:
    flow = Flow(stage, "a>b").made()
    for name in ("a", "b"):
        assert why(stage, flow[name]).code == "workflow_not_started"


def test_a_node_of_a_stopped_workflow(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.stop()
    stage.take()
    found = why(stage, flow["a"])
    assert (found.state, found.code) == ("stopped", "workflow_stopped")
    assert why(stage, flow["b"]).code == "workflow_stopped"
    who = {"who": "ada", "by": "cli", "verb": "stop", "kind": "workflows", "name": flow.id}
    stage.run(operations.tell(stage.keys, "acts", "r", who))
    for name in ("a", "b"):
        reason = why(stage, flow[name]).reasons[0]
        assert (reason.text, reason.evidence["by"]) == (f"its workflow {flow.id} is stopped, by ada", "ada")
        assert reason.evidence["at_us"]


# -- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.mangles
@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "parked", "stopped", "blocked", "dancing"])
def test_a_record_that_is_not_where_its_state_says_is_not_consistent(stage: Stage, state: str) -> None:
    (id,) = stage.put()
    stage.client.zrem(stage.keys("ready:default"), id)
    stage.client.hset(stage.keys.job(id), mapping={"st": state, "owner": "w1", "key": "k"})
    assert why(stage, id).code == "not_consistent"


@pytest.mark.mangles
def test_a_record_of_another_type_is_not_consistent(stage: Stage) -> None:
    (id,) = stage.put()
    stage.client.delete(stage.keys.job(id))
    stage.client.set(stage.keys.job(id), "alien")
    found = why(stage, id)
    assert (found.state, found.code, found.reasons[0].evidence["type"]) == ("", "not_consistent", "string")


@pytest.mark.mangles
def test_alien_facts_are_read_as_nothing(stage: Stage) -> None:
    (id,) = stage.put()
    stage.register()
    alien = b"\xff\x00{"
    said = ("place", "queues", "sizes", "runner_facts", "lease", "first", "weights")
    stage.client.hset(stage.keys("owner:w1"), mapping=dict.fromkeys(said, alien))
    stage.client.hset(stage.keys.job(id), mapping=dict.fromkeys(("token", "crashes", "priority", "error"), alien))
    assert why(stage, id).reasons
    (worker,) = stage.run(read(stage.keys, id)).workers
    assert (worker.size, worker.held, worker.claimed) == (0, 0, stage.now)


def test_no_more_workers_are_looked_at_than_it_says(stage: Stage) -> None:
    (id,) = stage.put(queue="mail")
    for number in range(MOST_WORKERS + 3):
        stage.register(f"w{number}")
    found = stage.run(read(stage.keys, id))
    assert (found.live, len(found.workers)) == (MOST_WORKERS + 3, MOST_WORKERS)
    assert "none of the 100 workers that were looked at serves queue mail; 103 live" in str(why(stage, id))
