from __future__ import annotations

from headrace.protocol.keys import SCHEMA
from headrace.protocol.operations import Greeting, greet
from tests.scripts.stage import Stage


def test_an_empty_store_takes_our_layout_and_keeps_it(stage: Stage) -> None:
    assert stage.run(greet(stage.keys, SCHEMA)) == Greeting(SCHEMA, False)
    assert stage.run(greet(stage.keys, SCHEMA + 1)) == Greeting(SCHEMA, False)
    assert stage.client.get(stage.keys("schema")) == str(SCHEMA).encode()


def test_another_layout_is_told(stage: Stage) -> None:
    stage.client.set(stage.keys("schema"), "99")
    assert stage.run(greet(stage.keys, SCHEMA)) == Greeting(99, False)


def test_a_migration_is_told(stage: Stage) -> None:
    stage.client.set(stage.keys("schema"), "1")
    stage.client.hset(stage.keys("migration"), "version", "2")
    assert stage.run(greet(stage.keys, SCHEMA)) == Greeting(1, True)
