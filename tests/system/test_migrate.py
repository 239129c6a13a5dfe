"""``headrace migrate`` beside real workers, killed half way, and as a command."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import Headrace
from headrace.model.ids import flow_id
from headrace.testing import assert_invariants
from tests.commands import Commands
from tests.golden import dump, flows
from tests.migrations.test_migrator import GOLDEN, HOUR, KEYS, NewServer
from tests.program import Program

pytestmark = pytest.mark.system

LATER = """
@app.task
def later(marker: str) -> str:
    return marker
"""


@pytest.mark.slow
def test_a_released_store_goes_on_working(new_server: NewServer, tmp_path: Path) -> None:
    """Its jobs run, those of a worker that died and those whose time has come included; its results can be read."""
    server = new_server()
    dump.load(server.client(), GOLDEN / "schema-1.txt")
    headrace = Commands(tmp_path, server.url)
    headrace.environment["HEADRACE_RESULT_TTL"] = "86400"
    headrace.write("tasks", (headrace.directory / "tasks.py").read_text() + LATER)
    refused = headrace("enqueue", "tasks.add", "1", code=3).fault
    assert "holds schema 1" in refused
    assert "headrace migrate" in refused
    assert "headrace migrate" in headrace("worker", "tasks:app", "--burst", code=3).err
    assert "1 migration applied" in headrace("migrate").out
    done = len(headrace("jobs", "list", "--state", "succeeded", "--limit", "100", "--json").lines)
    headrace("queues", "resume", "low")
    for _ in range(2):  # the second finds what the first took over from the dead worker
        headrace.burst("--queues", "default,low")
    app = Headrace(server.url)
    states = app.overview().states
    # Five with priorities, three of the paused queue, one delayed, one retried, one of the dead worker.
    assert states["succeeded"] == done + 11
    assert (states["failed"], states["quarantined"], states["cancelled"]) == (1, 1, 1)
    assert states.get("ready", 0) == states.get("scheduled", 0) == states.get("running", 0) == 0
    (parked,) = app.overview().parked.items()
    assert parked == ("tasks.unknown", 1)
    (cancelled,) = headrace("jobs", "list", "--state", "cancelled", "--json").lines
    assert "was cancelled" in headrace("jobs", "result", cancelled["id"], code=1).fault
    app.close()
    assert_invariants(server.client())


def test_a_real_worker_is_refused_until_it_has_gone(headrace: Program, client: redis.Redis, eventually: Any) -> None:
    worker = headrace.start("worker", "tasks:app", "--processes", "1", "--quiet")
    try:
        eventually(lambda: client.zcard(KEYS("owners")), timeout=60)
        assert "workers use" in headrace("migrate", "--to", "1", code=1).fault
        assert "stop these workers first" in headrace("migrate", "--to", "1", "--dry-run").err
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    assert "1 migration applied" in headrace("migrate", "--to", "1").out
    headrace("migrate")


SLOWLY = """
import time
from headrace.migrations.migrator import Migrator
piece = Migrator._piece
Migrator._piece = lambda *known: time.sleep(0.05) or piece(*known)
"""


@pytest.mark.slow
def test_a_killed_migration_goes_on_where_it_was(headrace: Program, client: redis.Redis, eventually: Any) -> None:
    ids = [flow_id(flows.MADE // 1000 + n, n) for n in range(20_000)]
    pipe = client.pipeline(transaction=False)
    for n, id in enumerate(ids):
        facts = {"definition": f"shop.d{n % 7}", "st": "succeeded", "created": str(flows.MADE + n), "ttl": "-1"}
        pipe.hset(KEYS.flow(id), mapping=facts)
    pipe.execute()
    client.set(KEYS("schema"), 1)
    headrace.prelude = SLOWLY
    process = headrace.start("migrate")
    headrace.prelude = ""
    try:
        eventually(lambda: client.hget(KEYS("migration"), "cursor"), timeout=60, every=0.001)
        os.kill(process.pid, signal.SIGSTOP)
        assert client.get(KEYS("schema")) == b"1"
        assert 0 < client.zcard(KEYS.flows("|")) < len(ids)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    # Its lease has not ended, however long the next command takes to begin.
    client.hset(KEYS("migration"), "until", client.time()[0] * 10**6 + HOUR)
    assert "another migration is at it" in headrace("migrate", code=1).fault
    assert "is being migrated" in headrace("enqueue", "tasks.add", "1", code=3).fault
    client.hset(KEYS("migration"), "until", 1)
    assert "from where it was left" in headrace("migrate").out
    found = [id.decode() for id in client.zrange(KEYS.flows("|succeeded"), 0, -1)]
    assert found == ids
    client.flushall()
