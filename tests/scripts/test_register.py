from __future__ import annotations

from headrace.protocol.consume import register
from headrace.protocol.keys import SCHEMA
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


def test_without_facts(stage: Stage) -> None:
    stage.run(register(stage.keys, "w1", SECOND, []))
    assert stage.claim("w1").alive


def test_a_store_without_a_layout_gets_ours(stage: Stage) -> None:
    """It has lost everything since this program greeted it."""
    stage.client.delete(stage.keys("schema"))
    stage.run(register(stage.keys, "w1", SECOND, []))
    assert stage.client.get(stage.keys("schema")) == str(SCHEMA).encode()
    stage.client.set(stage.keys("schema"), "99")
    stage.run(register(stage.keys, "w1", SECOND, []))
    assert stage.client.get(stage.keys("schema")) == b"99"
