from __future__ import annotations

import msgspec
import pytest

from headrace.model.form import NewJob
from headrace.protocol import consume, produce
from tests.scripts.stage import ARGS, LEVEL, SECOND, START, Stage


def send(stage: Stage, *jobs: NewJob, sender: str = "s", number: int = 1, request: str = "") -> produce.Accepted:
    requests = [request] * len(jobs) if request else ()
    return stage.run(produce.enqueue(stage.keys, jobs, sender, number, requests))


def test_a_job_becomes_ready_and_its_record_says_all_that_was_asked(stage: Stage) -> None:
    job = stage.job(
        args=b"\x92\x91\x07\x80",
        queue="low",
        options=b"\x81",
        priority=2,
        max_crashes=5,
        at_most_once=True,
        key="customer-7",
    )
    assert send(stage, job) == produce.Accepted("ok")
    assert stage.record(job.id) == {
        "st": b"ready",
        "task": b"add",
        "args": b"\x92\x91\x07\x80",
        "queue": b"low",
        "options": b"\x81",
        "priority": b"2",
        "budget": b"5",
        "once": b"1",
        "key": b"customer-7",
        "more": b"1",
    }
    assert stage.members("ready:low") == {job.id: START - 2 * LEVEL}


def test_headers_are_kept_with_the_job_and_come_with_its_claim(stage: Stage) -> None:
    data = msgspec.msgpack.encode({"tenant": "a", "binary": "\x00\xff"})
    with_headers, plain, rich = stage.job(headers=data), stage.job(), stage.job(priority=1)
    send(stage, with_headers, plain, rich)
    assert stage.record(with_headers.id)["headers"] == data
    assert "headers" not in stage.record(rich.id)
    assert {one.id: one.headers for one in stage.take()} == {with_headers.id: data, plain.id: b"", rich.id: b""}


def test_a_claim_tells_nothing_of_headers_that_a_job_does_not_have(stage: Stage) -> None:
    stage.put(priority=1)
    stage.register()
    ((_, rest),) = stage.raw(consume.claim(stage.keys, "w1", 1, 1, ["default"]))[4]
    assert len(rest) == 10


def test_defaults_take_no_fields(stage: Stage) -> None:
    (id,) = stage.put()
    assert stage.record(id).keys() == {"st", "task"}


def test_a_job_without_arguments_is_read_and_claimed_with_none(stage: Stage) -> None:
    (id,) = stage.put()
    (record,) = stage.run(produce.read(stage.keys, [id]))
    assert (record.args, record.kwargs) == ((), {})
    assert [claim.args for claim in stage.take()] == [ARGS]


def test_a_job_is_claimed_as_it_was_sent(stage: Stage) -> None:
    every = bytes(range(256))
    sizes = (0, 1, 31, 32, 255, 256, 65_535, 65_536, 200_000)
    payloads = [every, every[::-1], *(b"\x00\xff\xc1'" * (size // 4 + 1) for size in sizes)]
    payloads = [data[: len(data) if n < 2 else sizes[n - 2]] for n, data in enumerate(payloads)]
    ids = [stage.put(args=data, options=data[:300])[0] for data in payloads]
    claims = {c.id: c for c in stage.take()}
    assert [claims[id].args for id in ids] == [data or ARGS for data in payloads]
    assert [claims[id].options for id in ids] == [data[:300] for data in payloads]


def test_delay_and_time_both_schedule(stage: Stage) -> None:
    late, at = stage.job(delay=5 * SECOND), stage.job(at=START + 3 * SECOND)
    send(stage, late, at)
    assert stage.members("scheduled") == {at.id: START + 3 * SECOND, late.id: START + 5 * SECOND}
    assert stage.state(late.id) == stage.state(at.id) == "scheduled"
    assert stage.ready() == []


def test_a_time_that_has_passed_is_now(stage: Stage) -> None:
    job = stage.job(at=START)
    send(stage, job)
    assert stage.ready() == [job.id]


def test_expiry_counts_from_the_server_clock(stage: Stage) -> None:
    (id,) = stage.put(expires=7 * SECOND)
    assert stage.record(id)["expires"] == str(START + 7 * SECOND).encode()


def test_higher_priority_starts_sooner_and_ten_minutes_of_waiting_outweigh_a_level(stage: Stage) -> None:
    first = stage.put()[0]
    stage.now += 1
    second, urgent, later = stage.put()[0], stage.put(priority=1)[0], stage.put(priority=-1)[0]
    stage.now += LEVEL + 1
    fresh = stage.put(priority=1)[0]
    assert stage.ready() == [urgent, first, second, fresh, later]
    assert [c.id for c in stage.take()] == [urgent, first, second, fresh, later]


def test_jobs_of_one_moment_start_in_the_order_of_their_ids(stage: Stage) -> None:
    ids = stage.put(50)
    assert stage.ready() == sorted(ids) == ids


@pytest.mark.parametrize("count", [1, 499, 500, 501, 999, 1000])
@pytest.mark.parametrize("delay", [0, SECOND])
def test_every_size_of_a_batch_arrives(stage: Stage, count: int, delay: int) -> None:
    stage.enqueue(*(stage.job(delay=delay) for _ in range(count)))
    where = "scheduled" if delay else "ready:default"
    assert len(stage.members(where)) == count
    # Beside the records: the index, the sender's slot, the wake token and the queue's name.
    assert stage.client.dbsize() == count + 4


def test_a_batch_over_several_queues(stage: Stage) -> None:
    jobs = [stage.job(queue=f"q{n % 7}", delay=n % 2) for n in range(700)]
    stage.enqueue(*jobs)
    assert len(stage.members("scheduled")) == 350
    assert sum(len(stage.ready(f"q{n}")) for n in range(7)) == 350
    assert {queue for queue in stage.names("queues") if stage.ready(queue)} == {f"q{n}" for n in range(7)}


def test_the_same_number_again_changes_nothing(stage: Stage) -> None:
    job = stage.job()
    assert send(stage, job).word == "ok"
    stage.end(stage.take()[0], amount=0)
    before = stage.everything()
    assert send(stage, job) == produce.Accepted("repeated")
    assert stage.everything() == before
    assert send(stage, stage.job(), number=2).word == "ok"
    assert send(stage, stage.job(), sender="t").word == "ok"


def test_a_senders_slot_ends_by_itself(stage: Stage) -> None:
    send(stage, stage.job())
    assert 0 < stage.client.ttl(stage.keys("sender:s")) <= 600


def test_a_queue_is_woken_once(stage: Stage) -> None:
    stage.put(3)
    stage.put(2)
    assert stage.tokens() == 1
    stage.doze()
    stage.put()
    assert stage.tokens() == 1


def test_a_job_for_later_wakes_only_when_it_is_the_next_one(stage: Stage) -> None:
    stage.put(delay=10 * SECOND)
    assert stage.tokens() == 1
    stage.doze()
    stage.put(delay=20 * SECOND)
    assert stage.tokens() == 0
    stage.put(delay=5 * SECOND)
    assert stage.tokens() == 1


def test_the_server_clock_counts_when_no_other_is_given(stage: Stage) -> None:
    seconds, micros = stage.client.time()
    stage.now = 0
    (id,) = stage.put()
    (score,) = stage.members("ready:default").values()
    assert abs(score - (seconds * SECOND + micros)) < 10 * SECOND
    assert stage.ready() == [id]


def test_odd_names_survive(stage: Stage) -> None:
    names = ["a", "A.b:c/d@e+f-g_h", "x" * 128, "0"]
    for name in names:
        stage.put(queue=name, task=f"mod.{name}", key="ключ \x00 \"quoted\" 'it'")
    (claim,) = stage.take(queues=[names[1]])
    assert (claim.queue, claim.task) == (names[1], f"mod.{names[1]}")
    assert claim.key == "ключ \x00 \"quoted\" 'it'"
    assert msgspec.msgpack.decode(claim.args) == [[], {}]
