"""A wait ends with its application, whatever its question to the server was doing just then; one that cannot begin
leaves nothing behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ClosedError
from headrace.protocol.graph import watch_flow
from headrace.settings import Settings
from headrace.store import end_listener
from headrace.store.end_listener import EndLink, EndListener, LinkLife
from tests.proxy import Proxy
from tests.servers import Server
from tests.store.test_waiting import enqueue, made
from tests.store.twin import started


@pytest.mark.any_server
def test_a_question_that_a_close_finds_on_its_way_is_answered(
    server_name: str, new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, batch = threading.Event(), EndListener._batch
    looked, one_round = threading.Event(), EndListener._round

    def told(self: EndListener) -> Any:
        found = batch(self)
        if found[1]:
            taken.set()
        return found

    def answered(self: EndListener, link: EndLink) -> None:
        one_round(self, link)
        looked.set()

    monkeypatch.setattr(EndListener, "_batch", told)
    monkeypatch.setattr(EndListener, "_round", answered)
    server = new_server(server_name, tcp=True)
    with Proxy(server) as proxy, made(proxy.url, timeout=4) as app:
        jobs, ended = enqueue(app, 2), list[str]()

        def wait(number: int) -> None:
            with pytest.raises(ClosedError, match="was closed during this wait"):
                jobs[number].result()
            ended.append("closed")

        waiters = [started(lambda: wait(0))]
        assert looked.wait(30)
        # The server falls silent with a question on its way to it, which is to be asked again.
        proxy.mode = "swallow"
        waiters.append(started(lambda: wait(1)))
        assert taken.wait(30)
        app.disconnect()
        for one in waiters:
            one.join(10)
        assert ended == ["closed"] * 2


def test_a_wait_whose_listener_finds_no_room_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, lives = EndListener("redis://localhost", Settings()), list[LinkLife]()

    def life() -> LinkLife:
        lives.append(LinkLife())
        return lives[-1]

    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(end_listener, "LinkLife", life)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError):
            listener.add([("id", watch_flow)], print)
        with pytest.raises(RuntimeError):
            listener.ask([watch_flow(listener.keys, "id", 0)], print)
    assert not listener._waits
    assert not listener._questions
    for one in lives:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(one.bell.fileno())


LATE = """
import os, sys
from headrace import Headrace
from headrace.errors import ClosedError, JobCancelled, WaitTimeout

app = Headrace(sys.argv[1])

@app.task(name="late")
def task() -> None: ...

job, ended = task.enqueue(), task.enqueue()
ended.cancel()
try:
    job.result(timeout=0.001)
except WaitTimeout:
    pass

class Late:
    def __del__(self):
        for one, timeout in ((job, None), (job, 600), (job, 0), (ended, None)):
            try:
                one.result(timeout)
            except (ClosedError, WaitTimeout, JobCancelled) as error:
                os.write(1, b"%s " % type(error).__name__.encode())

sys.modules["late"] = Late()
"""


def test_a_finalizer_waits_for_no_end_while_the_interpreter_ends(url: str) -> None:
    """The thread that it left the question to did not run any more; nor did one that held the listener's lock."""
    ended = subprocess.run([sys.executable, "-c", LATE, url], check=False, capture_output=True, text=True, timeout=100)
    assert (ended.stdout, ended.stderr) == ("ClosedError ClosedError WaitTimeout JobCancelled ", "")
