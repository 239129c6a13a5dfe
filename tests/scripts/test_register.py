from __future__ import annotations

import pytest
import redis

from headrace.protocol.consume import register
from headrace.protocol.keys import OLDEST, SCHEMA
from tests.scripts.stage import SECOND, Stage


def test_a_lease_begins_and_says_who_holds_it(stage: Stage) -> None:
    facts = ["place", "host:7", "version", "1.0"]
    known = {f"task-{n}": "process" for n in range(1500)}
    for _ in range(2):
        assert stage.run(register(stage.keys, "w1", 15 * SECOND, facts, known)) == 0
        assert stage.members("owners") == {"w1": stage.now + 15 * SECOND}
        said = stage.client.hgetall(stage.keys("owner:w1"))
        assert said == {
            b"since": str(stage.now).encode(),
            b"lease": b"15000000",
            b"place": b"host:7",
            b"version": b"1.0",
        }
        assert stage.client.hlen(stage.keys("tasks:w1")) == 1500


def test_the_first_start_of_a_version_is_kept_and_of_the_newest_twenty_alone(stage: Stage) -> None:
    began = stage.now
    for n in range(22):
        stage.run(register(stage.keys, f"w{n}", SECOND, ["code", f"v{n // 2 if n < 4 else n}"]))
        stage.now += SECOND
    found = stage.members("deploys")
    assert (found["v0"], found["v1"]) == (began, began + 2 * SECOND)
    assert len(found) == 20
    stage.run(register(stage.keys, "last", SECOND, ["code", "new"]))
    assert len(found := stage.members("deploys")) == 20
    assert "v0" not in found
    assert stage.client.ttl(stage.keys("deploys")) > 365 * 86400


def test_without_facts(stage: Stage) -> None:
    stage.run(register(stage.keys, "w1", SECOND, []))
    assert stage.claim("w1").alive


def test_a_store_without_a_layout_gets_ours(stage: Stage) -> None:
    """It has lost everything since this program greeted it."""
    stage.client.delete(stage.keys("schema"))
    stage.run(register(stage.keys, "w1", SECOND, []))
    assert stage.client.get(stage.keys("schema")) == str(SCHEMA).encode()


@pytest.mark.parametrize("schema", [OLDEST - 1, SCHEMA + 1, SCHEMA])
def test_a_store_that_was_migrated_or_is_being_takes_no_worker_that_greeted_it_before(
    stage: Stage, schema: int
) -> None:
    stage.client.set(stage.keys("schema"), schema)
    if schema == SCHEMA:
        stage.client.hset(stage.keys("migration"), "version", SCHEMA)
    with pytest.raises(redis.ResponseError, match=f"it has schema {schema}, the worker {SCHEMA}"):
        stage.run(register(stage.keys, "w1", SECOND, []))
    assert stage.members("owners") == {}
    stage.client.delete(stage.keys("migration"))
    stage.client.set(stage.keys("schema"), SCHEMA)
