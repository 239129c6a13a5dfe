"""A worker that may open few files: it runs what it has room for, says what is in its way, and charges no job for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.worker import health_stamps
from tests.deadline import eventually
from tests.program import Program, Worker

pytestmark = pytest.mark.system

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))
"""


@pytest.fixture
def worker(tmp_path: Path, url: str, shards: int, most: int) -> Iterator[Worker]:
    program = Program(tmp_path, url)
    program.environment |= {"HEADRACE_LEASE": "10", "HEADRACE_SHARDS": str(shards)}
    program.write("limited", f"{LIMITED.format(most=most)}\nfrom tasks import app")
    one = Worker(program.start("worker", "limited:app", "--processes", "20"))
    yield one
    one.close()


@pytest.mark.parametrize(("shards", "most"), [(1, 40), (12, 95)])
def test_runners_that_have_no_room_are_not_forked_and_the_others_work(worker: Worker, url: str, shards: int) -> None:
    line = worker.says("cannot fork a process")
    assert "too many runners for this limit of open files: raise it, or run fewer at once" in line
    # It counts as healthy: a restart would not help, and a probe that found it ill restarted it again and again.
    worker.says("trying again in 0.4 s")
    noticed = time.monotonic()
    eventually(
        lambda: any(one.process == worker.process.pid and one.supervisor > noticed for one in health_stamps.stamps()),
        60,
    )
    with Headrace(url, shards=str(shards)) as app:
        jobs = [app.by_name("tasks.add").enqueue(number) for number in range(50)]
        assert [job.result(timeout=60) for job in jobs] == [number + 1 for number in range(50)]
        assert not any(job.attempts() for job in jobs), "the first start of each succeeded"
        # More would have to be forked for these: those that run meanwhile stay.
        app.workers.scale(app.overview().live[0].owner, 30)
        eventually(lambda: "30" in app.overview().live[0].metadata["sizes"], 60)
        assert app.by_name("tasks.add").enqueue(1).result(timeout=60) == 2
    assert not [line for line in worker.lines if "died" in line or "Traceback" in line]
