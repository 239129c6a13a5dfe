"""A server whose memory is full: each script either makes room and passes, or stores and is refused whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace.protocol.script import Call
from tests.scripts.graphs import Flow
from tests.scripts.stage import Stage
from tests.servers import Server
from tests.store.plays import PLAYS

# New work, and what users store for themselves. Of the rest some writes, too: it ends work that there is, makes room, or
# keeps workers and waiters alive, in a bounded number of small fields.
REFUSED = {
    "enqueue", "enqueue_ordered", "enqueue_ordered, of a job that follows another", "enqueue_unique",
    "enqueue_unique, of a name that is held",
    "broadcast", "rerun", "greet", "own_store",
    "flow_create", "flow_create, a part", "flow_retry", "reserve",
    "stats_add", "stats_send", "stats_take", "stats_event",
    "schedule_declare", "schedule_run",
    "cache_set", "cache_set, under a lease", "cache_lease", "cache_lease, whose turn is over",
}  # fmt: skip


@pytest.fixture
def stage(server_name: str, new_server: Callable[..., Server]) -> Stage:
    return Stage(new_server(server_name).client(), guarded=False)


def test_a_full_server_refuses_what_stores_and_lets_pass_what_makes_room(stage: Stage) -> None:
    refused: set[str] = set()
    for name, play in PLAYS.items():
        stage.client.flushall()
        stage.now, stage._made, stage._requests, Flow.made_so_far = Stage(stage.client).now, 0, 0, 0
        call = play.call(stage.keys, play.arrange(stage), stage.now)
        before = stage.everything()
        if not passes(stage, call):
            refused.add(name)
            assert stage.everything() == before, f"{name} was refused after it had written"
    assert refused - REFUSED == set()
    assert REFUSED - refused == set()


def passes(stage: Stage, call: Call[Any]) -> bool:
    """Whether a full server executes this."""
    stage.client.config_set("maxmemory", 1)
    try:
        stage.run(call)
    except redis.exceptions.ResponseError as error:
        # One server tells it as a refused command, another as an error of the script.
        if "maxmemory" not in str(error):
            raise
        return False
    finally:
        stage.client.config_set("maxmemory", 0)
    return True
