"""Calls of hooks as a watcher makes them, on a real server."""

from __future__ import annotations

import errno
from typing import Any, NoReturn

import pytest
import redis

from headrace import Headrace
from headrace.errors import ServerError
from headrace.protocol.keys import Keys
from headrace.protocol.operations import note_watch
from headrace.protocol.script import Call
from headrace.worker import watcher
from headrace.worker.watcher import TRIES, HookRounds


class Called:
    """Instead of the process of a call: one that goes on."""

    until = float("inf")

    def __init__(self, _app: Headrace, _hook: object, events: list[Any]) -> None:
        self.facts = [event.facts["queue"] for event in events]

    def cut(self, _now: float) -> None: ...

    def ended(self) -> str | None:
        return ""


def test_a_call_that_finds_no_room_for_its_process_counts_as_no_try(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, called = Headrace(url), list[Called]()

    @app.on("queue_paused")
    def hook(events: list[Any]) -> None: ...

    def full(*_: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "no room")

    def begin(*given: Any) -> Called:
        called.append(Called(*given))
        return called[-1]

    rounds = HookRounds(app, "w1")
    rounds.look(0.0)
    app.queues["mail"].pause()
    monkeypatch.setattr(watcher, "HookCall", full)
    for number in range(TRIES + 2):
        rounds.look(100.0 * number)
    assert not rounds.busy
    monkeypatch.setattr(watcher, "HookCall", begin)
    rounds.look(1000.0)
    assert [one.facts for one in called] == [["mail"]]
    app.close()


def test_a_call_that_could_not_be_noted_counts_as_no_try(
    url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not made: after three of them the hook went past events that it was never given."""
    app, called = Headrace(url), list[Called]()

    @app.on("queue_paused")
    def hook(events: list[Any]) -> None: ...

    def begin(*given: Any) -> Called:
        called.append(Called(*given))
        return called[-1]

    def unreadable(keys: Keys, _name: str, *rest: Any) -> Call[bool]:
        return note_watch(keys, "unreadable", *rest)

    monkeypatch.setattr(watcher, "HookCall", begin)
    rounds = HookRounds(app, "w1")
    rounds.look(0.0)
    app.queues["mail"].pause()
    client.set(app.client.keys("watch:unreadable"), "")
    with monkeypatch.context() as patch:
        patch.setattr(watcher, "note_watch", unreadable)
        for number in range(TRIES):
            with pytest.raises(ServerError, match="WRONGTYPE"):
                rounds.look(100.0 * number)
    client.delete(app.client.keys("watch:unreadable"))
    rounds.look(1000.0)
    assert [one.facts for one in called] == [["mail"]]
    app.close()


def test_a_hook_that_wants_more_kinds_than_before_a_deploy_misses_no_event(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list that is given again has another event in it now, so it is longer than one call is given."""
    called = list[Called]()

    def begin(*given: Any) -> Called:
        called.append(Called(*given))
        return called[-1]

    monkeypatch.setattr(watcher, "HookCall", begin)
    monkeypatch.setattr(watcher, "BATCH", 2)
    for image, kinds in enumerate([["queue_paused"], ["queue_paused", "queue_resumed"]]):
        with Headrace(url) as app:

            @app.on(*kinds)
            def hook(events: list[Any]) -> None: ...

            rounds = HookRounds(app, f"w{image}")
            rounds.look(0.0)
            if not image:
                app.queues["a"].pause()
                app.queues["a"].resume()
                app.queues["b"].pause()
                rounds.look(10.0)
                app.client.store.run_all(rounds.release())
                continue
            for now in (10.0, 20.0):
                rounds.look(now)
                rounds.check_calls(now)
    assert [one.facts for one in called] == [["a", "b"], ["a", "a"], ["b"]]
