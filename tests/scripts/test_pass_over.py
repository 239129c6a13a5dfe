from __future__ import annotations

import pytest

from headrace.model.form import Form
from headrace.protocol.consume import Cursor, Looked, claim, summary
from headrace.protocol.operations import pause
from headrace.protocol.produce import broadcast
from tests.scripts.stage import ARGS, LARGE, Stage


def over(
    stage: Stage, limit: int = 10, cursors: dict[str, Cursor] | None = None, **most: int
) -> tuple[list[str], Looked]:
    """Claim, with so many at most of the tasks of these names; the ids and what was looked at."""
    passing = [(task, count, [task, f"{task}-too"]) for task, count in most.items()]
    call = claim(stage.keys, stage.register(), stage.next(), limit, ["default", "b"], passing, cursors).at(stage.now)
    reply = stage.raw(call)
    found = summary(reply).looked
    assert found is not None
    return [one.id for one in call.parse(reply).jobs], found


def test_jobs_of_a_kind_without_room_keep_their_place(stage: Stage) -> None:
    first, second = stage.put(task="slow"), stage.put(task="slow-too")
    quick = stage.put(2, task="quick")
    before = stage.members("ready:default")
    stage.doze()
    ids, found = over(stage, slow=0)
    assert ids == quick
    assert found.passed == {"slow"}
    assert stage.members("ready:default") == {id: before[id] for id in first + second}
    assert {stage.state(id) for id in first + second} == {"ready"}
    # Whoever sleeps and has room for it is woken, but not who passed over it.
    assert (stage.tokens(), stage.tokens("default|slow"), stage.names("queues")) == (0, 1, {"default"})


def test_of_a_crowded_kind_so_many_are_claimed_as_have_room(stage: Stage) -> None:
    slow, quick = stage.put(5, task="slow"), stage.put(3, task="quick")
    ids, found = over(stage, slow=2)
    assert ids == slow[:2] + quick
    assert (found.passed, found.beyond) == ({"slow"}, False)
    ids, found = over(stage, slow=9)
    assert ids == slow[2:]
    assert found.passed == frozenset()


def test_a_claim_looks_at_so_many_and_goes_on_behind_them_the_next_time(stage: Stage) -> None:
    slow = stage.put(500, task="slow")
    (quick,) = stage.put(task="quick")
    ids, found = over(stage, slow=0)
    assert (ids, found.beyond) == ([], True)
    assert found.cursors["default"][1].decode() == slow[199]
    ids, found = over(stage, cursors=found.cursors, slow=0)
    assert (ids, found.beyond, found.cursors["default"][1].decode()) == ([], True, slow[349])
    (early,) = stage.put(task="quick", priority=9)
    ids, found = over(stage, cursors=found.cursors, slow=0)
    assert (ids, found.beyond) == ([early], True)
    ids, found = over(stage, cursors=found.cursors, slow=0)
    assert (ids, found.beyond) == ([quick], False)
    stage.put(task="slow")
    (late,) = stage.put(task="quick")
    # Its entry has left since.
    stage.client.zrem(stage.keys("ready:default"), found.cursors["default"][1])
    ids, found = over(stage, cursors=found.cursors, slow=0)
    assert (ids, found.beyond) == ([late], False)


def test_it_stops_at_its_limit_and_says_that_there_is_more(stage: Stage) -> None:
    quick = stage.put(3, task="quick")
    other = stage.put(task="quick", queue="b")
    stage.doze()
    stage.doze("b")
    ids, found = over(stage, limit=2, slow=0)
    assert (ids, found.beyond, set(found.cursors)) == (quick[:2], True, {"default"})
    assert (stage.tokens(), stage.tokens("b")) == (1, 1)
    ids, found = over(stage, limit=2, cursors=found.cursors, slow=0)
    assert ids == quick[2:] + other


def test_a_lost_reply_tells_nothing_of_what_was_passed_over(stage: Stage) -> None:
    stage.put(task="slow")
    (quick,) = stage.put(task="quick")
    owner, request = stage.register(), stage.next()
    for first in (True, False):
        call = claim(stage.keys, owner, request, 9, ["default"], [("slow", 0, ["slow"])]).at(stage.now)
        reply = stage.raw(call)
        assert [one.id for one in call.parse(reply).jobs] == [quick]
        assert (summary(reply).looked is not None) is first


def test_a_broadcast_and_a_paused_queue_are_no_matter_of_kinds(stage: Stage) -> None:
    stage.put(task="slow")
    stage.run(pause(stage.keys, "default"))
    _, found = over(stage, slow=0)
    assert found == Looked(frozenset(), {}, False)
    owner = stage.register()
    (id,) = stage.run(broadcast(stage.keys, Form(task="slow"), ARGS, [(owner, "its-own")]))
    call = claim(stage.keys, owner, stage.next(), 9, [f"@{owner}"], [("slow", 0, ["slow"])]).at(stage.now)
    assert [one.id for one in stage.run(call).jobs] == [id]


@pytest.mark.mangles
def test_alien_records_are_passed_over_by_nobody(stage: Stage) -> None:
    alien, gone, bare = stage.put(3, task="slow")
    (quick,) = stage.put(task="quick")
    stage.client.delete(stage.keys.job(alien), stage.keys.job(gone))
    stage.client.set(stage.keys.job(alien), "alien")
    stage.client.hdel(stage.keys.job(bare), "task")
    ids, found = over(stage, slow=0)
    assert (ids, found.passed) == ([bare, quick], frozenset())
    assert stage.ready() == []


def test_large_jobs_behind_a_crowded_kind_are_left_for_the_next_claim(stage: Stage) -> None:
    slow, large = stage.put(task="slow"), stage.put(5, task="quick", args=LARGE)
    ids, found = over(stage, slow=0)
    assert (ids, found.beyond) == (large[:3], True)
    assert list(stage.members("ready:default")) == [*slow, *large[3:]]
    ids, found = over(stage, cursors=found.cursors, slow=0)
    assert ids == large[3:]
