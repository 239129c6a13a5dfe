"""What an image of a worker says to the one that it is to replace, which the test plays."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.worker.reload.image_launch import Word, Words
from tests.deadline import eventually
from tests.forked_image import PREDECESSOR
from tests.nursery import Forked, nursery_of
from tests.program import Program
from tests.system.test_rolling import GOOD

pytestmark = pytest.mark.system


class Successor:
    """An image, and our end of its link."""

    def __init__(self, process: Forked, link: Words) -> None:
        self.process = process
        self.link = link
        self.words: list[Word] = []

    def says(self, kind: str) -> Word:
        """The first word of this kind."""

        def said() -> Word | None:
            self.words += self.link.hear()[0]
            return next((word for word in self.words if word[0] == kind), None)

        return eventually(said, what=f"{kind!r} among {self.words}") or []

    def end(self) -> None:
        """It stops when its predecessor is gone."""
        self.link.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()


@pytest.fixture
def succeed(tmp_path: Path, url: str) -> Iterator[Callable[[str], Successor]]:
    """Start an image of this code."""
    program, started = Program(tmp_path, url), list[Successor]()

    def start(code: str) -> Successor:
        program.write("tasks", code)
        with tempfile.TemporaryDirectory(prefix="hr-") as directory, socket.socket(socket.AF_UNIX) as listening:
            listening.settimeout(60)
            listening.bind(f"{directory}/s")
            listening.listen()
            environ = program.environment | {PREDECESSOR: f"{directory}/s"}
            words = ("worker", "tasks:app", "--processes", "2", "--threads", "2")
            process = nursery_of(environ).start(
                "tests.forked_image", environ, *words, stderr=subprocess.DEVNULL, directory=tmp_path
            )
            started.append(Successor(process, Words(listening.accept()[0])))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.mark.parametrize("kind", ["process", "fork", "thread"])
@pytest.mark.parametrize("hook", ["after_fork_child", "lifespan"])
@pytest.mark.parametrize(
    ("way", "reason"),
    [("raise RuntimeError('no database')", "no database"), ("os._exit(3)", "its process left with exit code 3")],
)
def test_one_whose_runners_cannot_begin_says_why_and_claims_nothing(
    succeed: Callable[[str], Successor], kind: str, hook: str, way: str, reason: str
) -> None:
    text = GOOD.replace("@app.task", f"@app.task(kind={kind!r})").format(version=2)
    end = "    yield\n" if hook == "lifespan" else ""
    image = succeed(f"{text}\n@app.{hook}\ndef connect():\n    {way}\n{end}")
    told = image.says("failed")[1]
    assert told.startswith("its runners cannot begin: ")
    assert reason in told
    image.process.wait(60)
    assert ["claims"] not in image.words + image.link.hear()[0]
