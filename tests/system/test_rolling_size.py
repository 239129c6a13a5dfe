"""A reload changes the code, not how many jobs run at once."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import NotFound
from tests.deadline import eventually
from tests.processes import below, group_of
from tests.program import Worker
from tests.system.test_rolling import GOOD, HELD, Rolled, result

pytestmark = pytest.mark.system


@pytest.fixture
def rolled(tmp_path: Path, url: str) -> Iterator[Rolled]:
    rolled = Rolled(tmp_path, url)
    yield rolled
    rolled.end()


def place(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}"


def size(rolled: Rolled, pid: int, kind: str = "process") -> int:
    """How many of a kind an image says that it runs at once; 0 when it is not there."""
    try:
        return rolled.app.workers.get(place(pid)).sizes[kind]
    except NotFound:
        return 0


def busy(rolled: Rolled, worker: Worker, path: Path) -> int:
    """The first image, still finishing a job that ends when ``path`` is there, and the one that took over; its pid."""
    job = rolled.enqueue("gate", str(path))
    eventually(Path(f"{path}.began").exists, 60)
    pid = rolled.roll(worker, 2)
    assert job.state.value == "running"
    return pid


def test_a_size_outlives_rolling_restarts(rolled: Rolled) -> None:
    worker = rolled.start()
    pid = worker.process.pid
    for wanted in (3, 4):
        worker.process.send_signal(signal.SIGTTIN)
        eventually(lambda wanted=wanted: size(rolled, pid) == wanted, 60)
    image = rolled.roll(worker, 2)
    # It is what it registered with, and not what it became.
    assert size(rolled, image) == 4
    eventually(lambda: len(runners(image)) == 4, 60)
    rolled.serving(worker)
    # The worker is known by the process id of its parent too.
    owner = rolled.app.workers.get(place(image)).owner
    for name, wanted in ((str(pid), 3), (place(pid), 5)):
        assert rolled.app.workers.scale(name, wanted).owner == owner
        eventually(lambda wanted=wanted: size(rolled, image) == wanted, 60)
    worker.process.send_signal(signal.SIGTTIN)
    eventually(lambda: size(rolled, image) == 6, 60)
    worker.process.send_signal(signal.SIGTTOU)
    eventually(lambda: size(rolled, image) == 5, 60)
    image = rolled.roll(worker, 3)
    assert size(rolled, image) == 5
    eventually(lambda: len(runners(image)) == 5, 60)
    assert worker.stop() == 0


def runners(image: int) -> list[int]:
    """The processes of an image that lead a group of their own."""
    return [child.pid for child in below(image, recursive=False) if group_of(child.pid) == child.pid]


def test_the_size_of_each_kind_is_kept(rolled: Rolled) -> None:
    more = "\n@app.task(kind='thread')\ndef wait() -> None: ...\n"
    rolled.program.write("tasks", GOOD.format(version=1) + more)
    worker = rolled.start("--threads", "2")
    name = place(worker.process.pid)
    rolled.app.workers.scale(name, 5, "thread")
    rolled.app.workers.scale(name, 1)
    eventually(lambda: rolled.app.workers.get(name).sizes == {"process": 1, "thread": 5}, 60)
    rolled.program.write("tasks", GOOD.format(version=2) + more)
    rolled.hup(worker)
    (image,) = eventually(lambda: rolled.claims(worker), 60)
    assert rolled.app.workers.get(place(image)).sizes == {"process": 1, "thread": 5}
    rolled.serving(worker)
    # Code without that kind.
    assert size(rolled, rolled.roll(worker, 3)) == 1
    assert worker.stop() == 0


def test_a_size_that_is_wished_while_an_image_warms_up_is_that_of_both(rolled: Rolled, tmp_path: Path) -> None:
    worker = rolled.start()
    rolled.program.write("tasks", HELD + GOOD.format(version=2))
    rolled.hup(worker)
    worker.says("is starting")
    worker.process.send_signal(signal.SIGTTIN)
    eventually(lambda: size(rolled, worker.process.pid) == 3, 60)
    (tmp_path / "go").touch()
    (image,) = eventually(lambda: rolled.claims(worker), 60)
    assert size(rolled, image) == 3
    assert worker.stop() == 0


def test_wishes_during_the_drain_reach_the_image_that_claims(rolled: Rolled, tmp_path: Path) -> None:
    worker = rolled.start("--shutdown-timeout", "60s")
    pid = worker.process.pid
    image = busy(rolled, worker, tmp_path / "first")
    for number, wanted in ((signal.SIGTTIN, 3), (signal.SIGTTIN, 4), (signal.SIGTTOU, 3)):
        worker.process.send_signal(number)
        eventually(lambda wanted=wanted: size(rolled, image) == wanted, 60)
    # By the name of the parent.
    rolled.app.workers.scale(place(pid), 4)
    eventually(lambda: size(rolled, image) == 4, 60)
    (tmp_path / "first").touch()
    rolled.serving(worker)
    # By the name of the one that drains.
    job = rolled.enqueue("gate", str(tmp_path / "second"))
    eventually((tmp_path / "second.began").exists, 60)
    later = rolled.roll(worker, 3)
    assert size(rolled, later) == 4
    rolled.app.workers.scale(place(image), 1)
    eventually(lambda: size(rolled, later) == 1, 60)
    (tmp_path / "second").touch()
    assert result(job) == 2
    assert worker.stop() == 0
