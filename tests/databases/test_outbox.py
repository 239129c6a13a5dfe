"""The outbox: what a transaction wrote is stored once, whoever dies between which steps."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from headrace import Flow, Headrace
from headrace.contrib import sqlalchemy as tie
from headrace.contrib.outbox import BATCH, Relay
from headrace.errors import OptionsError, StoreUnavailable
from headrace.model.job import State
from tests.databases.sql_servers import mariadb, postgresql
from tests.databases.test_django_commit import stored
from tests.deadline import eventually
from tests.nursery import Forked, headrace, nursery_of

MODULE = """
import os, sqlalchemy
from headrace import Headrace
from headrace.contrib import sqlalchemy as tie

app = Headrace()
engine = sqlalchemy.create_engine(os.environ["DATABASE"])
tie.install(app, engine)

@app.task(name="fetch")
def fetch(n: int) -> None: ...
"""


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/shop.db?timeout=60"
        return
    with {"postgresql": postgresql, "mariadb": mariadb}[request.param]() as server:
        yield server.url


@pytest.fixture
def engine(database: str) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(database)
    metadata = sqlalchemy.MetaData()
    tie.outbox_table(metadata)
    metadata.drop_all(made)
    metadata.create_all(made)
    yield made
    made.dispose()


def count(engine: sqlalchemy.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sqlalchemy.text("select count(*) from headrace_outbox")).scalar() or 0)


def fill(app: Headrace, engine: sqlalchemy.Engine, numbers: range) -> list[str]:
    """Rows of which the producer died before it sent them; ids."""
    jobs = [app.tasks["fetch"].job(n) for n in numbers]
    rows = [{"id": job.id, "envelope": job.pack(), "tries": 0} for job in jobs]
    with engine.begin() as connection:
        connection.execute(sqlalchemy.insert(tie._TABLE), rows)
    return sorted(job.id for job in jobs)


def relay(app: Headrace, engine: sqlalchemy.Engine) -> Relay:
    return Relay(app, tie.EngineOutbox(engine))


def test_the_producer_sends_and_deletes_what_it_wrote(app: Headrace, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        bound = app.tasks["fetch"].options(after_commit=tie.outbox(session))
        with session.begin():
            session.execute(sqlalchemy.text("select 1"))
            jobs = [bound.enqueue(n) for n in range(3)]
            with pytest.raises(ZeroDivisionError), session.begin_nested():
                bound.enqueue(4)
                raise ZeroDivisionError
        assert stored(app) == sorted(job.id for job in jobs)
        assert count(engine) == 0
        with pytest.raises(ZeroDivisionError), session.begin():
            session.execute(sqlalchemy.text("select 1"))
            bound.enqueue(5)
            raise ZeroDivisionError
    assert count(engine) == 0
    assert len(stored(app)) == 3


def test_a_server_that_is_away_leaves_the_rows_to_the_relay(
    app: Headrace, engine: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    away = app.move(msgspec.structs.replace(app.settings, url="redis://127.0.0.1:1", timeout=0.1), {})
    with Session(engine) as session, session.begin():
        session.execute(sqlalchemy.text("select 1"))
        job = app.tasks["fetch"].options(after_commit=tie.outbox(session), request_id="once").enqueue(7)
    assert "the outbox keeps its 1 jobs" in caplog.text
    assert count(engine) == 1
    with pytest.raises(StoreUnavailable):
        relay(app, engine).run(threading.Event(), once=True)
    assert count(engine) == 1
    away()
    assert relay(app, engine).run(threading.Event(), once=True) == 1
    assert (stored(app), count(engine), job.state) == ([job.id], 0, State.READY)


def test_a_relay_that_does_nothing_holds_no_connection(app: Headrace, engine: sqlalchemy.Engine) -> None:
    fill(app, engine, range(2))
    one = relay(app, engine)
    assert one.run(threading.Event(), once=True) == 2
    one.retry()
    assert (one.waiting(), one.refused()) == (0, [])
    pool: Any = engine.pool
    assert pool.checkedout() == 0


def test_only_jobs_fit_into_an_envelope(app: Headrace, engine: sqlalchemy.Engine) -> None:
    @app.workflow(name="graph")
    def graph(flow: Flow) -> None:
        flow.run("fetch", 1)

    with Session(engine) as session, session.begin():
        session.execute(sqlalchemy.text("select 1"))
        with pytest.raises(OptionsError, match="an outbox keeps jobs, not workflow"):
            graph.options(after_commit=tie.outbox(session)).create()
        with pytest.raises(OptionsError, match="an outbox keeps jobs, not a broadcast of fetch"):
            app.tasks["fetch"].options(after_commit=tie.outbox(session)).broadcast(1)


def test_a_row_that_cannot_be_read_is_kept_and_holds_up_no_other(
    app: Headrace, engine: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    ids = fill(app, engine, range(5))
    with engine.begin() as connection:
        bad = [{"id": f"{n}bad", "envelope": b"\xc1 no envelope", "tries": 0} for n in (0, 9)]
        connection.execute(sqlalchemy.insert(tie._TABLE), bad)
    one = relay(app, engine)
    assert one.run(threading.Event(), once=True) == 7
    assert (stored(app), count(engine), one.waiting()) == (ids, 2, 0)
    assert [(id, tries) for id, tries, _ in one.refused()] == [("0bad", 1), ("9bad", 1)]
    assert all("cannot be stored" in error for _, _, error in one.refused())
    assert one.run(threading.Event(), once=True) == 0
    one.retry()
    assert one.run(threading.Event(), once=True) == 2
    assert [tries for _, tries, _ in one.refused()] == [2, 2]
    assert "the outbox keeps job 0bad" in caplog.text


def test_a_row_whose_transaction_commits_late_is_not_passed_over(app: Headrace, engine: sqlalchemy.Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    early, late = (app.tasks["fetch"].job(n) for n in range(2))
    with engine.connect() as slow:
        slow.execute(sqlalchemy.insert(tie._TABLE), {"id": early.id, "envelope": early.pack(), "tries": 0})
        with engine.begin() as fast:
            fast.execute(sqlalchemy.insert(tie._TABLE), {"id": late.id, "envelope": late.pack(), "tries": 0})
        assert relay(app, engine).run(threading.Event(), once=True) == 1
        assert stored(app) == [late.id]
        slow.commit()
    assert relay(app, engine).run(threading.Event(), once=True) == 1
    assert (stored(app), count(engine)) == (sorted([early.id, late.id]), 0)


STEPS = ("BEGIN", "SELECT", "enqueue", "DELETE", "COMMIT")


@pytest.mark.parametrize("after", STEPS)
def test_a_relay_that_dies_between_two_steps_repeats_and_loses_nothing(
    app: Headrace, engine: sqlalchemy.Engine, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    class Killed(BaseException): ...

    class Dying(tie.EngineOutbox):
        def run(self, statement: str, values: Any = (), /) -> list[tuple[Any, ...]]:
            found = super().run(statement, values)
            if statement.startswith(after):
                raise Killed
            return found

    ids = fill(app, engine, range(20))
    dying = Relay(app, Dying(engine))
    with monkeypatch.context() as patch:
        if after == "enqueue":
            real = app.enqueue_packed

            def enqueue(given: Any) -> Any:
                real(given)
                raise Killed

            patch.setattr(app, "enqueue_packed", enqueue)
        with pytest.raises(Killed):
            dying.run(threading.Event(), once=True)
    relay(app, engine).run(threading.Event(), once=True)
    assert (stored(app), count(engine)) == (ids, 0)


def test_a_producer_and_two_relays_at_the_same_rows_store_each_once(app: Headrace, engine: sqlalchemy.Engine) -> None:
    ids = fill(app, engine, range(3 * BATCH))
    stop = threading.Event()
    threads = [threading.Thread(target=relay(app, engine).run, args=(stop,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    mine: list[str] = []
    with Session(engine) as session:
        for n in range(50):
            with session.begin():
                session.execute(sqlalchemy.text("select 1"))
                mine.append(app.tasks["fetch"].options(after_commit=tie.outbox(session)).enqueue(n).id)
    end = time.monotonic() + 60
    while count(engine) and time.monotonic() < end:
        stop.wait(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert count(engine) == 0
    everything = [record.id for record in pages(app)]
    assert sorted(everything) == sorted(ids + mine)


def pages(app: Headrace) -> Iterator[Any]:
    page = app.jobs.page("ready", limit=1000)
    while True:
        yield from page
        if page.next is None:
            return
        page = app.jobs.page("ready", limit=1000, after=page.next)


def test_the_command_relays_until_a_signal(
    app: Headrace, engine: sqlalchemy.Engine, database: str, url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    environ = environ_of(url, database) | {"HEADRACE_APP": "shop:app"}
    ids = fill(app, engine, range(3))

    def start(word: str, *flags: str) -> Forked:
        return headrace(environ, "outbox", word, *flags, purpose="command", stdout=subprocess.PIPE, directory=tmp_path)

    process = start("relay")
    try:
        eventually(lambda: count(engine) == 0)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "3 rows were handed over\n"
    finally:
        process.kill()
        process.wait()
    assert stored(app) == ids
    assert json.loads(start("list", "--json").communicate(60)[0]) == {"waiting": 0, "refused": []}


def forked(environ: dict[str, str], directory: Path, *words: str, **streams: Any) -> Forked:
    return nursery_of(environ, "django").start(
        "tests.databases.forked_django", environ, *words, directory=directory, **streams
    )


def killed_relays(
    app: Headrace, engine: sqlalchemy.Engine, environ: dict[str, str], directory: Path, rows: int
) -> None:
    """Relays are killed at random until the table is empty; each job is stored once."""
    (directory / "shop.py").write_text(MODULE)
    ids: list[str] = []
    for first in range(0, rows, 10_000):
        ids += fill(app, engine, range(first, min(rows, first + 10_000)))
    (directory / "relay.py").write_text(
        "import threading, shop; from headrace.contrib.outbox import Relay\n"
        "print(flush=True); Relay(shop.app, shop.app.client.deferral.outbox(None)).run(threading.Event())"
    )
    dice = random.Random(7)
    kills = 0
    while (before := count(engine)) or kills < 2:
        relays = [forked(environ, directory, "relay.py", stdout=subprocess.PIPE) for _ in range(2)]
        try:
            for one in relays:
                assert one.stdout is not None
                one.stdout.readline()
            end = time.monotonic() + dice.random() * 0.3
            eventually(
                partial(lambda end, before: time.monotonic() >= end and count(engine) != before, end, before or -1)
            )
        finally:
            for one in relays:
                one.kill()
                one.communicate()
        kills += 2
    found = [record.id for record in pages(app)]
    assert len(found) == len(set(found)) == rows
    assert sorted(found) == sorted(ids)


def environ_of(url: str, database: str) -> dict[str, str]:
    return os.environ | {"HEADRACE_URL": url, "DATABASE": database}


def test_each_job_is_stored_once_though_relays_are_killed(
    app: Headrace, engine: sqlalchemy.Engine, database: str, url: str, tmp_path: Path
) -> None:
    killed_relays(app, engine, environ_of(url, database), tmp_path, 3000)


@pytest.mark.soak
def test_a_hundred_thousand_jobs_are_stored_once(
    app: Headrace, engine: sqlalchemy.Engine, database: str, url: str, tmp_path: Path
) -> None:
    killed_relays(app, engine, environ_of(url, database), tmp_path, 100_000)
