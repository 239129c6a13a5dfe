"""Finding: one rule for ranges, exact sums whatever the plan, lazy, and the same for threads and event loops."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from headrace.errors import ArgumentError, OptionsError, PayloadTooLarge
from headrace.stats import Bucket, Event, Reading, Stats
from headrace.stats import reading as module
from tests.stats.conftest import Clock

Make = Callable[..., Stats]
DAY = 86400
KEEP = "minute=90y hour=90y day=90y month=90y year=90y"


def at(*when: int) -> datetime:
    return datetime(*when, tzinfo=UTC)  # type: ignore[arg-type,misc]


@pytest.fixture
def stats(make_stats: Make) -> Stats:
    return make_stats(stats_keep=KEEP)


def test_one_rule_for_the_ends_of_a_range(stats: Stats) -> None:
    """RS9, R31: the bucket of the start, up to that of the end, which belongs to it only when told so."""
    for hour in range(12, 17):
        stats.add("a", {f"h{hour}": 1}, at(2026, 3, 1, hour, 30))
    stats.flush()
    first, last = at(2026, 3, 1, 13, 34), at(2026, 3, 1, 14, 34)
    assert stats.find("a", first, last, "hour").total().counts == {"h13": 1}
    assert stats.find("a", first, last, "hour", inclusive=True).total().counts == {"h13": 1, "h14": 1}
    assert stats.find("a", first, at(2026, 3, 1, 16), "hour").total().counts == {"h13": 1, "h14": 1, "h15": 1}
    assert stats.find("a", first, first, "hour").total().counts == {}
    assert stats.find("a", first, at(2026, 3, 2, 1), "day").total()["h12"] == 1
    # The series of a range is its total, taken apart.
    for inclusive in (False, True):
        found = stats.find("a", first, last, "hour", inclusive=inclusive)
        assert sum(sum(b.counts.values()) for b in found.series()) == sum(found.total().counts.values())


def test_a_series_has_its_empty_buckets(stats: Stats) -> None:
    """R29: and each says when it begins; numbers are numbers in both."""
    stats.add("a", {"n": 2}, at(2026, 3, 1, 2))
    stats.flush()
    found = stats.find("a", at(2026, 3, 1), at(2026, 3, 1, 4), "hour")
    assert [(b.start.hour, b.end - b.start, b["n"], dict(b.counts)) for b in found] == [
        (0, timedelta(hours=1), 0, {}), (1, timedelta(hours=1), 0, {}),
        (2, timedelta(hours=1), 2, {"n": 2}), (3, timedelta(hours=1), 0, {}),
    ]  # fmt: skip
    months = stats.find("a", at(2025, 12, 1), at(2026, 4, 1), "month").series()
    assert [(b.start.month, b["n"]) for b in months] == [(12, 0), (1, 0), (2, 0), (3, 2)]


def test_a_total_is_what_was_counted_whatever_the_range(stats: Stats) -> None:
    """R30: random events, random ranges, every resolution, against counting them one by one."""
    dice = random.Random(7)
    start = int(at(2025, 6, 1).timestamp())
    events = [(start + dice.randrange(500 * DAY), dice.randint(-3, 9)) for _ in range(400)]
    for moment, n in events:
        stats.add("a/b", {"n": n}, moment)
    stats.flush()
    for every in ("minute", "hour", "day", "month", "year"):
        for _ in range(25):
            one, other = sorted(start + dice.randrange(500 * DAY) for _ in range(2))
            found = stats.find("a", one, other, every).total()  # type: ignore[arg-type]
            assert found.exact
            assert found["n"] == sum(n for t, n in events if found.start.timestamp() <= t < found.end.timestamp())


def test_a_reader_never_sees_half_of_a_count(make_stats: Make) -> None:
    """RS7: a month less its first days, while every count goes into the day that is subtracted."""
    stats, writer = make_stats(stats_keep=KEEP), make_stats(stats_keep=KEEP, stats_buffer=0)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            writer.add("a", {"n": 1}, at(2026, 3, 1, 5))

    stats.add("a", {"n": 7}, at(2026, 3, 20))
    stats.flush()
    thread = threading.Thread(target=write)
    thread.start()
    try:
        found = stats.find("a", at(2026, 3, 2), at(2026, 4, 1), "day")
        signs = {sign for _, sign in found.query.plan(module.cover, int(at(2026, 4, 1).timestamp())).buckets()}
        assert signs == {1, -1}
        for _ in range(200):
            assert found.total(reload=True)["n"] == 7
    finally:
        stop.set()
        thread.join()


def test_a_total_agrees_with_itself_between_any_two_scripts_of_a_flush(stats: Stats) -> None:
    """RS7: hours that are subtracted from days were once counted before, or after, those days."""
    below = stats.find("views", at(2026, 3, 1, 5), at(2026, 3, 4), "hour")
    signs = {sign for _, sign in below.query.plan(module.cover, int(at(2026, 3, 5).timestamp())).buckets()}
    assert signs == {1, -1}
    for n in range(3000):
        stats.add(f"views/{n}", {"count": 1, "all/x": 1}, at(2026, 3, 1 + n % 3, 2))
    batch = stats._writer.buffer.take()  # pyright: ignore[reportPrivateUsage]
    assert batch is not None
    writes = batch.writes(stats.client.keys)
    assert len(writes) > 5
    whole, before = stats.find("views", at(2026, 3, 1), at(2026, 3, 4), "hour"), 0
    for write in writes:
        stats.client.run(write)
        total = whole.total(reload=True)
        assert below.total(reload=True)["count"] == sum(n["count"] for n in below.series(reload=True)) >= 0
        assert before < total["count"] == total["all"] == total["all/x"]
        before = total["count"]
        some = whole.children(reload=True)[0]
        assert some.total()["count"] == 1
    assert before == 3000
    stats._writer.buffer.answered(batch)  # pyright: ignore[reportPrivateUsage]


def test_whoever_reads_all_the_time_sees_counts_grow(make_stats: Make) -> None:
    """While 3,000 labels are written, twenty times."""
    stats, reader = make_stats(stats_keep=KEEP), make_stats(stats_keep=KEEP)
    found = reader.find("views", at(2026, 3, 1, 5), at(2026, 3, 4), "hour")
    done = threading.Event()

    def write() -> None:
        try:
            for _ in range(20):
                for n in range(3000):
                    stats.add(f"views/{n}", {"count": 1}, at(2026, 3, 1, n % 24))
                stats.flush()
        finally:
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = [0]
    try:
        while not done.is_set():
            seen.append(found.total(reload=True)["count"])
    finally:
        thread.join()
    seen.append(found.total(reload=True)["count"])
    assert seen == sorted(seen)
    assert seen[-1] == 20 * 3000 * 19 // 24
    assert len(set(seen)) > 20


def test_many_readings_are_one_round_trip(stats: Stats) -> None:
    for n in range(200):
        stats.add(f"a/{n}", {"n": n}, at(2026, 3, 1 + n % 20))
    stats.flush()
    found = stats.find("a", at(2026, 3, 1), at(2026, 4, 1), "day")
    children = found.children()
    found.total()  # from here on the server knows the script
    before = stats.client.store.round_trips
    module.ask(stats.client, [found, *children], children)
    assert [child["n"] for child in children] == [int(child.label[2:]) for child in children]
    assert [sum(bucket["n"] for bucket in child) for child in children] == [child["n"] for child in children]
    assert found["n"] == sum(range(200))
    assert stats.client.store.round_trips == before + 1


async def test_children_may_be_those_that_were_counted_last(make_stats: Make) -> None:
    stats = make_stats()
    for n in range(30):
        stats.add(f"a/{n:02}", {"n": 1}, time.time() - 90 * DAY * (n % 3))
    stats.flush()
    found = stats.find("a", time.time() - 3600)
    found.children()  # from here on the server knows the script
    before = stats.client.store.round_trips
    assert [child.label for child in found.children(limit=10)] == [f"a/{n:02}" for n in range(0, 30, 3)]
    assert stats.client.store.round_trips == before + 1
    assert found.children(limit=10) is found.children(limit=10)
    assert len(found.children(limit=11)) == 11
    assert len(found.children()) == 30
    assert len(await found.achildren(limit=3)) == 3


def test_what_has_expired_is_told(make_stats: Make) -> None:
    """RS6: never an over-count, and never silence."""
    clock = Clock(at(2026, 3, 10, 12).timestamp())
    stats = make_stats(clock=clock, stats_keep="hour=2d day=9000d")
    stats.add("a", {"n": 1}, at(2026, 3, 1, 5))
    stats.add("a", {"n": 2}, at(2026, 3, 1, 20))
    stats.flush()
    found = stats.find("a", at(2026, 3, 1, 12), at(2026, 3, 10, 6), "hour")
    total = found.total()
    assert (total["n"], total.exact, total.start) == (3, False, at(2026, 3, 1))
    assert [b.end - b.start for b in found.series()] == [timedelta(days=1)] * 10
    assert not found.series()[0].exact
    gone = stats.find("a", at(1990, 3, 1), at(1990, 3, 2), "hour")
    assert (gone.total().exact, gone.total().counts, gone.series()) == (False, {}, [])


def test_a_reading_asks_when_it_must_and_once(stats: Stats) -> None:
    """R22, R26."""
    found = stats.find("a", at(2026, 3, 1), at(2026, 3, 2), "hour")
    trips = stats._client.store.round_trips
    found.parent()
    repr(found)
    assert stats._client.store.round_trips == trips
    first = found.total()
    assert (found.total(), found.series(), found.children()) == (first, found.series(), found.children())
    trips = stats._client.store.round_trips
    assert found.total() is first
    assert found.series() is found.series()
    assert stats._client.store.round_trips == trips
    stats.add("a", {"n": 1}, at(2026, 3, 1))
    stats.flush()
    assert (found["n"], found.total(reload=True)["n"], found["n"]) == (0, 1, 1)


def test_children_and_parents(stats: Stats) -> None:
    """R32."""
    for label in ("shop/b/x", "shop/a", "/shop//c/", "blog"):
        stats.add(label, {"n": 1}, at(2026, 3, 1))
    stats.flush()
    found = stats.find("/shop/", at(2026, 3, 1), at(2026, 3, 2), "day")
    assert [(child.label, child["n"]) for child in found.children()] == [("shop/a", 1), ("shop/b", 1), ("shop/c", 1)]
    assert [child.label for child in found.parent().children()] == ["blog", "shop"]
    assert (found.parent().label, found.parent().parent().label, found["n"]) == ("", "", 3)


def test_a_slash_in_front_changes_nothing(stats: Stats) -> None:
    """RS1: stored and read under the same label."""
    stats.add("/about", {"n": 1}, at(2026, 3, 1))
    stats.flush()
    assert stats.find("/about", at(2026, 3, 1), at(2026, 3, 2))["n"] == 1
    assert stats.find("about", at(2026, 3, 1), at(2026, 3, 2))["n"] == 1


def test_counts_of_the_root(stats: Stats) -> None:
    """R01: without a label."""
    stats.add("", {"n": 1}, at(2026, 3, 1))
    stats.add("a", {"n": 5}, at(2026, 3, 1))
    stats.flush()
    assert stats.find("", at(2026, 3, 1), at(2026, 3, 2))["n"] == 1


def test_named_fields_are_all_that_is_read(stats: Stats) -> None:
    stats.add("a", {"n/x": 1, "m": 2}, at(2026, 3, 1))
    stats.flush()
    assert stats.find("a", at(2026, 3, 1), at(2026, 3, 2), fields=("n", "k")).total().counts == {"n": 1}


def test_until_now_the_bucket_of_now_included(make_stats: Make) -> None:
    clock = Clock(at(2026, 3, 10, 12, 30).timestamp())
    stats = make_stats(clock=clock, stats_keep=KEEP)
    stats.add("a", {"n": 1})
    stats.flush()
    assert stats.find("a", clock.now - 3600, every="hour")["n"] == 1
    assert stats.find("a", clock.now - 3600, every="hour", inclusive=False)["n"] == 0


def test_histograms_merge_over_buckets_and_labels(make_stats: Make) -> None:
    stats, other = make_stats(stats_keep=KEEP), make_stats(stats_keep=KEEP)
    for n in range(1, 501):
        stats.observe("web/a", {"seconds/get": n}, at(2026, 3, 1 + n % 5))
        other.observe("web/b", {"seconds/put": 500 + n}, at(2026, 3, 1 + n % 7))
    stats.flush()
    other.flush()
    found = stats.find("web", at(2026, 3, 1), at(2026, 3, 9), "day")
    whole = found.total().histogram("seconds")
    assert whole.count == 1000
    for percent in (1, 50, 90, 99, 100):
        assert found.percentile("seconds", percent) == pytest.approx(percent * 10, rel=0.02)
    assert whole.mean == pytest.approx(500.5, rel=0.02)
    assert found.total().histogram("seconds/get").count == 500
    assert found.total().counts == {}
    # A month less its days: subtracting takes the counts of each bucket away, too.
    assert (
        stats.find("web", at(2026, 3, 2), at(2026, 4, 1), "day").total().histogram("seconds").count == 1000 - 100 - 71
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start": at(2026, 3, 2), "end": at(2026, 3, 1)}, "ends before it begins"),
        ({"start": at(2026, 3, 2), "every": "second"}, "every='second' is not kept"),
        ({"start": datetime(2026, 3, 2)}, "start needs a time zone"),  # noqa: DTZ001
        ({"start": 0, "end": "soon"}, "end='soon' is not a time"),
        ({"start": 0, "fields": ("",)}, "field"),
        ({"start": 0, "label": "a\n"}, "control characters"),
    ],
)  # fmt: skip
def test_what_cannot_be_found_is_told_at_the_call(stats: Stats, given: dict[str, object], says: str) -> None:
    """R27."""
    with pytest.raises(OptionsError, match=says):
        stats.find(**{"label": "a"} | given)  # type: ignore[arg-type]


def test_a_range_of_too_many_buckets_is_told(stats: Stats) -> None:
    with pytest.raises(OptionsError, match=r"525,600 buckets.*coarser"):
        stats.find("a", at(2025, 1, 1), at(2026, 1, 1), "minute").series()


def test_more_buckets_than_one_script_reads(stats: Stats) -> None:
    for minute in range(0, 2500, 100):
        stats.add("a", {"n": 1}, at(2026, 3, 1) + timedelta(minutes=minute))
    stats.flush()
    series = stats.find("a", at(2026, 3, 1), at(2026, 3, 3), "minute").series()
    assert (len(series), sum(b["n"] for b in series), series[2400]["n"]) == (2880, 25, 1)


def test_an_event_from_before_the_retention_of_events_is_counted_once(make_stats: Make) -> None:
    stats = make_stats(stats_events=3600)
    yesterday = time.time() - DAY
    assert [stats.event("sales", {"n": 1}, at=yesterday, id="order-5") for _ in range(3)] == ["order-5", None, None]
    assert stats.find("sales", yesterday - DAY)["n"] == 1
    assert stats.events() == []


def test_events(make_stats: Make) -> None:
    """R10, R24."""
    now = at(2026, 3, 10).timestamp()
    clock = Clock(now)
    stats = make_stats(clock=clock, stats_keep=KEEP, stats_events=90 * 365 * DAY)
    id = stats.event("/shop/sale", {"n": 1, "eur/net": 12}, {"customer": 7, "tags": ["a"]}, at(2026, 3, 1))
    assert id is not None
    event = stats.get_event(id)
    assert event == Event(id, "shop/sale", at(2026, 3, 1), {"n": 1, "eur/net": 12}, {"customer": 7, "tags": ["a"]})
    assert stats.find("shop", at(2026, 3, 1), at(2026, 3, 2)).total().counts == {"n": 1, "eur": 12, "eur/net": 12}
    assert stats.event("shop", {"n": 1}, id="order-5") == "order-5"
    assert stats.event("shop", {"n": 1}, id="order-5") is None
    assert stats.find("shop", clock.now - 60)["n"] == 1
    assert [e.id for e in stats.events()] == ["order-5", id]
    assert [e.id for e in stats.events(start=at(2026, 3, 1), end=at(2026, 3, 10))] == [id]
    assert [e.id for e in stats.events(limit=1)] == ["order-5"]
    assert stats.get_event("nobody") is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"id": ""}, OptionsError), ({"id": "x" * 129}, OptionsError), ({"meta": {"x": "y" * 70_000}}, PayloadTooLarge),
        ({"meta": {"x": object()}}, ArgumentError), ({"fields": {"n": 1.5}}, OptionsError),
    ],
)  # fmt: skip
def test_events_that_cannot_be(stats: Stats, given: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        stats.event(**{"label": "a", "fields": {"n": 1}} | given)  # type: ignore[arg-type]
    assert stats.events() == []
    with pytest.raises(OptionsError, match="limit"):
        stats.events(limit=0)


def test_scopes_have_their_own_labels_and_resolutions(make_stats: Make) -> None:
    """R20."""
    now = datetime.now(UTC)
    stats = make_stats(clock=Clock(now.timestamp()), stats_keep=KEEP)
    web = stats.scope("web", {"second": 600, "day": timedelta(days=36500)})
    stats.add("views", {"n": 1})
    web.add("views", {"n": 10})
    stats.flush()
    start = now - timedelta(minutes=5)
    assert web.find("views", start)["n"] == 10
    assert web.find("views", start).label == "web/views"
    assert stats.find("views", start)["n"] == 1
    assert len(web.find("views", start).series()) == 301
    assert stats.find("web/views", start, every="minute")["n"] == 0, "its minutes are not kept"
    assert stats.find("web/views", start, every="day")["n"] == 10


async def test_every_verb_has_a_pair(stats: Stats) -> None:
    await stats.aadd("a/b", {"n": 1}, at(2026, 3, 1))
    await stats.aobserve("a/b", {"s": 2.0}, at(2026, 3, 1))
    assert await stats.aevent("a/b", {"n": 4}, {"x": 1}, at(2026, 3, 1), id="e") == "e"
    await stats.aflush()
    found = stats.find("a", at(2026, 3, 1), at(2026, 3, 2), "hour")
    assert (await found.atotal())["n"] == 5
    assert sum(b["n"] for b in await found.aseries()) == 5
    assert [child.label for child in await found.achildren()] == ["a/b"]
    assert await found.apercentile("s", 50) == pytest.approx(2, rel=0.02)
    assert [e.id for e in await stats.aevents()] == ["e"] or not await stats.aevents()
    assert await stats.aget_event("nobody") is None
    assert (await stats.alag()).waiting == 0
    await stats._client.astore.close()  # type: ignore[attr-defined]


async def test_without_a_buffer_the_pairs_store_too(make_stats: Make) -> None:
    stats = make_stats(stats_buffer=0, stats_keep=KEEP)
    await asyncio.gather(*(stats.aadd("a", {"n": 1}, at(2026, 3, 1)) for _ in range(20)))
    await stats.aobserve("a", {"s": 1}, at(2026, 3, 1))
    found = await stats.find("a", at(2026, 3, 1), at(2026, 3, 2)).atotal()
    assert (found["n"], found.histogram("s").count) == (20, 1)
    await stats._client.astore.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Stats, Reading])
def test_pairs_take_the_same(kind: type) -> None:
    names = dict(inspect.getmembers(kind, inspect.isfunction))
    pairs = [name for name in names if inspect.iscoroutinefunction(names[name])]
    assert len(pairs) >= 4
    for name in pairs:
        assert inspect.signature(names[name]).parameters.keys() == inspect.signature(names[name[1:]]).parameters.keys()


def test_a_bucket_is_asked_by_any_spelling(stats: Stats) -> None:
    stats.add("a", {"/n//x/": 1}, at(2026, 3, 1))
    stats.flush()
    found: Bucket = stats.find("a", at(2026, 3, 1), at(2026, 3, 2)).total()
    assert (found["n/x"], found["/n/x"], found["n"], found["other"]) == (1, 1, 1, 0)
