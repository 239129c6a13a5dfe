"""The parent of a worker beside a worker that is not as it should be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.worker import reload_parent
from headrace.worker.reload_parent import ReloadedWorker, ReloadParent, WorkerCommand

pytestmark = pytest.mark.system

PARENT = """
import os, sys
from headrace.worker.reload_parent import ReloadParent, WorkerCommand

command = WorkerCommand([sys.executable, *sys.argv[1:]], dict(os.environ), os.getcwd())
sys.exit(ReloadParent(command, 30.0, None, ()).run())
"""
CHILD = """
import os, signal, sys
from headrace.worker.channel import frame
from headrace.worker.messages import Serves

signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
signal.signal(signal.SIGQUIT, lambda *_: os._exit(8))
signal.pthread_sigmask(signal.SIG_SETMASK, ())
link = int(os.environ["HEADRACE_PARENT"].partition(":")[0])
os.write(link, (frame(Serves()) if sys.argv[1] == "serves" else b"") + b"rubbish of a job, which is not a frame")
signal.alarm(60)
signal.pause()
"""


@pytest.mark.parametrize(("begins", "code"), [("serves", 7), ("starts", 8)])
def test_rubbish_from_a_worker_ends_no_parent(tmp_path: Path, begins: str, code: int) -> None:
    """A worker that serves goes on, and is stopped by its parent; one that starts is given up."""
    (tmp_path / "child.py").write_text(CHILD)
    command = [sys.executable, "-c", PARENT, "child.py", begins]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        try:
            assert "sent what is not a message" in parent.stderr.readline()
            if begins == "serves":
                parent.send_signal(signal.SIGTERM)
            assert parent.wait(60) == code
        finally:
            parent.kill()


def _parent(*words: str, limit: float = 60) -> tuple[ReloadParent, ReloadedWorker]:
    """A parent in this process, and its first child, which is no worker."""
    parent = ReloadParent(WorkerCommand([*words], dict(os.environ), "/"), limit, None, ())
    parent._reload()
    (child,) = parent._children.values()
    return parent, child


def test_a_second_stop_kills_a_worker_that_does_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload_parent, "PATIENCE", 0.0)
    parent, child = _parent("sleep", "60")
    child.state = "serving"
    os.kill(child.process.pid, signal.SIGSTOP)
    parent._stop()
    parent._tick(time.monotonic())
    assert child.process.poll() is None
    parent._stop(at_once=True)
    parent._tick(time.monotonic())
    assert child.process.wait(60) == -signal.SIGKILL
    child.channel.close()


def test_a_new_worker_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload_parent, "PATIENCE", 0.0)
    parent, old = _parent("sleep", "60", limit=1.5)
    old.state = "serving"
    parent._reload()
    new = parent._children[max(parent._children, key=lambda pid: pid != old.process.pid)]
    parent._tick(new.due - 0.1)
    assert new.process.poll() is None
    parent._tick(new.due)
    parent._tick(time.monotonic())
    assert new.process.wait(60) == -signal.SIGKILL
    assert "nothing is replaced: the new worker did not become ready: it was not ready within 1.5 s" in caplog.text
    assert old.process.poll() is None
    old.process.kill()
    old.process.wait(60)
    for child in (old, new):
        child.channel.close()


def test_a_signal_and_the_last_message_of_a_worker_may_come_in_one_turn() -> None:
    parent, child = _parent("true")
    ready = parent._selector.select(60)
    _, status = os.waitpid(child.process.pid, 0)
    parent._ended(child.process.pid, status)
    for key, _ in ready:
        key.data()
    assert (parent._children, child.channel.closed) == ({}, True)
