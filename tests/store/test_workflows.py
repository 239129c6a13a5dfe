"""The lists of workflows: pages by cursor and by position, windows of time, counts, ids, retention."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from headrace import Flow, Headrace
from headrace.errors import OptionsError, WorkflowNotFound
from headrace.model.job_record import Page
from headrace.model.workflow import WorkflowRecord
from headrace.protocol.keys import keys_of
from headrace.workflows.collection import Workflows
from headrace.workflows.run import WorkflowRun
from tests.store.flows import Dispatcher, chain, create, wide

ORDERS = ("asc", "desc")


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        yield app


@pytest.fixture
def twelve(app: Headrace) -> list[WorkflowRun]:
    """Twelve workflows in the order of their creation, of two definitions."""
    return [create(app, chain("a", definition=("even", "odd")[n % 2])) for n in range(12)]


def walk(app: Headrace, **query: Any) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = app.workflows.page(after=cursor, **query)
        found += [record.id for record in page]
        cursor = page.next
        if cursor is None:
            return found


def moment(record: WorkflowRecord, more: int = 0) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=record.created_us + more)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("limit", [1, 5, 12, 100])
def test_pages_follow_the_order_of_creation(app: Headrace, twelve: list[WorkflowRun], order: Any, limit: int) -> None:
    ids = [run.id for run in twelve][:: 1 if order == "asc" else -1]
    assert walk(app, limit=limit, order=order) == ids
    assert walk(app, limit=limit, order=order, definition="odd") == ids[order == "asc" :: 2]
    page = app.workflows.page(limit=limit, order=order)
    assert (len(page), page.count) == (min(limit, 12), 12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_a_position_is_that_in_a_list(app: Headrace, twelve: list[WorkflowRun], order: Any, limit: int) -> None:
    ids = [run.id for run in twelve][:: 1 if order == "asc" else -1]
    for offset in (0, 3, 11, 12, 40, -1, -3, -12, -14, -40):
        end = offset + limit
        wanted = ids[offset:] if offset < 0 <= end else ids[offset:end]
        page = app.workflows.page(limit=limit, offset=offset, order=order)
        assert [record.id for record in page] == wanted, offset
        assert app.workflows.ids(limit=limit, offset=offset, order=order) == wanted, offset
        if page.next is not None:
            following = app.workflows.page(limit=1, after=page.next, order=order)
            assert [record.id for record in following] == ids[ids.index(wanted[-1]) + 1 :][:1], offset


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_window_of_time_is_the_same_in_both_orders(
    app: Headrace, twelve: list[WorkflowRun], order: Any, limit: int
) -> None:
    ids = [run.id for run in twelve]
    third, eighth = twelve[2].refresh(), twelve[7].refresh()
    turn = 1 if order == "asc" else -1
    for since, until, wanted in (
        (moment(third), moment(eighth), ids[2:8]),
        (moment(third, 1), moment(eighth, -1), ids[3:7]),
        (moment(third), None, ids[2:]),
        (None, moment(third), ids[:3]),
        (moment(third), moment(third), ids[2:3]),
        (moment(eighth, 10**12), None, []),
    ):
        assert walk(app, limit=limit, order=order, since=since, until=until) == wanted[::turn]
        assert app.workflows.ids(order=order, since=since, until=until) == wanted[::turn]
    window = {"since": moment(third), "until": moment(eighth), "order": order}
    inside = ids[2:8][::turn]
    assert app.workflows.ids(offset=2, limit=3, **window) == inside[2:5], "positions count within the window"
    assert app.workflows.ids(offset=-2, **window) == inside[-2:]


def test_what_was_created_in_the_same_microsecond_is_shown_once(app: Headrace, client: redis.Redis) -> None:
    runs = [create(app, chain("a")) for _ in range(9)]
    score = runs[0].refresh().created_us
    for run in runs:
        for view in ("|", "|pending", "chain|", "chain|pending"):
            client.zadd(keys_of("hr")(f"flows:{view}"), {run.id: score})
        client.hset(keys_of("hr").flow(run.id), "created", score)
    ids = sorted(run.id for run in runs)
    for limit in (1, 2, 4):
        assert walk(app, limit=limit, order="asc") == ids
        assert walk(app, limit=limit) == ids[::-1]


def test_a_workflow_that_comes_or_goes_between_pages_moves_no_other(app: Headrace, twelve: list[WorkflowRun]) -> None:
    first = app.workflows.page(limit=5)
    twelve[7].delete()
    create(app, chain("a"))
    rest = app.workflows.page(limit=100, after=first.next)
    assert [record.id for record in rest] == [run.id for run in twelve[6::-1]]


def test_states_and_definitions_have_lists_and_counts(app: Headrace, twelve: list[WorkflowRun]) -> None:
    dispatcher = Dispatcher(app)
    ends = {0: "failed", 1: "succeeded", 2: "succeeded"}
    for n, end in ends.items():
        twelve[n].start()
        dispatcher.work({1: end})
    twelve[3].cancel()
    twelve[4].stop()
    twelve[5].start()
    expected = {
        "failed": [0],
        "succeeded": [1, 2],
        "cancelled": [3],
        "stopped": [4],
        "running": [5],
        "pending": range(6, 12),
    }
    for state, numbers in expected.items():
        for definition in (None, "even", "odd"):
            wanted = [twelve[n] for n in numbers if definition in (None, ("even", "odd")[n % 2])]
            query: dict[str, Any] = {"state": state, "definition": definition}
            assert [app.workflows.handle(record) for record in app.workflows.page(order="asc", **query)] == wanted
            assert app.workflows.count(**query) == len(wanted)
            assert app.workflows.page(**query).count == len(wanted)
            assert app.workflows.ids(order="asc", **query) == [run.id for run in wanted]
    assert (app.workflows.count(), app.workflows.count(definition="odd")) == (12, 6)


def test_the_lists_of_one_definition(app: Headrace, twelve: list[WorkflowRun]) -> None:
    odd = Workflows(app.client, "odd")
    assert odd.ids(order="asc") == [run.id for run in twelve[1::2]]
    assert (odd.count(), len(odd.page(limit=4, definition="odd"))) == (6, 4)
    with pytest.raises(OptionsError, match=r"these are the workflows of odd: app\.workflows has those of others"):
        odd.page(definition="even")


@pytest.mark.parametrize("verb", ["page", "apage", "ids", "aids"])
def test_arguments_that_a_list_does_not_have_are_refused(app: Headrace, verb: str) -> None:
    async def said(lists: Any, *args: Any, **which: Any) -> None:
        got = getattr(lists, verb)(*args, **which)
        await got if inspect.isawaitable(got) else None

    @app.workflow
    def own(flow: Flow) -> None:
        """Nothing of it is stored."""

    wrong = [{"colour": 3}] + ([{"after": None}] if "ids" in verb else [])
    for lists, given in [
        *((lists, one) for lists in (app.workflows, own) for one in wrong),
        (own, {"definition": "x"}),
    ]:
        with pytest.raises(TypeError, match=next(iter(given))):
            asyncio.run(said(lists, **given))
    with pytest.raises(TypeError, match="positional"):
        asyncio.run(said(own, "failed"))


@pytest.mark.usefixtures("loaded")
def test_a_page_of_a_hundred_is_one_round_trip(app: Headrace) -> None:
    dispatcher = Dispatcher(app)
    runs = [create(app, wide(2)) for _ in range(101)]
    runs[-1].start()
    dispatcher.work({2: "failed"})
    app.workflows.count()
    before = app.store.round_trips
    page = app.workflows.page()
    assert (len(page), app.store.round_trips - before) == (100, 1)
    newest = page[0]
    assert (newest.id, newest.state, newest.definition) == (runs[-1].id, "failed", "wide")
    assert (newest.total, newest.done, newest.progress, newest.failed_node) == (4, 3, 0.75, "part-1")
    assert newest.created <= newest.started <= newest.finished


@pytest.mark.mangles
@pytest.mark.parametrize("order", ORDERS)
def test_a_page_passes_over_dangling_rows_and_heals_the_index(
    app: Headrace, client: redis.Redis, twelve: list[WorkflowRun], order: Any
) -> None:
    lost = [twelve[n] for n in (2, 3, 4, 9)]
    client.delete(*(keys_of("hr").flow(run.id) for run in lost))
    wanted = [run.id for run in twelve if run not in lost][:: 1 if order == "asc" else -1]
    assert [record.id for record in app.workflows.page(limit=8, order=order)] == wanted
    assert app.workflows.count() == 8
    assert walk(app, limit=3, order=order) == wanted


@pytest.mark.usefixtures("loaded")
def test_a_handle_by_id_needs_no_definition(app: Headrace, twelve: list[WorkflowRun]) -> None:
    before = app.store.round_trips
    run = app.workflows.get(twelve[1].id)
    assert app.store.round_trips - before == 1
    assert (run.id, run.definition, run.state) == (twelve[1].id, "odd", "pending")
    twelve[1].delete()
    for id, text in (
        (twelve[1].id, f"no workflow {twelve[1].id} is stored"),
        ("x", "'x' is not the id of a workflow"),
        (twelve[1].id[:20] + "00", "is not the id of a workflow"),
    ):
        with pytest.raises(WorkflowNotFound, match=text):
            app.workflows.get(id)


def test_what_is_due_is_removed_wholly_and_no_more_than_asked_for(app: Headrace, client: redis.Redis) -> None:
    dispatcher = Dispatcher(app)
    kept = create(app, chain("a", "b"))
    runs = [create(app, chain("a", "b", ttl=0)) for _ in range(7)]
    large = create(app, wide(1500))
    for run in (kept, *runs, large):
        run.start()
    dispatcher.work()
    large.expire(0)
    assert app.workflows.expire_due(3) == 3
    assert app.workflows.count() == 6
    assert app.workflows.expire_due() == 5
    assert app.workflows.expire_due() == 0
    assert app.workflows.ids() == [kept.id]
    assert len(client.keys("*job:*")) == 2, "no node is left, of the large one neither"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"state": "ready"}, "there is no state 'ready': the states are pending, running"),
        ({"definition": "a b"}, "workflow name 'a b' cannot be used"),
        ({"limit": 0}, "limit must be a whole number from 1 to 1000"),
        ({"limit": 1001}, "limit must be a whole number from 1 to 1000"),
        ({"order": "up"}, "order must be asc or desc"),
        ({"offset": 1.5}, "offset must be a whole number, not 1.5"),
        ({"after": "x"}, "after='x' is not the `next` of a page"),
        ({"after": "5~id~ready:q"}, "is the `next` of another list"),
        ({"after": "5~id~workflows", "offset": 2}, "after and offset both say where the page begins"),
        ({"since": datetime(2030, 1, 1)}, "since=2030-01-01T00:00:00 has no time zone"),  # noqa: DTZ001 - the fault
        ({"definition": 5}, "definition is the name of a workflow, not 5"),
        ({"since": 1_700_000_000}, "since must be a datetime with a time zone, not 1700000000"),
        (
            {"since": datetime(2030, 1, 2, tzinfo=UTC), "until": datetime(2030, 1, 1, tzinfo=UTC)},
            "since=.* is later than until=.*: since is the earlier one in both orders",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(app: Headrace, query: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        app.workflows.page(**query)
    for limit in (0, True, 2.5):
        with pytest.raises(OptionsError, match="limit must be a whole number of at least 1"):
            app.workflows.expire_due(limit)  # type: ignore[arg-type]


def test_any_time_zone_does(app: Headrace, twelve: list[WorkflowRun]) -> None:
    at = moment(twelve[4].refresh()).astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert app.workflows.ids(since=at, until=at) == [twelve[4].id]


async def test_the_same_from_async_code(app: Headrace) -> None:
    run = create(app, chain("a"))
    assert await app.workflows.aget(run.id) == run
    page = await app.workflows.apage()
    assert isinstance(page, Page)
    assert [record.id for record in page] == await app.workflows.aids() == [run.id]
    assert (await app.workflows.acount(), await app.workflows.aexpire_due()) == (1, 0)
    await app.aclose()


# The pair of ``wait`` is ``await run``.
ALONE = {Workflows: {"handle"}, WorkflowRun: {"wait", "was_created"}}


@pytest.mark.parametrize("kind", ALONE, ids=lambda kind: kind.__name__)
def test_each_verb_has_an_asynchronous_pair_of_the_same_shape(kind: type) -> None:
    verbs = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    verbs = {name: value for name, value in verbs.items() if inspect.isfunction(value) or isinstance(value, property)}
    single = set(verbs) - ALONE[kind]
    plain = {name for name in single if not (name.startswith("a") and name[1:] in single)}
    assert single - plain == {f"a{name}" for name in plain}
    for name in plain:
        one, pair = verbs[name], verbs[f"a{name}"]
        one = one.fget if isinstance(one, property) else one
        assert inspect.iscoroutinefunction(pair), name
        assert inspect.signature(one) == inspect.signature(pair), name
