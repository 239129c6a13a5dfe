"""``headrace migrate``: what it says that it did, would do and cannot do."""

from __future__ import annotations

import redis

from tests.commands import Commands
from tests.golden import flows
from tests.migrations.test_migrator import KEYS, everything
from tests.program import on_terminal


def test_the_command_says_what_it_did(headrace: Commands, client: redis.Redis) -> None:
    flows.make(client, 20)
    flows.forget(client)
    first, last = headrace("migrate").out.splitlines()
    assert first == "schema 2: workflows by index, wake-up tokens as sorted sets: changed 20 of 62 keys"
    assert last.startswith("1 migration applied; unix://")
    assert last.endswith("holds schema 2")
    assert headrace("migrate").out.startswith("0 migrations applied; ")
    facts = headrace("migrate", "--to", "1", "--json").json
    (applied,) = facts.pop("applied")
    assert facts == {"from": 2, "schema": 1, "dry_run": False, "workers": []}
    assert (applied["version"], applied["direction"], applied["resumed"]) == (2, "down", False)
    headrace("migrate")


def test_a_dry_run_changes_nothing(headrace: Commands, client: redis.Redis) -> None:
    flows.make(client, 20)
    flows.forget(client)
    before = everything(client)
    told = headrace("migrate", "--dry-run").out
    assert "would change 20 of" in told
    assert "1 migration would be applied; nothing was changed" in told
    assert headrace("migrate", "--dry-run", "--json").json["applied"][0]["changed"] == 20
    assert everything(client) == before
    headrace("migrate")
    high = everything(client)
    assert "schema 2 taken back" in headrace("migrate", "--to", "1", "--dry-run").out
    assert everything(client) == high


def test_a_terminal_shows_a_bar_for_each_step(headrace: Commands, client: redis.Redis) -> None:
    flows.make(client, 20)
    flows.forget(client)
    shown = on_terminal(headrace, "migrate")
    assert "schema 2 up" in shown
    assert "100%" in shown
    assert "1 migration applied" in shown


def test_what_cannot_be_is_refused_with_its_own_code(headrace: Commands, client: redis.Redis) -> None:
    assert "knows 1 to 2" in headrace("migrate", "--to", "9", code=2).fault
    assert "holds nothing yet" in headrace("migrate").out
    assert not client.exists(KEYS("schema"))
    client.set(KEYS("schema"), 99)
    for command in (["migrate"], ["enqueue", "tasks.add", "1"], ["queues", "list"], ["worker", "tasks:app", "--burst"]):
        told = headrace(*command, code=3).fault
        assert "holds schema 99, written by a newer Headrace" in told
        assert "upgrade headrace here" in told
    client.delete(KEYS("schema"))
