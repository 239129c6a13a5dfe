"""A process that can start no thread or open no socket now: the cache answers from the server, and listens when it can."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from headrace import Headrace
from headrace.protocol import cache_calls
from tests.deadline import eventually


def test_a_listener_that_could_not_be_started_is_started_by_a_later_read(
    new_app: Callable[..., Headrace], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = new_app(url).cache
    cache.set("a", 1)
    with monkeypatch.context() as full:

        def none(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, "start", none)
        assert cache.get("a") == 1
        cache.close()
        assert cache.get("a") == 1
        assert not cache.statistics().healthy
    assert cache.get("a") == 1
    eventually(lambda: cache.statistics().healthy)
    assert cache.get("a") == cache.peek("a") == 1


def test_a_listener_that_finds_no_descriptors_is_started_by_a_later_read(
    new_app: Callable[..., Headrace], url: str
) -> None:
    """A read raised the error of the socket pair that wakes the listener."""
    app, few = new_app(url), resource.getrlimit(resource.RLIMIT_NOFILE)
    cache = app.cache
    cache.set("a", 1)
    # Opens the file of the script.
    assert app.client.run(cache_calls.read(app.client.keys, "a"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, few[1]))
    try:
        value, fault = cache.get("a"), cache.statistics().fault
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, few)
    assert (value, fault) == (1, "[Errno 24] Too many open files")
    eventually(lambda: cache.get("a") == cache.peek("a") == 1)


LATE = """
import contextlib, os, sys, threading
from headrace import Headrace

fresh, used = (Headrace(sys.argv[1], timeout=600, stats_flush_interval=0.01) for _ in range(2))
fresh.cache, used.cache.get("a")
used.stats.add("a", {"count": 1})
while any(thread.name == "headrace-stats" for thread in threading.enumerate()):
    pass

class Late:
    def __del__(self):
        for act in (lambda: fresh.cache.get("b"), lambda: used.cache.get("b"), lambda: used.stats.add("a", {"count": 1})):
            # Hardly anything can be imported any more.
            with contextlib.suppress(ImportError):
                act()
            os.write(1, b"%d " % sys.is_finalizing())

sys.modules["late"] = Late()
"""


def test_a_finalizer_waits_for_no_thread_while_the_interpreter_ends(url: str) -> None:
    """Before Python 3.12 the start of a thread waited there for ever; and nobody heard what a link was answered."""
    ended = subprocess.run([sys.executable, "-c", LATE, url], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("1 1 1 ", "")
