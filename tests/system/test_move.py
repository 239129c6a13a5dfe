"""``headrace migrate --to-url``: programs and workers of a store that moves to another server."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Headrace
from headrace.errors import SchemaMismatch
from headrace.model.ids import shard_of
from headrace.testing import assert_invariants
from tests.golden import flows
from tests.migrations.test_mover import MARK, everything, filled, move, pair, producer
from tests.program import Program
from tests.servers import Server

pytestmark = pytest.mark.system
__all__ = ["pair", "producer"]


def test_a_store_works_on_at_its_new_server(pair: tuple[Server, Server], producer: Headrace, tmp_path: Path) -> None:
    source, target = pair
    ids = filled(producer)
    flows.make(source.client(), 5)
    before = everything(source)
    moved = move(source, target)
    assert everything(target) == before
    assert moved.keys > 60
    assert_invariants(target.client())
    assert not target.client().exists(MARK)
    with pytest.raises(SchemaMismatch, match=f"has moved to {target.url}"):
        producer.by_name("tasks.add").enqueue(1)
    headrace = Program(tmp_path, source.url)
    assert f"has moved to {target.url}" in headrace("worker", "tasks:app", "--burst", code=3).err
    headrace = Program(tmp_path, target.url)
    headrace.burst()
    app = Headrace(target.url)
    assert {app.job(id).state for id in ids} == {"succeeded"}
    app.close()


def test_a_store_with_one_shard_moves_to_a_server_with_several(
    pair: tuple[Server, Server], producer: Headrace, tmp_path: Path
) -> None:
    source, target = pair
    ids = filled(producer)
    headrace = Program(tmp_path, source.url)
    done = headrace("migrate", "--to-url", f"{target.url}?shards=1+2")
    assert "with ?shards=1+2, and workers first" in done.out
    with Headrace(f"{target.url}?shards=1+2", timeout=20) as app:
        add = app.by_name("tasks.add")
        assert app.jobs.get(ids[0]).state == "ready"
        assert {shard_of(add.options(key=key).enqueue(1).id) for key in "abcdefgh"} == {0}
        ids += [add.enqueue(n).id for n in range(30)]
        assert {shard_of(id) for id in ids} == {0, 1, 2}
        Program(tmp_path, f"{target.url}?shards=1+2").burst()
        assert {app.jobs.get(id).state for id in ids} == {"succeeded"}
    assert_invariants(target.client())


def test_the_command(pair: tuple[Server, Server], producer: Headrace, tmp_path: Path) -> None:
    source, target = pair
    filled(producer)
    headrace = Program(tmp_path, source.url)
    assert "neither" in headrace("migrate", "--to-url", target.url, "--dry-run", code=2).fault
    for number in ("3", "2+1"):
        refused = headrace("migrate", "--to-url", f"{target.url}?shards={number}", code=2)
        assert f"--to-url has {number} shards: write ?shards=1+N" in refused.fault
    done = headrace("migrate", "--to-url", target.url, "--json").json
    assert done["keys"] > 60
    assert done["url"] == target.url
    assert "already" in headrace("migrate", "--to-url", target.url, code=1).fault
    assert "has moved to" in headrace("jobs", "list", code=3).fault
