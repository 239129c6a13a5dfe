"""The private server where more programs connect at once than its socket has room for."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

import pytest

from headrace import embedded
from headrace.embedded import paths
from headrace.embedded.paths import DataFiles
from headrace.errors import ServerError

pytestmark = pytest.mark.system


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="elsewhere a crowded socket refuses")
def test_a_crowd_before_a_busy_server_is_no_reason_to_start_it_again(tmp_path: Path) -> None:
    spot = DataFiles(tmp_path / "data")
    with embedded.attach(spot.directory):
        before = embedded.status(spot.directory).pid
        path = spot.socket()
        assert before is not None
        assert path is not None
        # As a long command does.
        os.kill(before, signal.SIGSTOP)
        try:
            with contextlib.ExitStack() as crowd, contextlib.suppress(BlockingIOError):
                while True:
                    one = crowd.enter_context(socket.socket(socket.AF_UNIX))
                    one.setblocking(False)
                    try:
                        one.connect(str(path))
                    except BlockingIOError:
                        assert paths.health(path, spot.password()) == "silent"
                        with pytest.raises(ServerError, match="does not answer: it is stopped, or busy"):
                            embedded.attach(spot.directory, timeout=0.2)
                        raise
        finally:
            os.kill(before, signal.SIGCONT)
        assert embedded.attach(spot.directory).url
        assert embedded.status(spot.directory).pid == before
    embedded.stop(spot.directory)
