"""Code that keeps its connection by thread, as Django does, sees the test's own transaction in each kind of task."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.testing import Kit


class Database(threading.local):
    """A connection for each thread; nothing that a test writes is committed, as under ``django_db``."""

    path = Path()

    @property
    def connection(self) -> sqlite3.Connection:
        made: sqlite3.Connection | None = self.__dict__.get("made")
        if made is None:
            made = self.made = sqlite3.connect(self.path, isolation_level=None, timeout=0)
        return made

    def count(self) -> int:
        (found,) = self.connection.execute("select count(*) from users").fetchone()
        return int(found)


database = Database()
app = Headrace(url="redis://127.0.0.1:1/0")


@app.task(name="add")
def add() -> int:
    database.connection.execute("insert into users values (2)")
    return database.count()


@app.task(name="acount")
async def acount() -> int:
    await asyncio.sleep(0)
    return database.count()


@app.task(name="where", kind="thread")
def where() -> tuple[int, bool, int]:
    async def inner() -> int:
        await asyncio.sleep(0)
        return database.count()

    return threading.get_ident(), _loop_runs(), asyncio.run(inner())


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.fixture
def transaction(tmp_path: Path) -> object:
    Database.path = tmp_path / "users.sqlite"
    database.__dict__.pop("made", None)
    database.connection.execute("create table users (id integer)")
    database.connection.execute("begin")
    database.connection.execute("insert into users values (1)")
    yield
    database.connection.execute("rollback")
    assert database.count() == 0
    database.connection.close()
    database.__dict__.pop("made", None)


@pytest.mark.usefixtures("transaction")
def test_a_drain_runs_both_kinds_in_the_transaction_of_the_test() -> None:
    with Kit(app) as kit:
        jobs = [add.enqueue(), acount.enqueue(), where.enqueue()]
        assert kit.drain().ends == {"succeeded": 3}
        assert [job.result() for job in jobs] == [2, 2, (threading.get_ident(), False, 2)]


@pytest.mark.usefixtures("transaction")
async def test_adrain_runs_both_kinds_in_the_transaction_of_the_test() -> None:
    with Kit(app) as kit:
        jobs = [await add.aenqueue(), await acount.aenqueue(), await where.aenqueue()]
        task = asyncio.current_task()
        assert (await kit.adrain()).ends == {"succeeded": 3}
        assert [await job for job in jobs] == [2, 2, (threading.get_ident(), False, 2)]
        # The loop of the test goes on as if nothing had been.
        assert asyncio.current_task() is task
        async with asyncio.timeout(5):
            await asyncio.sleep(0)


@pytest.mark.usefixtures("transaction")
async def test_inline_runs_both_kinds_there_on_an_event_loop() -> None:
    with Kit(app, mode="inline"):
        assert await add.enqueue() == 2
        assert await (await acount.aenqueue()) == 2
        assert (await where.enqueue())[0] == threading.get_ident()
