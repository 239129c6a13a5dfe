"""Pages, counts and queues of the public face, and that each verb has its asynchronous pair."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from headrace import Headrace, Job, Limit, Task
from headrace.admin.job_paging import LOOKS, TRIPS
from headrace.admin.jobs import Jobs
from headrace.admin.queues import Queue
from headrace.errors import NotFound, OptionsError
from headrace.model.job import Claim, Outcome
from headrace.protocol import consume, operations
from headrace.schedules.schedule_handle import Schedule, Schedules
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.declared_limits import LimitSet


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        app.task(name="noop")(noop)
        app.task(name="other")(noop)
        yield app


def noop(n: int = 0) -> None: ...


def walk(app: Headrace, state: str, **query: Any) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = app.jobs.page(state, after=after, **query)
        found += [record.id for record in page]
        after = page.next
        if after is None:
            return found


def run(app: Headrace, owner: str, queue: str, kinds: list[str]) -> list[str]:
    """Claim as many jobs as there are kinds of ends, and end those whose kind is not ``running``."""
    claims: list[Claim] = []
    for keys in app.client.shards:
        app.client.run(consume.register(keys, owner, 60_000_000, ["place", owner]))
        if left := len(kinds) - len(claims):
            claims += app.client.run(consume.claim(keys, owner, 1, left, [queue])).jobs
    claims.sort(key=lambda claim: claim.id)
    for number, (claim, kind) in enumerate(zip(claims, kinds, strict=True), 1):
        ends = [(Outcome(claim.id, claim.token, kind, b"", 60_000_000), claim.ready)] if kind != "running" else []
        app.client.run(consume.settle(app.client.keys_for(claim.id), owner, number, ends, 0))
    return [claim.id for claim in claims]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_ready_jobs_come_queue_by_queue(app: Headrace, order: Any, limit: int) -> None:
    task = app.tasks["noop"]
    drafts = [[task.options(queue=queue).job(n) for n in range(4)] for queue in ("a", "b", "c")]
    for group in drafts:
        app.enqueue_many(group)
    wanted = [sorted((draft.id for draft in group), reverse=order == "desc") for group in drafts]
    assert walk(app, "ready", limit=limit, order=order) == [id for group in wanted for id in group]
    assert walk(app, "ready", limit=limit, order=order, queue="b") == wanted[1]
    page = app.jobs.page("ready", limit=limit)
    assert (page.count, len(page)) == (12, min(12, limit))


def test_each_state_has_its_pages_and_count(app: Headrace) -> None:
    noop, other = app.tasks["noop"], app.tasks["other"]
    app.enqueue_many(noop.options(queue="q").job(n) for n in range(4))
    app.enqueue_many(other.options(queue="r").job(n) for n in range(5))
    later = noop.options(delay=60).enqueue().id
    done, failed, parked, running = run(app, "one", "q", ["succeeded", "failed", "parked", "running"])
    elsewhere = run(app, "two", "r", ["running", "parked", "parked", "succeeded", "cancelled"])
    expected = {
        "scheduled": [later],
        "running": [running, elsewhere[0]],
        "parked": [parked, *elsewhere[1:3]],
        "succeeded": [done, elsewhere[3]],
        "failed": [failed],
        "cancelled": [elsewhere[4]],
        "ready": [],
        "quarantined": [],
        "blocked": [],
        "stopped": [],
    }
    for state, ids in expected.items():
        for limit in (1, 100):
            found = walk(app, state, limit=limit, order="asc")
            assert sorted(found) == sorted(ids), state
        assert app.jobs.count(state) == len(ids), state
    assert walk(app, "parked", task="noop") == [parked]
    assert walk(app, "running", task="other") == [elsewhere[0]]
    assert walk(app, "succeeded", queue="r") == [elsewhere[3]]
    assert app.jobs.handle(app.jobs.page("failed")[0]).task == "noop"


def test_jobs_that_wait_for_their_turn_are_listed_by_their_key_alone(app: Headrace) -> None:
    task = app.tasks["noop"].options(key="k", ordered=True)
    first, second = task.enqueue(), task.enqueue()
    assert (first.state, second.state) == ("ready", "blocked")
    assert walk(app, "blocked", key="k") == [second.id]
    unkeyed = app.jobs.page("blocked")
    assert (list(unkeyed), unkeyed.count, unkeyed.next) == ([], 1, None)
    assert walk(app, "blocked", key="other") == []


@pytest.mark.usefixtures("loaded")
def test_a_filter_looks_at_a_bounded_number_and_goes_on_where_it_stopped(app: Headrace) -> None:
    noop, other = app.tasks["noop"], app.tasks["other"]
    app.enqueue_many((other if n % 2500 == 0 else noop).job(n) for n in range(TRIPS * LOOKS + 1))
    before = app.store.round_trips
    page = app.jobs.page("ready", task="other", order="asc")
    assert app.store.round_trips - before == 1 + TRIPS
    assert len(page) == 4
    assert page.next is not None
    assert len(walk(app, "ready", task="other", order="asc")) == 5
    assert len(walk(app, "ready", task="other", limit=2)) == 5


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_window_of_time_is_kept_on_every_page(app: Headrace, order: Any, limit: int) -> None:
    start = datetime(2100, 1, 1, tzinfo=UTC)
    hours = [app.tasks["noop"].options(at=start + timedelta(hours=n)).enqueue().id for n in range(8)]
    window = {"since": start + timedelta(hours=2), "until": start + timedelta(hours=5)}
    found = walk(app, "scheduled", limit=limit, order=order, **window)
    assert found == (hours[2:6] if order == "asc" else hours[5:1:-1])


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_window_of_ready_jobs_is_one_of_times_whatever_their_priorities(app: Headrace, order: Any) -> None:
    task = app.tasks["noop"]
    before = [task.options(priority=priority).enqueue() for priority in (0, 5, -5)]
    at = app.jobs.get(before[-1].id).refresh().due_us
    middle = datetime.fromtimestamp(at / 1e6, UTC) + timedelta(microseconds=1)
    after = [task.options(priority=priority).enqueue() for priority in (7, -7, 0)]
    for window, wanted in (({"until": middle}, before), ({"since": middle}, after)):
        for limit in (1, 2, 100):
            found = walk(app, "ready", order=order, limit=limit, **window)
            assert sorted(found) == sorted(job.id for job in wanted)
    assert walk(app, "ready", since=middle + timedelta(hours=1)) == []


@pytest.mark.parametrize("queues", [1, 120])
def test_a_page_of_many_queues_and_workers_takes_few_round_trips(app: Headrace, queues: int) -> None:
    task, count = app.tasks["noop"], 2 * queues
    app.enqueue_many([task.options(queue=f"q{n % queues}").job(n) for n in range(count)])
    for n in range(queues):
        run(app, f"w{n}", f"q{n}", ["running"])
    keys = app.client.keys
    app.client.run(operations.pause(keys, "empty"))
    app.jobs.page("ready")  # from here on the server knows the scripts
    for state in ("ready", "running"):
        trips = app.client.store.round_trips
        page = app.jobs.page(state, limit=50)
        assert (len(page), page.count) == (min(50, queues), queues)
        # What there is, the first fifty structures, their jobs.
        assert app.client.store.round_trips - trips <= 3 + 2 * (queues == 1)
        trips = app.client.store.round_trips
        assert len(app.jobs.page(state, limit=1000)) == queues
        assert app.client.store.round_trips - trips <= 1 + 2 * (queues // 50 + 1)
        assert len(set(walk(app, state, limit=7))) == queues
    assert len(app.jobs.page("ready", key="nobody's")) == 0


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"state": "lost"}, "there is no state 'lost': the states are scheduled, ready"),
        ({"limit": 0}, "limit must be a whole number from 1 to 1000"),
        ({"limit": 1001}, "limit must be a whole number from 1 to 1000"),
        ({"order": "up"}, "order must be asc or desc"),
        ({"after": "x"}, "after='x' is not the `next` of a page"),
        ({"queue": "a b"}, "queue name 'a b' cannot be used"),
        ({"since": datetime(2030, 1, 1)}, "since=2030-01-01T00:00:00 has no time zone"),  # noqa: DTZ001 - the fault
        ({"until": "2030-01-01"}, "until must be a datetime with a time zone, not '2030-01-01'"),
    ],
)
def test_what_cannot_be_asked_is_refused(app: Headrace, query: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        app.jobs.page(**{"state": "ready", **query})


def test_a_queue_is_paused_resumed_and_purged(app: Headrace, client: redis.Redis) -> None:
    task, queue = app.tasks["noop"].options(queue="low"), app.queues["low"]
    app.enqueue_many(task.job() for _ in range(2300))
    task.options(delay=60).enqueue()
    assert (queue.size, queue.paused) == (2300, False)
    assert (queue.pause(), queue.pause(), queue.paused) == (True, False, True)
    assert run(app, "one", "low", []) == []
    assert (queue.resume(), queue.resume()) == (True, False)
    assert app.queues["empty"].purge() == 0
    before = app.store.round_trips
    assert queue.purge() == 2300
    assert app.store.round_trips - before == 3
    assert (queue.size, queue.purge(), app.jobs.count("scheduled")) == (0, 0, 1)
    # A count that has no jobs, as an edited store may have, holds no purge for ever.
    client.hset(app.client.keys("classes:low"), "account=", 3)
    task.enqueue()
    assert (queue.purge(), queue.size) == (1, 3)
    client.delete(app.client.keys("classes:low"))
    with pytest.raises(OptionsError, match="queue name 'a b' cannot be used"):
        _ = app.queues["a b"]


@pytest.mark.parametrize("duration", [0, -1, float("nan"), True, "10m", timedelta(0)])
def test_a_pause_has_a_length_or_no_end(app: Headrace, duration: Any) -> None:
    with pytest.raises(OptionsError, match="duration must be"):
        app.queues["low"].pause(duration)
    assert not app.queues["low"].paused


async def test_a_pause_with_an_end(app: Headrace) -> None:
    queue = app.queues["low"]

    def left() -> int:
        seen = app.overview()
        return seen.queues[0].until - seen.now

    assert queue.pause(timedelta(hours=1))
    assert 1.8e9 < left() <= 3.6e9
    assert not await queue.apause(7200)
    assert 3.6e9 < left() <= 7.2e9
    # Shorter than the store counts is not for ever.
    assert not queue.pause(1e-9)
    assert app.overview().queues[0].until
    assert not queue.pause()
    assert not app.overview().queues[0].until
    await app.aclose()


async def test_the_same_from_async_code(app: Headrace) -> None:
    for name in ("b", "a"):
        await app.tasks["noop"].options(queue=name).aenqueue()
    queue = app.queues["a"]
    assert [queue.name for queue in app.queues] == [queue.name async for queue in app.queues] == ["a", "b"]
    assert (await queue.asize(), await queue.apause(), await queue.apaused(), await queue.aresume()) == (
        1,
        True,
        True,
        True,
    )
    assert len(await app.jobs.apage("ready")) == await app.jobs.acount("ready") == 2
    assert (await app.aoverview()).states == app.overview().states
    assert await queue.apurge() == 1
    await app.aclose()


ALONE = {
    Headrace: {
        "task",
        "workflow",
        "by_name",
        "job",
        "middleware",
        "on_preload",
        "before_fork",
        "after_fork_child",
        "after_fork_parent",
        "disconnect",
        "on_exit",
        "include",
        "lifespan",
        "enqueue_middleware",
        "move",
        "override",
        "worker",
        # Its pair is await_, since the plain word is Python's; the other one is a pair in itself.
        "wait",
        "await_",
        "as_completed",
        "store",
        "astore",
        "stats",
        "cached",
        # They connect to nothing.
        "cron",
        "every",
    },
    Task: {"unpack", "pack_result", "plan", "prepare", "settle_in"},
    BoundTask: {
        *("job", "options", "fitting", "form", "handle", "check_key", "draw", "seal", "placed", "places"),
        "hidden_places",
    },
    Jobs: {"handle", "handle_of", "reader"},
    Job: {"events", "aevents"},  # two iterators
    Queue: set[str](),
    Schedule: set[str](),
    Schedules: {"cron", "every"},
    Limit: {"hold"},
    LimitSet: {"declare", "declared"},
}


@pytest.mark.parametrize("kind", ALONE, ids=lambda kind: kind.__name__)
def test_each_verb_has_an_asynchronous_pair_of_the_same_shape(kind: type) -> None:
    verbs = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    verbs = {name: value for name, value in verbs.items() if inspect.isfunction(value) or isinstance(value, property)}
    assert ALONE[kind] <= set(verbs)
    single = set(verbs) - ALONE[kind]
    plain = {name for name in single if not (name.startswith("a") and name[1:] in single)}
    assert single - plain == {f"a{name}" for name in plain}
    for name in plain:
        one, pair = verbs[name], verbs[f"a{name}"]
        one = one.fget if isinstance(one, property) else one
        assert inspect.iscoroutinefunction(pair), name
        assert not inspect.iscoroutinefunction(one), name
        ours, theirs = inspect.signature(one), inspect.signature(pair)
        assert ours.return_annotation == theirs.return_annotation, name
        assert list(ours.parameters) == list(theirs.parameters), name
        if name not in ("enqueue_many", "enqueue_packed"):  # their pairs take asynchronous iterables too
            assert ours == theirs, name


def test_whom_it_cannot_resize_it_names(url: str) -> None:
    with Headrace(url) as app:
        workers, keys, run = app.workers, app.client.keys, app.client.run
        with pytest.raises(NotFound, match="none lives now"):
            workers.get("nobody")
        places = ("here:11", "here:12")
        for place in places:
            run(consume.register(keys, f"{place}:a", 60_000_000, ["place", place, "sizes", "process:1"]))
        for name in (places[0], "11", f"{places[0]}:"):
            assert workers.get(name).metadata["place"] == places[0]
        with pytest.raises(NotFound, match=r"did you mean .*:12:"):
            workers.get("xhere:12")
        with pytest.raises(NotFound, match=r"may be any of .*: give more of the name"):
            workers.get("here")
        with pytest.raises(NotFound, match="has no async runners: it has process"):
            workers.scale(places[0], 2, "async")
        for size in (0, -1, 2000, True):
            with pytest.raises(OptionsError, match="a worker has 1 to 1,024 runners"):
                workers.scale(places[0], size)
        with pytest.raises(OptionsError, match="there is no kind 'rocket'"):
            workers.scale(places[0], 2, "rocket")  # type: ignore[arg-type]
        for place in places:
            run(consume.retire(keys, f"{place}:a", 0))


def test_a_broadcast_takes_no_option_that_it_cannot_keep(app: Headrace) -> None:
    given: list[dict[str, Any]] = [{"delay": 3}, {"ordered": True, "key": "k"}, {"request_id": "r"}]
    for options in given:
        with pytest.raises(OptionsError, match="a broadcast goes to each worker that lives now: it takes no "):
            app.by_name("noop", **options).broadcast(1, 1)
