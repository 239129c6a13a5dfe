"""The record of what people did: pages, what is cut, and that it is for people's acts only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Thread

import pytest

from headrace import Headrace
from headrace.admin.event_log import ActLog
from headrace.errors import OptionsError
from headrace.model.activity import ChainedAct, chain_breach
from headrace.testing import Kit


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        yield app


def test_acts_come_newest_first_in_pages(app: Headrace) -> None:
    for n in range(5):
        app.acts.record("retry", "jobs", f"job {n}", who="ada", reply="done")
    page = app.acts.page(limit=2)
    assert ([act.name for act in page], page.count) == (["job 4", "job 3"], 5)
    rest = app.acts.page(limit=10, after=page.next)
    assert ([act.name for act in rest], rest.next) == (["job 2", "job 1", "job 0"], None)
    one = rest[0]
    assert (one.who, one.by, one.verb, one.kind, one.count, one.reply) == ("ada", "program", "retry", "jobs", 1, "done")
    assert one.at_us > 1_700_000_000_000_000


async def test_both_pairs_write_and_read_the_same(app: Headrace) -> None:
    await app.acts.arecord("purge", "queues", who="\ud800" + "x" * 600, by="api", scope="state:failed", count=412)
    (one,) = (await app.acts.apage()).rows
    assert one == app.acts.page()[0]
    assert (one.who, one.scope, one.count) == ("\\ud800" + "x" * 499, "state:failed", 412)
    assert (one.name, one.reply) == ("", "")
    await app.aclose()


@pytest.mark.parametrize("after", ["x", "1-", "-", "1-2-3", 5])
def test_what_is_no_id_is_refused(app: Headrace, after: str) -> None:
    with pytest.raises(OptionsError, match="not the id of an act"):
        app.acts.page(after=after)


def test_an_unknown_way_to_act_is_refused(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="by must be one of"):
        app.acts.record("retry", "jobs", who="ada", by="telepathy")


def test_the_life_of_jobs_is_not_in_the_record(url: str) -> None:
    app = Headrace(url)
    task = app.task(name="bad", retries=0)(lambda: 1 / 0)
    with Kit(app, url=url) as kit:
        task.enqueue()
        kit.drain(raises=False)
        app.queues["default"].pause()
        assert len(app.acts.page()) == 0


def test_each_verb_has_its_pair() -> None:
    verbs = {name for name in vars(ActLog) if not name.startswith("_")}
    assert verbs == {"page", "apage", "record", "arecord", "export", "aexport"}


def test_acts_of_many_are_one_chain(app: Headrace) -> None:
    threads = [Thread(target=app.acts.record, args=("retry", "jobs", str(n)), kwargs={"who": "ada"}) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    acts = list(app.acts.export())
    assert len(acts) == 12
    assert chain_breach(acts) == ""
    assert chain_breach(acts[5:]) == "", "the first line is the anchor"
    assert chain_breach([*acts[:3], *acts[4:]]) == acts[4].id
    forged = ChainedAct(acts[6].id, acts[6].fields | {"who": "eve"})
    assert chain_breach([*acts[:6], forged, *acts[7:]]) == acts[7].id
    assert list(app.acts.export(since=time.time() + 60)) == []
