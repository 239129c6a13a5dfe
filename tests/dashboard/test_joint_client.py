"""The dashboard's client: what is asked for together is one round trip, and fails alone where it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import redis

from headrace import Headrace
from headrace.dashboard import dashboard_site
from headrace.dashboard.dashboard_site import JointClient
from headrace.errors import ServerError, StoreUnavailable
from headrace.protocol import graph, index_pages, operations, overviews
from headrace.testing import Kit
from tests.proxy import Proxy
from tests.servers import Server


async def test_what_is_asked_for_together_is_one_round_trip(url: str, loaded: None) -> None:
    app = Headrace(url)
    client, keys = JointClient(app.client), app.client.keys
    await client.arun(overviews.overview(keys))
    before = app.astore.round_trips
    seen, count, page, both = await asyncio.gather(
        client.arun(overviews.overview(keys)),
        app.jobs.acount("ready"),
        client.arun(index_pages.page(keys, "failed")),
        client.adrive(_two(keys)),
    )
    assert (seen.states["ready"], count, page.count, both) == (0, 0, 0, [0, 0, 0])
    # The second step of one of them, and what the application asked for by itself.
    assert app.astore.round_trips - before == 3
    await app.aclose()


def _two(keys):  # type: ignore[no-untyped-def]
    first = yield [graph.flow_count(keys), graph.flow_count(keys, "", "running")]
    second = yield graph.flow_count(keys, "", "failed")
    return [*first, second]


@pytest.mark.mangles
async def test_what_the_server_refuses_one_fails_no_other(url: str, client: redis.Redis) -> None:
    app = Headrace(url)
    joint, keys = JointClient(app.client), app.client.keys
    client.set(keys("events"), "no stream")
    refused, seen, page = await asyncio.gather(
        joint.arun(operations.told(keys, "events", 10)),
        joint.arun(overviews.overview(keys)),
        joint.arun(index_pages.page(keys, "failed")),
        return_exceptions=True,
    )
    assert isinstance(refused, ServerError)
    assert isinstance(seen, overviews.Overview)
    assert isinstance(page, index_pages.IndexPage)
    client.delete(keys("events"))
    await app.aclose()


async def test_a_store_that_is_silent_is_waited_for_no_longer_than_a_page_may_take(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(new_server(tcp=True)) as proxy:
        app = Headrace(proxy.url)
        joint = JointClient(app.client)
        await joint.arun(overviews.overview(joint.keys))
        proxy.mode = "swallow"
        with monkeypatch.context() as patch:
            # Only of what is not answered: to connect takes longer on a busy machine.
            patch.setattr(dashboard_site, "SILENCE", 0.2)
            for one in await asyncio.gather(
                *(joint.arun(overviews.overview(joint.keys)) for _ in range(3)), return_exceptions=True
            ):
                assert isinstance(one, (TimeoutError, StoreUnavailable))
        proxy.mode = "pass"
        proxy.drop()
        assert (await joint.arun(overviews.overview(joint.keys))).states["ready"] == 0
        await app.aclose()


async def test_more_trips_a_second_than_are_allowed_are_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D48."""
    monkeypatch.setattr(dashboard_site, "RATE", 5)
    app = Headrace(url)
    joint = JointClient(app.client)
    before = app.astore.round_trips
    asked = list[asyncio.Future[int]]()
    for _ in range(50):
        asked.append(asyncio.ensure_future(joint.arun(graph.flow_count(joint.keys))))
        # One turn of the loop to ask, one to depart.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert await asyncio.gather(*asked) == [0] * 50
    # Each of the first ones may have connected, and have taught the server the script.
    assert app.astore.round_trips - before <= 6 * 4
    await app.aclose()


async def test_one_that_gives_up_does_not_fail_the_others(url: str) -> None:
    app = Headrace(url)
    joint = JointClient(app.client)
    asked = [asyncio.ensure_future(joint.arun(overviews.overview(joint.keys))) for _ in range(3)]
    await asyncio.sleep(0)
    asked[0].cancel()
    assert [one.states["ready"] for one in await asyncio.gather(*asked[1:])] == [0, 0]
    await app.aclose()


async def test_it_goes_where_a_test_kit_leads_its_application(url: str) -> None:
    app = Headrace(url)

    @app.task(name="add")
    def add() -> None:
        pass

    joint = JointClient(app.client)
    with Kit(app, url=url) as kit:
        add.enqueue()
        assert joint.keys.prefix == app.client.keys.prefix != Headrace(url).client.keys.prefix
        assert (await joint.arun(overviews.overview(joint.keys))).states["ready"] == 1
        await kit.adrain()
    await app.aclose()
