"""Whoever watches a name hears of each change that its copy goes for; the engine's own way to act on one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import redis

from headrace.cache import ABSENT, Cache

Eventually = Callable[..., Any]


def test_a_change_elsewhere_is_heard_once_it_was_read(cache: Cache, other: Cache, eventually: Eventually) -> None:
    heard = threading.Event()
    cache.watch("a", heard.set)
    other.set("b", 0)
    for n in range(5):
        other.set("a", n)
        if n:
            assert heard.wait(20)
        heard.clear()
        eventually(lambda n=n: cache.get("a") == n and cache.peek("a") is not ABSENT)
    assert cache.get("b") == 0
    other.set("b", 1)
    eventually(lambda: cache.get("b") == 1)
    assert not heard.is_set()
    other.clear()
    assert heard.wait(20)


def test_losing_the_connection_is_a_change_of_everything(
    cache: Cache, client: redis.Redis, eventually: Eventually
) -> None:
    heard = threading.Event()
    cache.set("a", 1)
    eventually(lambda: cache.get("a") == 1 and cache.peek("a") is not ABSENT)
    cache.watch("a", heard.set)
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")
    assert heard.wait(20)


def test_a_forked_child_watches_nothing(cache: Cache, other: Cache) -> None:
    cache.watch("a", lambda: None)
    pid = os.fork()
    if pid == 0:
        os._exit(len(cache._listener.watchers.hooks))
    assert os.waitpid(pid, 0)[1] == 0
    assert list(cache._listener.watchers.hooks) == ["a"]
