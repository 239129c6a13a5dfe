"""sort_anew.lua: jobs that wait go where they belong when their task or queue gets other limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from headrace.protocol import operations
from tests.scripts.asked import why
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, ids, look, promote, put
from tests.scripts.stage import SECOND, Stage

X = LimitRule("x", concurrency=Concurrency(9))
Y = LimitRule("y", concurrency=Concurrency(2))
FAIR = LimitRule("fair", by="key")


def lanes(stage: Stage, jobs: Sequence[str]) -> set[str | None]:
    return {lane.decode() if (lane := stage.client.hget(stage.keys.job(id), "lane")) else None for id in jobs}


def sort(stage: Stage) -> int:
    """What workers do until all is sorted; how many pieces that took."""
    pieces = 0
    while any(name.startswith(("sort:", "jobs:", "lanes:")) for name in stage.members("timers")):
        pieces += 1
        promote(stage)
    return pieces


@pytest.mark.parametrize("sorted_first", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "most"), [([X], [Y], 2), ([X], [X, Y], 2), ([X, Y], [X], 9), ([Y], [], 50), ([], [Y], 2)]
)
def test_jobs_that_wait_under_other_limits_obey_those_that_count_now(
    stage: Stage, before: Sequence[LimitRule], after: Sequence[LimitRule], most: int, sorted_first: bool
) -> None:
    """A limit that a task got in an incident held for none of the jobs that waited."""
    declare(stage, {"call": before, "other": [LimitRule("z")]})
    jobs = put(stage, *range(30))
    declare(stage, {"call": after, "other": [LimitRule("z")]}, "w2")
    if sorted_first:
        sort(stage)
        assert len(lanes(stage, jobs)) == 1
    started = [claim for _ in range(4) for claim in stage.claim("w2", 100).jobs]
    assert len(started) == min(most, 30)
    if after:
        assert look(stage, "y" if Y in after else "x").held == len(started)
    while started:
        for claim in started:
            stage.end_as("w2", claim)
        started = [claim for _ in range(4) for claim in stage.claim("w2", 100).jobs]
        assert len(started) <= most
    assert {stage.state(id) for id in jobs} == {"succeeded"}


def test_jobs_behind_a_closed_limit_leave_it_with_its_declaration(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT]})
    jobs = put(stage, "a", "a", "b", "b")
    change(stage, "account", paused=True)
    assert stage.take(limit=50) == []
    declare(stage, {"call": [API]}, "w2")
    sort(stage)
    assert len(stage.claim("w2", 50).jobs) == 2
    declare(stage, {"call": []}, "w3")
    sort(stage)
    assert len(stage.claim("w3", 50).jobs) == 2
    assert {why(stage, id).state for id in jobs} == {"running"}


def test_a_limit_has_nothing_behind_it_once_its_jobs_are_sorted(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by="account")]})
    put(stage, "a", "a", "b")
    (first, second) = stage.take(limit=50)
    assert stage.names("behind:one:a") == {"default|one=|a"}
    declare(stage, {"call": []}, "w2")
    sort(stage)
    assert not stage.client.exists(stage.keys("behind:one:a"))
    for claim in (first, second):
        stage.end(claim, amount=0)


@pytest.mark.parametrize(("before", "after"), [("", "account"), ("account", "")])
def test_a_paused_limit_that_goes_by_other_values_opens_once(stage: Stage, before: str, after: str) -> None:
    """The gate of all values stayed for ever, and said that a class waits for it."""
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(9), by=before)]})
    change(stage, "one", paused=True)
    put(stage, "x", "x", "y")
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(9), by=after)]}, "w2")
    sort(stage)
    assert stage.claim("w2", 50).jobs == []
    change(stage, "one", gone=["paused"])
    claims = stage.claim("w2", 50).jobs
    assert len(claims) == 3
    for claim in claims:
        stage.end_as("w2", claim, amount=0)
    assert not {key for key in stage.left() if key in ("gate", "behind")}


def test_another_argument_gives_jobs_other_values(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", Rate(1, per=100), by="account")]})
    jobs = put(stage, *"abc", key="k")
    assert len(lanes(stage, jobs)) == 3
    declare(stage, {"call": [LimitRule("one", Rate(1, per=100), by="key")]}, "w2")
    sort(stage)
    assert len(lanes(stage, jobs)) == 1
    assert len(stage.claim("w2", 50).jobs) == 1


@pytest.mark.parametrize("of", ["queue", "task"])
def test_turns_begin_for_jobs_that_came_before_the_limit(stage: Stage, of: str) -> None:
    """Five jobs of a small customer waited for the three thousand of a large one."""
    put(stage, *range(3000), key="big")
    small = put(stage, *range(5), key="small")
    declare(stage, {"default" if of == "queue" else "call": [FAIR]}, of=of)
    pieces = sort(stage)
    assert pieces >= 3005 // 300, "one piece must not hold up others"
    assert set(small) <= set(ids(stage.take(limit=20)))


def test_jobs_of_a_queue_move_for_it_alone(stage: Stage) -> None:
    declare(stage, {"call": [X]})
    here, there = put(stage, 1, 2), put(stage, 1, 2, queue="low")
    declare(stage, {"low": [Y]}, of="queue")
    sort(stage)
    assert (lanes(stage, here), lanes(stage, there)) == ({"default|x|"}, {"low|y,x|"})


def test_records_that_cannot_be_read_stay_where_they_are(stage: Stage) -> None:
    declare(stage, {"call": [X]})
    jobs = put(stage, 1, 2, 3)
    stage.client.delete(stage.keys.job(jobs[0]))
    stage.client.set(stage.keys.job(jobs[0]), "rubbish")
    stage.client.hdel(stage.keys.job(jobs[1]), "task")
    declare(stage, {"call": [Y]}, "w2")
    sort(stage)
    assert stage.client.zcard(stage.keys("lane:default|x|")) == 2
    assert lanes(stage, jobs[2:]) == {"default|y|"}
    stage.client.flushall()  # what was spoiled fits no invariant


def test_a_paused_queue_is_sorted_too_and_no_token_is_lost(stage: Stage) -> None:
    jobs = put(stage, *"ab")
    stage.run(operations.pause(stage.keys, "default", 0))
    declare(stage, {"call": [ACCOUNT]})
    sort(stage)
    assert lanes(stage, jobs) == {"default|account=|a", "default|account=|b"}
    stage.doze()
    stage.run(operations.resume(stage.keys, "default"))
    assert stage.tokens() == 1
    stage.now += SECOND
    assert len(stage.take()) == 2


def test_many_tasks_that_get_limits_cost_no_look_at_all_queues_each(stage: Stage) -> None:
    for n in range(1200):
        stage.put(queue=f"q{n}")
    before = stage.commands()
    declare(stage, {f"t{n}": [X] for n in range(100)})
    assert stage.commands() - before < 2500
    assert sum(name.startswith("sort:") for name in stage.members("timers")) == 1200
    sort(stage)
