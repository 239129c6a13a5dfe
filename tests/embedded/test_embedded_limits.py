"""The private server of a program that has limits of its own: they are not the server's, or it says so."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from headrace import embedded
from headrace.embedded import paths
from headrace.errors import ServerError
from tests import servers

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the limits of another process"),
]

USER = """
import resource, sys
from headrace import embedded
for name, limits in eval(sys.argv[2]).items():
    _, most = resource.getrlimit(name)
    resource.setrlimit(name, [most if limit is None else limit for limit in limits])
with embedded.attach(sys.argv[1], idle_timeout=60) as handle:
    print(handle.url)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    embedded.stop(tmp_path / "data")


def begin(directory: Path, limits: dict[int, tuple[int, int | None]]) -> None:
    """Start the server in a program that has these limits, and then ends."""
    words = [sys.executable, "-c", USER, str(directory), repr(limits)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_server_may_use_more_than_the_program_that_started_it_allows_itself(directory: Path) -> None:
    limits = (psutil.RLIMIT_AS, psutil.RLIMIT_CPU, psutil.RLIMIT_DATA, psutil.RLIMIT_FSIZE)
    begin(directory, dict.fromkeys(limits, (1 << 30, None)))
    pid = embedded.status(directory).pid
    assert pid is not None
    for limit in limits:
        assert psutil.Process(pid).rlimit(limit) == (psutil.Process().rlimit(limit)[1],) * 2


def test_a_server_that_may_write_no_larger_file_refuses_what_it_cannot_keep_and_lives(directory: Path) -> None:
    begin(directory, {psutil.RLIMIT_FSIZE: (40_000, 40_000)})
    pid = embedded.status(directory).pid
    with embedded.attach(directory) as handle, servers.connect(handle.url) as client:
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            for number in range(200):
                client.set(f"k{number}", "v" * 1000)
        assert client.get("k0")
    assert embedded.status(directory).pid == pid


def test_a_limit_of_processes_is_named(directory: Path) -> None:
    no_room = pytest.raises(ServerError, match="no room; raise the limit of processes")
    with no_room, paths.usable(paths.locate(directory)):
        raise BlockingIOError(errno.EAGAIN, "no room")
