"""A caller checks for its reply before it sleeps, where that slows nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from headrace.settings import Settings
from headrace.store import raw_connection
from headrace.store.raw_connection import FRUITLESS, SELDOM, RawConnection
from headrace.store.url import located
from tests.deadline import eventually

pytestmark = pytest.mark.skipif(os.cpu_count() == 1, reason="one processor: callers never check")


@pytest.fixture
def link(url: str) -> Iterator[RawConnection]:
    one = RawConnection(located(url, Settings()), 5.0)
    # Other tests of this process may have imported what runs in a worker.
    one._looks = True
    yield one
    one.close()


def looks(link: RawConnection, monkeypatch: pytest.MonkeyPatch, *command: str, count: int = 1) -> int:
    """How many of the calls read the socket before they slept."""
    seen = list[int]()

    def read(number: int, size: int) -> bytes:
        seen.append(number)
        raise BlockingIOError

    with monkeypatch.context() as patch:
        patch.setattr(raw_connection, "LOOK", -1.0)
        patch.setattr(raw_connection.os, "read", read)
        for _ in range(count):
            link.ask(command)
    return len(seen) // 2


def test_replies_are_those_of_the_calls(link: RawConnection) -> None:
    assert [link.ask(("ECHO", str(n)), ("PING",)) for n in range(200)] == [
        [str(n).encode(), b"PONG"] for n in range(200)
    ]
    assert not raw_connection._waiting


def test_a_far_server_is_checked_seldom(link: RawConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(link, monkeypatch, "PING", count=FRUITLESS + 2 * SELDOM) == FRUITLESS + 2


def test_two_threads_that_wait_both_sleep(link: RawConnection, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = RawConnection(located(url, Settings()), 5.0)
    thread = threading.Thread(target=lambda: other.ask(("BLPOP", "absent", "20")))
    thread.start()
    eventually(lambda: len(raw_connection._waiting) == 1)
    assert looks(link, monkeypatch, "PING", count=3) == 0
    link.ask(("RPUSH", "absent", "x"))
    thread.join()
    other.close()
    assert looks(link, monkeypatch, "PING", count=3) == 3


def test_a_call_that_fails_waits_no_more(url: str) -> None:
    link = RawConnection(located(url, Settings()), 5.0)
    link.sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        link.ask(("BLPOP", "absent", "5"))
    link.close()
    assert not raw_connection._waiting


def test_a_forked_child_has_no_waiting_threads(link: RawConnection) -> None:
    raw_connection._waiting.add(link)
    if not (child := os.fork()):
        os._exit(len(raw_connection._waiting))
    raw_connection._waiting.clear()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("also", ["", "import headrace.worker.supervisor"])
def test_no_process_of_a_worker_checks(url: str, also: str) -> None:
    code = f"""{also}
from headrace.settings import Settings
from headrace.store.raw_connection import RawConnection
from headrace.store.url import located
print(RawConnection(located({url!r}, Settings()), 5.0)._looks)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{not also}\n"
