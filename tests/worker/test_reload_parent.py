"""The parent of a worker beside a worker that is not as it should be."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
