from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deadline import eventually
from tests.scripts.asked import codes, why
from tests.scripts.stage import Stage
from tests.servers import Server, free_port


@pytest.fixture
def stage(server_name: str, new_server: Callable[..., Server]) -> Stage:
    """A stage on a server of its own, which is made to refuse."""
    return Stage(new_server(server_name).client(), guarded=False)


def test_a_replica_accepts_no_writes(stage: Stage) -> None:
    (id,) = stage.put()
    stage.client.replicaof("127.0.0.1", free_port())
    reason = why(stage, id).reasons[0]
    assert (reason.code, reason.evidence) == ("store_refuses", {"role": "replica", "link": "down"})
    stage.client.replicaof("NO", "ONE")
    assert "store_refuses" not in codes(stage, id)


def test_a_failed_snapshot_is_told(stage: Stage) -> None:
    (id,) = stage.put()
    place = Path(stage.client.config_get("dir")["dir"]) / stage.client.config_get("dbfilename")["dbfilename"]
    # A directory stands where the snapshot is to be.
    place.mkdir()
    (place / "x").touch()
    stage.client.bgsave()
    eventually(lambda: stage.client.info("persistence")["rdb_last_bgsave_status"] == "err")
    reason = why(stage, id).reasons[-1]
    assert (reason.code, reason.evidence) == ("store_refuses", {"rdb_last_bgsave_status": "err"})


def test_a_full_memory_is_told_and_does_not_decide(stage: Stage) -> None:
    (id,) = stage.put()
    stage.client.config_set("maxmemory", 1)
    found = why(stage, id, looks=False)
    assert [reason.code for reason in found.reasons] == ["no_worker_serves", "store_refuses"]
    assert "jobs that are stored go on, and new ones are refused" in found.reasons[-1].text
