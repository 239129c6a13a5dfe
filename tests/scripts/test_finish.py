"""The included script ``finish``: what every way out shares."""

from __future__ import annotations

from headrace.protocol import consume, operations, produce
from tests.scripts.stage import KEEP, SECOND, Stage

MINUTE = 60 * SECOND


def test_a_waiter_is_told_once_and_may_read_for_a_minute(stage: Stage) -> None:
    claim = stage.running()
    pubsub = stage.subscribe(stage.keys.done(claim.id))
    stage.run(produce.watch(stage.keys, claim.id, 5 * SECOND))
    stage.end(claim, "succeeded", b"r", 0)
    message = pubsub.get_message(timeout=20)
    assert (message["type"], message["data"]) == ("message", b"succeeded")
    assert stage.members("expires") == {claim.id: stage.now + MINUTE}
    assert stage.members("waited") == {}
    assert stage.record(claim.id)["result"] == b"r"
    pubsub.close()


def test_a_longer_retention_is_not_shortened_by_a_waiter(stage: Stage) -> None:
    claim = stage.running()
    stage.run(produce.watch(stage.keys, claim.id, SECOND))
    stage.end(claim, "succeeded", b"r", KEEP)
    assert stage.members("expires") == {claim.id: stage.now + KEEP}


def test_only_the_job_that_is_waited_for_stays(stage: Stage) -> None:
    stage.put(3)
    one, two, three = stage.take()
    stage.run(produce.watch(stage.keys, two.id, SECOND))
    for claim in (one, two, three):
        stage.end(claim, "succeeded", b"r", 0)
    assert stage.members("succeeded").keys() == {two.id}


def test_nobody_is_told_where_nobody_waits(stage: Stage) -> None:
    claim = stage.running()
    pubsub = stage.subscribe(stage.keys.done(claim.id))
    stage.end(claim)
    assert pubsub.get_message(timeout=0.05) is None
    pubsub.close()


def test_every_way_out_tells_the_waiter(stage: Stage) -> None:
    cancelled, purged, expired = stage.put()[0], stage.put(queue="q")[0], stage.put(queue="e", expires=SECOND)[0]
    for id in (cancelled, purged, expired):
        stage.run(produce.watch(stage.keys, id, KEEP))
    pubsub = stage.subscribe(stage.keys.done(cancelled))
    pubsub.subscribe(stage.keys.done(purged), stage.keys.done(expired))
    stage.now += 2 * SECOND
    stage.run(produce.cancel(stage.keys, cancelled, 0))
    stage.run(operations.purge(stage.keys, "q"))
    (claim,) = stage.take(queues=["e"])
    stage.end(claim, "cancelled")
    found: list[tuple[str, bytes]] = []
    while len(found) < 3:
        message = pubsub.get_message(timeout=20)
        assert message is not None
        if message["type"] == "message":
            found.append((message["channel"].decode().rpartition(":")[2], message["data"]))
    assert dict(found) == dict.fromkeys((cancelled, purged, expired), b"cancelled")
    assert stage.members("cancelled").keys() == {cancelled, purged, expired}
    pubsub.close()


def test_the_log_leaves_with_its_job(stage: Stage) -> None:
    claim = stage.running()
    stage.run(consume.note(stage.keys, "w1", [consume.Note(claim.id, claim.token, lines=("one",))]))
    stage.end(claim, "succeeded", b"", 0)
    assert not stage.client.exists(stage.keys(f"log:{claim.id}"), stage.keys.job(claim.id))
