"""Pages as CSV."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.dashboard import Dashboard
from headrace.dashboard.values_shown import csv_text
from tests.dashboard.asking import Answer, ask, operator
from tests.dashboard.conftest import CANARY, Shop


@pytest.fixture
def dashboard(shop: Shop) -> Dashboard:
    return Dashboard(shop.app, operator)


def rows(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(answer.text)))


@pytest.mark.parametrize(
    ("path", "column"),
    [
        ("/jobs", "id"), ("/queues", "name"), ("/causes", "type"), ("/workflows", "definition"), ("/schedules", "name"),
        ("/limits", "name"), ("/cache", "name"), ("/activity", "kind"), ("/overview", "start"), ("/tasks", "name"),
        ("/tasks/shop.add", "counts.succeeded"), ("/queues/mail", "observed.run.p50"),
    ],
)  # fmt: skip
async def test_a_list_and_a_plot_are_there_as_rows(shop: Shop, dashboard: Dashboard, path: str, column: str) -> None:
    page = await ask(dashboard, path.replace("/overview", "/"))
    assert f"{path}.csv" in set(page.links())
    answer = await ask(dashboard, f"{path}.csv")
    found = rows(answer)
    assert found
    assert column in found[0]
    assert CANARY not in answer.text
    assert answer.headers["content-disposition"].startswith('attachment; filename="headrace-')


async def test_filters_hold_and_a_page_without_rows_says_so(shop: Shop, dashboard: Dashboard) -> None:
    found = rows(await ask(dashboard, "/jobs.csv?state=failed&task=shop.show"))
    assert [one["id"] for one in found] == [shop.hostile]
    assert (await ask(dashboard, "/store.csv")).status == 404
    assert rows(await ask(dashboard, "/jobs.csv?state=failed&task=nothing")) == []
    shop.app.queues["sales.csv"].pause()
    fresh = Dashboard(shop.app, operator)
    (link,) = {one for one in (await ask(fresh, "/queues")).links() if "sales" in one}
    assert "<h1>sales.<wbr>csv" in (await ask(fresh, link)).text
    shop.app.queues["sales.csv"].resume()


@given(st.lists(st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.none(), min_size=1)))
def test_no_text_is_a_formula_and_numbers_stay(given_rows: list[dict[str, object]]) -> None:
    for row in csv.reader(io.StringIO(csv_text(given_rows), newline="")):
        for cell in row:
            number = cell.lstrip("-").isdecimal()
            assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell
