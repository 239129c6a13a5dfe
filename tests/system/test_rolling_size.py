"""How many jobs run at once is wished of the worker, not of one image: a roll changes the code only."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.errors import WorkerNotFound
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
    except WorkerNotFound:
        return 0


def busy(rolled: Rolled, worker: Worker, path: Path) -> int:
    """The first image, still finishing a job that ends when ``path`` is there, and the one that took over; its pid."""
    job = rolled.enqueue("gate", str(path))
    eventually(Path(f"{path}.began").exists, 60)
    pid = rolled.roll(worker, 2)
    assert job.state.value == "running"
    return pid


@pytest.mark.parametrize("how", ["signals", "scale"])
def test_a_size_outlives_rolling_restarts(rolled: Rolled, how: str) -> None:
    worker = rolled.start()
    if how == "scale":
        rolled.app.workers.scale(place(worker.process.pid), 4)
    else:
        for wanted in (3, 4):
            worker.process.send_signal(signal.SIGTTIN)
            eventually(lambda wanted=wanted: size(rolled, worker.process.pid) == wanted, 60)
    eventually(lambda: size(rolled, worker.process.pid) == 4, 60)
    for version in (2, 3):
        image = rolled.roll(worker, version)
        # It is what it registered with, and not what it became.
        assert size(rolled, image) == 4
        eventually(lambda image=image: len(runners(image)) == 4, 60)
    watched = psutil.Process(worker.process.pid)
    eventually(lambda: "headrace.cli.first_process" in watched.cmdline(), 60)
    worker.process.send_signal(signal.SIGTTOU)
    eventually(lambda: size(rolled, image) == 3, 60)
    assert size(rolled, rolled.roll(worker, 4)) == 3
    assert worker.stop() == 0


@pytest.mark.parametrize("name", [str, place])
def test_a_worker_that_was_reloaded_is_known_by_its_first_process_id_too(rolled: Rolled, name: Any) -> None:
    worker = rolled.start()
    image = rolled.roll(worker, 2)
    eventually(lambda: "headrace.cli.first_process" in psutil.Process(worker.process.pid).cmdline(), 60)
    owner = rolled.app.workers.get(place(image)).owner
    assert rolled.app.workers.scale(name(worker.process.pid), 3).owner == owner
    eventually(lambda: size(rolled, image) == 3, 60)
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
    # Code without that kind.
    assert size(rolled, rolled.roll(worker, 3)) == 1
    assert worker.stop() == 0


def test_a_size_that_is_wished_while_an_image_warms_up_is_that_of_both(rolled: Rolled, tmp_path: Path) -> None:
    worker = rolled.start()
    rolled.program.write("tasks", HELD + GOOD.format(version=2))
    rolled.hup(worker)
    worker.says("is warming up")
    worker.process.send_signal(signal.SIGTTIN)
    eventually(lambda: size(rolled, worker.process.pid) == 3, 60)
    (tmp_path / "go").touch()
    (image,) = eventually(lambda: rolled.claims(worker), 60)
    assert size(rolled, image) == 3
    assert worker.stop() == 0


def test_signals_during_the_drain_reach_the_image_that_claims(rolled: Rolled, tmp_path: Path) -> None:
    worker = rolled.start("--shutdown-timeout", "60s")
    image = busy(rolled, worker, tmp_path / "go")
    for wanted in (3, 4):
        worker.process.send_signal(signal.SIGTTIN)
        eventually(lambda wanted=wanted: size(rolled, image) == wanted, 60)
    worker.process.send_signal(signal.SIGTTOU)
    eventually(lambda: size(rolled, image) == 3, 60)
    (tmp_path / "go").touch()
    assert size(rolled, rolled.roll(worker, 3)) == 3
    assert worker.stop() == 0


def test_scale_by_the_name_of_an_image_that_drains_reaches_the_one_that_claims(rolled: Rolled, tmp_path: Path) -> None:
    worker = rolled.start("--shutdown-timeout", "60s")
    image = busy(rolled, worker, tmp_path / "first")
    rolled.app.workers.scale(place(worker.process.pid), 3)
    eventually(lambda: size(rolled, image) == 3, 60)
    (tmp_path / "first").touch()
    watched = psutil.Process(worker.process.pid)
    eventually(lambda: "headrace.cli.first_process" in watched.cmdline(), 60)
    # The same of one that is no longer the watched process, and by a signal to it.
    job = rolled.enqueue("gate", str(tmp_path / "second"))
    eventually((tmp_path / "second.began").exists, 60)
    later = rolled.roll(worker, 3)
    rolled.app.workers.scale(place(image), 1)
    eventually(lambda: size(rolled, later) == 1, 60)
    os.kill(image, signal.SIGTTIN)
    eventually(lambda: size(rolled, later) == 2, 60)
    (tmp_path / "second").touch()
    assert result(job) == 2
    assert worker.stop() == 0
