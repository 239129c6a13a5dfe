"""A process that could start no thread for its counts sends them in time once it can."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.stats import Stats
from tests.deadline import eventually


def test_counts_are_sent_in_time_again_where_a_thread_can_be_started_again(
    make_stats: Callable[..., Stats], monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = make_stats(stats_flush_interval=0.05)
    with monkeypatch.context() as full:

        def none(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, "start", none)
        stats.add("a", {"n": 1})
    for _ in range(64):
        stats.add("a", {"n": 1})
    eventually(lambda: not stats.pending, 10)
