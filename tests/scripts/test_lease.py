"""The included script ``lease``: who lost a lease by himself, and who because the server was away or its clock was set."""

from __future__ import annotations

import pytest

from headrace.protocol.consume import reclaim, renew
from tests.scripts.stage import KEEP, SECOND, Stage

LEASE = 15 * SECOND
GRACE = 5 * SECOND
HOUR = 3600 * SECOND


def renews(stage: Stage, owner: str, lease: int = LEASE) -> bool:
    return stage.run(renew(stage.keys, owner, lease)).alive


def reclaims(stage: Stage, victim: str) -> str:
    return stage.run(reclaim(stage.keys, victim, False, 500, KEEP))[0]


@pytest.mark.parametrize("first", ["renew", "reclaim", "claim", "register"])
@pytest.mark.parametrize("away", [0.61, 0.9, 1.5, 3.0])
def test_a_server_that_was_away_costs_nobody_a_lease(stage: Stage, away: float, first: str) -> None:
    """However long it stalls, and whatever reaches it first afterwards."""
    for owner in ("w1", "w2"):
        stage.register(owner)
    stage.now += round(0.4 * LEASE)
    assert renews(stage, "w2")
    stage.now += round(away * LEASE)
    match first:
        case "renew":
            assert renews(stage, "w2")
        case "claim":
            assert stage.claim("w2").alive
        case "register":
            stage.register("w3")
        case _:
            pass
    assert reclaims(stage, "w1") == "alive"
    assert stage.members("owners")["w1"] >= stage.now + GRACE
    assert renews(stage, "w1")
    assert renews(stage, "w2")


def test_who_died_while_the_server_was_away_is_spared_a_while(stage: Stage) -> None:
    for owner in ("w1", "w2"):
        stage.register(owner)
    stage.now += 2 * LEASE
    assert renews(stage, "w2")
    assert reclaims(stage, "w1") == "alive"
    stage.now += GRACE
    assert reclaims(stage, "w1") == "done"


def test_who_is_dead_is_not_spared_by_one_outage_after_another(stage: Stage) -> None:
    for owner in ("w1", "w2"):
        stage.register(owner)
    spared = 0
    while True:
        stage.now += 2 * LEASE
        assert renews(stage, "w2")
        if reclaims(stage, "w1") == "done":
            break
        spared += 1
    assert spared == 10


def test_who_came_back_is_spared_again_by_the_next_outage(stage: Stage) -> None:
    for owner in ("w1", "w2"):
        stage.register(owner)
    for _ in range(3):
        stage.now += 3 * LEASE
        assert renews(stage, "w2")
        assert reclaims(stage, "w1") == "alive"
        stage.now += GRACE // 2
        assert renews(stage, "w1")


def test_who_alone_was_silent_is_reclaimed_at_the_end_of_the_lease(stage: Stage) -> None:
    """The network of one worker only: the others went on, so somebody runs its jobs now."""
    stage.register("w1")
    stage.lapse()
    before = stage.everything()
    assert not renews(stage, "w1")
    assert not stage.claim("w1").alive
    assert stage.everything() == before
    assert reclaims(stage, "w1") == "done"


def test_one_that_starts_within_the_lease_of_a_dead_one_waits_for_its_end_only(stage: Stage) -> None:
    stage.register("w1")
    stage.now += 9 * SECOND
    stage.register("w2")
    assert stage.members("owners")["w1"] == stage.now + 6 * SECOND


def test_whose_jobs_are_being_given_back_gets_none_of_them_back(stage: Stage) -> None:
    stage.put(2)
    stage.take()
    stage.lapse()
    assert stage.run(reclaim(stage.keys, "w1", False, 1, KEEP)) == ("some", 1)
    stage.now += 2 * LEASE
    assert not renews(stage, "w1")
    assert reclaims(stage, "w1") == "done"


@pytest.mark.parametrize("who", ["one that lives", "one that starts"])
def test_a_lease_from_before_the_clock_was_set_back_ends_with_its_length(stage: Stage, who: str) -> None:
    for owner in ("dead", "w2"):
        stage.register(owner)
    stage.now -= HOUR
    if who == "one that lives":
        answer = stage.run(renew(stage.keys, "w2", LEASE))
        assert answer.lapse <= stage.now + LEASE
    else:
        stage.register("w3")
    assert stage.members("owners")["dead"] == stage.now + LEASE
    for _ in range(3):
        stage.now += LEASE * 2 // 5
        assert renews(stage, "w2")
    assert reclaims(stage, "dead") == "done"


def test_a_clock_that_was_set_forward_costs_nobody_a_lease(stage: Stage) -> None:
    for owner in ("w1", "w2"):
        stage.register(owner)
    stage.now += HOUR
    assert renews(stage, "w1")
    assert reclaims(stage, "w2") == "alive"
    assert renews(stage, "w2")


def test_tokens_grow_though_the_clock_was_set_back(stage: Stage) -> None:
    before = stage.running()
    stage.now -= HOUR
    assert stage.running().token > before.token


@pytest.mark.parametrize("who", ["renew", "claim"])
def test_a_server_that_was_away_and_is_full_costs_nobody_a_lease(stage: Stage, who: str) -> None:
    for owner in ("w1", "w2"):
        stage.register(owner)
    before = stage.client.config_get("maxmemory")["maxmemory"]
    stage.client.config_set("maxmemory", 1)
    try:
        stage.now += 2 * LEASE
        assert renews(stage, "w2") if who == "renew" else stage.claim("w2").alive
        assert renews(stage, "w1")
    finally:
        stage.client.config_set("maxmemory", before)


@pytest.mark.parametrize("first", ["the long one renews", "the long one reclaims", "another short one renews"])
def test_a_long_lease_hides_no_outage_from_those_with_shorter_ones(stage: Stage, first: str) -> None:
    """It is renewed so seldom that it is in time before the outage and after it."""
    for owner in ("w1", "w2"):
        stage.register(owner)
    stage.register("long", lease=8 * LEASE)
    stage.now += round(1.7 * LEASE)
    match first:
        case "the long one renews":
            assert renews(stage, "long", 8 * LEASE)
        case "another short one renews":
            assert renews(stage, "w2")
        case _:
            pass
    assert reclaims(stage, "w1") == "alive"
    assert renews(stage, "w1")
    assert renews(stage, "w2")


def test_a_dead_one_among_longer_leases_is_spared_once(stage: Stage) -> None:
    stage.register("long", lease=8 * LEASE)
    stage.now += LEASE
    stage.register("w1")
    stage.now += LEASE + SECOND
    assert reclaims(stage, "w1") == "alive"
    stage.now += GRACE
    assert reclaims(stage, "w1") == "done"
