"""Messages that wait for Celery and RQ become jobs of ours: each once, with what it says."""

from __future__ import annotations

import json
import os
import pickle
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
import rq
from rq.serializers import JSONSerializer

from headrace import Headrace
from headrace.bridge import Bridge, Envelopes, Message, RedisQueues, TakenMessages, foreign_jobs
from tests.brokers import make_celery
from tests.commands import Commands
from tests.servers import Server


def job_of(app: Headrace, id: str, system: str = "celery") -> Any:
    (record,) = [
        one for state in ("ready", "scheduled") for one in app.jobs.page(state) if one.headers.get(f"{system}-id") == id
    ]
    return record


def test_a_message_of_celery_becomes_the_job_of_its_task(
    headrace: Commands, url: str, their_server: Server, theirs: redis.Redis
) -> None:
    _, send = make_celery(their_server.url)
    at = datetime(2031, 5, 1, 12, tzinfo=UTC)
    late = send.apply_async((7,), eta=at, expires=at + timedelta(hours=1), priority=3, queue="mail", soft_time_limit=5,
                            time_limit=9, headers={"tenant": "acme"})  # fmt: skip
    some = uuid.uuid4()
    typed = send.delay(datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.5"), some, b"ab", date(2026, 1, 2), k={"a": [1]})
    out = headrace("bridge", "celery", "--from", their_server.url, "--queues", "celery,mail", "--until-empty").out
    assert "2 jobs moved" in out
    with Headrace(url) as app:
        moved = job_of(app, late.id)
        assert (moved.task, moved.queue, moved.priority, moved.state) == ("shop.note", "mail", -3, "scheduled")
        assert moved.headers == {"celery-id": late.id, "tenant": "acme"}
        assert moved.due == at
        found = job_of(app, typed.id)
        assert list(found.args) == ["2026-01-02T00:00:00+00:00", "1.5", str(some), "YWI=", "2026-01-02"]
        assert dict(found.kwargs) == {"k": {"a": [1]}}
    assert theirs.llen("celery") == theirs.llen("mail\x06\x163") == 0


def test_what_cannot_be_moved_stays_in_its_place(
    headrace: Commands, url: str, their_server: Server, theirs: redis.Redis
) -> None:
    _, send = make_celery(their_server.url)
    pickled = send.apply_async((1,), serializer="pickle")
    packed = send.apply_async((1,), compression="zlib")
    chained = (send.s(1) | send.si(2)).apply_async()
    odd = send.apply_async((1,), headers={f"x{n}": "y" * 400 for n in range(14)})
    theirs.lpush("celery", "garbage")
    before = theirs.lrange("celery", 0, -1)
    send.delay(2)
    ran = headrace(
        "bridge", "celery", "--from", their_server.url, "--queues", "celery", "--until-empty", "--json", code=1
    )
    assert theirs.lrange("celery", 0, -1) == before
    left = ran.json["left"]
    assert (ran.json["moved"], len(left)) == (1, 5)
    assert "never read" in left[pickled.id]
    assert "never read" in left[packed.id]
    assert "headers" in left[odd.id]
    assert any("chain" in reason for reason in left.values()), (left, chained)
    told = headrace("bridge", "celery", "--from", their_server.url, "--queues", "celery", "--until-empty", code=1).out
    assert f"{pickled.id} stays: it is application/x-python-serialize, which is never read" in told


def test_jobs_of_rq_become_ours(headrace: Commands, url: str, their_server: Server, theirs: redis.Redis) -> None:
    mail = rq.Queue("mail", connection=theirs, serializer=JSONSerializer)
    first = mail.enqueue("shop.note", 1, k=2, job_timeout=30, result_ttl=50, retry=rq.Retry(3, [10, 20]))
    later = mail.enqueue_at(datetime(2031, 5, 1, tzinfo=UTC), "shop.note", 5)
    parent = mail.enqueue("shop.note", 6)
    mail.enqueue("shop.note", 7, depends_on=parent)
    method = mail.enqueue("shop.note", 8, on_success=rq.Callback("shop.done"))
    ran = headrace("bridge", "rq", "--from", their_server.url, "--queues", "mail", "--until-empty", "--json", code=1)
    assert (ran.json["moved"], set(ran.json["left"])) == (2, {parent.id, method.id})
    with Headrace(url) as app:
        job = job_of(app, first.id, "rq")
        assert (job.task, job.queue, list(job.args), job.kwargs) == ("shop.note", "mail", [1], {"k": 2})
        options = msgspec.msgpack.decode(job.options)
        assert (options["retries"], options["retry_delay"]) == (3, [10, 10, 20])
        assert job_of(app, later.id, "rq").due == datetime(2031, 5, 1, tzinfo=UTC)
    assert theirs.lrange("rq:queue:mail", 0, -1) == [parent.id.encode(), method.id.encode()]
    assert not theirs.exists(f"rq:job:{first.id}", "rq:scheduled:mail")


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def test_a_pickle_of_rq_is_read_if_asked_for_and_of_plain_values(
    headrace: Commands, url: str, tmp_path: Path, their_server: Server, theirs: redis.Redis
) -> None:
    queue = rq.Queue(connection=theirs)
    plain = queue.enqueue("shop.note", 1, {"a": [b"x", None, 1.5]}, datetime(2026, 1, 2, tzinfo=UTC))
    evil = queue.enqueue("shop.note", 2)
    theirs.hset(f"rq:job:{evil.id}", "data", pickle.dumps(("shop.note", None, (Evil(),), {})))
    line = ("bridge", "rq", "--from", their_server.url, "--queues", "default", "--until-empty", "--json")
    assert set(headrace(*line, code=1).json["left"]) == {plain.id, evil.id}
    ran = headrace(*line, "--plain-pickles", code=1).json
    assert (ran["moved"], list(ran["left"])) == (1, [evil.id])
    assert "mkdir" in ran["left"][evil.id]
    assert not (tmp_path / "evil").exists()
    with Headrace(url) as app:
        assert job_of(app, plain.id, "rq").args[1] == {"a": [b"x", None, 1.5]}


class Dying:
    """A source whose bridge dies at one of its calls, before it or behind it."""

    def __init__(self, source: RedisQueues, at: int) -> None:
        self.source, self.left = source, at

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def take(self, most: int) -> TakenMessages:
        self._step()
        taken = self.source.take(7)
        self._step()
        return taken

    def acknowledge(self, messages: Sequence[Message]) -> None:
        self._step()
        self.source.acknowledge(messages)
        self._step()

    def resume(self) -> None:
        pass

    waiting = close = resume


@pytest.mark.parametrize("system", ["celery", "rq"])
def test_a_bridge_that_dies_between_any_two_steps_loses_and_doubles_nothing(
    system: str, url: str, their_server: Server, theirs: redis.Redis
) -> None:
    _, send = make_celery(their_server.url)
    queue = rq.Queue("celery", connection=theirs, serializer=JSONSerializer)
    for number in range(40):
        send.delay(number) if system == "celery" else queue.enqueue("shop.note", number)
    with Headrace(url) as app:
        for at in (*range(1, 10), 0):
            envelopes = Envelopes(app, system, None)
            source = (
                foreign_jobs.celery_in_redis(their_server.url, ["celery"], envelopes, time.time)
                if system == "celery"
                else foreign_jobs.rq_in_redis(their_server.url, ["celery"], envelopes)
            )
            bridge = Bridge(app, Dying(source, at))  # type: ignore[arg-type]
            try:
                while bridge.step():
                    pass
            except KeyboardInterrupt:
                assert at
            source.close()
        numbers = sorted(one.args[0] for one in app.jobs.page("ready"))
    assert numbers == list(range(40))
    assert not [key for key in theirs.keys() if b"bridge" in key]  # noqa: SIM118 - a server is no dictionary


def test_wrong_words_end_with_a_line_that_says_what_is_right(headrace: Commands, their_server: Server) -> None:
    assert (
        "--queues needs the name" in headrace("bridge", "rq", "--from", their_server.url, "--queues", ",", code=2).err
    )
    assert "--from" in headrace("bridge", "rq", "--from", "ftp://x", "--queues", "a", "--until-empty", code=2).err
    for away in ("redis://127.0.0.1:1/0", "amqp://127.0.0.1:1//"):
        said = headrace("bridge", "celery", "--from", away, "--queues", "a", "--until-empty", code=1)
        assert "their server, --from, cannot be used" in said.fault
    assert json.loads(headrace("bridge", "rq", "--from", their_server.url, "--queues", "none", "--until-empty", "--json").out) == {
        "moved": 0, "repeated": 0, "left": {},
    }  # fmt: skip
