"""Unsent jobs and envelopes against real servers: each is stored once, whatever happens to replies and senders."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from headrace import Headrace, State
from headrace.errors import EnvelopeError, StoreUnavailable
from headrace.model.job import Claim
from headrace.tasks.bulk import Receipt
from headrace.tasks.submission import UnsentJob
from tests.proxy import Proxy
from tests.servers import Server
from tests.store.test_app import Worker


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        app.task(name="fetch")(fetch)
        yield app


def fetch(n: int = 0) -> int:
    return n


def jobs(app: Headrace, count: int, **options: Any) -> list[UnsentJob[Any]]:
    task = app.tasks["fetch"].options(**options)
    return [task.job(n) for n in range(count)]


def ids(claims: list[Claim]) -> set[str]:
    return {claim.id for claim in claims}


def test_an_envelope_makes_the_job_that_it_describes(app: Headrace) -> None:
    (job,) = jobs(app, 1, queue="low", priority=2, headers={"tenant": "a"}, retries=2)
    assert app.enqueue_packed([job.pack()]) == [Receipt(job.id, True, job.id)]
    direct = app.tasks["fetch"].options(queue="low", priority=2, headers={"tenant": "a"}, retries=2).enqueue(0)
    assert job.handle.refresh().fields == direct.refresh().fields
    assert job.handle.state is State.READY


def test_an_envelope_is_stored_once_by_whichever_sender(app: Headrace, url: str) -> None:
    worker = Worker(app)
    many = jobs(app, 2500)
    packed = [job.pack() for job in many]
    assert app.enqueue_packed(packed[:1200]) == [Receipt(job.id, True, job.id) for job in many[:1200]]
    with Headrace(url) as restarted:
        found = restarted.enqueue_packed(packed)
    assert [receipt.stored for receipt in found] == [False] * 1200 + [True] * 1300
    # Those that the producer stores itself, too.
    assert app.enqueue_many(many[:10]) == 0
    claims = [claim for _ in range(3) for claim in worker.claim(1000)]
    assert (len(claims), ids(claims)) == (2500, {job.id for job in many})
    # And those that have ended, whether they are still stored or not.
    worker.settle(claims[0], "succeeded", msgspec.msgpack.encode(1))
    worker.settle(claims[1], "succeeded", msgspec.msgpack.encode(1), keep=0)
    ended = [job.pack() for job in many if job.id in ids(claims[:2])]
    assert [receipt.stored for receipt in app.enqueue_packed(ended)] == [False, False]
    assert worker.claim() == []


def test_a_chunk_takes_one_round_trip(app: Headrace) -> None:
    packed = [job.pack() for job in jobs(app, 2500)]
    app.enqueue_packed(packed[:1])
    before = app.store.round_trips
    app.enqueue_packed(iter(packed))
    assert app.store.round_trips - before == 3


def test_an_id_that_repeats_in_one_call_is_stored_once(app: Headrace) -> None:
    first, second = (job.pack() for job in jobs(app, 2))
    found = app.enqueue_packed([first, second, first, first])
    assert [receipt.stored for receipt in found] == [True, True, False, False]
    assert app.queues["default"].size == 2


async def test_the_same_from_async_code(app: Headrace) -> None:
    many = jobs(app, 1100)

    async def stream() -> AsyncIterator[bytes]:
        for job in many:
            yield job.pack()

    assert [receipt.stored for receipt in await app.aenqueue_packed(stream())] == [True] * 1100
    assert [receipt.stored for receipt in await app.aenqueue_packed([many[0].pack()])] == [False]
    await app.aclose()


def test_the_error_of_one_says_which_and_the_rest_may_be_given_again(app: Headrace) -> None:
    packed = [job.pack() for job in jobs(app, 1500)]
    with pytest.raises(EnvelopeError) as caught:
        app.enqueue_packed([*packed[:1400], b"rubbish", *packed[1400:]])
    assert caught.value.row == 1400
    assert caught.value.__notes__ == ["enqueue_packed had stored 1,000 jobs before this"]
    assert [receipt.stored for receipt in app.enqueue_packed(packed)] == [False] * 1000 + [True] * 500


def test_request_ids_of_a_stream_make_one_job_each(app: Headrace) -> None:
    task = app.tasks["fetch"]
    earlier = task.options(request_id="order 0").enqueue(0)
    many = [task.options(request_id=f"order {n % 3}").job(n) for n in range(6)] + [task.job(7)]
    assert app.enqueue_many(many) == 3
    assert [job.handle.id for job in many[3:6]] == [job.handle.id for job in many[:3]]
    assert many[0].handle == earlier
    assert app.queues["default"].size == 4
    (letter,) = app.enqueue_packed([task.options(request_id="order 0").job(0).pack()])
    assert (letter.stored, letter.job_id) == (False, earlier.id)


def test_an_ordered_job_travels_with_its_key(app: Headrace) -> None:
    many = jobs(app, 3, key="k", ordered=True)
    app.enqueue_packed([job.pack() for job in many])
    assert [job.handle.state for job in many] == [State.READY, State.BLOCKED, State.BLOCKED]


# --- replies that are lost, senders that begin again ---


@pytest.fixture
def proxy(server_name: str, new_server: Callable[..., Server]) -> Iterator[Proxy]:
    with Proxy(new_server(server_name, tcp=True)) as proxy:
        yield proxy


def send(app: Headrace, many: list[UnsentJob[Any]], way: str) -> int:
    """Store jobs in one way or another; how many were stored."""
    packed = [job.pack() for job in many] if "packed" in way else []
    if way == "enqueue_packed":
        return sum(receipt.stored for receipt in app.enqueue_packed(packed))
    if way == "aenqueue_packed":
        return sum(receipt.stored for receipt in _run(app, lambda: app.aenqueue_packed(packed)))
    if way == "aenqueue_many":
        return _run(app, lambda: app.aenqueue_many(many))
    return app.enqueue_many(many)


def _run(app: Headrace, verb: Callable[[], Any]) -> Any:
    async def whole() -> Any:
        try:
            return await verb()
        finally:
            await app.client.aclose()

    return asyncio.run(whole())


WAYS = ("enqueue_many", "aenqueue_many", "enqueue_packed", "aenqueue_packed")


@pytest.mark.parametrize("way", WAYS)
def test_lost_replies_leave_each_job_once(proxy: Proxy, way: str) -> None:
    with Headrace(proxy.url, timeout=20) as app:
        app.task(name="fetch")(fetch)
        worker = Worker(app)
        app.tasks["fetch"].enqueue()
        assert worker.claim() != []
        many = jobs(app, 3500)
        pieces = itertools.count(1)
        proxy.cut = lambda data: b"$2\r\nok\r\n" in data and next(pieces) % 2 == 0
        send(app, many, way)
        proxy.cut = lambda _: False
        assert proxy.lost >= 1
        claims = [claim for _ in range(4) for claim in worker.claim(1000)]
        assert sorted(claim.id for claim in claims) == sorted(job.id for job in many)


@pytest.mark.any_server
@pytest.mark.parametrize("way", WAYS)
def test_a_sender_that_gave_up_may_send_everything_again(proxy: Proxy, way: str) -> None:
    with Headrace(proxy.url, timeout=6) as app:
        app.task(name="fetch")(fetch)
        worker = Worker(app)
        app.tasks["fetch"].enqueue()
        assert worker.claim() != []
        many = jobs(app, 1500)
        # The first chunk is answered; of the second every answer is lost until the sender gives up.
        pieces = itertools.count(1)
        proxy.cut = lambda data: (b"$2\r\nok\r\n" in data or b"repeated" in data) and next(pieces) > 1
        with pytest.raises(StoreUnavailable):
            send(app, many, way)
        proxy.cut = lambda _: False
        assert proxy.lost >= 1
        left = many if "packed" in way else many[1000:]
        assert send(app, left, way) == 0
        claims = [claim for _ in range(2) for claim in worker.claim(1000)]
        assert sorted(claim.id for claim in claims) == sorted(job.id for job in many)
