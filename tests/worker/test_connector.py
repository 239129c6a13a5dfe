"""How a dispatcher gets its connections."""

from __future__ import annotations

import select
import threading

import pytest

from headrace.store.url import parse
from headrace.worker.dispatcher.store_links import Connector, Links


def test_an_attempt_that_finds_no_room_for_its_thread_has_failed_like_any_other(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = Connector(5.0, [])
    with monkeypatch.context() as full:

        def none(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, "start", none)
        connector.start(parse(url), None)
    assert select.select([connector], [], [], 30)[0]
    failed = connector.take()
    assert isinstance(failed, OSError)
    assert "can't start new thread" in str(failed)
    assert not connector.busy
    connector.start(parse(url), None)
    assert select.select([connector], [], [], 30)[0]
    made = connector.take()
    assert isinstance(made, Links)
    made.close()
    # A dispatcher keeps them for its whole life.
    for one in (connector._ear, connector._bell):
        one.close()
