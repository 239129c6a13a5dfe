"""The included script ``cache_forget``: what a pause or a resumption leaves of the cached value that they change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.protocol import cache, operations
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from tests.scripts.stage import Stage


@pytest.mark.parametrize("change", [operations.pause, operations.resume])
def test_what_was_known_of_pauses_goes(stage: Stage, change: Callable[[Keys, str], Call[bool]]) -> None:
    stage.run(cache.store(stage.keys, operations.PAUSED, b"\x90", 60, ("x",), now=stage.now))
    lease = stage.run(cache.lease(stage.keys, "other")).lease
    stage.run(change(stage.keys, "default"))
    assert stage.members("cached") == stage.members("tagged:x") == {}
    assert not stage.client.exists(stage.keys.cache(operations.PAUSED))
    # What has another name is left alone.
    assert stage.run(cache.store(stage.keys, "other", b"\xc0", 60, (), lease, now=stage.now))
    stage.run(cache.delete(stage.keys, ["other"]))


@pytest.mark.parametrize("change", [operations.pause, operations.resume])
def test_what_was_read_before_is_not_stored_after(stage: Stage, change: Callable[[Keys, str], Call[bool]]) -> None:
    lease = stage.run(cache.lease(stage.keys, operations.PAUSED)).lease
    stage.run(change(stage.keys, "default"))
    assert not stage.run(cache.store(stage.keys, operations.PAUSED, b"\x90", 60, (), lease, now=stage.now))
