"""What a block of a test has enqueued is compared with what the test expects."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Literal
from unittest.mock import ANY

import pytest

from headrace import Every, State
from headrace.testing import Kit
from tests.kit import shop


def test_a_block_sees_what_is_enqueued_in_it_only(headrace_app: Kit) -> None:
    shop.send.enqueue(1)
    with headrace_app.refute_enqueued(shop.send):
        pass
    with headrace_app.assert_enqueued(shop.send, 2, count=1) as seen, headrace_app.refute_enqueued(shop.send, 1):
        shop.send.enqueue(2)
    shop.send.enqueue(2)
    assert [one.arguments for one in seen.jobs] == [{"user": 2, "text": "welcome"}]
    assert [one.arguments["user"] for one in headrace_app.all_enqueued(shop.send)] == [1, 2, 2]


def test_it_sees_jobs_that_ended_within_it_and_jobs_of_jobs(headrace_app: Kit) -> None:
    gone = shop.chain.options(result_ttl=0)
    with headrace_app.assert_enqueued(shop.chain, 0), headrace_app.assert_enqueued(shop.chain, count=3):
        job = gone.enqueue(2)
        headrace_app.drain()
    with pytest.raises(LookupError):
        assert job.state


def test_it_sees_every_way_to_enqueue(headrace_app: Kit) -> None:
    with headrace_app.assert_enqueued(shop.send, count=1203):
        shop.send.enqueue(1)
        shop.app.by_name("tests.kit.shop.send").enqueue(2)
        shop.app.enqueue_many(shop.send.job(n) for n in range(1200))
        shop.send.options(key="k", ordered=True).enqueue(3)
    assert headrace_app.all_enqueued()[-1].key == "k"
    with headrace_app.assert_enqueued("elsewhere.task", count=1):
        shop.app.by_name("elsewhere.task").enqueue(1)


@pytest.mark.parametrize("mode", ["manual", "inline"])
def test_it_sees_what_a_schedule_is_told_to_make(headrace_app: Kit, mode: Literal["manual", "inline"]) -> None:
    headrace_app.mode = mode
    hourly = shop.app.schedules.put("hourly", Every(3600), shop.send.job(8), overlap="buffer_all")
    with headrace_app.assert_enqueued(shop.send, 8, count=1) as seen:
        job = hourly.run()
    assert job is not None
    assert [one.job.id for one in seen.jobs] == [job.id]
    end = datetime.now(UTC)
    with headrace_app.assert_enqueued(shop.send, 8, count=24):
        assert len(hourly.backfill(end - timedelta(days=1), end)) == 24
    # The ticks ran before.
    with headrace_app.refute_enqueued(shop.send):
        hourly.backfill(end - timedelta(days=1), end)


def test_it_sees_unique_jobs_that_were_stored_and_none_that_had_the_name_of_another(headrace_app: Kit) -> None:
    night = shop.send.options(unique="nightly")
    with headrace_app.assert_enqueued(shop.send, count=3):
        first = night.enqueue(1)
        assert night.enqueue(2).id == first.id
        plain, other = shop.send.job(3), shop.send.options(unique="other")
        assert shop.app.enqueue_many([plain, night.job(4), other.job(5), other.job(6)]) == 2
    headrace_app.mode = "inline"
    assert shop.send.options(unique="inline").enqueue(7).result() == "welcome 7"


async def test_it_sees_asynchronous_enqueues_and_threads(headrace_app: Kit) -> None:
    async with headrace_app.assert_enqueued(shop.send, count=2):
        await shop.send.aenqueue(1)
        thread = threading.Thread(target=shop.send.enqueue, args=(2,))
        thread.start()
        thread.join()


def test_a_request_id_that_made_a_job_before_enqueues_nothing(headrace_app: Kit) -> None:
    mail = shop.send.options(request_id="one")
    mail.enqueue(1)
    with headrace_app.refute_enqueued(shop.send):
        mail.enqueue(1)


def test_a_lost_reply_is_no_second_job(headrace_app: Kit) -> None:
    with headrace_app.assert_enqueued(shop.send, count=1):
        headrace_app.lose_reply(times=2)
        shop.send.enqueue(1)


def test_arguments_are_compared_by_parameter(headrace_app: Kit) -> None:
    with (
        headrace_app.assert_enqueued(shop.send, 1),
        headrace_app.assert_enqueued(shop.send, user=1),
        headrace_app.assert_enqueued(shop.send, text="welcome"),
        headrace_app.assert_enqueued(shop.send, ANY, text=ANY),
        headrace_app.assert_enqueued(shop.send, arguments={"user": 1}),
        headrace_app.refute_enqueued(shop.send, 1, text="other"),
    ):
        shop.send.enqueue(user=1)
    with pytest.raises(TypeError, match=r"shop\.send: .*nothing"):
        headrace_app.assert_enqueued(shop.send, nothing=1)


def test_options_are_compared(headrace_app: Kit) -> None:
    with (
        headrace_app.assert_enqueued(shop.send, queue="low", key="k", priority=3, delay=60),
        headrace_app.refute_enqueued(shop.send, queue="default"),
        headrace_app.refute_enqueued(shop.send, delay=0),
    ):
        shop.send.options(queue="low", key="k", priority=3, delay=60).enqueue(1)
    headrace_app.clock.advance(hours=5)
    with headrace_app.assert_enqueued(shop.send, delay=60), headrace_app.assert_enqueued(shop.send, delay=0):
        shop.send.options(delay=60).enqueue(1)
        shop.send.enqueue(1)


def test_a_failure_shows_what_was_near(headrace_app: Kit) -> None:
    with pytest.raises(AssertionError) as failed, headrace_app.assert_enqueued(shop.send, 9, queue="low", count=2):
        shop.double.enqueue(9)
        shop.send.options(queue="low", delay=5).enqueue(8)
        for number in range(7):
            shop.send.enqueue(number)
    lines = str(failed.value).splitlines()
    assert lines[0] == ("expected 2 jobs tests.kit.shop.send(user=9) with queue='low', and the block enqueued none")
    assert lines[1] == ("  nearest: tests.kit.shop.send(user=8, text='welcome') in low, delay=5: user is 8, not 9")
    assert lines[-1] == "  and 4 more"
    with pytest.raises(AssertionError, match="it enqueued nothing at all"), headrace_app.assert_enqueued(shop.send):
        pass
    with pytest.raises(AssertionError, match=r"expected no job .*enqueued 1\n  as wanted: .*send"):  # noqa: SIM117
        with headrace_app.refute_enqueued(shop.send):
            shop.send.enqueue(1)


def test_the_error_of_a_block_comes_first(headrace_app: Kit) -> None:
    with pytest.raises(ZeroDivisionError), headrace_app.assert_enqueued(shop.send):
        _ = 1 / 0


def test_an_assertion_without_a_block_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"an assertion about tests\.kit\.shop\.send.* without `with`"):  # noqa: SIM117
        with Kit(shop.app) as kit:
            kit.assert_enqueued(shop.send, 1)


def test_what_was_enqueued_has_a_handle(headrace_app: Kit) -> None:
    shop.send.enqueue(1)
    shop.double.enqueue(2)
    (one,) = headrace_app.all_enqueued(queue="low")
    assert one.job.state is State.READY
    headrace_app.drain()
    assert one.job.result() == 4
