"""cache_tags.lua: tags of values, and which of them were dropped."""

from __future__ import annotations

import pytest

from headrace.protocol import cache_calls
from tests.scripts.stage import Stage


def test_the_longest_tags_are_found(stage: Stage) -> None:
    tags = [f"{n}" + "t" * 127 for n in range(8)]
    stage.run(cache_calls.store(stage.keys, "a", b"\n" * 5000, 60, tags))
    assert all(stage.members(f"tagged:{tag}") for tag in tags)
    stage.run(cache_calls.delete(stage.keys, ["a"]))
    assert stage.client.keys("*") == []


@pytest.mark.parametrize("alien", [b"", b"\x93\x01\x02\x03", b"no line feed", b"\n", b",,\n", b"\x00,\xff\nx"])
def test_an_alien_value_has_no_tags(stage: Stage, alien: bytes) -> None:
    stage.client.set(stage.keys.cache("a"), alien)
    assert stage.run(cache_calls.delete(stage.keys, ["a"])) == 1


def test_a_key_of_another_type_has_no_tags(stage: Stage) -> None:
    stage.client.hset(stage.keys.cache("a"), "f", "v")
    assert stage.run(cache_calls.delete(stage.keys, ["a"])) == 1


@pytest.mark.parametrize(
    ("dropped", "stored"), [("x", False), ("w", False), (cache_calls.ALL, False), ("y", True), ("", True)]
)
def test_a_lease_is_as_good_as_no_tag_of_the_value_was_dropped_since(stage: Stage, dropped: str, stored: bool) -> None:
    stage.run(cache_calls.drop(stage.keys, "w", True))
    lease = stage.run(cache_calls.lease(stage.keys, "a", ("w", "x"))).lease
    if dropped:
        stage.run(cache_calls.drop(stage.keys, dropped, True))
    assert stage.run(cache_calls.store(stage.keys, "a", b"\xc0", 60, ("w", "x"), lease)) is stored
    stage.run(cache_calls.drop(stage.keys, cache_calls.ALL, True))
