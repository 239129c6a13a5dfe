from __future__ import annotations

from typing import Any

from headrace.protocol.operations import server_info
from tests.scripts.guard import USER
from tests.scripts.stage import Stage


def test_the_server_tells_of_itself(stage: Stage) -> None:
    told = stage.run(server_info(stage.keys))
    own: Any = stage.client.info()
    assert told is not None
    assert told.software.split()[1] == (own.get("valkey_version") or own["redis_version"])
    assert (told.policy, told.memory_limit, told.role) == (own["maxmemory_policy"], own["maxmemory"], own["role"])
    assert told.memory > 0


def test_a_server_that_does_not_is_no_error(stage: Stage) -> None:
    assert stage.run(server_info(stage.keys)) is not None
    stage.client.execute_command("ACL", "SETUSER", USER, "-info")
    assert stage.run(server_info(stage.keys)) is None
