from __future__ import annotations

import pytest

from headrace.model.form import Form
from headrace.model.job import StartNote
from headrace.protocol import consume, overviews, produce
from headrace.protocol import stats_calls as counts
from headrace.protocol.keys import Keys
from headrace.protocol.overviews import RunnerFacts
from headrace.settings import Settings
from headrace.stats.resolutions import layout_of
from tests.scripts.asked import codes, runner_facts, says, why
from tests.scripts.stage import SECOND, Stage

KNOWN = {"add": "process"}


def test_no_worker_lives_or_serves_the_queue(stage: Stage) -> None:
    (id,) = stage.put(queue="mail")
    reason = why(stage, id).reasons[0]
    assert (reason.code, reason.text) == ("no_worker_serves", "no worker lives")
    assert reason.next_step == "start one with headrace worker MODULE:APP --queues mail"
    stage.register("w1", queues="default,mails")
    reason = why(stage, id).reasons[0]
    said = "no worker serves queue mail; workers serve default, mails; the nearest name is mails"
    assert (reason.code, reason.text, reason.evidence["workers"]) == ("no_worker_serves", said, 1)


def test_the_last_worker_of_a_queue_is_told_while_its_record_is_there(stage: Stage) -> None:
    (id,) = stage.put()
    stage.register(lease=SECOND)
    stage.now += 3 * SECOND
    assert why(stage, id).reasons[0].text == "no worker lives; the lease of the last one that did ended 2.0 s ago"


def test_a_task_that_no_worker_of_its_queue_knows(stage: Stage) -> None:
    stage.register("w1", queues="mail", tasks={"ad": "process", "other": "process"})
    stage.register("w2", queues="default", tasks=KNOWN)
    (id,) = stage.put(queue="mail")
    for state in ("ready", "parked"):
        found = why(stage, id)
        assert (found.state, found.code) == (state, "parked")
        said = "no live worker that serves queue mail knows the task add: host:w1 runs other code"
        assert found.reasons[0].text == f"{said}; the nearest name is ad; host:w2 knows it and serves default"
        for claim in stage.take("w1", queues=["mail"]):
            stage.end(claim, "parked")
    stage.register("w3", queues="mail", tasks=KNOWN)
    assert why(stage, id).reasons[0].text == "a worker that knows its task has come (host:w3) and will take it"


def test_no_runner_of_its_kind(stage: Stage) -> None:
    stage.register(tasks={"add": "fork"}, facts=["sizes", "process:4 thread:16"])
    (id,) = stage.put()
    reason = why(stage, id).reasons[0]
    assert (reason.code, reason.evidence["kind"]) == ("no_runner_of_its_kind", "fork")
    assert "--forks" in reason.next_step


def test_all_are_busy_and_the_longest_is_told(stage: Stage) -> None:
    stage.register(tasks=KNOWN, facts=["sizes", "process:2"])
    first, _ = stage.running(), stage.running()
    *_, id = stage.put(3)
    stage.now += 2 * SECOND
    runner = RunnerFacts(kind="process", job=first.id, task="add", since=first.token, holds=1)
    says(
        stage,
        "runner_facts",
        runner_facts(runner, RunnerFacts(kind="process", job="x", task="b", since=stage.now, holds=1)),
    )
    reason = why(stage, id).reasons[0]
    said = "all 2 process runners for it are busy, and 2 jobs are ahead of it in queue default"
    assert (reason.code, reason.text) == ("all_busy", f"{said}; the longest runs add since 2.0 s")
    assert (reason.evidence["longest"], reason.evidence["size"]) == (first.id, 2)


def test_a_worker_with_several_kinds_is_busy_as_far_as_its_heartbeat_says(stage: Stage) -> None:
    stage.register(tasks=KNOWN, facts=["sizes", "process:1 async:100"])
    stage.running()
    (id,) = stage.put()
    assert why(stage, id).code == "jobs_ahead"
    says(stage, "runner_facts", runner_facts(RunnerFacts(kind="process", job="x", task="b", since=1, holds=1)))
    assert why(stage, id).code == "all_busy"


def test_a_worker_of_several_shards_is_busy_as_far_as_its_heartbeat_says(stage: Stage) -> None:
    stage.register(tasks=KNOWN, facts=["sizes", "process:1"])
    (id,) = stage.put()
    # Of a job at another shard.
    says(stage, "runner_facts", runner_facts(RunnerFacts(kind="process", job="x", task="b", since=1, holds=1)))
    (seen,) = stage.run(overviews.why(Keys("hr", 0, "3"), id)).workers
    assert (seen.held, seen.busy) == (1, True)
    assert not stage.run(overviews.why(stage.keys, id)).workers[0].busy


def test_other_queues_come_first(stage: Stage) -> None:
    stage.register(queues="high,low,default", tasks=KNOWN, facts=["sizes", "process:2"])
    stage.put(7, queue="high")
    (id,) = stage.put()
    reason = why(stage, id).reasons[0]
    assert (reason.code, reason.text) == ("other_queues_first", "host:w1 serves other queues first: high (7 ready)")
    assert reason.evidence["high"] == 7
    says(stage, "weights", "3,2,1")
    assert "draw by weight" in why(stage, id).reasons[0].text
    # One that has no such preference takes it.
    stage.register("w2", tasks=KNOWN, facts=["sizes", "process:2"])
    assert "other_queues_first" not in codes(stage, id)


def test_all_that_could_run_it_are_stopping(stage: Stage) -> None:
    stage.register(tasks=KNOWN, facts=["sizes", "process:2"])
    (id,) = stage.put()
    says(stage, "draining", 1)
    assert why(stage, id).code == "draining"
    stage.register("w2", tasks=KNOWN, facts=["sizes", "process:2"])
    assert "draining" not in codes(stage, id)


def test_a_worker_that_cannot_fork_a_runner_is_no_fault_of_its_claims(stage: Stage) -> None:
    """Without open files to spare the answer said that the worker had a free runner, and to keep its log."""
    stage.register(tasks=KNOWN, facts=["sizes", "process:2"])
    (id,) = stage.put()
    for _ in range(3):
        stage.now += 6 * SECOND
        says(stage, "runner_facts", "[]")
    reason = why(stage, id).reasons[0]
    assert (reason.code, reason.evidence["kind"]) == ("runners_missing", "process")
    assert reason.text.startswith("host:w1 has no runner of the kind process: the system does not let it fork one")
    assert "limits of open files (ulimit -n 1024)" in reason.next_step
    says(stage, "runner_facts", runner_facts(RunnerFacts(kind="process")))
    assert "runners_missing" not in codes(stage, id)


def test_claims_that_have_stopped_are_a_fault(stage: Stage) -> None:
    stage.register(tasks=KNOWN, facts=["sizes", "process:2"])
    stage.claim()
    (id,) = stage.put()
    for _ in range(3):
        stage.now += 6 * SECOND
        says(stage)
    reason = why(stage, id).reasons[0]
    assert (reason.code, reason.evidence["worker"]) == ("claims_stopped", "w1")
    assert "claimed last 18.0 s ago" in reason.text
    stage.put(1)
    stage.claim(limit=1)
    assert "claims_stopped" not in codes(stage, stage.ready()[0])


def test_jobs_ahead_are_counted_with_the_rate_of_the_queue(stage: Stage) -> None:
    stage.register(tasks=KNOWN, facts=["sizes", "process:2"])
    *_, id = stage.put(4)
    reason = why(stage, id).reasons[0]
    assert (reason.code, reason.text) == ("jobs_ahead", "3 jobs are ahead of it in queue default")
    minute = layout_of(Settings().stats_keep).levels[0].cut
    # Its end is far away, since buckets expire by the server's own clock.
    ends = stage.now // SECOND + 10**9
    date = minute.date(stage.now // SECOND - 60)
    started = counts.Counts({(date, ends): {"queues/default": {"started": 60}}}, {"": {"queues": ends}})
    stage.run(counts.add(stage.keys, "s", 1, started))
    reason = why(stage, id).reasons[0]
    assert reason.text.endswith("; at the rate of the last ten minutes these take 30.0 s")
    assert reason.evidence == {"ahead": 3, "rate": 0.1, "head_start": 0}


def test_the_next_of_its_queue_has_a_reason_too(stage: Stage) -> None:
    stage.register(tasks=KNOWN, facts=["sizes", "process:2"])
    (id,) = stage.put()
    assert (
        why(stage, id).reasons[0].text == "it is the next of queue default, and a runner was free for it a moment ago"
    )


def test_one_that_crashed_travels_alone(stage: Stage) -> None:
    stage.register(tasks=KNOWN, facts=["sizes", "process:2"])
    claim = stage.running()
    stage.settle(stage.outcome(claim, "crashed", b'{"type":"Crashed"}'), starts=[StartNote(claim.id, stage.now)])
    found = why(stage, claim.id)
    assert (found.state, found.code, found.reasons[0].evidence) == ("ready", "suspect", {"crashes": 1})


@pytest.mark.parametrize("gone", [False, True])
def test_a_broadcast_waits_for_its_one_worker(stage: Stage, gone: bool) -> None:
    stage.register(tasks=KNOWN)
    job = stage.job()
    stage.run(produce.broadcast(stage.keys, Form("add"), job.args, [("w1", job.id)]))
    if gone:
        stage.lapse()
    reason = why(stage, job.id).reasons[0]
    assert (reason.code, reason.evidence["alive"]) == ("broadcast", not gone)
    if gone:
        stage.run(consume.reclaim(stage.keys, "w1", False, 10, 0))
        assert why(stage, job.id).code == "unknown"
