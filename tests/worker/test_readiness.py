"""Whether the first runners of an image could begin, as its supervisor hears it."""

from __future__ import annotations

import contextlib
import selectors

import pytest

from headrace.worker.supervisor.readiness import Settling, tell


def test_several_that_cannot_begin_are_told_of_once_though_they_say_so_in_the_same_moment() -> None:
    told: list[str] = []
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as forked:

        def heard(trouble: str) -> None:
            told.append(trouble)
            settling.end()

        settling = Settling(selector, heard)
        runners = [forked.enter_context(settling.expected()) for _ in range(2)]
        tell(runners[0], "no database")
        runners[1].close()
        ready = selector.select(10)
        assert len(ready) == 2
        # As a loop does, which has asked for all that can be read before it hears the first.
        for key, _ in ready:
            key.data()
        assert len(told) == 1
        assert settling.socks == []


def test_one_that_could_not_be_forked_is_not_waited_for() -> None:
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        settling = Settling(selector, told.append)
        with pytest.raises(BlockingIOError), settling.expected():
            raise BlockingIOError
        assert not settling.socks
        with settling.expected() as runner:
            tell(runner, "")
        while settling.socks:
            for key, _ in selector.select(10):
                key.data()
    assert told == [""]


def test_each_that_has_settled_in_is_told_of() -> None:
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        settling = Settling(selector, told.append)
        with contextlib.ExitStack() as forked:
            for runner in [forked.enter_context(settling.expected()) for _ in range(3)]:
                tell(runner, "")
        while settling.socks:
            for key, _ in selector.select(10):
                key.data()
    assert told == ["", "", ""]
