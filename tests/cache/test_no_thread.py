"""A process that can start no thread now: the cache answers from the server, and listens when it can."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace import Headrace
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
