"""Work that waits for a session of SQLAlchemy: collected by transaction, sent when the outermost one is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from headrace import Flow, Headrace
from headrace.contrib import sqlalchemy as tie
from headrace.errors import JobNotFound, OptionsError
from headrace.model.job import State
from tests.databases.conftest import fetch
from tests.databases.test_django_commit import stored, trips


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/shop.db")

    # The driver begins late by itself, so savepoints would be none.
    @sqlalchemy.event.listens_for(made, "connect")
    def manual(connection: Any, record: object) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(made, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    Base.metadata.create_all(made)
    yield made
    made.dispose()


def test_a_job_waits_for_the_commit_of_its_session(app: Headrace, engine: sqlalchemy.Engine) -> None:
    task = app.tasks["fetch"]
    with Session(engine) as session:
        at_once = task.options(after_commit=session).enqueue(0)  # no transaction is open yet
        session.add(Order())
        session.flush()
        job = task.options(after_commit=session).enqueue(1)
        assert app.enqueue_many([task.options(after_commit=session).job(n) for n in range(2)]) == 2
        assert stored(app) == [at_once.id]
        session.commit()
        assert len(stored(app)) == 4
        assert job.state is State.READY
        session.add(Order())
        session.flush()
        task.options(after_commit=session).enqueue(2)
        session.rollback()
    assert len(stored(app)) == 4
    with Session(engine) as session:
        session.add(Order())
        session.flush()
        task.options(after_commit=session).enqueue(3)  # the block ends without a commit
    assert len(stored(app)) == 4


def test_jobs_of_one_transaction_follow_each_other(
    app: Headrace, engine: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    gone = app.tasks["fetch"].enqueue(0)
    with Session(engine) as session:
        session.add(Order())
        session.flush()
        bound = app.tasks["fetch"].options(after_commit=session)
        first = bound.enqueue(1)
        second = bound.options(after=first).enqueue(2)
        lost = bound.options(after=gone).enqueue(3)
        gone.delete()
        session.commit()
    assert (first.state, second.state) == (State.READY, State.BLOCKED)
    assert stored(app) == [first.id]
    assert f"job {lost.id} of fetch was not stored (JobNotFound" in caplog.text
    assert f"it was to follow {gone.id}" in caplog.text


def test_a_savepoint_hands_over_or_drops_its_jobs(
    app: Headrace, engine: sqlalchemy.Engine, client: redis.Redis
) -> None:
    """``after_commit`` of SQLAlchemy is called for a released savepoint, too."""
    with Session(engine) as session:
        bound = app.tasks["fetch"].options(after_commit=session)
        first = bound.enqueue(0)  # what a first use asks for
        with session.begin():
            kept = [first, bound.enqueue(1)]
            with session.begin_nested():
                kept.append(bound.enqueue(2))
                with pytest.raises(ZeroDivisionError), session.begin_nested():
                    bound.enqueue(3)
                    with session.begin_nested():
                        bound.enqueue(4)
                    raise ZeroDivisionError
                with session.begin_nested():
                    kept.append(bound.enqueue(5))
            assert stored(app) == [first.id]
            with session.begin_nested() as savepoint:
                bound.enqueue(6)
                savepoint.rollback()
            kept.append(bound.enqueue(7))
            session.add(Order())
            before = trips(client)
        assert trips(client) == before + 1
    assert stored(app) == sorted(job.id for job in kept)


def test_an_ambient_session_is_waited_for_by_default(app: Headrace, engine: sqlalchemy.Engine) -> None:
    sessions = scoped_session(sessionmaker(engine))
    tie.install(app, engine, session=sessions)
    task = app.tasks["fetch"]
    assert task.enqueue(0).state is State.READY
    with sessions.begin():
        sessions.add(Order())
        job = task.enqueue(1)
        assert task.options(after_commit=False).enqueue(2).state is State.READY
        with pytest.raises(JobNotFound):
            job.refresh()
    assert job.state is State.READY
    sessions.remove()
    with pytest.raises(OptionsError, match="is not a session"):
        task.options(after_commit="default").enqueue(3)
    with pytest.raises(OptionsError, match="takes a session"):
        task.options(after_commit=engine).enqueue(3)
    tie.install(app, engine)
    with pytest.raises(OptionsError, match="does not say which session is meant"):
        task.options(after_commit=True).enqueue(3)
    with pytest.raises(OptionsError, match="must be True, False or 'outbox'"):
        tie.install(app, engine, after_commit="default")
    with pytest.raises(OptionsError, match="install takes engines of SQLAlchemy, not 'sqlite://'"):
        tie.install(app, "sqlite://")


def test_a_workflow_waits_too(app: Headrace, engine: sqlalchemy.Engine) -> None:
    @app.workflow(name="graph")
    def graph(flow: Flow) -> None:
        flow.run("fetch", 1)

    with Session(engine) as session, session.begin():
        session.add(Order())
        run = graph.options(after_commit=session).create()
        assert run.start() == "pending"
        assert app.workflows.count() == 0
    assert run.state == "running"


async def test_an_async_session_awaits_what_its_commit_sends(url: str, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    async with Headrace(url, timeout=20) as app:
        tie.install(app, engine)
        task = app.task(name="fetch")(fetch)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with async_sessionmaker(engine)() as session:
            bound = task.options(after_commit=session)
            async with session.begin():
                session.add(Order())
                await session.flush()
                job = await bound.aenqueue(1)
                async with session.begin_nested():
                    inner = await bound.aenqueue(2)
                with pytest.raises(ZeroDivisionError):
                    async with session.begin_nested():
                        dropped = await bound.aenqueue(3)
                        raise ZeroDivisionError
                with pytest.raises(JobNotFound):
                    await job.arefresh()
            assert [await job.astate(), await inner.astate()] == [State.READY] * 2
            with pytest.raises(JobNotFound):
                await dropped.arefresh()
        assert app.client._made.keys() == {"astore"}  # the loop was never blocked by the other store
        await asyncio.sleep(0)
    await engine.dispose()


def test_forked_processes_begin_with_pools_of_their_own(app: Headrace, engine: sqlalchemy.Engine) -> None:
    connection = engine.connect()
    pool = engine.pool
    for hook in app.after_fork_child_hooks:
        hook()
    assert engine.pool is not pool
    connection.execute(sqlalchemy.text("select 1"))  # the parent's is not closed
    connection.close()
    pool.dispose()


def test_an_async_session_of_another_tie_is_its_own(app: Headrace, engine: sqlalchemy.Engine, url: str) -> None:
    """Two applications that share a session send each their own."""
    with Headrace(url, namespace="two", timeout=20) as two, Session(engine) as session:
        tie.install(two, engine)
        two.task(name="fetch")(fetch)
        with session.begin():
            session.add(Order())
            app.tasks["fetch"].options(after_commit=session).enqueue(1)
            two.tasks["fetch"].options(after_commit=session).enqueue(2)
        assert (len(stored(app)), len(stored(two))) == (1, 1)


def test_an_async_session_object_is_taken_for_its_session() -> None:
    session = AsyncSession()
    assert tie._session_of(session) is session.sync_session
