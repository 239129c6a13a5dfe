"""What viewers are not shown: arguments, results and logs, on no page, in no document, by no search."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headrace import Flow, Headrace, current_job
from headrace.dashboard import Dashboard, Visitor
from headrace.dashboard.visitors import Role
from headrace.testing import Kit
from tests.dashboard.asking import ask, operator, viewer
from tests.dashboard.conftest import Shop

# Values of arguments, results and logs that stand nowhere else.
GIVEN, RETURNED, LOGGED = "given4711", "returned4711", "logged4711"


class Secretive:
    """A store whose jobs hold the values: ids of one that succeeded, one that failed, and a workflow."""

    def __init__(self, shop: Shop, kit: Kit) -> None:
        app = self.app = shop.app

        @app.task(name="shop.tell", retries=0)
        def tell(customer: str, fails: bool = False) -> str:
            current_job().log(LOGGED)
            if fails:
                raise ValueError("no")
            return RETURNED

        @app.workflow(name="shop.telling", globals={"who": GIVEN})
        def telling(flow: Flow, customer: str) -> None:
            flow.run(tell, customer)

        self.done = tell.enqueue(GIVEN).id
        self.failed = next(iter([tell.enqueue(GIVEN, fails=True).id for _ in range(3)]))
        run = telling.create(GIVEN)
        run.start()
        self.flow = run.id
        kit.drain(raises=False)

    @property
    def pages(self) -> Iterator[str]:
        yield from (f"/jobs/{self.done}", f"/jobs/{self.failed}", f"/workflows/{self.flow}", f"/jobs/{self.done}/again")
        yield from ("/jobs?state=failed", "/jobs?state=succeeded", "/causes", "/tasks/shop.tell", "/activity", "/")


@pytest.fixture
def store(empty: Shop, kit: Kit) -> Secretive:
    return Secretive(empty, kit)


async def test_a_viewer_sees_no_argument_result_or_log(store: Secretive) -> None:
    dashboard = Dashboard(store.app, viewer, withhold=True)
    for page in store.pages:
        place, _, query = page.partition("?")
        for path in (page, f"{place if place != '/' else '/overview'}.json?{query}"):
            text = (await ask(dashboard, path)).text
            assert not [one for one in (GIVEN, RETURNED, LOGGED) if one in text], path
    assert "withheld from viewers" in (await ask(dashboard, f"/jobs/{store.done}")).text
    shown = json.loads((await ask(dashboard, f"/jobs/{store.done}.json")).text)
    assert (shown["task"], shown["args"], shown["result"]) == ("shop.tell", *["withheld from viewers"] * 2)


async def test_operators_see_all_and_viewers_do_where_nothing_is_withheld(store: Secretive) -> None:
    for dashboard in (Dashboard(store.app, operator, withhold=True), Dashboard(store.app, viewer)):
        text = (await ask(dashboard, f"/jobs/{store.done}")).text
        assert GIVEN in text
        assert RETURNED in text
        assert LOGGED in text
        assert GIVEN in (await ask(dashboard, f"/workflows/{store.flow}")).text
        assert GIVEN in (await ask(dashboard, "/causes")).text


async def test_what_is_withheld_cannot_be_found_by_guessing(store: Secretive) -> None:
    given: list[Role] = ["operator", "viewer", "viewer"]
    roles = iter(given)
    dashboard = Dashboard(store.app, lambda _: Visitor("test", next(roles)), withhold=True)
    path = f"/jobs?state=failed&q={GIVEN[:5]}"
    assert store.failed in (await ask(dashboard, path)).text
    # The operator's answer is not shared with a viewer who asks for the same.
    assert store.failed not in (await ask(dashboard, path)).text
    assert store.failed in (await ask(dashboard, "/jobs?state=failed&q=ValueError")).text


async def test_a_viewer_finds_no_argument_whose_name_is_not_known(shop: Shop) -> None:
    """A list shows a viewer its type only, and a search looked at its value."""
    stranger = Headrace(settings=shop.app.settings)
    try:
        id = shop.show.options(delay=60).enqueue("findable").id
        assert id in (await ask(Dashboard(stranger, operator), "/jobs?state=scheduled&q=findable")).text
        assert id not in (await ask(Dashboard(stranger, viewer), "/jobs?state=scheduled&q=findable")).text
    finally:
        await stranger.aclose()
