from __future__ import annotations

import itertools

import pytest

from headrace.model.form import NewJob
from headrace.protocol import consume, graph, operations, overviews, produce
from tests.scripts.stage import KEEP, SECOND, Stage

BAD_ENDS = {"failed": "failed", "cancelled": "cancelled", "corrupt": "quarantined"}


def tend(stage: Stage, limit: int = 500) -> int:
    return stage.run(graph.tend(stage.keys, KEEP, limit))[0]


def tend_all(stage: Stage) -> None:
    while tend(stage):
        pass


def follow(stage: Stage, *ids: str, any_end: bool = False, count: int = 1, **facts: object) -> list[str]:
    return stage.put(count, after=" ".join(ids), after_failure=any_end, **facts)


def blocked(stage: Stage) -> int:
    return int(stage.client.hget(stage.keys("totals"), "blocked") or 0)


def test_a_job_waits_until_the_one_that_it_follows_has_succeeded(stage: Stage) -> None:
    first = stage.running()
    stage.doze()
    (second,) = follow(stage, first.id)
    assert (stage.state(second), stage.ready(), stage.tokens(), blocked(stage)) == ("blocked", [], 0, 1)
    answer = stage.settle(stage.outcome(first))
    assert answer.chores == 1
    tend_all(stage)
    assert (stage.state(second), stage.ready(), stage.tokens(), blocked(stage)) == ("ready", [second], 1, 0)
    stage.end(stage.take()[0])
    assert stage.left() & {"after", "chores", "waited"} == set()


@pytest.mark.parametrize("kind", BAD_ENDS)
@pytest.mark.parametrize("any_end", [False, True])
def test_it_is_cancelled_after_another_end_unless_any_counts(stage: Stage, kind: str, any_end: bool) -> None:
    first = stage.running()
    (second,) = follow(stage, first.id, any_end=any_end)
    stage.end(first, kind, b'{"type":"E","message":"e"}')
    tend_all(stage)
    if any_end:
        assert stage.ready() == [second]
        return
    record = stage.record(second)
    assert (record["st"], blocked(stage)) == (b"cancelled", 0)
    assert first.id in record["error"].decode()
    assert BAD_ENDS[kind] in record["error"].decode()
    assert stage.members("expires")[second] == stage.now + KEEP


@pytest.mark.parametrize("any_end", [False, True])
@pytest.mark.parametrize("kind", ["succeeded", *BAD_ENDS])
def test_one_that_has_ended_before_counts_as_it_does_later(stage: Stage, kind: str, any_end: bool) -> None:
    first = stage.finished(kind, b'{"type":"E","message":"e"}')
    (second,) = follow(stage, first, any_end=any_end)
    at_once = any_end or kind == "succeeded"
    assert stage.state(second) == ("ready" if at_once else "blocked")
    tend_all(stage)
    assert stage.state(second) == ("ready" if at_once else "cancelled")


def test_one_of_several_waits_for_all_in_any_order(stage: Stage) -> None:
    for order in itertools.permutations(range(3)):
        claims = [stage.running() for _ in range(3)]
        (last,) = follow(stage, *(one.id for one in claims))
        for left, n in enumerate(order):
            assert stage.record(last)["pending"] == str(3 - left).encode()
            stage.end(claims[n])
            tend_all(stage)
        assert stage.state(last) == "ready"
        stage.end(stage.take()[0])


def test_the_first_bad_end_of_several_decides(stage: Stage) -> None:
    one, two = stage.running(), stage.running()
    (last,) = follow(stage, one.id, two.id)
    stage.end(two, "failed", b"{}")
    tend_all(stage)
    assert stage.state(last) == "cancelled"
    stage.run(produce.rerun(stage.keys, last, "again"))
    stage.end(one)
    tend_all(stage)
    assert stage.ready() == [last]


def test_a_chain_ends_with_its_first(stage: Stage) -> None:
    first = stage.running()
    ids = [first.id]
    for _ in range(5):
        ids += follow(stage, ids[-1])
    stage.end(first, "failed", b"{}")
    tend_all(stage)
    assert {stage.state(id) for id in ids[1:]} == {"cancelled"}
    assert blocked(stage) == 0


def test_many_follow_one_in_bounded_pieces_and_in_order(stage: Stage) -> None:
    first = stage.running()
    stage.doze()
    ids = follow(stage, first.id, count=2300)
    stage.end(first)
    assert tend(stage, 1000) == 1
    assert len(stage.ready()) < 1000
    stage.now += SECOND
    tend_all(stage)
    assert stage.ready() == ids


def test_a_job_that_is_not_stored_refuses_the_call(stage: Stage) -> None:
    before = stage.everything()
    stranger = stage.job().id
    answer = stage.enqueue(stage.job(), stage.job(after=stranger))
    assert (answer.word, answer.missing) == ("missing", stranger)
    stage.client.delete(stage.keys("sender:sender"))
    assert stage.everything() == before


def test_one_may_follow_a_job_of_the_same_call(stage: Stage) -> None:
    first = stage.job()
    second: NewJob = stage.job(after=first.id)
    stage.enqueue(first, second, stage.job(key="k", ordered=True))
    assert (stage.state(first.id), stage.state(second.id)) == ("ready", "blocked")


def test_a_repeat_stores_nothing_twice(stage: Stage) -> None:
    first = stage.running()
    new = stage.job(after=first.id)
    call = produce.enqueue(stage.keys, [new], "sender", 7)
    assert [stage.run(call).word for _ in range(2)] == ["ok", "repeated"]
    stage.end(first)
    tend_all(stage)
    assert stage.run(call).word == "repeated"
    assert stage.ready() == [new.id]


@pytest.mark.parametrize("verb", ["cancel", "delete", "purge", "reclaim"])
def test_each_way_out_of_the_first_is_told(stage: Stage, verb: str) -> None:
    (first,) = stage.put(at_most_once=True)
    (second,) = follow(stage, first, queue="other")
    if verb == "cancel":
        stage.run(produce.cancel(stage.keys, first, KEEP))
    elif verb == "delete":
        stage.run(produce.delete(stage.keys, first))
    elif verb == "purge":
        stage.run(operations.purge(stage.keys, "default", 100))
    else:
        stage.take()
        stage.lapse()
        stage.run(consume.reclaim(stage.keys, "w1", False, 100, KEEP))
    tend_all(stage)
    assert stage.state(second) == "cancelled"


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_one_that_waits_can_be_cancelled_and_deleted(stage: Stage, verb: str) -> None:
    first = stage.running()
    (second,) = follow(stage, first.id)
    stage.run(produce.delete(stage.keys, second) if verb == "delete" else produce.cancel(stage.keys, second, KEEP))
    assert blocked(stage) == 0
    stage.end(first)
    tend_all(stage)
    assert stage.ready() == []
    assert stage.state(second) in (None, "cancelled")


def test_a_retry_before_the_chore_is_done_counts_anew(stage: Stage) -> None:
    first = stage.running()
    (second,) = follow(stage, first.id)
    stage.end(first, "failed", b"{}")
    stage.run(produce.rerun(stage.keys, first.id, "again"))
    tend_all(stage)
    assert stage.state(second) == "blocked"
    stage.end(stage.take()[0])
    tend_all(stage)
    assert stage.ready() == [second]


def test_an_automatic_retry_is_not_an_end(stage: Stage) -> None:
    first = stage.running()
    (second,) = follow(stage, first.id)
    stage.end(first, "retry", b"{}", 0)
    tend_all(stage)
    assert stage.state(second) == "blocked"


def test_a_result_without_retention_frees_what_follows(stage: Stage) -> None:
    first = stage.running()
    (second,) = follow(stage, first.id)
    stage.end(first, amount=-1)
    # A worker comes late: the first is swept before its chore is done.
    stage.now += 120 * SECOND
    stage.run(consume.sweep(stage.keys, 100, 10**6, 10**9))
    assert stage.state(first.id) is None
    tend_all(stage)
    assert stage.ready() == [second]


def test_a_caller_that_waits_too_takes_nothing_away(stage: Stage) -> None:
    first = stage.running()
    (second,) = follow(stage, first.id)
    stage.run(produce.watch(stage.keys, first.id, SECOND))
    stage.now += 60 * SECOND
    stage.run(consume.sweep(stage.keys, 100, 10**6, 10**9))
    stage.end(first)
    tend_all(stage)
    assert stage.ready() == [second]


def test_why_names_the_jobs_that_it_follows(stage: Stage) -> None:
    claims = [stage.running() for _ in range(7)]
    (last,) = follow(stage, *(one.id for one in claims))
    facts = stage.run(overviews.why(stage.keys, last))
    assert [one.id for one in facts.others] == [one.id for one in claims[:5]]
    assert (facts.where("behind"), facts.time("pending")) == (5, 7)


@pytest.mark.mangles
@pytest.mark.parametrize("lost", ["after", "job", "waited"])
def test_one_that_nothing_would_free_is_found_and_ended(stage: Stage, lost: str) -> None:
    first = stage.running()
    (second,) = follow(stage, first.id)
    assert stage.run(operations.examine(stage.keys, "", [second], KEEP)) == (0, [])
    stage.client.delete(stage.keys(lost if lost == "waited" else f"{lost}:{first.id}"))
    _, (fault,) = stage.run(operations.examine(stage.keys, "", [second], KEEP))
    assert (fault.word, fault.repaired) == ("misplaced", False)
    stage.run(operations.examine(stage.keys, "", [second], KEEP, repair=True))
    assert stage.state(second) == "cancelled"
    assert blocked(stage) == 0
