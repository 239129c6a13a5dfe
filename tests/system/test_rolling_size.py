"""A reload changes the code, not how many jobs run at once."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from headrace.errors import NotFound
from tests.deadline import eventually
from tests.processes import below, group_of
from tests.system.rolled import GOOD, HELD, Rolled, result

pytestmark = pytest.mark.system


def place(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}"


def size(rolled: Rolled, pid: int, kind: str = "process") -> int:
    """How many of a kind an image says that it runs at once; 0 when it is not there."""
    try:
        return rolled.app.workers.get(place(pid)).sizes[kind]
    except NotFound:
        return 0


def runners(image: int) -> list[int]:
    """The processes of an image that lead a group of their own."""
    return [child.pid for child in below(image, recursive=False) if group_of(child.pid) == child.pid]


def test_sizes_outlive_reloads_and_wishes_reach_the_worker_that_claims(rolled: Rolled, tmp_path: Path) -> None:
    more = "\n@app.task(kind='thread')\ndef wait() -> None: ...\n"
    rolled.program.write("tasks", GOOD.format(version=1) + more)
    worker = rolled.start("--threads", "2", "--shutdown-timeout", "60s")
    pid = worker.process.pid
    rolled.app.workers.scale(place(pid), 5, "thread")
    rolled.app.workers.scale(str(pid), 1)
    eventually(lambda: rolled.app.workers.get(place(pid)).sizes == {"process": 1, "thread": 5}, 60)
    # A wish while the next one warms up is that of both.
    rolled.program.write("tasks", HELD + GOOD.format(version=2) + more)
    rolled.hup(worker)
    worker.says("is starting")
    worker.process.send_signal(signal.SIGTTIN)
    eventually(lambda: size(rolled, pid) == 2, 60)
    (tmp_path / "go").touch()
    (second,) = eventually(lambda: rolled.claims(worker), 60)
    # It is what it registered with, and not what it became.
    assert rolled.app.workers.get(place(second)).sizes == {"process": 2, "thread": 5}
    eventually(lambda: len(runners(second)) == 3, 60)
    rolled.serving(worker)
    job = rolled.enqueue("gate", str(tmp_path / "job"))
    eventually((tmp_path / "job.began").exists, 60)
    # Code without that kind.
    third = rolled.roll(worker, 3)
    assert rolled.app.workers.get(place(third)).sizes == {"process": 2}
    for number, wanted in ((signal.SIGTTIN, 3), (signal.SIGTTIN, 4), (signal.SIGTTOU, 3)):
        worker.process.send_signal(number)
        eventually(lambda wanted=wanted: size(rolled, third) == wanted, 60)
    # By the name of the parent, and by that of the one that drains.
    for name, wanted in ((place(pid), 5), (place(second), 1)):
        rolled.app.workers.scale(name, wanted)
        eventually(lambda wanted=wanted: size(rolled, third) == wanted, 60)
    (tmp_path / "job").touch()
    assert result(job) == 2
    assert worker.stop() == 0
