"""Whatever the head of a stored value says, its tags are found; whatever it is not, nothing breaks."""

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
