"""A drain is the dispatcher's own core: its duties work in a kit without a further line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.protocol import operations
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.testing import Kit
from headrace.worker.dispatcher.maintenance import Maintenance
from headrace.worker.dispatcher.worker_state import NEVER, Desk, Worker
from tests.kit import shop


class OpensLow:
    """The smallest duty: it resumes one queue, once."""

    script, makes_ready = "resume", True

    def __init__(self, keys: Keys) -> None:
        self.at = 0.0
        self._keys = keys

    def call(self, _: float) -> Call[Any]:
        self.at = NEVER
        return operations.resume(self._keys, "low")

    def on_reply(self, reply: Any, sent: float) -> None: ...

    def on_renewal(self, renewed: Any, sent: float) -> None: ...


def test_a_new_duty_of_the_dispatcher_works_in_a_drain(headrace_app: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    job = shop.double.enqueue(4)
    headrace_app.app.queues["low"].pause()
    assert headrace_app.drain().starts == 0
    made = Maintenance.__init__

    def with_one_row_more(self: Maintenance, worker: Worker, desk: Desk, *rest: Any) -> None:
        made(self, worker, desk, *rest)
        duty = OpensLow(desk.keys)
        self._duties, self._all = (*self._duties, duty), (*self._all, duty)

    monkeypatch.setattr(Maintenance, "__init__", with_one_row_more)
    assert headrace_app.drain().starts == 1
    assert job.result() == 8


def test_a_drain_settles_and_claims_in_one_trip(headrace_app: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[list[str]] = []
    store = headrace_app._driver._store
    before: Callable[[Sequence[Call[Any]]], list[Any]] = store.run_all
    monkeypatch.setattr(
        store, "run_all", lambda calls: trips.append([call.script.name for call in calls]) or before(calls)
    )
    for n in range(5):
        shop.send.enqueue(n)
    headrace_app.drain()
    assert trips.count(["settle", "claim"]) == 5
    assert len(trips) <= 9
