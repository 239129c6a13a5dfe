"""Records and handles give values: arguments, results and times, also of what cannot be read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import redis

from headrace import Flow, Headrace, Job, State
from headrace.errors import (
    ArgumentError,
    CorruptRecord,
    JobFailed,
    JobNotFound,
    OptionsError,
    ResultMismatch,
    WaitTimeout,
)
from headrace.model.codec import ParentOutput
from headrace.protocol.keys import keys_of
from headrace.testing.kit import Kit


@dataclass
class Size:
    width: int


def resize(id: uuid.UUID, size: Size, /, *more: Size, name: str = "", **others: int) -> Size:
    if name == "fail":
        raise ValueError("no")
    return Size(size.width * 2)


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        app.task(name="resize", failure_ttl=100)(resize)
        yield app


@pytest.fixture
def kit(app: Headrace, url: str) -> Iterator[Kit]:
    with Kit(app, url=url) as kit:
        yield kit


ID = uuid.UUID(int=5)


def test_a_record_gives_arguments_and_result_with_the_types_of_its_task(app: Headrace, kit: Kit) -> None:
    job = app.tasks["resize"].enqueue(ID, Size(1), Size(2), Size(3), name="n", zoo=4)
    kit.drain()
    page = app.jobs.page("succeeded").rows
    for record in (job.refresh(), app.jobs.get(job.id).refresh(), app.job(job.id).refresh(), *page):
        assert record.args == (ID, Size(1), Size(2), Size(3))
        assert record.kwargs == {"name": "n", "zoo": 4}
        assert record.arguments == {
            "id": ID, "size": Size(1), "more": (Size(2), Size(3)), "name": "n", "others": {"zoo": 4},
        }  # fmt: skip
        assert (record.result, record.form) == (Size(2), "msgpack")
        assert msgspec.msgpack.decode(record.packed_result or b"") == {"width": 2}


def test_where_the_task_is_not_known_values_are_plain(app: Headrace, kit: Kit, url: str) -> None:
    id = app.tasks["resize"].enqueue(ID, Size(1), name="n").id
    kit.drain()
    with Headrace(url, namespace=kit.namespace) as other:
        for record in (other.jobs.get(id).refresh(), other.job(id).refresh(), *other.jobs.page("succeeded")):
            assert record.args == (str(ID), {"width": 1})
            assert record.arguments == {"1": str(ID), "2": {"width": 1}, "name": "n"}
            assert record.result == {"width": 2}
        assert other.job(id).result(0) == {"width": 2}


def test_times_are_datetimes_in_utc_and_integers(app: Headrace, kit: Kit) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=5)
    task = app.tasks["resize"]
    later = task.options(delay=60, expires=3600).enqueue(ID, Size(1))
    job = task.enqueue(ID, Size(1), name="fail")
    waiting = later.refresh()
    assert before <= waiting.created <= (waiting.due or waiting.created) - timedelta(seconds=59)
    assert (waiting.started, waiting.started_us, waiting.finished, waiting.finished_us) == (None, 0, None, 0)
    assert waiting.expires is not None
    kit.drain(raises=False)
    record = job.refresh()
    for name in ("created", "started", "finished"):
        moment: datetime = getattr(record, name)
        assert moment.tzinfo is UTC
        assert moment == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=getattr(record, f"{name}_us"))
    (attempt,) = record.attempts
    assert attempt.started is not None
    assert (attempt.ready or record.created) <= attempt.started <= (attempt.ended or record.created)
    assert attempt.started_us == record.started_us
    later.cancel()


def test_what_cannot_be_read_raises_where_it_is_asked_for_and_breaks_no_list(
    app: Headrace, client: redis.Redis
) -> None:
    task, keys = app.tasks["resize"], keys_of("hr")
    good = task.enqueue(ID, Size(1))
    other_code = app.by_name("elsewhere").enqueue(1, x=2)
    alien = task.enqueue(ID, Size(1))
    client.hset(keys.job(alien.id), mapping={"args": b"\xc1", "result": b"\xc1", "finished": str(2**62)})
    client.hset(keys.job(other_code.id), "task", "resize")
    records = {record.id: record for record in app.jobs.page("ready", order="asc")}
    assert records[good.id].args == (ID, Size(1))
    with pytest.raises(ArgumentError, match="resize is missing its argument 'size'"):
        assert records[other_code.id].args
    broken = records[alien.id]
    with pytest.raises(CorruptRecord, match="the stored arguments of resize cannot be read"):
        assert broken.arguments
    with pytest.raises(ResultMismatch, match="packed_result has the bytes"):
        assert broken.result
    assert (broken.packed_args, broken.fields["result"], broken.finished) == (b"\xc1", b"\xc1", None)
    assert str(ID) not in repr(records[good.id])


def test_a_handle_of_an_id_takes_no_trip_and_knows_its_task_later(app: Headrace, kit: Kit) -> None:
    missing = "0" * 21
    handle = app.job(missing)
    assert (handle.id, handle.task) == (missing, "")
    for verb in (lambda: handle.state, handle.result, handle.cancel, handle.refresh):
        with pytest.raises(JobNotFound):
            verb()
    job = app.tasks["resize"].enqueue(ID, Size(4))
    found: Job[Any] = app.job(job.id)
    assert found == job
    assert found.state is State.READY
    assert found.task == ""
    with pytest.raises(WaitTimeout, match="of resize is ready"):
        found.result(0)
    kit.drain()
    assert (found.result(0), found.task) == (Size(8), "resize")
    failed = app.tasks["resize"].enqueue(ID, Size(1), name="fail")
    kit.drain(raises=False)
    with pytest.raises(JobFailed, match="of resize failed"):
        app.job(failed.id).result()


async def test_a_handle_of_an_id_in_async_code(url: str) -> None:
    async with Headrace(url, timeout=20) as app:
        task = app.task(name="resize")(resize)
        job = await task.aenqueue(ID, Size(1))
        assert (await app.job(job.id).arefresh()).args == (ID, Size(1))
        assert await app.job(job.id).acancel() is State.CANCELLED


def test_cancelling_by_id_keeps_the_job_as_long_as_its_task_says(app: Headrace, client: redis.Redis) -> None:
    job = app.tasks["resize"].enqueue(ID, Size(1))
    assert app.job(job.id).cancel() is State.CANCELLED
    left = client.zscore(app.client.keys_for(job.id)("expires"), job.id)
    assert left is not None
    assert abs(left / 1e6 - datetime.now(UTC).timestamp() - 100) < 30


@pytest.mark.parametrize("id", ["x", "", 7, None])
def test_what_is_no_id_is_refused_without_a_server(id: Any) -> None:
    with pytest.raises(JobNotFound, match="is not the id of a job"):
        Headrace("redis://localhost:1/0").job(id)


def test_app_job_is_no_decorator() -> None:
    with pytest.raises(OptionsError, match=r"@app\.task makes a task"):
        Headrace("redis://localhost:1/0").job(resize)  # type: ignore[arg-type]


def test_workflows_and_their_nodes_give_values_too(app: Headrace, kit: Kit) -> None:
    task = app.tasks["resize"]

    @app.workflow(name="flow", globals={"name": "g"})
    def flow(flow: Flow, size: Size, *, times: int = 1) -> None:
        flow.run(task, ID, flow.run(task, ID, size, name="first"), name="second")

    run = flow.create(Size(3), times=2)
    run.start()
    kit.drain()
    record = run.refresh()
    assert (record.args, record.kwargs, record.globals) == ((Size(3),), {"times": 2}, {"name": "g"})
    assert record.arguments == {"size": Size(3), "times": 2}
    assert None not in (record.started, record.finished, record.lapses)
    assert record.created <= (record.started or record.created)
    first, second = (node.job for node in run.nodes())
    assert (first.args, first.result) == ((ID, Size(3)), Size(6))
    # What its parent gave is not stored in the node.
    assert second.args == (str(ID), ParentOutput(0))
    assert second.arguments == {"id": str(ID), "size": ParentOutput(0), "name": "g"}
    assert second.result == Size(12)
    (row,) = app.workflows.page()
    assert (row.args, row.globals, row.created) == ((), {}, record.created)
