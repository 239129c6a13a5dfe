from __future__ import annotations

import pytest
import redis

from headrace.protocol.consume import register
from headrace.protocol.keys import SCHEMA
from headrace.protocol.operations import Greeting, greet
from tests.scripts.stage import SECOND, Stage


def test_an_empty_store_takes_our_layout_and_keeps_it(stage: Stage) -> None:
    assert stage.run(greet(stage.keys, SCHEMA)) == Greeting(SCHEMA, False)
    assert stage.run(greet(stage.keys, SCHEMA + 1)) == Greeting(SCHEMA, False)
    assert stage.client.get(stage.keys("schema")) == str(SCHEMA).encode()


def test_another_layout_is_told(stage: Stage) -> None:
    stage.client.set(stage.keys("schema"), "99")
    assert stage.run(greet(stage.keys, SCHEMA)) == Greeting(99, False)


@pytest.mark.parametrize("odd", [b"", b"three", b"\xff", b"-1"])
def test_what_is_no_layout_is_told_and_stays(stage: Stage, odd: bytes) -> None:
    stage.client.set(stage.keys("schema"), odd)
    assert stage.run(greet(stage.keys, SCHEMA)).version < 1
    with pytest.raises(redis.ResponseError, match="SCHEMA the store"):
        stage.run(register(stage.keys, "w1", SECOND, []))
    assert stage.client.get(stage.keys("schema")) == odd


def test_a_migration_is_told(stage: Stage) -> None:
    stage.client.set(stage.keys("schema"), "1")
    stage.client.hset(stage.keys("migration"), "version", "2")
    assert stage.run(greet(stage.keys, SCHEMA)) == Greeting(1, True)


@pytest.mark.parametrize(
    ("mark", "greeting"),
    [
        ({"to": "redis://new"}, Greeting(SCHEMA, to="redis://new")),
        ({"to": "redis://new", "done": "1"}, Greeting(SCHEMA, to="redis://new", moved=True)),
        ({"from": "redis://old"}, Greeting(SCHEMA, source="redis://old")),
    ],
)
def test_a_move_is_told_and_refuses_workers(stage: Stage, mark: dict[str, str], greeting: Greeting) -> None:
    stage.client.hset(stage.keys("move"), mapping=mark)
    assert stage.run(greet(stage.keys, SCHEMA)) == greeting
    with pytest.raises(redis.ResponseError, match="SCHEMA the store is being moved"):
        stage.run(register(stage.keys, "w1", SECOND, []))
