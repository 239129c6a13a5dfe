"""What a worker sends its parent, which the test plays."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.worker.channel import Channel, Closed
from headrace.worker.messages import FromWorker, Serves, StartFailed
from tests.deadline import eventually
from tests.forked_image import PARENT
from tests.nursery import Forked, nursery_of
from tests.program import Program
from tests.system.rolled import GOOD

pytestmark = pytest.mark.system


class Started:
    """A worker, and the parent's end of its link."""

    def __init__(self, process: Forked, link: Channel[FromWorker]) -> None:
        self.process = process
        self.link = link
        self.messages: list[FromWorker] = []

    def read(self) -> list[FromWorker]:
        with contextlib.suppress(Closed):
            self.messages += self.link.receive(wait=False)
        return self.messages

    def failure(self) -> str:
        """Why it cannot start."""

        def sent() -> str:
            return next((message.reason for message in self.read() if isinstance(message, StartFailed)), "")

        return str(eventually(sent, what=f"a failure among {self.messages}"))

    def end(self) -> None:
        """It stops when its parent is gone."""
        self.link.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()


@pytest.fixture
def succeed(tmp_path: Path, url: str) -> Iterator[Callable[[str], Started]]:
    """Start a worker with this code."""
    program, started = Program(tmp_path, url), list[Started]()

    def start(code: str) -> Started:
        program.write("tasks", code)
        with tempfile.TemporaryDirectory(prefix="hr-") as directory, socket.socket(socket.AF_UNIX) as listening:
            listening.settimeout(60)
            listening.bind(f"{directory}/s")
            listening.listen()
            environ = program.environment | {PARENT: f"{directory}/s"}
            words = ("worker", "tasks:app", "--reload=hup", "--processes", "2", "--threads", "2")
            process = nursery_of(environ).start(
                "tests.forked_image", environ, *words, stderr=subprocess.DEVNULL, directory=tmp_path
            )
            started.append(Started(process, Channel(listening.accept()[0], FromWorker)))
        return started[-1]

    yield start
    for one in started:
        one.end()


RAISES, LEAVES = (
    ("raise RuntimeError('no database')", "no database"),
    ("os._exit(3)", "its process left with exit code 3"),
)


@pytest.mark.parametrize(
    ("kind", "hook", "way", "reason"),
    [
        ("process", "after_fork_child", *RAISES), ("process", "lifespan", *LEAVES), ("fork", "lifespan", *RAISES),
        ("thread", "lifespan", *LEAVES),
    ],
)  # fmt: skip
def test_one_whose_runners_cannot_begin_says_why_and_claims_nothing(
    succeed: Callable[[str], Started], kind: str, hook: str, way: str, reason: str
) -> None:
    text = GOOD.replace("@app.task", f"@app.task(kind={kind!r})").format(version=2)
    end = "    yield\n" if hook == "lifespan" else ""
    image = succeed(f"{text}\n@app.{hook}\ndef connect():\n    {way}\n{end}")
    told = image.failure()
    assert told.startswith("its runners cannot begin: ")
    assert reason in told
    image.process.wait(60)
    assert Serves() not in image.read()
