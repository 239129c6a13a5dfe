"""limit_delete.lua: a limit that nothing needs is forgotten; what waits for it starts without it."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from headrace.protocol import consume, operations
from headrace.protocol.limit_verbs import Deleted, delete_limit
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, hold, ids, promote, put
from tests.scripts.stage import KEEP, SECOND, Stage


def delete(stage: Stage, limit: str) -> Deleted:
    return stage.run(delete_limit(stage.keys, limit))


def redeploy(stage: Stage) -> None:
    """The worker whose code declares limits leaves; the next one knows the same tasks only by name."""
    stage.run(consume.register(stage.keys, "w2", 10**12, ["place", "host:w2"]))
    assert stage.run(consume.retire(stage.keys, "w1", KEEP))


def take(stage: Stage) -> list[str]:
    return ids(stage.claim("w2", limit=50).jobs)


def traces(stage: Stage) -> list[str]:
    return sorted(key for key in stage.everything() if "limit" in key or "overrides" in key or "timers" in key)


def test_a_limit_that_is_not_stored_is_unknown(stage: Stage) -> None:
    assert delete(stage, "api") == Deleted("unknown")


def test_code_that_runs_keeps_its_limits(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT]})
    answer = delete(stage, "api")
    assert answer == Deleted("declared", places=("host:w1",))
    assert "take it out of the code" in answer.in_use
    redeploy(stage)
    assert delete(stage, "api") == Deleted("deleted")
    assert delete(stage, "api") == Deleted("unknown")


def test_a_limit_whose_name_begins_alike_is_another_one(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    redeploy(stage)
    change(stage, "ap", Concurrency(1), declared=API)
    put(stage, 1)
    assert len(take(stage)) == 1
    assert delete(stage, "ap") == Deleted("deleted")
    assert delete(stage, "api") == Deleted("held", 1)


def test_jobs_that_run_keep_it(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT]})
    put(stage, 1, 2)
    redeploy(stage)
    claims = stage.claim("w2").jobs
    answer = delete(stage, "account")
    assert answer == Deleted("held", 2)
    assert "pause it, so that no more start" in answer.in_use
    for claim in claims:
        stage.end_as("w2", claim, amount=KEEP)
    assert delete(stage, "account") == Deleted("deleted")


def test_programs_that_hold_it_keep_it(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    redeploy(stage)
    hold(stage, "account", "x")
    assert delete(stage, "account") == Deleted("held", 1)
    stage.now += 20 * SECOND
    promote(stage)
    assert delete(stage, "account") == Deleted("deleted")


def test_what_waits_for_it_starts_without_it(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT], "both": [LimitRule("many", concurrency=Concurrency(9)), ACCOUNT]})
    redeploy(stage)
    change(stage, "account", paused=True, value="y")
    came = [*put(stage, *"xxxyyz"), *put(stage, *"xyz", task="both")]
    started = stage.claim("w2").jobs
    for claim in started:
        stage.end_as("w2", claim, amount=KEEP)
    assert stage.client.exists(stage.keys("behind:account:x"), stage.keys("behind:account:y")) == 2
    stage.doze()
    assert delete(stage, "account") == Deleted("deleted", len(came) - len(started))
    promote(stage)
    assert stage.tokens() == 1
    # Those that have another limit go to the lane of that first.
    assert sorted([*ids(started), *take(stage), *take(stage)]) == sorted(came)
    (after,) = put(stage, "x")
    assert take(stage) == [after], "jobs that come later do not have it"


def test_what_waits_while_it_is_paused_starts_without_it(stage: Stage) -> None:
    declare(stage, {"call": [API], "each": [ACCOUNT]})
    redeploy(stage)
    for limit in ("api", "account"):
        change(stage, limit, paused=True)
    came = [*put(stage, 1, 2), *put(stage, 1, 2, task="each")]
    assert take(stage) == []
    assert [delete(stage, limit).jobs for limit in ("api", "account")] == [2, 2]
    promote(stage)
    assert sorted(take(stage)) == sorted(came)


def test_what_operators_said_goes_with_it_a_piece_at_a_time(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    redeploy(stage)
    for n in range(1200):
        change(stage, "account", Rate(5, per=1), value=n, duration=SECOND)
    words = [delete(stage, "account").word for _ in range(3)]
    assert words[0] == "some"
    while words[-1] == "some":
        words.append(delete(stage, "account").word)
    assert words[-1] == "deleted"
    stage.now += 10 * SECOND
    promote(stage)
    assert traces(stage) == []


def test_no_gate_is_left_for_which_purged_jobs_waited(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    change(stage, "account", value="x", paused=True)
    put(stage, "x")
    assert stage.run(operations.purge(stage.keys, "default", 1000)) == (1, 0)
    redeploy(stage)
    assert delete(stage, "account") == Deleted("deleted")
    assert not stage.client.exists(stage.keys("gate:account:x"), stage.keys("behind:account:x"))
