from __future__ import annotations

import pytest

from headrace.model.job import Outcome
from headrace.protocol.consume import claim, summary
from headrace.protocol.operations import pause
from tests.scripts.stage import KEEP, LARGE, LEVEL, SECOND, START, Stage


def test_a_job_leaves_the_line_and_is_leased(stage: Stage) -> None:
    (id,) = stage.put()
    stage.register()
    stage.now += SECOND
    answer = stage.claim()
    (claim,) = answer.jobs
    assert (answer.alive, answer.now, answer.due, answer.lost) == (True, stage.now, 0, [])
    assert (claim.id, claim.queue, claim.task, claim.ready, claim.attempt) == (id, "default", "add", START, 1)
    assert claim.token == stage.now
    assert stage.ready() == []
    assert stage.members("claims:w1") == {id: claim.token}
    record = stage.record(id)
    assert (record["st"], record["owner"], int(record["token"])) == (b"running", b"w1", claim.token)


def test_tokens_only_grow_even_when_the_clock_goes_back(stage: Stage) -> None:
    stage.put(6)
    tokens = [c.token for c in stage.take(limit=3)]
    stage.now -= 3600 * SECOND
    stage.register()
    tokens += [c.token for c in stage.claim().jobs]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 6
    assert int(stage.client.get(stage.keys("token"))) == tokens[-1]


def test_without_a_lease_nothing_is_claimed(stage: Stage) -> None:
    stage.put()
    before = stage.everything()
    assert not stage.claim().alive
    assert stage.everything() == before
    stage.register(lease=SECOND)
    stage.lapse(SECOND)
    assert not stage.claim().alive
    assert len(stage.ready()) == 1


def test_a_lost_reply_gets_the_same_jobs(stage: Stage) -> None:
    stage.put(5)
    stage.take(limit=2)
    first = stage.claim(limit=2, request=77)
    before = stage.everything()
    again = stage.claim(limit=2, request=77)
    assert [(c.id, c.token, c.queue) for c in again.jobs] == [(c.id, c.token, c.queue) for c in first.jobs]
    assert [(c.task, c.args, c.attempt) for c in again.jobs] == [(c.task, c.args, c.attempt) for c in first.jobs]
    assert stage.everything() == before
    assert len(stage.claim(request=78).jobs) == 1


def test_a_lost_reply_without_jobs_gets_none(stage: Stage) -> None:
    stage.put()
    stage.take()
    assert stage.claim(request=5).jobs == []
    stage.put()
    assert stage.claim(request=5).jobs == []
    assert len(stage.claim(request=6).jobs) == 1


def test_a_repeat_tells_of_those_that_still_run(stage: Stage) -> None:
    stage.put(3)
    stage.register()
    jobs = stage.claim(request=9).jobs
    stage.end(jobs[1])
    assert [c.id for c in stage.claim(request=9).jobs] == [jobs[0].id, jobs[2].id]


def test_owners_do_not_share_jobs(stage: Stage) -> None:
    stage.put(10)
    one, other = stage.take("w1", limit=6), stage.take("w2", limit=6)
    assert (len(one), len(other)) == (6, 4)
    assert {c.id for c in one}.isdisjoint(c.id for c in other)


def test_queues_are_emptied_in_the_order_given(stage: Stage) -> None:
    low, high = stage.put(3, queue="low"), stage.put(3, queue="high")
    assert [c.id for c in stage.take(limit=4, queues=["high", "low", "none"])] == high + low[:1]


def test_a_paused_queue_yields_nothing(stage: Stage) -> None:
    stage.put(queue="a")
    other = stage.put(queue="b")
    stage.run(pause(stage.keys, "a"))
    assert [c.id for c in stage.take(queues=["a", "b"])] == other
    assert len(stage.ready("a")) == 1
    for queue, halted in (("a", 1), ("b", 0)):
        assert summary(stage.raw(claim(stage.keys, "w1", stage.next(), 5, [queue]))).halted == halted


@pytest.mark.parametrize("limit", [0, 1, 499, 500, 501, 999, 1000])
def test_no_more_than_the_limit(stage: Stage, limit: int) -> None:
    stage.put(1001)
    claims = stage.take(limit=limit)
    assert len(claims) == len(stage.members("claims:w1")) == limit
    assert len(stage.ready()) == 1001 - limit
    assert [c.token for c in claims] == list(range(START, START + limit))


def test_what_is_left_wakes_another(stage: Stage) -> None:
    stage.put(3)
    stage.doze()
    stage.take(limit=2)
    assert stage.tokens() == 1


def test_an_emptied_queue_wakes_nobody(stage: Stage) -> None:
    stage.put(2)
    stage.doze()
    stage.take(limit=2)
    assert stage.tokens() == 0


def test_a_full_claim_wakes_another_for_the_queues_that_it_did_not_reach(stage: Stage) -> None:
    # Its token was taken by the dispatcher that then filled up from an earlier queue: without a new one the
    # job would wait until that dispatcher has a free runner, however many others idle.
    stage.put(queue="high")
    stage.put(queue="low")
    stage.put(queue="paused")
    stage.run(pause(stage.keys, "paused"))
    for queue in ("high", "low", "paused"):
        stage.doze(queue)
    stage.take(limit=1, queues=["high", "paused", "low"])
    assert (stage.tokens("high"), stage.tokens("low"), stage.tokens("paused")) == (0, 1, 0)


def test_a_claim_of_large_jobs_leaves_some_for_the_next_one(stage: Stage) -> None:
    # A reply of 300 MB took 15 s at 20 MB/s: the lease ended behind it, and the next claim was as large.
    large = stage.put(8, args=LARGE)
    (low,) = stage.put(queue="low")
    for queue in ("default", "low"):
        stage.doze(queue)
    taken = stage.take(queues=["default", "low"])
    assert [c.id for c in taken] == large[:3]
    assert (stage.ready(), stage.ready("low")) == (large[3:], [low])
    assert (stage.tokens(), stage.tokens("low")) == (1, 1)
    assert [c.id for c in stage.take(queues=["default", "low"])] == large[3:6]
    assert [c.id for c in stage.take(queues=["default", "low"])] == [*large[6:], low]


def test_the_next_due_time_is_told(stage: Stage) -> None:
    stage.put(delay=9 * SECOND)
    stage.put(delay=4 * SECOND)
    stage.register()
    assert stage.claim().due == START + 4 * SECOND


def test_when_a_job_must_not_start_any_more_is_told(stage: Stage) -> None:
    late, timely = stage.put(expires=SECOND)[0], stage.put(expires=SECOND + 2)[0]
    stage.register()
    stage.now += SECOND + 1
    assert {c.id: c.expires for c in stage.claim().jobs} == {late: START + SECOND, timely: START + SECOND + 2}


def test_how_earlier_starts_ended_is_told(stage: Stage) -> None:
    claim = stage.running()
    for kind in ("retry", "snoozed", "interrupted", "crashed"):
        stage.end(claim, kind, b"{}", 0)
        (claim,) = stage.take()
    told = (claim.failures, claim.snoozes, claim.interruptions, claim.crashes, claim.attempt)
    assert told == (1, 1, 1, 1, 5)


def test_once_is_told(stage: Stage) -> None:
    assert stage.running(at_most_once=True).once
    assert not stage.running().once


def test_an_id_without_a_record_is_named_and_dropped(stage: Stage) -> None:
    gone, good = stage.put(2)
    stage.client.delete(stage.keys.job(gone))
    stage.register()
    answer = stage.claim()
    assert answer.lost == [gone]
    assert [c.id for c in answer.jobs] == [good]


def test_a_record_without_a_task_says_so(stage: Stage) -> None:
    bad, good = stage.put(2)
    stage.client.hdel(stage.keys.job(bad), "task")
    stage.register()
    answer = stage.claim()
    assert (answer.lost, [(c.id, c.task) for c in answer.jobs]) == ([], [(bad, ""), (good, "add")])


@pytest.mark.mangles
def test_a_record_of_another_type_does_not_hold_up_the_queue(stage: Stage) -> None:
    bad, good = stage.put(2)
    stage.client.delete(stage.keys.job(bad))
    stage.client.set(stage.keys.job(bad), "alien")
    stage.register()
    answer = stage.claim()
    assert (answer.lost, [c.id for c in answer.jobs]) == ([bad], [good])


def test_alien_bytes_in_a_record_do_not_spoil_the_batch(stage: Stage) -> None:
    bad, good = stage.put(2)
    fields = ("failures", "crashes", "key", "queue", "task", "args", "expires", "more")
    alien = dict.fromkeys(fields, b"\xff\x00alien")
    stage.client.hset(stage.keys.job(bad), mapping=alien)
    stage.register()
    for _ in range(2):
        claims = stage.claim(request=4).jobs
        assert [c.id for c in claims] == [bad, good]
        assert (claims[0].failures, claims[0].args) == (0, b"\xff\x00alien")
    answer = stage.settle(Outcome(bad, claims[0].token, "corrupt", b"{}", KEEP))
    assert answer.stale == []
    assert stage.state(bad) == "quarantined"


def test_without_queues_it_is_only_a_question(stage: Stage) -> None:
    stage.put()
    stage.register()
    answer = stage.claim(queues=[])
    assert answer.alive
    assert answer.jobs == []
    assert len(stage.ready()) == 1


@pytest.mark.parametrize("priority", [3, -1, 100, -100])
def test_a_priority_changes_neither_when_a_job_was_ready_nor_its_place_when_it_comes_back(
    stage: Stage, priority: int
) -> None:
    (id,) = stage.put(priority=priority)
    stage.now += 2 * SECOND
    (claim,) = stage.take()
    assert (claim.ready, claim.priority, claim.token - claim.ready) == (START, priority, 2 * SECOND)
    assert claim.score == START - priority * LEVEL
    stage.settle(stage.outcome(claim, "released"), ready=claim.score)
    assert stage.members("ready:default") == {id: START - priority * LEVEL}


def test_a_priority_out_of_range_is_none(stage: Stage) -> None:
    for alien in ("1e308", "9" * 400, "101", "high"):
        (id,) = stage.put(priority=1)
        stage.client.hset(stage.keys.job(id), "priority", alien)
        (claim,) = stage.take()
        assert (claim.priority, claim.ready) == (0, stage.now - LEVEL)
        stage.end(claim)


def test_when_a_job_was_ready_is_unknown_after_a_lost_reply(stage: Stage) -> None:
    stage.put(priority=2)
    stage.register()
    stage.claim(request=5)
    (claim,) = stage.claim(request=5).jobs
    assert (claim.ready, claim.score, claim.priority) == (0, 0, 2)


def test_a_job_without_priority_is_read_no_more_than_it_was(stage: Stage) -> None:
    plain, first = stage.put()[0], stage.put(priority=1)[0]
    assert stage.record(first)["more"] == b"1"
    assert "more" not in stage.record(plain)
