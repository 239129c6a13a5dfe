"""The kit takes an application over wherever it is known, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
import redis

from headrace import Every, Headrace, Rate, State, current_job
from headrace.errors import NoCurrentJob, OptionsError, StoreUnavailable
from headrace.protocol import consume
from headrace.testing import DrainError, Kit, kit_store
from headrace.testing.kit_store import private_server
from tests.kit import shop
from tests.servers import Server


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(private_server().url) as client:
        yield client


def test_the_application_comes_back_and_the_keys_go(client: redis.Redis) -> None:
    settings, before = shop.app.settings, set(client.keys("*"))
    with Kit(shop.app) as kit:
        job = shop.send.enqueue(1)
        assert set(client.keys("*")) != before
        assert shop.app.settings.url == kit.url
    assert set(client.keys("*")) == before
    assert shop.app.settings is settings
    with pytest.raises(StoreUnavailable):
        Headrace(url=shop.app.settings.url, timeout=0.1).jobs.get(job.id)


def test_everything_that_was_made_before_uses_the_server_of_the_test(headrace_app: Kit) -> None:
    run = shop.sums.create([1])
    later = BOUND.enqueue(9)
    shop.app.enqueue_many(shop.send.job(n) for n in range(3))
    run.start()
    headrace_app.drain()
    assert later.result() == 18
    assert run.outputs() == {"total": 2}
    assert shop.app.overview().states["succeeded"] == 4
    assert shop.app.jobs.get(later.id).state is State.SUCCEEDED


BOUND = shop.double.options(queue="other")


def test_two_kits_in_turn_share_nothing() -> None:
    with Kit(shop.app):
        job = shop.send.enqueue(1)
    with Kit(shop.app) as kit:
        assert kit.drain().starts == 0
        with pytest.raises(LookupError):
            assert job.state


def test_statistics_and_cached_values_are_those_of_the_test() -> None:
    app = Headrace(url="redis://127.0.0.1:1/0")

    @app.cached
    def answer(number: int) -> int:
        return number

    stats = app.stats
    for expected in (1, 2):
        with Kit(app):
            stats.add("views", {"count": 1})
            stats.flush()
            assert app.cache.get("name") is None
            app.cache.set("name", expected)
            assert app.cache.get("name") == expected
            assert answer(expected) == expected
    gc.collect()


def test_a_server_is_used_only_if_it_is_named_in_the_call(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Headrace(url=server.url, namespace="production")
    monkeypatch.setenv("HEADRACE_URL", server.url)
    with redis.Redis.from_url(server.url) as theirs:
        theirs.config_resetstat()
        with Kit(app) as kit:
            app.by_name("some.task").enqueue()
            assert kit.url != server.url
        assert theirs.info("commandstats").keys() <= {
            "cmdstat_config|resetstat",
            "cmdstat_info",
            "cmdstat_client|setinfo",
        }
        theirs.set("{production:0}:mine", 1)
        with Kit(app, url=server.url):
            app.by_name("some.task").enqueue()
            assert len(theirs.keys("{test-*")) > 0
        assert theirs.keys("*") == [b"{production:0}:mine"]
        theirs.flushall()


def test_an_application_has_its_own_server_again_where_that_of_the_test_cannot_be_reached() -> None:
    app = Headrace(url="redis://127.0.0.1:1/0", timeout=0.2)
    app.limit("few", Rate(1, per=60))
    settings = app.settings
    with pytest.raises(StoreUnavailable), Kit(app, url="redis://127.0.0.1:2/0"):
        pass
    assert app.settings is settings
    assert app.client.settings is settings


def test_what_a_test_leaves_running_fails_it() -> None:
    with pytest.raises(AssertionError, match="still runs"), Kit(shop.app):
        shop.send.enqueue(1)
        # As a worker of somebody else's would.
        keys, store = shop.app.client.keys, shop.app.store
        store.run(consume.register(keys, "other", 1_000_000, ["place", "other"]))
        assert len(store.run(consume.claim(keys, "other", 1, 1, ["default"])).jobs) == 1


def test_a_keyspace_that_breaks_a_promise_fails_the_test(client: redis.Redis) -> None:
    with pytest.raises(AssertionError, match="no key of this form"), Kit(shop.app) as kit:
        client.set(f"{{{kit.namespace}:0}}:alien", 1)


def test_a_mode_that_is_unknown_is_refused() -> None:
    with pytest.raises(OptionsError, match="manual or inline"):
        Kit(shop.app, mode="eager")  # type: ignore[arg-type]


def test_inline_runs_each_job_within_its_enqueue(headrace_app: Kit) -> None:
    headrace_app.mode = "inline"
    assert shop.send.enqueue(1).result() == "welcome 1"
    assert shop.chain.enqueue(2).result() == 2
    failed = shop.broken.enqueue()
    assert failed.state is State.FAILED
    assert shop.flaky.enqueue(1).state is State.SCHEDULED
    assert shop.send.options(delay=5).enqueue(2).state is State.SCHEDULED


def test_a_unique_job_that_expired_at_the_time_of_the_test_has_lost_its_name_rightly(headrace_app: Kit) -> None:
    shop.send.options(unique="one", expires=5).enqueue(1)
    headrace_app.clock.advance(seconds=10)
    assert shop.send.options(unique="one").enqueue(2).fresh


@pytest.mark.headrace(mode="inline")
def test_inline_runs_what_a_start_a_retry_and_a_schedule_make_ready(headrace_app: Kit) -> None:
    run = shop.growing.create(3)
    run.start()
    assert run.wait(timeout=5) == "succeeded"
    shop.app.schedules.put("hourly", Every(3600), shop.send.job(9))
    ticked = shop.app.schedules["hourly"].run()
    assert ticked is not None
    assert ticked.state is State.SUCCEEDED
    failed = shop.broken.enqueue()
    headrace_app.stub(shop.broken)
    failed.retry()
    assert failed.state is State.SUCCEEDED
    headrace_app.stub(shop.send, raises=ValueError("away"), times=1)
    other = shop.growing.create(1)
    other.start()
    assert other.state == "failed"
    other.retry_failed()
    assert other.state == "succeeded"


@pytest.mark.headrace(mode="inline")
async def test_inline_works_on_an_event_loop_for_both_kinds_of_enqueue(headrace_app: Kit) -> None:
    job = await shop.notify.aenqueue(7)
    assert await job == 7
    plain = shop.notify.enqueue(8)
    assert await plain == 8
    assert await (await shop.achain.aenqueue(2)) == 2
    run = await shop.growing.acreate(3)
    await run.astart()
    assert await run == "succeeded"


def test_a_task_that_is_called_in_place_has_the_job_that_the_test_makes(headrace_app: Kit) -> None:
    with pytest.raises(NoCurrentJob):
        shop.flaky(0)
    with headrace_app.job(shop.flaky, attempt=3) as job:
        assert shop.flaky(2) == 3
        current_job().progress(0.5, "half")
        current_job().log("a line")
    assert (job.task, job.failures) == ("tests.kit.shop.flaky", 2)
    assert [note.progress for note in headrace_app.notes] == [0.5, None]
    with headrace_app.job(payloads={"fetch": [1, 2]}) as job:
        assert [(one.name, one.output) for one in job.payloads] == [("fetch", [1, 2])]
    with headrace_app.job(headers={"tenant": "seven"}, state={"db": 1}) as job:
        assert shop.send.enqueue(1).refresh().headers == {"tenant": "seven", "correlation": job.id}
        assert job.state == {"db": 1}
    with pytest.raises(OptionsError), headrace_app.job(attempt=0):
        pass


def test_a_wait_that_nothing_can_end_is_told(headrace_app: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit_store, "PATIENCE", 0.01)
    job = shop.send.enqueue(1)
    with pytest.raises(DrainError, match=r"nothing runs in a test until it drains"):
        job.result()
    with pytest.raises(DrainError):
        shop.app.wait([job])
    run = shop.sums.create([1])
    with pytest.raises(DrainError):
        run.wait()
    headrace_app.drain()
    assert job.result() == "welcome 1"


async def test_a_wait_may_run_beside_a_drain(headrace_app: Kit) -> None:
    headrace_app.clock.advance(hours=30)

    async def handler() -> str:
        return await (await shop.send.aenqueue(1))

    waits = asyncio.gather(handler(), handler())
    while not waits.done():
        await headrace_app.adrain()
        await asyncio.sleep(0)
    assert await waits == ["welcome 1"] * 2


async def test_connections_of_an_event_loop_stay_until_it_ends(recwarn: pytest.WarningsRecorder) -> None:
    app = Headrace(url="redis://127.0.0.1:1/0")
    app.task(name="twice")(shop.double.function)
    with Kit(app) as kit:
        await app.by_name("twice").aenqueue(1)
        await kit.adrain()
    del app, kit
    gc.collect()
    await asyncio.sleep(0)
    gc.collect()
    assert [str(one.message) for one in recwarn if "unclosed" in str(one.message)] == []
