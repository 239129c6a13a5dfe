"""What a worker may be asked to be, and which queue it looks at first."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headrace.errors import OptionsError
from headrace.worker.worker_options import QueueOrder, WorkerOptions, parse_queues


def test_queues_are_in_strict_order_unless_they_have_weights() -> None:
    assert parse_queues("high, low") == QueueOrder(("high", "low"))
    assert parse_queues("high:3,low:1") == QueueOrder(("high", "low"), (3.0, 1.0))
    assert parse_queues("a:b:2,c:0.5") == QueueOrder(("a:b", "c"), (2.0, 0.5))
    assert QueueOrder(("high", "low")).arrange([]) == ("high", "low")


def test_weights_are_chances_of_coming_first() -> None:
    order, dice = parse_queues("high:3,low:1"), random.Random(1)
    first = Counter(order.arrange([dice.random(), dice.random()])[0] for _ in range(4000))
    assert 0.7 < first["high"] / 4000 < 0.8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one queue"),
        (" , ", "at least one queue"),
        ("a,a", "named twice"),
        ("a:1,b", "one to each"),
        ("a:0", "more than 0"),
        ("a:-1,b:2", "more than 0"),
        ("a b", "cannot be used"),
        ("slow=3,b", "weight behind a colon: slow:3$"),
        ("-x", "cannot be used"),
    ],
)
def test_queues_that_cannot_be_served_are_refused(text: str, says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        parse_queues(text)


def test_a_worker_that_cannot_be_is_refused() -> None:
    for name in (
        "processes", "forks", "threads", "concurrency", "max_jobs", "max_idle", "recycle_jobs", "recycle_memory",
    ):  # fmt: skip
        with pytest.raises(OptionsError, match=name.replace("_", " ")):
            WorkerOptions(**{name: -1})
    with pytest.raises(OptionsError, match="strategy must be one of available, "):
        WorkerOptions(strategy="fastest")
    with pytest.raises(OptionsError, match="start more workers"):
        WorkerOptions(processes=2000)


def test_a_worker_is_resized_within_its_limits() -> None:
    options = WorkerOptions(processes=3, forks=2, threads=7, concurrency=9)
    assert [options.at_once(kind) for kind in ("process", "fork", "thread", "async")] == [3, 2, 7, 9]
    assert options.resized("thread", 20).threads == 20
    with pytest.raises(OptionsError, match="keeps one at least: stop the worker instead"):
        options.resized("process", 0)
    with pytest.raises(OptionsError, match="start more workers"):
        options.resized("fork", 1025)


def test_threads_and_coroutines_share_one_runner() -> None:
    options = WorkerOptions(processes=3, forks=2, threads=7, concurrency=9)
    assert [options.runners(kind) for kind in ("process", "fork", "thread", "async")] == [3, 2, 1, 1]
    assert [options.slots(kind) for kind in ("process", "fork", "thread", "async")] == [1, 1, 7, 9]
    assert WorkerOptions(threads=0).runners("thread") == 0
