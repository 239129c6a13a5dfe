"""Searches by text and exception: far with one press, bounded, and blind for what is hidden."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.dashboard import Dashboard, dashboard_site
from headrace.dashboard.job_pages import words_of
from headrace.testing import Kit
from tests.dashboard.asking import ask, operator, viewer
from tests.dashboard.conftest import CANARY, Shop

# What a fixture raises for all other tests of the dashboard.
RATE = dashboard_site.RATE
ROWS = re.compile(r'data-id="(\w{21})"')


@pytest.fixture
def dashboard(shop: Shop) -> Dashboard:
    return Dashboard(shop.app, operator)


async def test_one_press_looks_far_and_reads_only_what_may_match(shop: Shop, dashboard: Dashboard) -> None:
    needle = shop.show.options(delay=60).enqueue("the needle of it").id
    shop.app.enqueue_many(shop.show.options(delay=3600 + n).job(f"hay {n}") for n in range(2200))
    before = shop.app.client.astore.round_trips
    answer = await ask(dashboard, "/jobs?state=scheduled&q=Needle")
    assert ROWS.findall(answer.text) == [needle]
    assert "of 2,202 that were looked at" in answer.text
    # Nine looks, the frame that all pages share, and the scripts that the server learns.
    assert shop.app.client.astore.round_trips - before <= 14


async def test_a_note_is_found(shop: Shop, dashboard: Dashboard) -> None:
    noted = shop.show.options(delay=60, note="for Ada").enqueue("x").id
    for query in ("q=ada", "queue=default&q=for+ada"):
        assert ROWS.findall((await ask(dashboard, f"/jobs?state=scheduled&{query}")).text) == [noted]


async def test_a_press_ends_after_ten_looks_and_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()

    def wait(self: dashboard_site.JointClient, now: float) -> float:
        waits.append(until := usual(self, now))
        return until

    usual = dashboard_site.JointClient._wait
    monkeypatch.setattr(dashboard_site.JointClient, "_wait", wait)
    monkeypatch.setattr(dashboard_site, "RATE", RATE)
    dashboard = Dashboard(shop.app, operator)
    needle = shop.show.options(delay=60).enqueue("the needle of it").id
    shop.app.enqueue_many(shop.show.options(delay=3600 + n).job("hay") for n in range(2_600))
    answer = await ask(dashboard, "/jobs?state=scheduled&q=needle")
    assert ROWS.findall(answer.text) == []
    assert "Looked at 2,500 of 2,602 jobs" in answer.text
    # The looks and the frame: no trip of a press waits for the next second.
    assert len(waits) > 10
    assert set(waits) == {0}
    (on,) = {link for link in answer.links() if "after=" in link}
    assert ROWS.findall((await ask(dashboard, on)).text) == [needle]


async def test_a_search_reads_a_bounded_number_of_jobs_that_only_may_match(shop: Shop, dashboard: Dashboard) -> None:
    # The name of a parameter is shown and not stored, so the script cannot pass over anything.
    shop.app.enqueue_many(shop.show.options(delay=60).job("x") for _ in range(1700))
    answer = await ask(dashboard, "/jobs?state=scheduled&q=tex+99")
    assert "Looked at 500 of 1,701 jobs" in answer.text
    shown = await ask(dashboard, "/jobs?state=scheduled&q=text%3D%22x%22")
    assert len(ROWS.findall(shown.text)) == 50


async def test_by_exception_and_by_everything_that_a_list_shows(shop: Shop, dashboard: Dashboard, kit: Kit) -> None:
    for query, wanted in (
        ("error=ValueError", shop.failed), ("q=error:RuntimeError", shop.hostile),
        (f"q={shop.failed[:10]}", shop.failed), ("q=shop.SIGN", shop.failed), ("q=key", shop.hostile),
        ("q=ValueError: no", shop.failed), ("q=onerror", shop.hostile),
    ):  # fmt: skip
        answer = await ask(dashboard, "/jobs?state=failed&" + query.replace(" ", "+"))
        assert wanted in ROWS.findall(answer.text), query
    for query in ("error=Value", f"q={CANARY}", f"q={CANARY[:6]}", "q=nothing+of+it"):
        answer = await ask(dashboard, f"/jobs?state=failed&{query}")
        assert ROWS.findall(answer.text) == [], query


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_a_word_is_given_to_the_script_only_if_what_shows_it_has_it(before: str, text: str, after: str) -> None:
    for word in words_of(text, ["customer"]):
        assert word in (before + text + after).lower()
        assert word not in "customer"


async def test_a_key_is_found_among_many_ready_jobs_and_a_number_in_all_states(
    shop: Shop, dashboard: Dashboard
) -> None:
    shop.app.enqueue_many(
        shop.show.options(queue="bulk", key="globex" if n % 1000 == 0 else "acme").job(f"{4_000_000_000 + n}")
        for n in range(6000)
    )
    for query in ("queue=bulk&key=globex", "key=globex"):
        assert len(ROWS.findall((await ask(dashboard, f"/jobs?state=ready&{query}")).text)) == 6
    # Ids are searched too, so the number has more digits than an id may have by chance.
    for query in ("queue=bulk&q=4000004711", "q=4000004711"):
        answer = await ask(dashboard, f"/jobs?state=ready&{query}")
        assert len(ROWS.findall(answer.text)) == 1, query


async def test_a_list_as_csv_is_longer_than_a_page_and_says_where_it_ends(shop: Shop, dashboard: Dashboard) -> None:
    shop.app.enqueue_many(shop.show.options(delay=60).job("x") for _ in range(1099))
    assert "CSV of 1,000 rows" in (await ask(dashboard, "/jobs?state=scheduled")).text
    answer = await ask(dashboard, "/jobs.csv?state=scheduled")
    assert answer.text.count("\r\n") == 1001
    assert 'filename="headrace-jobs-1000-of-1100.csv"' in answer.headers["content-disposition"]


async def test_a_search_finds_arguments_by_name_unless_they_are_hidden(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    found = await ask(dashboard, "/jobs?q=state:ready+args.customer:globex")
    assert found.text.count("<tr data-id=") == 1
    assert "args.customer:globex" in found.text
    # The links of the page keep it: a search is saved as a link.
    assert "/jobs?state=failed&amp;args=customer%3Aglobex" in found.text
    assert "<tr data-id=" in (await ask(dashboard, "/jobs?state=ready&args=customer:globex")).text
    assert "<tr data-id=" in (await ask(dashboard, "/jobs?q=state:succeeded+args.a:1+args.b:2")).text
    assert "<tr data-id=" not in (await ask(dashboard, "/jobs?q=state:succeeded+args.a:1+args.b:3")).text
    assert "<tr data-id=" not in (await ask(dashboard, f"/jobs?q=state:failed+args.password:{CANARY}")).text
    withheld = Dashboard(shop.app, viewer, withhold=True)
    assert "<tr data-id=" not in (await ask(withheld, "/jobs?q=state:ready+args.customer:globex")).text
