from __future__ import annotations

from typing import Any

from headrace.protocol.operations import server_info
from tests.scripts.guard import USER
from tests.scripts.stage import Stage


def test_the_server_tells_of_itself(stage: Stage) -> None:
    told = stage.run(server_info(stage.keys))
    own: Any = stage.client.info()
    assert told is not None
    for name in ("redis_version", "maxmemory_policy", "maxmemory", "role"):
        assert told.info[name] == str(own[name])
    assert told.amount("used_memory") > 0


def test_a_server_that_does_not_is_no_error(stage: Stage) -> None:
    assert stage.run(server_info(stage.keys)) is not None
    stage.client.execute_command("ACL", "SETUSER", USER, "-info")
    assert stage.run(server_info(stage.keys)) is None
