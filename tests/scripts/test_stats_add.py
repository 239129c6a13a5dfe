from __future__ import annotations

from headrace.protocol.stats_calls import Counts
from tests.scripts.stage import Stage
from tests.scripts.stats_stage import add, fresh, held


def counted(stage: Stage, **fields: int) -> Counts:
    return Counts({("2099010100", stage.now // 1_000_000 + 3600): {"a": fields}}, {})


def test_counts_are_added(stage: Stage) -> None:
    """R01, R08: negative numbers and those beyond what Lua can hold, too."""
    fresh(stage)
    assert add(stage, 1, counted(stage, n=2, m=-3, big=2**62 + 1)).word == "ok"
    assert add(stage, 2, counted(stage, n=2, big=-1)).word == "ok"
    assert held(stage, date="2099010100") == {"n": 4, "m": -3, "big": 2**62}


def test_a_batch_is_added_once_however_often_it_is_sent(stage: Stage) -> None:
    """RS2."""
    fresh(stage)
    for word in ("ok", "repeated", "repeated"):
        assert add(stage, 7, counted(stage, n=1)).word == word
    assert add(stage, 7, counted(stage, n=1), sender="other").word == "ok"
    assert add(stage, 8, counted(stage, n=1)).word == "ok"
    assert held(stage, date="2099010100") == {"n": 3}
    assert 0 < stage.client.ttl(stage.keys("sender:s")) <= 3600


def test_a_full_server_takes_all_of_a_batch_or_nothing(stage: Stage) -> None:
    fresh(stage)
    before = stage.client.config_get("maxmemory")["maxmemory"]
    stage.client.config_set("maxmemory", 1)
    try:
        refused = False
        try:
            add(stage, 1, counted(stage, n=1))
        except Exception as error:  # noqa: BLE001 - each server words it its own way
            refused = "OOM" in str(error) or "memory" in str(error)
        assert refused
    finally:
        stage.client.config_set("maxmemory", before)
    assert held(stage, date="2099010100") == {}
    assert add(stage, 1, counted(stage, n=1)).word == "ok"
